"""What the linear layers alone allow: the tokens per second of an engine that did nothing else.

Every matrix of SmolLM2-135M once per step, in the fastest form that torch offers on this machine, at the rows that a
case has: its batch in decode, all its prompts in prefill. An engine with kernels of its own can be above it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import linear
import torch

REPEATS = 3
MOST_ROWS = 800
"""Timed at once; more prefill rows are so many times as much."""


@dataclass(frozen=True, slots=True)
class FloorStep:
    rows: int
    milliseconds: float
    form: str


def best_library_step(rows: int, contenders: Sequence[linear.Contender]) -> FloorStep:
    """The quickest contender at so many rows, best of a few repeats."""
    timed = min(rows, MOST_ROWS)
    able = [each for each in contenders if timed <= each.most_rows]
    found = []
    for each in able:
        inputs = {size: torch.randn(timed, size).to(each.activations) for _, size in linear.LAYER_SHAPES}
        each.step_ms(inputs)
        best_ms = min(each.step_ms(inputs) for _ in range(REPEATS))
        found.append(FloorStep(rows, best_ms * rows / timed, each.name))
    return min(found, key=lambda step: step.milliseconds)


def floors(
    batches: Sequence[int],
    *,
    prompt_tokens: int,
    output_tokens: int,
    threads: int,
    say: Callable[[str], None],
) -> dict[int, float]:
    """By batch: output tokens per second, prefill included, of the linear layers alone in bf16."""
    torch.set_num_threads(threads)
    contenders = linear.peers(linear.FULL, torch.bfloat16)
    found = {}
    for batch in batches:
        prefill = best_library_step(batch * prompt_tokens, contenders)
        decode = best_library_step(batch, contenders)
        # The prefill gives the first token.
        total_ms = prefill.milliseconds + decode.milliseconds * (output_tokens - 1)
        found[batch] = batch * output_tokens / total_ms * 1e3
        say(
            f"floor at batch {batch}: prefill {prefill.milliseconds:.0f} ms ({prefill.form}), "
            f"step {decode.milliseconds:.1f} ms ({decode.form}): {found[batch]:.1f} tokens/s"
        )
    return found
