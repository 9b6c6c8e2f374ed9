"""What a token costs, by kind: the currency in which tenants' shares are counted."""

from dataclasses import dataclass

from ridgeline_contracts.step import StepModel

from ridgeline_roofline.decisions.decision import Decision
from ridgeline_roofline.decisions.prefill_cost import decode_ms, prefill_ms


@dataclass(frozen=True, slots=True)
class TokenCosts:
    """Milliseconds of the machine."""

    prompt_token_ms: float
    prompt_context_ms: float
    """Of one prompt token over one token before it."""
    output_token_ms: float
    output_context_ms: float
    """Of one output token over one token before it."""

    def prefill_ms(self, tokens: int, start: int) -> float:
        """A chunk of `tokens` behind `start` others."""
        return tokens * self.prompt_token_ms + (tokens * start + tokens * tokens / 2) * self.prompt_context_ms

    def decode_ms(self, context_tokens: int) -> float:
        """One output token over `context_tokens`."""
        return self.output_token_ms + context_tokens * self.output_context_ms


@dataclass(frozen=True, slots=True)
class FairShareFacts:
    batch_rows: int
    """Rows that share a step's fixed cost: the batch cap."""
    reference_tokens: int
    """Context at which the derivation states the costs."""
    output_weight: float | None = None
    """Set: an output token at the reference context counts as this many prompt tokens there."""


def token_costs(model: StepModel, facts: FairShareFacts) -> Decision[TokenCosts]:
    """Prompt and output tokens in milliseconds, from the step model at two depths of context.

    A prompt token costs its arithmetic and its look back. An output token costs its row, its look back, and its
    share of what a step costs whatever runs in it (the weights are read once for all rows): base / batch.
    """
    rows, reference = max(1, facts.batch_rows), max(2, facts.reference_tokens)
    base_ms = decode_ms(model, 0, 0)
    shallow, deep = decode_ms(model, 1, 0) - base_ms, decode_ms(model, 1, reference) - base_ms
    first, again = prefill_ms(model, reference), prefill_ms(model, reference, start=reference)
    prompt_context_ms = max(0.0, (again - first) / (reference * reference))
    costs = TokenCosts(
        prompt_token_ms=max(0.0, first / reference - prompt_context_ms * reference / 2),
        prompt_context_ms=prompt_context_ms,
        output_token_ms=shallow + base_ms / rows,
        output_context_ms=max(0.0, (deep - shallow) / reference),
    )
    prompt_ms = costs.prefill_ms(1, reference)
    output_ms = costs.decode_ms(reference)
    derived = output_ms / prompt_ms if prompt_ms > 0 else 1.0
    numbers = (
        f"at {reference} tokens a prompt token costs {prompt_ms:.4f} ms, an output token {output_ms:.4f} ms "
        f"with 1/{rows} of a step's {base_ms:.2f} ms"
    )
    if facts.output_weight is None:
        return Decision(costs, f"output weight = {derived:.2f} prompt tokens: {numbers}")
    scale = facts.output_weight / derived if derived > 0 else 1.0
    costs = TokenCosts(
        costs.prompt_token_ms,
        costs.prompt_context_ms,
        costs.output_token_ms * scale,
        costs.output_context_ms * scale,
    )
    return Decision(
        costs,
        f"output weight = {facts.output_weight:.2f} prompt tokens, as set; derived {derived:.2f}: {numbers}",
    )
