"""FLOPs of a token rebuilt from a config.json: two for each parameter that it is multiplied with, and attention.

weights    2 x (all matrices of the layers, chosen experts only, + output matrix); the embedding is a look-up
attention  4 x heads x head_dim for each earlier token and layer (Kaplan et al., 2020, appendix; PaLM, appendix B)
"""

from ridgeline_roofline.plan.answer import Answer, Curve, Plan, Total
from ridgeline_roofline.plan.inputs import PlanInputs
from ridgeline_roofline.plan.topic import Topic
from ridgeline_roofline.queueing import largest
from ridgeline_roofline.units import Unit

_SHARES = (0.1, 0.5, 1.0)
_CONTEXTS = (0, 1000, 2000, 4000, 8000, 16000, 32000, 64000, 128000)
_FARTHEST = 2**40


def context_of_share(inputs: PlanInputs, share: float) -> float:
    """Context at which attention is `share` of the weights' FLOPs; infinite where windows or states never let it."""
    spec = inputs.model
    wanted = share * (spec.token_flops(0) - spec.pair_flops(0))
    if spec.pair_flops(_FARTHEST) < wanted:
        return float("inf")
    return largest(lambda context: spec.pair_flops(context) < wanted, 0.0, float(_FARTHEST), rounds=80)


def _answer(inputs: PlanInputs) -> Plan:
    spec, context = inputs.model, inputs.context_tokens
    tables = spec.head_parameters * (1 if spec.tied_embeddings else 2)
    layers = 2.0 * (spec.active_parameters - spec.head_parameters)
    head, attention = 2.0 * spec.head_parameters, spec.pair_flops(context)
    recurrent = spec.token_flops(0) - layers - head
    shares = tuple(
        Answer(
            f"context where attention is {share:.0%}",
            context_of_share(inputs, share),
            Unit.TOKENS,
            f"{share:g} x weights' FLOPs / attention FLOPs of one more token of context",
        )
        for share in _SHARES
    )
    answers = (
        Answer(
            "parameters", spec.parameters, Unit.COUNT, f"{spec.layers} layers, tables of {tables:,}, norms"
        ),
        Answer(
            "parameters that do arithmetic",
            spec.matrix_parameters,
            Unit.COUNT,
            "all matrices: without the embedding look-up and norms",
        ),
        Answer(
            "parameters a token uses",
            spec.active_parameters,
            Unit.COUNT,
            "its experts only, output matrix kept",
        ),
        Answer("layers' matrices", layers, Unit.FLOP_PER_TOKEN, f"2 x {layers / 2:,.0f}"),
        Answer("output matrix", head, Unit.FLOP_PER_TOKEN, f"2 x {spec.hidden} x {spec.vocab_tokens}"),
        Answer("recurrence", recurrent, Unit.FLOP_PER_TOKEN, "state updates of recurrent layers"),
        Answer(
            "attention",
            attention,
            Unit.FLOP_PER_TOKEN,
            f"{spec.pair_flops(1):,.0f} a token of context x {context}",
        ),
        Answer(
            "FLOPs a token", layers + head + recurrent + attention, Unit.FLOP_PER_TOKEN, "sum of the four"
        ),
        *shares,
    )
    curve = Curve(
        "attention over weights",
        "context (tokens)",
        "ratio",
        _CONTEXTS,
        {"attention / weights": [spec.pair_flops(c) / (layers + head + recurrent) for c in _CONTEXTS]},
    )
    return Plan(
        answers,
        breaks_when=(
            "prefill pads its tiles: achieved FLOP/s computed from this is then too low; see tokens and padded tokens",
            "a kernel computes the masked half of attention too: twice the pairs; compare prefill time with the floor",
        ),
        curve=curve,
        totals=(Total("FLOPs a token", ("layers' matrices", "output matrix", "recurrence", "attention")),),
    )


TOPIC = Topic(
    name="flops",
    question="How many FLOPs does a token take, and from which context does attention matter?",
    source="Kaplan et al., Scaling Laws, 2020, table 1; Chowdhery et al., PaLM, 2022, appendix B",
    uses=("model", "context"),
    answer=_answer,
    defaults={"context": "8k"},
)
