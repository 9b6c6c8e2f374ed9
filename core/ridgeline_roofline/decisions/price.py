"""Price of a token by phase: GPU time that it takes, at the share of time that is sold."""

from dataclasses import dataclass

from ridgeline_contracts.step import StepModel

from ridgeline_roofline.decisions.decision import Decision
from ridgeline_roofline.decisions.resource_weights import (
    MICRO,
    WeightFacts,
    prompt_token_ms,
    resource_weights,
)


@dataclass(frozen=True, slots=True)
class PriceFacts:
    weights: WeightFacts
    usd_per_s: float
    """Of all GPUs of one layout together."""
    utilisation: float
    """Share of the paid time that serves requests, in (0, 1]."""
    margin: float = 0.0
    """On top, as a share of the cost."""


@dataclass(frozen=True, slots=True)
class Price:
    """USD a token."""

    prompt_usd: float
    cached_usd: float
    output_usd: float


def price_per_token(model: StepModel, facts: PriceFacts) -> Decision[Price]:
    """Cost of the GPU time behind each kind of token, divided by utilisation, plus margin."""
    found = resource_weights(model, facts.weights).value
    prompt_ms = prompt_token_ms(model, facts.weights)
    unit_ms = facts.weights.reference_prompt_ms or prompt_ms
    one = unit_ms / 1e3 * facts.usd_per_s / facts.utilisation * (1 + facts.margin)
    value = Price(
        *(one * micro / MICRO for micro in (found.prompt_micro, found.cached_micro, found.output_micro))
    )
    return Decision(
        value,
        f"a resource token takes {unit_ms:.4f} ms x {facts.usd_per_s * 3600:.2f} USD/h / {facts.utilisation:.0%} sold "
        f"x {1 + facts.margin:.2f} = {one * 1e6:.4f} USD a million; "
        f"times the weights: prompt {value.prompt_usd * 1e6:.4f}, "
        f"cached {value.cached_usd * 1e6:.4f}, output {value.output_usd * 1e6:.4f}",
    )
