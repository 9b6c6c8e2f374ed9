"""How many tokens to draft: the length with the most accepted tokens a millisecond, and none where it slows.

a chain of k drafts, each accepted with chance a:  E(tokens a step) = (1 - a^(k+1)) / (1 - a)
(Leviathan, Kalman, Matias, 2023, eq. 1: the bonus token is counted)
cost of a step = verify k + 1 rows a sequence + k draft steps
"""

from dataclasses import dataclass

from ridgeline_contracts.step import StepModel, StepShape

from ridgeline_roofline.decisions.decision import Decision


@dataclass(frozen=True, slots=True)
class DraftFacts:
    rows: int
    context_tokens: int
    """Resident context, summed over rows."""
    acceptance: float
    """Chance that the next draft token is accepted, given that all before it were: [0, 1)."""
    draft_ms: float
    """Of one draft token for all rows: a step of the draft model, or 0 for a look-up."""
    longest: int = 8


def expected_tokens(acceptance: float, drafts: int) -> float:
    """Tokens that a sequence gains in a step with `drafts` drafts."""
    if acceptance >= 1:
        return drafts + 1.0
    return (1 - acceptance ** (drafts + 1)) / (1 - acceptance)


def verify_ms(model: StepModel, facts: DraftFacts, drafts: int) -> float:
    """A verifying step: every row runs its token and its drafts, and reads its KV once.

    Drafts are priced as prompt tokens (rows of the matrices) with the context that each attends to.
    """
    extra = facts.rows * drafts
    mean = facts.context_tokens // max(1, facts.rows)
    return model.predict_ms(
        StepShape(
            decode_rows=facts.rows,
            context_tokens=facts.context_tokens,
            prefill_tokens=extra,
            prefill_context_tokens=extra * mean,
        )
    )


def draft_length(model: StepModel, facts: DraftFacts) -> Decision[int]:
    """0 to `longest`: the number of drafts with the most tokens a millisecond; 0 unless one beats plain decode."""

    def rate(drafts: int) -> float:
        return expected_tokens(facts.acceptance, drafts) / (
            verify_ms(model, facts, drafts) + drafts * facts.draft_ms
        )

    best = max(range(facts.longest + 1), key=rate)
    gain = rate(best) / rate(0)
    return Decision(
        best,
        f"{best} drafts: {expected_tokens(facts.acceptance, best):.2f} tokens expected at acceptance "
        f"{facts.acceptance:.2f} in {verify_ms(model, facts, best):.2f} "
        f"+ {best} x {facts.draft_ms:.2f} ms, against 1 in "
        f"{verify_ms(model, facts, 0):.2f} ms: {gain:.2f} times plain decode at {facts.rows} rows",
    )
