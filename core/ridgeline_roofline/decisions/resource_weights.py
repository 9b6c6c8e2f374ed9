"""Resource tokens: what prompt, cached prompt and output tokens weigh against one another.

One resource token is one uncached prompt token of the reference model on the reference GPU, at a stated batch
and context. Weights are shares of a step's time:

    prompt   milliseconds of a prompt token in a prefill
    cached   milliseconds of reading its KV once, when the rest of the prompt attends to it
    output   milliseconds of a row in a decode step: its share of the weights' reads, its KV, its arithmetic
"""

from dataclasses import dataclass

from ridgeline_contracts.step import StepModel, StepShape

from ridgeline_roofline.decisions.decision import Decision

MICRO = 1_000_000
"""Weights are kept as whole micro-tokens: sums stay exact."""


@dataclass(frozen=True, slots=True)
class WeightFacts:
    """Where a price is taken. `reference_prompt_ms`: of the reference model; None: this model is it."""

    batch: int
    context_tokens: int
    prompt_tokens: int
    reference_prompt_ms: float | None = None


@dataclass(frozen=True, slots=True)
class ResourceWeights:
    """Micro-tokens a token."""

    prompt_micro: int
    cached_micro: int
    output_micro: int


def prompt_token_ms(model: StepModel, facts: WeightFacts) -> float:
    """Milliseconds of one prompt token, in a prompt alone on the device."""
    tokens = facts.prompt_tokens
    return (
        model.predict_ms(StepShape(prefill_tokens=tokens, prefill_context_tokens=tokens * tokens // 2))
        / tokens
    )


def resource_weights(model: StepModel, facts: WeightFacts) -> Decision[ResourceWeights]:
    """Weights that add up to what requests cost. A cached token weighs at least one micro-token, and never more
    than a computed one."""
    prompt_ms = prompt_token_ms(model, facts)
    unit_ms = facts.reference_prompt_ms or prompt_ms
    tokens = facts.prompt_tokens
    half = tokens // 2
    cold = StepShape(prefill_tokens=tokens, prefill_context_tokens=tokens * tokens // 2)
    rest = tokens - half
    warm = StepShape(prefill_tokens=rest, prefill_context_tokens=rest * half + rest * rest // 2)
    alone = StepShape(prefill_tokens=rest, prefill_context_tokens=rest * rest // 2)
    # Half of the prompt in the cache: what it still adds to computing the other half.
    cached_ms = max(0.0, model.predict_ms(warm) - model.predict_ms(alone)) / max(1, half)
    row = StepShape(decode_rows=facts.batch, context_tokens=facts.batch * facts.context_tokens)
    output_ms = model.predict_ms(row) / facts.batch
    value = ResourceWeights(
        prompt_micro=max(1, round(MICRO * prompt_ms / unit_ms)),
        cached_micro=max(1, round(MICRO * min(cached_ms, prompt_ms) / unit_ms)),
        output_micro=max(1, round(MICRO * output_ms / unit_ms)),
    )
    return Decision(
        value,
        f"one resource token = {unit_ms:.4f} ms; a prompt token takes {prompt_ms:.4f} ms of a {tokens}-token prompt "
        f"({model.predict_ms(cold):.2f} ms), a cached one {cached_ms:.4f} ms, an output token {output_ms:.4f} ms of a "
        f"step of {facts.batch} rows at {facts.context_tokens} tokens ({model.predict_ms(row):.2f} ms): weights "
        f"{value.prompt_micro / MICRO:.3f}, {value.cached_micro / MICRO:.3f}, {value.output_micro / MICRO:.3f}",
    )
