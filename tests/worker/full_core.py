"""Runs a core's engine with its batch and pool full, then logs the process's highest resident memory.

full_core.py MODEL CACHE DTYPE WEIGHTS BATCH PROMPT_TOKENS KV_BYTES
"""

import logging
import random
import re
import sys
from pathlib import Path

from ridgeline_contracts.clock import SystemClock
from ridgeline_contracts.ids import Attempt, Incarnation, RequestId
from ridgeline_contracts.model_folder import load_model_folder
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_engine.request import Request, RequestKey
from ridgeline_worker.core_factory import build_engine
from ridgeline_worker.messages import CoreSpec
from ridgeline_worker.settings import REAL_CORE_FACTORY, EngineSettings

_log = logging.getLogger(__name__)
# Each field of the sampler that takes memory.
SAMPLING = SamplingParams(
    max_tokens=4, temperature=0.8, top_p=0.9, logprobs=5, frequency_penalty=0.5, ignore_eos=True
)


def request(number: int, prompt_tokens: int) -> Request:
    choices, name = random.Random(number), f"full-{number}"
    prompt = tuple(choices.randrange(100, 40_000) for _ in range(prompt_tokens))
    return Request(RequestKey(RequestId(name), Attempt(0)), prompt, SAMPLING, salt=name.encode())


def peak_mb() -> float:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert found is not None
    return int(found[1]) * 1024 / 1e6


def main(model: str, cache: str, dtype: str, weights: str, *counts: str) -> None:
    batch, prompt_tokens, kv_bytes = map(int, counts)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    settings = EngineSettings(
        model_folder=Path(model),
        dtype=dtype,  # type: ignore[arg-type]
        weights=weights,  # type: ignore[arg-type]
        device="cpu",
        threads=2,
        kv_bytes=kv_bytes,
        max_batch=batch,
        cache_folder=Path(cache),
    )
    folder = load_model_folder(Path(model))
    spec = CoreSpec(REAL_CORE_FACTORY, settings, Incarnation("full"), "info", folder)
    engine = build_engine(spec, SystemClock())
    for number in range(batch):
        engine.submit(request(number, prompt_tokens))
    while engine.has_work:
        for row in engine.step():
            assert row.finish is None or row.finish.error is None, row.finish
    _log.info("counted %.1f MB", peak_mb())
    engine.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
