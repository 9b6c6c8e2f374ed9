"""What a plan starts from: the shared flags and a topic's own extra inputs, read and checked once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ridgeline_contracts.errors import SettingsError

from ridgeline_roofline.catalogue.formats import Dtype, Formats, arithmetic_of, parse_dtype
from ridgeline_roofline.catalogue.gpus import Gpu, gpu_named
from ridgeline_roofline.catalogue.links import Link, link_named
from ridgeline_roofline.catalogue.model_spec import ModelSpec
from ridgeline_roofline.catalogue.models import MODEL_IDS, model_at, model_named
from ridgeline_roofline.plan.answer import Value
from ridgeline_roofline.plan.bounds import NOT_NEGATIVE, Bounds
from ridgeline_roofline.step.layout import Layout, check_layout
from ridgeline_roofline.step.timing import FLOOR, Efficiency, Fabric, RooflineStepModel, fabric_of
from ridgeline_roofline.units import Unit, parse_count, parse_quantity

_WEIGHTS_SHARE = 0.85
"""Of a GPU's memory, at most, when a layout is chosen for the user: the rest is for KV and working memory."""


@dataclass(frozen=True, slots=True)
class Flag:
    """A shared flag: how its text is read, and its default unless the topic has its own."""

    name: str
    unit: Unit
    help: str
    default: str = ""


FLAGS: tuple[Flag, ...] = (
    Flag("model", Unit.TEXT, "id of the catalogue, or a folder with a config.json", "llama-3.3-70b"),
    Flag("gpu", Unit.TEXT, "id of the catalogue; give it twice to compare", "h100-sxm"),
    Flag("gpus", Unit.COUNT, "GPUs of the whole fleet; default: those of one layout"),
    Flag("tp", Unit.COUNT, "ranks that share every matrix; default: as few as hold the weights"),
    Flag("pp", Unit.COUNT, "pipeline stages", "1"),
    Flag("ep", Unit.COUNT, "ranks that experts are divided over", "1"),
    Flag("dp", Unit.COUNT, "replicas of attention", "1"),
    Flag("weights", Unit.TEXT, f"format of the weights: {' '.join(Dtype)}; default: as published"),
    Flag("kv", Unit.TEXT, "format of the KV cache", "bf16"),
    Flag("batch", Unit.SEQUENCES, "sequences that decode together", "32"),
    Flag("context", Unit.TOKENS, "resident tokens of a sequence; default: prompt + output / 2"),
    Flag("prompt", Unit.TOKENS, "prompt tokens of a request", "4000"),
    Flag("output", Unit.TOKENS, "output tokens of a request", "500"),
    Flag("ttft", Unit.SECONDS, "target for the time to the first token", "1s"),
    Flag("tpot", Unit.SECONDS, "target for the time per output token", "30ms"),
    Flag("rate", Unit.REQUESTS_PER_S, "requests that arrive", "10/s"),
    Flag("link", Unit.TEXT, "link beyond the fast domain: an id or a rate such as 400Gb/s", "ib-ndr"),
)
FLAG_NAMES = tuple(flag.name for flag in FLAGS)
_DEFAULTS = {flag.name: flag.default for flag in FLAGS}


@dataclass(frozen=True, slots=True)
class Extra:
    """An input that one topic alone has, given as `--set name=value`."""

    name: str
    unit: Unit
    default: str
    help: str
    within: Bounds = NOT_NEGATIVE


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """Everything resolved, in SI base units."""

    model: ModelSpec
    gpus: tuple[Gpu, ...]
    """At least one; two where two are compared."""
    fleet_gpus: int
    layout: Layout
    formats: Formats
    batch: int
    context_tokens: int
    prompt_tokens: int
    output_tokens: int
    ttft_s: float
    tpot_s: float
    rate_per_s: float
    link: Link
    efficiency: Efficiency = FLOOR
    extras: Mapping[str, float] = field(default_factory=dict)

    @property
    def gpu(self) -> Gpu:
        return self.gpus[0]

    @property
    def fabric(self) -> Fabric:
        return fabric_of(self.gpu, self.link)

    def step_model(self, *, gpu: Gpu | None = None, layout: Layout | None = None) -> RooflineStepModel:
        """The step model of these inputs, or with another GPU or layout."""
        chosen = gpu or self.gpu
        return RooflineStepModel(
            self.model,
            chosen,
            layout or self.layout,
            self.formats,
            fabric_of(chosen, self.link),
            self.efficiency,
        )

    def shown(self, uses: Sequence[str]) -> dict[str, Value]:
        """The inputs that a topic uses, by flag name, for `--json` and the head of the printed plan."""
        every: dict[str, Value] = {
            "model": self.model.model_id,
            "gpu": ",".join(gpu.gpu_id for gpu in self.gpus),
            "gpus": self.fleet_gpus,
            "tp": self.layout.tp,
            "pp": self.layout.pp,
            "ep": self.layout.ep,
            "dp": self.layout.dp,
            "weights": self.formats.weights.value,
            "kv": self.formats.kv.value,
            "batch": self.batch,
            "context": self.context_tokens,
            "prompt": self.prompt_tokens,
            "output": self.output_tokens,
            "ttft": self.ttft_s,
            "tpot": self.tpot_s,
            "rate": self.rate_per_s,
            "link": self.link.link_id,
        }
        return {name: every[name] for name in uses} | dict(self.extras)


def read_inputs(
    given: Mapping[str, str | Sequence[str]],
    *,
    defaults: Mapping[str, str],
    extras: Sequence[Extra] = (),
    find_gpu: Callable[[str], Gpu] = gpu_named,
    efficiency: Efficiency = FLOOR,
) -> PlanInputs:
    """Texts by flag name (`gpu` may be a list) to inputs. `find_gpu` may know more than the catalogue: `this`.

    Raises SettingsError naming the flag, the value and what would work; Unsupported for an unknown architecture.
    """
    known = set(FLAG_NAMES) | {extra.name for extra in extras}
    for name in given:
        if name not in known:
            raise SettingsError(f"{name} is no input here: known are {' '.join(sorted(known))}", param=name)
    text = _Texts(given, {**_DEFAULTS, **defaults})
    model = _model(text.one("model"))
    gpus = tuple(find_gpu(gpu_id) for gpu_id in text.many("gpu"))
    weights = parse_dtype(text.one("weights") or model.native_weights.value, name="weights")
    formats = Formats(weights, parse_dtype(text.one("kv"), name="kv"), arithmetic_of(weights))
    others = {name: text.count(name) for name in ("pp", "ep", "dp")}
    tp = text.count("tp") if text.one("tp") else fewest_ranks(model, gpus[0], formats, pp=others["pp"])
    layout = Layout(tp=tp, **others)
    check_layout(model, layout)
    prompt, output = text.tokens("prompt"), text.tokens("output")
    fleet = text.count("gpus") if text.one("gpus") else layout.gpus
    if fleet < layout.gpus:
        raise SettingsError(
            f"gpus={fleet} are fewer than the {layout.gpus} of one layout ({layout}): "
            f"give gpus={layout.gpus} or a smaller layout",
            param="gpus",
        )
    return PlanInputs(
        model=model,
        gpus=gpus,
        fleet_gpus=fleet,
        layout=layout,
        formats=formats,
        batch=parse_count(text.one("batch"), Unit.SEQUENCES, name="batch"),
        context_tokens=text.tokens("context") if text.one("context") else prompt + output // 2,
        prompt_tokens=prompt,
        output_tokens=output,
        ttft_s=text.positive("ttft", Unit.SECONDS),
        tpot_s=text.positive("tpot", Unit.SECONDS),
        rate_per_s=text.positive("rate", Unit.REQUESTS_PER_S),
        link=link_named(text.one("link")),
        efficiency=efficiency,
        extras={extra.name: _extra(extra, text.one(extra.name) or extra.default) for extra in extras},
    )


def fewest_ranks(model: ModelSpec, gpu: Gpu, formats: Formats, *, pp: int = 1) -> int:
    """The smallest TP (a power of two that divides the heads) whose share of the weights fits a GPU."""
    heads = [mixer.heads for _, mixer in model.mixers()]
    tp = 1
    while (
        model.parameters * formats.weights.bytes_per_element / (tp * pp) > gpu.memory_bytes * _WEIGHTS_SHARE
    ):
        if any(count % (2 * tp) for count in heads):
            break
        tp *= 2
    return tp


@dataclass(frozen=True, slots=True)
class _Texts:
    given: Mapping[str, str | Sequence[str]]
    defaults: Mapping[str, str]

    def one(self, name: str) -> str:
        value = self.given.get(name)
        if value is None:
            return self.defaults.get(name, "")
        return value if isinstance(value, str) else value[-1]

    def many(self, name: str) -> Sequence[str]:
        value = self.given.get(name)
        if value is None:
            return self.defaults[name].split(",")
        return value.split(",") if isinstance(value, str) else value

    def count(self, name: str) -> int:
        return parse_count(self.one(name), Unit.COUNT, name=name)

    def tokens(self, name: str) -> int:
        return parse_count(self.one(name), Unit.TOKENS, name=name)

    def positive(self, name: str, unit: Unit) -> float:
        value = parse_quantity(self.one(name), unit, name=name)
        if value <= 0:
            raise SettingsError(f"{name}={self.one(name)!r}: give more than 0", param=name)
        return value


def _extra(extra: Extra, text: str) -> float:
    value = parse_quantity(text, extra.unit, name=extra.name)
    return extra.within.check(value, name=extra.name, text=text)


def _model(text: str) -> ModelSpec:
    if text in MODEL_IDS or not ("/" in text or Path(text).exists()):
        return model_named(text)
    return model_at(Path(text))
