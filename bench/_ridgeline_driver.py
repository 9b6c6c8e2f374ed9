"""Ridgeline's side of `engine_vs_vllm.py`: engine and executor in this process, driven step by step.

The same protocol as the vLLM side: `{"prompts": [[id, ...], ...], "output_tokens": n}` a line on stdin,
answered by `{"seconds": s, "output_tokens": n}` on stdout. Blocked on stdin between runs.
"""

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TextIO

from ridgeline_contracts.clock import SystemClock
from ridgeline_contracts.ids import Attempt, Incarnation, RequestId
from ridgeline_contracts.model_folder import load_model_folder
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_engine.request import PriorityClass, Request, RequestKey
from ridgeline_worker.core_factory import build_engine
from ridgeline_worker.core_loop import EngineLike
from ridgeline_worker.messages import CoreSpec
from ridgeline_worker.settings import REAL_CORE_FACTORY, EngineSettings


def take_stdout() -> TextIO:
    """The real stdout for answers; file descriptor 1 is pointed at stderr for everybody else."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return answers


def requests(prompts: Sequence[Sequence[int]], output_tokens: int, numbers: Iterator[int]) -> list[Request]:
    """Greedy requests of a fixed length. Their salts differ, so that none finds another's prefix.

    Of the batch class: throughput is measured, and no latency target shall hold the batch down.
    """
    sampling = SamplingParams(max_tokens=output_tokens, temperature=0.0, ignore_eos=True)
    made = []
    for prompt in prompts:
        request_id = f"bench-{next(numbers)}"
        key = RequestKey(RequestId(request_id), Attempt(0))
        made.append(
            Request(key, tuple(prompt), sampling, salt=request_id.encode(), priority=PriorityClass.BATCH)
        )
    return made


def run(engine: EngineLike, work: Sequence[Request]) -> tuple[float, int]:
    """Runs them together from the first submit to the last token: (seconds, tokens given)."""
    started = time.perf_counter()
    for request in work:
        engine.submit(request)
    tokens = 0
    while engine.has_work:
        for row in engine.step():
            tokens += len(row.tokens)
            if row.finish is not None and row.finish.error is not None:
                raise row.finish.error
    return time.perf_counter() - started, tokens


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--kv-bytes", type=int, default=1024**3)
    parser.add_argument("--cache-dir", type=Path, required=True)
    options = parser.parse_args()
    answers = take_stdout()
    folder = load_model_folder(options.model)
    settings = EngineSettings(
        model_folder=options.model,
        dtype=options.dtype,
        weights=options.weights,
        threads=options.threads,
        kv_bytes=options.kv_bytes,
        cache_folder=options.cache_dir,
    )
    spec = CoreSpec(REAL_CORE_FACTORY, settings, Incarnation("bench"), "info", folder)
    engine = build_engine(spec, SystemClock())
    try:
        print(json.dumps({"ready": True, "version": _version()}), file=answers)
        numbers = itertools.count()
        for line in sys.stdin:
            work = json.loads(line)
            seconds, tokens = run(engine, requests(work["prompts"], work["output_tokens"], numbers))
            print(json.dumps({"seconds": seconds, "output_tokens": tokens}), file=answers)
    finally:
        engine.close()


def _version() -> str:
    try:
        return version("ridgeline")
    except PackageNotFoundError:
        return "unpackaged"


if __name__ == "__main__":
    main()
