"""MLA in two forms: absorbed (attend in the latent) and expanded (rebuild keys and values a head first).

absorbed   2 x heads x (2 latent + rope) FLOPs a pair, (latent + rope) values read a cached token
expanded   2 x heads x (nope + rope + value) FLOPs a pair, and 2 x latent x heads x (nope + value) to rebuild
           a cached token once for all queries of the step
expanded pays from a number of query tokens on: rebuild / (difference a pair)
"""

from ridgeline_contracts.errors import SettingsError

from ridgeline_roofline.catalogue.formats import Dtype
from ridgeline_roofline.catalogue.gpus import GPU_IDS, gpu_named
from ridgeline_roofline.catalogue.mixers import LatentAttention
from ridgeline_roofline.plan.answer import Answer, Plan, Table, Total, Value
from ridgeline_roofline.plan.bounds import COUNTED
from ridgeline_roofline.plan.inputs import Extra, PlanInputs
from ridgeline_roofline.plan.topic import Topic
from ridgeline_roofline.units import Unit


def _answer(inputs: PlanInputs) -> Plan:
    mixer = inputs.model.attention
    if not isinstance(mixer, LatentAttention):
        raise SettingsError(f"model={inputs.model.model_id} has no MLA: give deepseek-v3", param="model")
    element, queries = inputs.formats.kv.bytes_per_element, inputs.extras["query_tokens"]
    cached = mixer.kv_elements_per_token * element
    whole = mixer.heads * (mixer.nope_dim + mixer.rope_dim + mixer.value_dim) * element
    absorbed, pair = mixer.pair_flops * queries, mixer.expanded_pair_flops * queries
    rebuild = float(mixer.expand_flops_per_token)
    from_queries = rebuild / (mixer.pair_flops - mixer.expanded_pair_flops)
    # The rebuilt keys and values are written and read again, unless a kernel keeps them on chip.
    moved = cached + 2 * whole
    better = "absorbed" if absorbed <= pair + rebuild else "expanded"
    answers = (
        Answer(
            "bytes a cached token",
            cached,
            Unit.BYTES,
            f"({mixer.latent_dim} + {mixer.rope_dim}) values, one layer",
        ),
        Answer(
            "bytes if kept a head",
            whole,
            Unit.BYTES,
            f"{mixer.heads} heads of keys and values: what MLA saves",
        ),
        Answer("saved", whole / cached, Unit.RATIO, "kept a head / latent"),
        Answer(
            "absorbed, a cached token",
            absorbed,
            Unit.FLOP,
            f"{queries:g} x 2 x {mixer.heads} x (2 x {mixer.latent_dim} + {mixer.rope_dim})",
        ),
        Answer(
            "rebuild a cached token",
            rebuild,
            Unit.FLOP,
            f"2 x {mixer.latent_dim} x {mixer.heads} x ({mixer.nope_dim} + {mixer.value_dim})",
        ),
        Answer(
            "attend a cached token",
            pair,
            Unit.FLOP,
            f"{queries:g} x 2 x {mixer.heads} x ({mixer.nope_dim} + {mixer.rope_dim} + {mixer.value_dim})",
        ),
        Answer("expanded, a cached token", rebuild + pair, Unit.FLOP, "rebuild + attend"),
        Answer("absorbed intensity", absorbed / cached, Unit.FLOP_PER_BYTE, "FLOPs / bytes of the latent"),
        Answer(
            "expanded intensity",
            (rebuild + pair) / moved,
            Unit.FLOP_PER_BYTE,
            "FLOPs / (latent read, heads written and read)",
        ),
        Answer(
            "expanded pays from",
            from_queries,
            Unit.TOKENS,
            "query tokens of one sequence: rebuild / difference a pair",
        ),
        Answer("better here", better, Unit.TEXT, f"fewer FLOPs for {queries:g} query tokens"),
    )
    rows: list[tuple[Value, ...]] = []
    for gpu_id in GPU_IDS:
        gpu = gpu_named(gpu_id)
        ridge = gpu.ridge_flop_per_byte(Dtype.BF16)
        for form, flops, size in (("absorbed", absorbed, cached), ("expanded", rebuild + pair, moved)):
            seconds = max(flops / gpu.flops_per_s(Dtype.BF16), size / gpu.bandwidth_bytes_per_s)
            rows.append((gpu_id, form, "compute" if flops / size >= ridge else "memory", seconds * 1e12))
    table = Table(
        f"{queries:g} query tokens, BF16",
        ("gpu", "form", "bound by", "ps a cached token and layer"),
        (Unit.TEXT, Unit.TEXT, Unit.TEXT, Unit.COUNT),
        tuple(rows),
    )
    return Plan(
        answers,
        breaks_when=(
            "a kernel keeps rebuilt heads on chip: expanded then moves the latent only; compare DRAM counters",
            "ranks split the heads: FLOPs a GPU fall with TP and the bytes do not; see `ridgeline plan layout`",
        ),
        tables=(table,),
        totals=(Total("expanded, a cached token", ("rebuild a cached token", "attend a cached token")),),
    )


TOPIC = Topic(
    name="mla",
    question="Should latent attention run absorbed or expanded, and what limits each?",
    source="DeepSeek-V2, 2024, section 2.1.2 and appendix C",
    uses=("model", "kv"),
    answer=_answer,
    defaults={"model": "deepseek-v3", "tp": "8", "gpu": "h200"},
    extras=(
        Extra(
            "query_tokens",
            Unit.TOKENS,
            "1",
            "query tokens of one sequence in the step: 1 in decode, a chunk in prefill",
            COUNTED,
        ),
    ),
)
