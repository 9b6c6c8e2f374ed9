"""What `--deterministic` costs: throughput with it and without it, in one process, by turns.

    python bench/deterministic.py --model FOLDER --threads 2 --cache-dir FOLDER

Every run gives so many requests of random prompts to an idle engine and times them to the last token. The two
engines take turns, so that a busy machine slows both alike; the best of each is compared.
"""

import argparse
import itertools
import random
from collections.abc import Sequence
from pathlib import Path

from _ridgeline_driver import requests, run
from ridgeline_contracts.clock import SystemClock
from ridgeline_contracts.ids import Incarnation
from ridgeline_contracts.model_folder import load_model_folder
from ridgeline_worker.core_factory import build_engine
from ridgeline_worker.core_loop import EngineLike
from ridgeline_worker.messages import CoreSpec
from ridgeline_worker.settings import REAL_CORE_FACTORY, EngineSettings

BATCHES = (1, 8, 32)
SHAPES = {"decode": (16, 64), "prompts": (512, 4)}
"""By name: tokens of each prompt, and of each output."""


def build(options: argparse.Namespace, *, deterministic: bool) -> EngineLike:
    settings = EngineSettings(
        model_folder=options.model,
        dtype=options.dtype,
        threads=options.threads,
        cache_folder=options.cache_dir,
        deterministic=deterministic,
    )
    folder = load_model_folder(options.model)
    return build_engine(
        CoreSpec(REAL_CORE_FACTORY, settings, Incarnation("bench"), "info", folder), SystemClock()
    )


def prompts(count: int, tokens: int, choices: random.Random) -> list[list[int]]:
    return [[choices.randrange(100, 40_000) for _ in range(tokens)] for _ in range(count)]


def best_tokens_per_s(
    engines: Sequence[EngineLike], *, batch: int, shape: tuple[int, int], repeats: int
) -> list[float]:
    """Prompt and output tokens a second of each engine, the best of `repeats` runs."""
    best, numbers = [0.0 for _ in engines], itertools.count()
    prompt_tokens, output_tokens = shape
    for repeat in range(repeats + 1):
        for index, engine in enumerate(engines):
            work = requests(
                prompts(batch, prompt_tokens, random.Random(repeat)),
                output_tokens,
                itertools.count(next(numbers) * batch),
            )
            seconds, given = run(engine, work)
            if repeat:  # the first run warms up
                best[index] = max(best[index], (given + batch * prompt_tokens) / seconds)
    return best


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cache-dir", type=Path, required=True)
    options = parser.parse_args()
    engines = [build(options, deterministic=deterministic) for deterministic in (False, True)]
    try:
        print(f"{options.dtype}, {options.threads} threads; tokens/s of prompt and output")
        print(f"{'':<10}{'batch':>6}{'normal':>10}{'deterministic':>15}{'ratio':>7}")
        for (name, shape), batch in itertools.product(SHAPES.items(), BATCHES):
            normal, invariant = best_tokens_per_s(engines, batch=batch, shape=shape, repeats=options.repeats)
            print(
                f"{name:<10}{batch:>6}{normal:>10.0f}{invariant:>15.0f}{invariant / normal:>7.2f}", flush=True
            )
    finally:
        for engine in engines:
            engine.close()


if __name__ == "__main__":
    main()
