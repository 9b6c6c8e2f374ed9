"""How long until a fleet has its weights: three bounds, and what a pipelined broadcast between peers changes.

direct     max(replicas x bytes / store rate, bytes / NICs of a replica, bytes / host links of a replica)
broadcast  the store sends once; a chunk travels from peer to peer, so that the last replica has everything
           max(bytes / store rate, bytes / NICs, bytes / host links) + (replicas - 1) x chunk time later
"""

from ridgeline_roofline.plan.answer import Answer, Curve, Plan, Table
from ridgeline_roofline.plan.bounds import COUNTED, POSITIVE
from ridgeline_roofline.plan.inputs import Extra, PlanInputs
from ridgeline_roofline.plan.topic import Topic
from ridgeline_roofline.units import Unit, show

_FLEETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def _answer(inputs: PlanInputs) -> Plan:
    extras, gpus = inputs.extras, inputs.layout.gpus
    own = inputs.model.parameters * inputs.formats.weights.bytes_per_element
    size = extras["size"] or own
    replicas = int(extras["replicas"])
    nic_rate, host_rate = gpus * inputs.link.bytes_per_s, gpus * inputs.gpu.host_link.value
    nic_s, host_s = size / nic_rate, size / host_rate
    chunk_s = extras["chunk"] / nic_rate + inputs.link.latency_s

    def direct_s(count: int) -> float:
        return max(count * size / extras["store"], nic_s, host_s)

    def broadcast_s(count: int) -> float:
        return max(size / extras["store"], nic_s, host_s) + (count - 1) * chunk_s

    store_s = replicas * size / extras["store"]
    bounds = {"store": store_s, "network": nic_s, "host link": host_s}
    slowest = max(bounds, key=lambda name: bounds[name])
    load_s = broadcast_s(replicas)
    shown = show(size, Unit.BYTES)
    fill = f"{replicas - 1} x {show(chunk_s, Unit.SECONDS)} a chunk of {show(extras['chunk'], Unit.BYTES)}"
    answers = (
        Answer(
            "bytes a replica",
            size,
            Unit.BYTES,
            "given" if extras["size"] else f"{inputs.model.parameters:,} x format",
        ),
        Answer("bytes read in all", replicas * size, Unit.BYTES, f"{replicas} replicas x {shown}"),
        Answer(
            "store bound",
            store_s,
            Unit.SECONDS,
            f"{show(replicas * size, Unit.BYTES)} / {show(extras['store'], Unit.BYTES_PER_S)}",
        ),
        Answer(
            "network bound",
            nic_s,
            Unit.SECONDS,
            f"{shown} / ({gpus} NICs x {show(inputs.link.bytes_per_s, Unit.BYTES_PER_S)})",
        ),
        Answer(
            "host link bound",
            host_s,
            Unit.SECONDS,
            f"{shown} / ({gpus} GPUs x {show(inputs.gpu.host_link.value, Unit.BYTES_PER_S)})",
        ),
        Answer("direct", direct_s(replicas), Unit.SECONDS, "the largest of the three"),
        Answer(
            "slowest bound", slowest, Unit.TEXT, "what to widen first when every replica reads for itself"
        ),
        Answer(
            "broadcast between peers", load_s, Unit.SECONDS, f"the store sends once; the pipe fills in {fill}"
        ),
        Answer("gain of the broadcast", direct_s(replicas) / load_s, Unit.RATIO, "direct / broadcast"),
        Answer(
            "ready, start-up hidden",
            max(load_s, extras["startup"]),
            Unit.SECONDS,
            f"max(broadcast, {show(extras['startup'], Unit.SECONDS)} of imports, compiling and warm-up beside it)",
        ),
        Answer(
            "hidden", min(load_s, extras["startup"]), Unit.SECONDS, "what one after the other would cost more"
        ),
    )
    table = Table(
        "By replicas",
        ("replicas", "direct", "broadcast"),
        (Unit.COUNT, Unit.SECONDS, Unit.SECONDS),
        tuple((count, direct_s(count), broadcast_s(count)) for count in _FLEETS),
    )
    curve = Curve(
        "time to load over replicas",
        "replicas",
        "time (s)",
        _FLEETS,
        {"direct": [direct_s(n) for n in _FLEETS], "broadcast": [broadcast_s(n) for n in _FLEETS]},
    )
    return Plan(
        answers,
        breaks_when=(
            "the store throttles many readers: its rate falls with their number; watch bytes/s a replica while loading",
            "one slow peer sits in the chain: everybody behind it is as slow; compare receive rates along the chain",
            "checksums or conversion run on one core: the host, not a link, is the bound; watch its CPU while loading",
        ),
        tables=(table,),
        curve=curve,
    )


TOPIC = Topic(
    name="weights-load",
    question="How long until every replica of a fleet has its weights, and what bounds it?",
    source="first principles; Bokhari, 1981, and later pipelined broadcasts along a chain",
    uses=("model", "gpu", "tp", "pp", "weights", "link"),
    answer=_answer,
    defaults={"model": "llama-3.1-405b", "tp": "8", "weights": "fp8"},
    extras=(
        Extra("size", Unit.BYTES, "0B", "bytes of one replica; 0B: the model's own"),
        Extra("replicas", Unit.COUNT, "125", "replicas that load at once", COUNTED),
        Extra("store", Unit.BYTES_PER_S, "100GB/s", "what the store gives to all of them together", POSITIVE),
        Extra("chunk", Unit.BYTES, "64MB", "piece that a peer passes on", POSITIVE),
        Extra("startup", Unit.SECONDS, "40s", "imports, compiling, warm-up that need no weights"),
    ),
)
