"""What to change about a start that does not fit into memory. Pure."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from ridgeline_worker.settings import WEIGHTS, EngineSettings

Fits = Callable[[EngineSettings], bool]
_LEAST_CONTEXT_TOKENS = 128
"""Nobody is served by less."""


def changes_that_fit(settings: EngineSettings, fits: Fits) -> list[str]:
    """Each change that is enough by itself, as a flag: the largest batch, the longest context, the widest weights.

    `settings` name batch and context. Empty where no single change is enough. `fits` must not become false as a
    number falls.
    """
    return list(_changes(settings, fits))


def _changes(settings: EngineSettings, fits: Fits) -> Iterator[str]:
    batch, context = settings.max_batch or 1, settings.max_context_tokens or 1
    most = _largest(batch, lambda count: fits(replace(settings, max_batch=count)), least=1)
    if most is not None:
        yield f"--max-batch {most}"
    longest = _largest(
        context,
        lambda tokens: fits(replace(settings, max_context_tokens=tokens)),
        least=_LEAST_CONTEXT_TOKENS,
    )
    if longest is not None:
        yield f"--max-context {longest}"
    for weights in WEIGHTS[WEIGHTS.index(settings.weights) + 1 :]:
        if fits(replace(settings, weights=weights)):
            yield f"--weights {weights}"
            return


def _largest(limit: int, fits: Callable[[int], bool], *, least: int) -> int | None:
    """The largest count below `limit` that fits; None if not even the least does."""
    if least >= limit or not fits(least):
        return None
    low, high = least, limit
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low
