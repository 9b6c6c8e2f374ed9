"""Models that are rarely asked: which keep a GPU, which share one, which sleep.

busy share of a replica = rate x service time of a request
dedicated   busy share >= the threshold: it earns its GPUs
shared      several fit one GPU by memory, and their busy shares add up to less than the ceiling
asleep      waking costs weights / host link; worth it where that is within the TTFT target
the break-even rate of sleeping: one wake a gap, and GPUs freed for 1/rate - service time
"""

from ridgeline_roofline.plan.answer import Answer, Plan, Table, Value
from ridgeline_roofline.plan.bounds import COUNTED, POSITIVE, SHARE
from ridgeline_roofline.plan.inputs import Extra, PlanInputs
from ridgeline_roofline.plan.topic import Topic
from ridgeline_roofline.step.batch import decode_batch, prompt_batch
from ridgeline_roofline.units import Unit, show

_RATES_PER_H = (0.1, 1.0, 10.0, 60.0, 600.0, 3600.0)


def _answer(inputs: PlanInputs) -> Plan:
    extras, model, gpus = inputs.extras, inputs.step_model(), inputs.layout.gpus
    size = inputs.model.parameters * inputs.formats.weights.bytes_per_element
    mean_context = inputs.prompt_tokens + inputs.output_tokens / 2
    prefill_s = model.step_s(prompt_batch(inputs.prompt_tokens))
    decode_s = inputs.output_tokens * model.step_s(decode_batch(1, mean_context))
    service_s = prefill_s + decode_s
    wake_s = size / (gpus * inputs.gpu.host_link.value) + extras["wake"]
    disk_s = size / extras["disk"] + extras["wake"]
    kv = inputs.model.kv_bytes(mean_context, inputs.formats.kv) * extras["sequences"]
    per_gpu = (size + kv) / gpus
    residents = int(inputs.gpu.memory_bytes * 0.9 // per_gpu)
    gpu_usd = gpus * inputs.gpu.usd_per_s.value

    def tier(rate_per_s: float) -> str:
        busy = rate_per_s * service_s
        if busy >= extras["dedicated"]:
            return "dedicated"
        if prefill_s + wake_s <= inputs.ttft_s and busy < extras["asleep"]:
            return "asleep in host memory"
        return "shared" if residents > 1 else "dedicated: none fits beside it"

    def row(per_hour: float) -> tuple[Value, ...]:
        rate = per_hour / 3600
        share = max(rate * service_s, 1.0 / max(1, residents))
        chosen = tier(rate)
        held = {"dedicated": 1.0, "asleep": rate * (service_s + wake_s)}.get(
            chosen.split()[0].rstrip(":"), share
        )
        return (rate, rate * service_s, chosen, held * gpu_usd / rate)

    own = row(inputs.rate_per_s * 3600)
    answers = (
        Answer("weights", size, Unit.BYTES, f"{inputs.model.parameters:,} in {inputs.formats.weights}"),
        Answer(
            "service time of a request",
            service_s,
            Unit.SECONDS,
            f"prefill {show(prefill_s, Unit.SECONDS)} + {inputs.output_tokens} steps, alone",
        ),
        Answer(
            "busy share",
            float(own[1]),
            Unit.RATIO,
            f"{inputs.rate_per_s:.4g}/s x {show(service_s, Unit.SECONDS)}",
        ),
        Answer(
            "models on one layout",
            residents,
            Unit.COUNT,
            f"90% of memory / ({show(per_gpu, Unit.BYTES)} a GPU)",
        ),
        Answer(
            "wake from host memory",
            wake_s,
            Unit.SECONDS,
            f"{show(size, Unit.BYTES)} / {gpus} host links + {show(extras['wake'], Unit.SECONDS)}",
        ),
        Answer(
            "wake from disk",
            disk_s,
            Unit.SECONDS,
            f"{show(size, Unit.BYTES)} / {show(extras['disk'], Unit.BYTES_PER_S)}",
        ),
        Answer(
            "first token after a wake",
            wake_s + prefill_s,
            Unit.SECONDS,
            f"wake + prefill, against a target of {show(inputs.ttft_s, Unit.SECONDS)}",
        ),
        Answer("tier", str(own[2]), Unit.TEXT, "by busy share and by what a wake leaves of the TTFT target"),
        Answer(
            "cost of a request",
            float(own[3]),
            Unit.USD_PER_REQUEST,
            "GPU time held for it in that tier x price",
        ),
    )
    table = Table(
        "By rate",
        ("requests a second", "busy share", "tier", "USD a request"),
        (Unit.REQUESTS_PER_S, Unit.RATIO, Unit.TEXT, Unit.USD_PER_REQUEST),
        tuple(row(per_hour) for per_hour in _RATES_PER_H),
    )
    return Plan(
        answers,
        breaks_when=(
            "requests come in bursts: one wake serves many, but they queue behind it; watch queue time after wakes",
            "models that share a GPU are busy together: their busy shares add up only on average; watch TPOT by model",
        ),
        tables=(table,),
    )


TOPIC = Topic(
    name="long-tail",
    question="Which rarely used models keep GPUs, which share them, and which sleep?",
    source="first principles: busy share, and what a wake leaves of the target",
    uses=("model", "gpu", "tp", "weights", "kv", "prompt", "output", "ttft", "rate"),
    answer=_answer,
    defaults={"model": "llama-3.1-8b", "tp": "1", "rate": "30/h", "ttft": "2s"},
    extras=(
        Extra("dedicated", Unit.RATIO, "30%", "busy share from which a model keeps its own GPUs", SHARE),
        Extra("asleep", Unit.RATIO, "5%", "busy share below which it may sleep", SHARE),
        Extra("sequences", Unit.COUNT, "8", "sequences that a shared model must be able to hold", COUNTED),
        Extra("wake", Unit.SECONDS, "300ms", "fixed part of a wake"),
        Extra("disk", Unit.BYTES_PER_S, "7GB/s", "read rate of the local disk", POSITIVE),
    ),
)
