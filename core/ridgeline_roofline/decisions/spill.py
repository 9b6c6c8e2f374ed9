"""When a request should leave the worker that has its prefix: the prefill that a hit saves, in milliseconds."""

from dataclasses import dataclass

from ridgeline_contracts.step import StepModel, StepShape

from ridgeline_roofline.decisions.decision import Decision


@dataclass(frozen=True, slots=True)
class SpillFacts:
    """Of one request, for two workers: the one with the longest cached prefix, and another."""

    prompt_tokens: int
    cached_tokens: int
    """On the first."""
    other_cached_tokens: int
    queue_ms: float
    """Predicted wait on the first until this request's prefill starts."""
    other_queue_ms: float


def prefill_ms(model: StepModel, *, prompt_tokens: int, cached_tokens: int) -> float:
    """What is left to compute; the last token always is."""
    rest = max(1, prompt_tokens - cached_tokens)
    context = prompt_tokens - rest
    return model.predict_ms(
        StepShape(prefill_tokens=rest, prefill_context_tokens=rest * context + rest * rest // 2)
    )


def spill_saving_ms(model: StepModel, facts: SpillFacts) -> Decision[float]:
    """Milliseconds by which the other worker finishes the prefill earlier: spill where it is above 0.

    The threshold on the difference of the queues is the prefill that the longer hit saves.
    """
    here = prefill_ms(model, prompt_tokens=facts.prompt_tokens, cached_tokens=facts.cached_tokens)
    there = prefill_ms(model, prompt_tokens=facts.prompt_tokens, cached_tokens=facts.other_cached_tokens)
    threshold, waited = there - here, facts.queue_ms - facts.other_queue_ms
    saving = waited - threshold
    verdict = "spill" if saving > 0 else "stay"
    return Decision(
        saving,
        f"{verdict}: the queues differ by {waited:.2f} ms, a hit of {facts.cached_tokens} against "
        f"{facts.other_cached_tokens} of {facts.prompt_tokens} "
        f"tokens saves {there:.2f} - {here:.2f} = {threshold:.2f} ms",
    )
