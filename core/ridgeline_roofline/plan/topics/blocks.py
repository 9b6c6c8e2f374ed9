"""Which block size: waste, look-ups, and what a prefix must share to be hit.

waste <= block - 1 tokens a sequence, half a block on average
a hit is cut down to whole blocks: half a block a request is computed again, on average
a page is one contiguous read of block x head_dim x 2 values a KV head
"""

from ridgeline_roofline.catalogue.mixers import Attention
from ridgeline_roofline.plan.answer import Answer, Plan, Table, Value
from ridgeline_roofline.plan.bounds import POSITIVE
from ridgeline_roofline.plan.inputs import Extra, PlanInputs
from ridgeline_roofline.plan.topic import Topic
from ridgeline_roofline.step.batch import decode_batch, prompt_batch
from ridgeline_roofline.units import Unit, show

_SIZES = (1, 8, 16, 32, 64, 128, 256)


def _answer(inputs: PlanInputs) -> Plan:
    spec, model = inputs.model, inputs.step_model()
    per_token = spec.kv_elements_per_token * inputs.formats.kv.bytes_per_element
    resident = inputs.prompt_tokens + inputs.output_tokens / 2
    token_s = model.step_s(prompt_batch(inputs.prompt_tokens)) / inputs.prompt_tokens
    step_s = model.step_s(decode_batch(inputs.batch, resident))
    mixer = spec.attention
    head_bytes = (
        mixer.head_dim * 2 if isinstance(mixer, Attention) else spec.kv_elements_per_token / spec.layers
    )
    run_bytes = head_bytes * inputs.formats.kv.bytes_per_element
    least_run = inputs.extras["burst"]

    def row(size: int) -> tuple[Value, ...]:
        waste = (size - 1) / 2
        efficiency = min(1.0, size * run_bytes / least_run)
        return (
            size,
            waste * inputs.batch * per_token,
            waste / (resident + waste),
            waste * token_s,
            resident / size * inputs.batch,
            efficiency,
        )

    rows = tuple(row(size) for size in _SIZES)
    chosen = next(size for size in _SIZES if size * run_bytes >= least_run or size == _SIZES[-1])
    at = row(chosen)
    answers = (
        Answer("KV a token", per_token, Unit.BYTES, "all layers"),
        Answer("run of a token and head", run_bytes, Unit.BYTES, "key and value of one head, one layer"),
        Answer(
            "block",
            chosen,
            Unit.TOKENS,
            f"the smallest whose run of one head is at least {show(least_run, Unit.BYTES)}, one full memory burst",
        ),
        Answer("most that a sequence wastes", chosen - 1, Unit.TOKENS, f"{chosen} - 1: under one block"),
        Answer(
            "waste of the batch",
            float(at[1]),
            Unit.BYTES,
            f"{inputs.batch} x {(chosen - 1) / 2:g} tokens x KV a token",
        ),
        Answer(
            "waste ratio",
            float(at[2]),
            Unit.RATIO,
            f"{(chosen - 1) / 2:g} of {resident + (chosen - 1) / 2:g} tokens",
        ),
        Answer(
            "recomputed at a hit",
            float(at[3]),
            Unit.SECONDS,
            f"half a block x {show(token_s, Unit.SECONDS)} a token",
        ),
        Answer(
            "step", step_s, Unit.SECONDS, f"{inputs.batch} rows: what a lost share of bandwidth is a share of"
        ),
    )
    table = Table(
        "By block size",
        ("tokens", "wasted KV", "of it", "recomputed a hit", "table entries", "bandwidth"),
        (Unit.TOKENS, Unit.BYTES, Unit.RATIO, Unit.SECONDS, Unit.COUNT, Unit.RATIO),
        rows,
    )
    return Plan(
        answers,
        breaks_when=(
            "outputs are short against a block: waste is then larger than on average; see stranded and used KV",
            "a kernel wants its own page size (64 for some MLA kernels): its capability report names it",
            "prompts share less than a block: nothing is hit; compare cached tokens with the shared prefix",
        ),
        tables=(table,),
    )


TOPIC = Topic(
    name="blocks",
    question="How many tokens should a KV block hold?",
    source="Kwon et al., PagedAttention, 2023, section 4.5 and figure 18",
    uses=("model", "gpu", "tp", "kv", "batch", "prompt", "output"),
    answer=_answer,
    defaults={"tp": "8", "prompt": "1k", "output": "200"},
    extras=(Extra("burst", Unit.BYTES, "4KB", "contiguous bytes that memory gives at full speed", POSITIVE),),
)
