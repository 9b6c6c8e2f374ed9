"""A price from the roofline: what a model's tokens weigh and cost on its reference GPU. Pure but for the catalogue."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ridgeline_contracts.errors import SettingsError
from ridgeline_roofline.catalogue.gpus import Gpu
from ridgeline_roofline.decisions.price import PriceFacts, price_per_token
from ridgeline_roofline.decisions.resource_weights import (
    MICRO,
    WeightFacts,
    prompt_token_ms,
    resource_weights,
)
from ridgeline_roofline.plan.inputs import Extra, PlanInputs, read_inputs
from ridgeline_roofline.plan.registry import topic_named
from ridgeline_roofline.serving import slowed
from ridgeline_roofline.step.timing import RooflineStepModel

_TOPIC = "price"


@dataclass(frozen=True, slots=True)
class DerivedPrice:
    """Resource tokens and USD a token, and the sentences with the numbers behind them."""

    weights: Mapping[str, float]
    usd_per_million: Mapping[str, float]
    derivation: str

    def body(self, model: str, version: str | None) -> dict[str, Any]:
        """What the admin API freezes."""
        named = {} if version is None else {"version": version}
        return {
            "model": model,
            **named,
            "weights": dict(self.weights),
            "usd_per_million": dict(self.usd_per_million),
            "derivation": self.derivation,
        }


def derive_price(
    given: Mapping[str, str], *, reference_model: str | None, find_gpu: Callable[[str], Gpu]
) -> DerivedPrice:
    """`given` are inputs of `ridgeline plan price` by name. Raises SettingsError as that does.

    One resource token is one prompt token of `reference_model` on the same GPU; None: of the model itself.
    """
    inputs = _inputs(given, find_gpu)
    reference_ms = None
    named = ""
    if reference_model is not None:
        reference = _inputs({**given, "model": reference_model, "tp": ""}, find_gpu)
        reference_ms = prompt_token_ms(_step_model(reference), _weight_facts(reference, None))
        named = f"; reference model {reference_model}"
    facts = PriceFacts(
        weights=_weight_facts(inputs, reference_ms),
        usd_per_s=inputs.layout.gpus * _gpu_hour_usd(inputs) / 3600,
        utilisation=inputs.extras["utilisation"],
        margin=inputs.extras["margin"],
    )
    model = _step_model(inputs)
    weights, price = resource_weights(model, facts.weights), price_per_token(model, facts)
    on = f"{inputs.model.model_id} on {inputs.layout.gpus} x {inputs.gpu.gpu_id}, batch {inputs.batch}{named}"
    return DerivedPrice(
        weights={
            "prompt": weights.value.prompt_micro / MICRO,
            "cached": weights.value.cached_micro / MICRO,
            "output": weights.value.output_micro / MICRO,
        },
        usd_per_million={
            "prompt": price.value.prompt_usd * 1e6,
            "cached": price.value.cached_usd * 1e6,
            "output": price.value.output_usd * 1e6,
        },
        derivation=f"{on}: {weights.derivation}. {price.derivation}",
    )


def typed_rates(text: str, *, param: str) -> dict[str, float]:
    """`PROMPT,CACHED,OUTPUT`. Raises SettingsError for other text."""
    try:
        prompt, cached, output = (float(part) for part in text.split(","))
    except ValueError as error:
        raise SettingsError(
            f"--{param} {text!r} is not PROMPT,CACHED,OUTPUT: give 1,0.1,4", param=param
        ) from error
    return {"prompt": prompt, "cached": cached, "output": output}


def _inputs(given: Mapping[str, str], find_gpu: Callable[[str], Gpu]) -> PlanInputs:
    topic = topic_named(_TOPIC)
    texts = {name: text for name, text in given.items() if text}
    extras: tuple[Extra, ...] = topic.extras
    return read_inputs(texts, defaults={"batch": "64"}, extras=extras, find_gpu=find_gpu)


def _step_model(inputs: PlanInputs) -> RooflineStepModel:
    return slowed(inputs.step_model(), inputs.extras["efficiency"])


def _weight_facts(inputs: PlanInputs, reference_ms: float | None) -> WeightFacts:
    return WeightFacts(inputs.batch, inputs.context_tokens, inputs.prompt_tokens, reference_ms)


def _gpu_hour_usd(inputs: PlanInputs) -> float:
    return inputs.extras["gpu_hour"] or inputs.gpu.usd_per_s.value * 3600
