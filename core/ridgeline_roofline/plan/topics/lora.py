"""Many adapters on one base: what they hold, what a mixed batch costs, and the trap of the largest rank.

adapter bytes = rank x sum over adapted matrices of (in + out) x 2 bytes
a step reads each distinct adapter in the batch once; tenants chosen at random from N with skew give
N (1 - (1 - 1/N)^batch) of them at equal popularity, the most that a batch of that size can expect
a kernel that pads every adapter to the largest rank reads and multiplies with the largest rank for all
"""

from ridgeline_contracts.errors import SettingsError

from ridgeline_roofline.catalogue.mixers import Attention
from ridgeline_roofline.catalogue.model_spec import DenseMlp
from ridgeline_roofline.plan.answer import Answer, Curve, Plan, Total
from ridgeline_roofline.plan.bounds import COUNTED, POSITIVE, SHARE
from ridgeline_roofline.plan.inputs import Extra, PlanInputs
from ridgeline_roofline.plan.topic import Topic
from ridgeline_roofline.step.batch import decode_batch
from ridgeline_roofline.units import Unit, show

_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_ADAPTER_BYTES = 2


def adapted_width(inputs: PlanInputs) -> int:
    """Sum over all adapted matrices (attention's four and a dense MLP's three) of in + out."""
    width = 0
    for group in inputs.model.groups:
        hidden = inputs.model.hidden
        if isinstance(group.mixer, Attention):
            queries = group.mixer.heads * group.mixer.head_dim
            keys = group.mixer.kv_heads * group.mixer.head_dim
            width += group.count * (2 * (hidden + queries) + 2 * (hidden + keys))
        if isinstance(group.mlp, DenseMlp):
            width += group.count * group.mlp.matrices * (hidden + group.mlp.ffn)
    return width


def _answer(inputs: PlanInputs) -> Plan:
    extras, gpus = inputs.extras, inputs.layout.tp
    width = adapted_width(inputs)
    rank, largest, adapters = extras["rank"], extras["max_rank"], extras["adapters"]
    if largest < rank:
        raise SettingsError(
            f"max_rank={largest:.0f} is less than rank={rank:.0f}: give at least {rank:.0f}", param="max_rank"
        )
    one = rank * width * _ADAPTER_BYTES
    padded = largest * width * _ADAPTER_BYTES
    model, rate = inputs.step_model(), inputs.gpu.bandwidth_bytes_per_s

    def distinct(batch: float) -> float:
        return float(adapters * (1.0 - (1.0 - 1.0 / adapters) ** batch))

    def extra_s(batch: float, size: float) -> float:
        return distinct(batch) * size / gpus / rate

    base_s = model.step_s(decode_batch(inputs.batch, inputs.context_tokens))
    read_s = extra_s(inputs.batch, one)
    trap_s = extra_s(inputs.batch, padded) - read_s
    weights = inputs.model.parameters * inputs.formats.weights.bytes_per_element / gpus
    spare = max(0.0, (inputs.gpu.memory_bytes * 0.9 - weights) * extras["share"]) * gpus
    on_gpu = min(adapters, spare // one)
    in_host = min(adapters - on_gpu, extras["host"] // one)
    fetch_s = one / (gpus * inputs.gpu.host_link.value)
    answers = (
        Answer(
            "bytes of an adapter",
            one,
            Unit.BYTES,
            f"rank {rank:.0f} x {width:,} (in + out of all matrices) x 2",
        ),
        Answer(
            "distinct adapters in the batch",
            distinct(inputs.batch),
            Unit.COUNT,
            f"{adapters:.0f} (1 - (1 - 1/{adapters:.0f})^{inputs.batch})",
        ),
        Answer("base step", base_s, Unit.SECONDS, f"{inputs.batch} rows at {inputs.context_tokens} tokens"),
        Answer(
            "adapters read",
            read_s,
            Unit.SECONDS,
            f"{distinct(inputs.batch):.3g} x {show(one, Unit.BYTES)} / {gpus} GPUs / {show(rate, Unit.BYTES_PER_S)}",
        ),
        Answer(
            "padding to the largest rank",
            trap_s,
            Unit.SECONDS,
            f"as if all had rank {largest:.0f}: the price of one big adapter for everybody",
        ),
        Answer("step", base_s + read_s + trap_s, Unit.SECONDS, "sum of the three"),
        Answer(
            "slower than the base",
            (base_s + read_s + trap_s) / base_s - 1,
            Unit.RATIO,
            "step / base step - 1",
        ),
        Answer(
            "adapters on the GPUs", on_gpu, Unit.COUNT, f"{show(spare, Unit.BYTES)} set aside / bytes of one"
        ),
        Answer(
            "adapters in host memory",
            in_host,
            Unit.COUNT,
            f"{show(extras['host'], Unit.BYTES)} / bytes of one",
        ),
        Answer("adapters on disk or remote", adapters - on_gpu - in_host, Unit.COUNT, "the rest"),
        Answer(
            "fetch from the host",
            fetch_s,
            Unit.SECONDS,
            "before the first token of a request whose adapter is not there",
        ),
    )
    curve = Curve(
        "time for adapters over batch",
        "batch",
        "ms a step",
        _BATCHES,
        {
            "own rank": [1e3 * extra_s(n, one) for n in _BATCHES],
            "padded": [1e3 * extra_s(n, padded) for n in _BATCHES],
        },
        x_logarithmic=True,
    )
    return Plan(
        answers,
        breaks_when=(
            "tenants are not equally popular: fewer distinct adapters a batch; use the histogram of the adapter metric",
            "small kernels for each adapter are bound by launches, "
            "not bytes: compare step_ms with and without adapters",
        ),
        curve=curve,
        totals=(Total("step", ("base step", "adapters read", "padding to the largest rank")),),
    )


TOPIC = Topic(
    name="lora",
    question="How many adapters can share one base, where do they live, and what does a mixed batch cost?",
    source="Hu et al., LoRA, 2021; Chen et al., Punica, 2023; Sheng et al., S-LoRA, 2023",
    uses=("model", "gpu", "tp", "weights", "kv", "batch", "context"),
    answer=_answer,
    defaults={"model": "llama-3.1-8b", "tp": "1", "batch": "64", "context": "2k"},
    extras=(
        Extra("rank", Unit.COUNT, "16", "rank of a usual adapter", COUNTED),
        Extra("max_rank", Unit.COUNT, "64", "largest rank that the server accepts and pads to", COUNTED),
        Extra("adapters", Unit.COUNT, "1000", "adapters that requests choose from", POSITIVE),
        Extra("share", Unit.RATIO, "20%", "of the memory left beside the weights, for adapters", SHARE),
        Extra("host", Unit.BYTES, "64GB", "host memory for adapters"),
    ),
)
