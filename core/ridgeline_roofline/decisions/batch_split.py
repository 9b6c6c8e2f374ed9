"""Two half batches beside one: each half's messages hide behind the other's work, and weights are read twice.

one batch     work + messages
two halves    2 x max(half's work, half's messages) + the first layer's part that nothing hides
"""

from dataclasses import dataclass

from ridgeline_roofline.decisions.decision import Decision


@dataclass(frozen=True, slots=True)
class SplitFacts:
    """Of a step of all rows, and of one of half of them."""

    whole_s: float
    half_work_s: float
    half_messages_s: float
    layers: int


def halves_s(facts: SplitFacts) -> float:
    """A step as two overlapped halves."""
    work, messages = facts.half_work_s, facts.half_messages_s
    return 2 * max(work, messages) + min(work, messages) / max(1, facts.layers)


def batch_split(facts: SplitFacts) -> Decision[bool]:
    """Whether to split the batch in two."""
    halves = halves_s(facts)
    split = halves < facts.whole_s
    return Decision(
        split,
        f"{'split' if split else 'do not split'}: two halves take {halves * 1e3:.3f} ms "
        f"(2 x max({facts.half_work_s * 1e3:.3f} work, {facts.half_messages_s * 1e3:.3f} messages) and one layer's "
        f"rest), one batch {facts.whole_s * 1e3:.3f} ms: {facts.whole_s / halves:.3f} times the speed",
    )
