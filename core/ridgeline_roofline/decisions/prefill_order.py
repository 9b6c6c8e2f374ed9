"""In which order prompts of known length are computed: the shortest first, with ageing."""

from dataclasses import dataclass

from ridgeline_contracts.step import StepModel

from ridgeline_roofline.decisions.decision import Decision
from ridgeline_roofline.decisions.prefill_cost import prefill_ms


@dataclass(frozen=True, slots=True)
class PrefillOrderFacts:
    longest_prompt_tokens: int
    """The context of the model, or what the pool holds of one sequence."""
    ttft_target_ms: float | None


def overtaking_ratio(model: StepModel, facts: PrefillOrderFacts) -> Decision[float]:
    """For how many times its own prefill's milliseconds a waiting prompt may be overtaken by later arrivals.

    Prompts run in the order of `arrival_ms + ratio x prefill_ms`. A prompt of length C is overtaken only by
    what arrives within ratio x C after it (theirs plus their own length must be less), so short ones pass a
    long one only for a time in proportion to the long one's length. 0 is first come, first served.

    With a TTFT target the ratio is such that the longest prompt may still be on time: target = ratio x C + C.
    Without one, or where it cannot be on time anyway, it is 1: a prompt loses at most its own length again.
    """
    longest_ms = prefill_ms(model, facts.longest_prompt_tokens)
    cost = f"{facts.longest_prompt_tokens} tokens take {longest_ms:.0f} ms"
    if facts.ttft_target_ms is None:
        return Decision(1.0, f"overtaking = 1.00 x a prompt's own prefill: no TTFT target is set; {cost}")
    if longest_ms <= 0 or facts.ttft_target_ms <= longest_ms:
        return Decision(
            1.0,
            f"overtaking = 1.00 x a prompt's own prefill: the longest, {cost}, and misses the TTFT target "
            f"{facts.ttft_target_ms:.0f} ms even alone",
        )
    value = (facts.ttft_target_ms - longest_ms) / longest_ms
    return Decision(
        value,
        f"overtaking = {value:.2f} x a prompt's own prefill: the longest, {cost}, then still starts in time for "
        f"the TTFT target {facts.ttft_target_ms:.0f} ms",
    )
