"""From the TPOT target to admission: chunk, prefill rate, and the backlog that a TTFT target can absorb.

chunk    the prompt tokens that fit a step beside the rows that decode
rate     chunk / step
backlog  tokens ahead of a newcomer that are computed by its deadline: (TTFT target - own prefill) x rate
a request that finds more ahead would miss its target: refuse it at once, with the time until it would fit
"""

from ridgeline_contracts.errors import SettingsError

from ridgeline_roofline.decisions.backlog import BacklogFacts, backlog_tokens
from ridgeline_roofline.decisions.chunk_budget import LEAST_CHUNK_TOKENS, ChunkFacts, chunk_budget_tokens
from ridgeline_roofline.plan.answer import Answer, Curve, Plan, Total
from ridgeline_roofline.plan.bounds import PART
from ridgeline_roofline.plan.inputs import Extra, PlanInputs
from ridgeline_roofline.plan.topic import Topic
from ridgeline_roofline.serving import slowed
from ridgeline_roofline.step.batch import StepBatch
from ridgeline_roofline.units import Unit, show

_CHUNKS = (0, 128, 256, 512, 1024, 2048, 4096)


def _step_s(inputs: PlanInputs, chunk: float) -> float:
    batch = StepBatch(
        decode_rows=inputs.batch,
        context_tokens=inputs.context_tokens,
        prefill_tokens=chunk,
        prefill_pairs=chunk * inputs.prompt_tokens / 2,
    )
    return slowed(inputs.step_model(), inputs.extras["efficiency"]).step_s(batch)


def _facts(inputs: PlanInputs) -> BacklogFacts:
    """As the engine gives them to the same decisions: half of a prompt lies before a chunk on average."""
    chunk = ChunkFacts(
        decode_rows=inputs.batch,
        context_tokens=inputs.batch * inputs.context_tokens,
        max_step_tokens=int(inputs.extras["most"]),
        min_chunk_tokens=LEAST_CHUNK_TOKENS,
        tpot_target_ms=inputs.tpot_s * 1e3,
        chunk_context_tokens=inputs.prompt_tokens // 2,
    )
    return BacklogFacts(chunk, inputs.ttft_s * 1e3)


def _answer(inputs: PlanInputs) -> Plan:
    alone_s = _step_s(inputs, 0.0)
    if alone_s > inputs.tpot_s:
        raise SettingsError(
            f"tpot={show(inputs.tpot_s, Unit.SECONDS)}: {inputs.batch} "
            f"rows alone take {show(alone_s, Unit.SECONDS)}, so no "
            "prompt can be computed beside them; give a smaller batch, a longer target, or more GPUs",
            param="tpot",
        )
    if inputs.extras["most"] <= inputs.batch:
        raise SettingsError(
            f"most={inputs.extras['most']:.0f}: the {inputs.batch} rows that decode fill the step; give more",
            param="most",
        )
    facts, model = _facts(inputs), slowed(inputs.step_model(), inputs.extras["efficiency"])
    chunk = chunk_budget_tokens(model, facts.chunk)
    waiting = backlog_tokens(model, facts)
    rate = waiting.value.tokens_per_ms * 1e3
    step_s = chunk.value / rate
    own_s = inputs.prompt_tokens / rate
    backlog = max(0, waiting.value.tokens - inputs.prompt_tokens)
    sustained = rate / inputs.prompt_tokens
    ahead = inputs.extras["ahead"]
    over = max(0.0, ahead - backlog)
    retry_s = over / rate
    verdict = "admit" if over == 0 and own_s <= inputs.ttft_s else "refuse"
    if own_s > inputs.ttft_s:
        verdict = "refuse: it misses the target even alone"
    answers = (
        Answer(
            "decode alone", alone_s, Unit.SECONDS, f"{inputs.batch} rows at {inputs.context_tokens} tokens"
        ),
        Answer(
            "left for prefill",
            inputs.tpot_s - alone_s,
            Unit.SECONDS,
            f"{show(inputs.tpot_s, Unit.SECONDS)} - decode alone",
        ),
        Answer("TPOT target", inputs.tpot_s, Unit.SECONDS, "decode alone + left for prefill"),
        Answer(
            "chunk",
            chunk.value,
            Unit.TOKENS,
            chunk.derivation,
        ),
        Answer("prefill rate", rate, Unit.TOKENS_PER_S, f"{chunk.value} / {show(step_s, Unit.SECONDS)}"),
        Answer(
            "prompts a second",
            sustained,
            Unit.REQUESTS_PER_S,
            f"rate / {inputs.prompt_tokens} tokens: above it the queue grows",
        ),
        Answer("own prefill", own_s, Unit.SECONDS, f"{inputs.prompt_tokens} tokens at that rate"),
        Answer(
            "backlog that the target absorbs",
            backlog,
            Unit.TOKENS,
            f"{waiting.derivation}; less its own {inputs.prompt_tokens}",
        ),
        Answer("verdict", verdict, Unit.TEXT, f"{ahead:.0f} tokens are ahead"),
        Answer(
            "retry after", retry_s, Unit.SECONDS, "until the backlog has drained to what the target absorbs"
        ),
    )
    curve = Curve(
        "step by chunk",
        "chunk (tokens)",
        "ms",
        _CHUNKS,
        {"step": [1e3 * _step_s(inputs, c) for c in _CHUNKS], "target": [1e3 * inputs.tpot_s] * len(_CHUNKS)},
    )
    return Plan(
        answers,
        breaks_when=(
            "prompts differ in length: long ones ahead cost more "
            "than their tokens (chunk x context); see TTFT by length",
            "the batch grows while requests wait: the chunk shrinks; "
            "the engine decides from its own step, each step anew",
        ),
        curve=curve,
        totals=(Total("TPOT target", ("decode alone", "left for prefill")),),
    )


TOPIC = Topic(
    name="slo",
    question="What do a TPOT and a TTFT target allow: which chunk, which backlog, and whom to refuse?",
    source="Agrawal et al., Sarathi-Serve, 2024, for chunks beside decode; the rest from first principles",
    uses=("model", "gpu", "tp", "weights", "kv", "batch", "context", "prompt", "ttft", "tpot"),
    answer=_answer,
    defaults={"tp": "8", "batch": "64"},
    extras=(
        Extra("efficiency", Unit.RATIO, "70%", "share of the floor's speed that is reached", PART),
        Extra("most", Unit.TOKENS, "8192", "largest step in tokens"),
        Extra("ahead", Unit.TOKENS, "20000", "prompt tokens that wait in front of a new request"),
    ),
)
