"""How many prefill replicas for how many decode replicas."""

from dataclasses import dataclass
from math import ceil

from ridgeline_roofline.decisions.decision import Decision


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """Rates are of one replica of each pool, alone."""

    requests_per_s: float
    prompt_tokens: float
    """To be computed: without what is cached."""
    output_tokens: float
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    utilisation: float = 0.7


@dataclass(frozen=True, slots=True)
class Pools:
    prefill: int
    decode: int

    @property
    def ratio(self) -> float:
        return self.prefill / self.decode


def pool_sizes(facts: PoolFacts) -> Decision[Pools]:
    """Each pool large enough for its own tokens at the stated utilisation; at least one replica each."""
    prefill = facts.requests_per_s * facts.prompt_tokens / facts.prefill_tokens_per_s / facts.utilisation
    decode = facts.requests_per_s * facts.output_tokens / facts.decode_tokens_per_s / facts.utilisation
    value = Pools(max(1, ceil(prefill)), max(1, ceil(decode)))
    return Decision(
        value,
        f"{facts.requests_per_s:.3g}/s x {facts.prompt_tokens:.0f} prompt tokens / {facts.prefill_tokens_per_s:.0f} "
        f"tokens/s / {facts.utilisation:.0%} = {prefill:.2f} prefill "
        f"replicas; x {facts.output_tokens:.0f} output tokens "
        f"/ {facts.decode_tokens_per_s:.0f} = {decode:.2f} decode replicas: {value.prefill}:{value.decode}",
    )
