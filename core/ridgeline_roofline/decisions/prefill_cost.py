"""What a stretch of a prompt costs: the unit in which policies compare requests."""

from ridgeline_contracts.step import StepModel, StepShape


def prefill_ms(model: StepModel, tokens: int, *, start: int = 0) -> float:
    """Milliseconds that `tokens` prompt tokens add to the steps they run in, behind `start` tokens of context.

    What a step costs anyway (weights read, launches) is left out: it is shared with whatever else runs.
    """
    shape = StepShape(prefill_tokens=tokens, prefill_context_tokens=tokens * start + tokens * tokens // 2)
    return max(0.0, model.predict_ms(shape) - model.predict_ms(StepShape()))


def decode_ms(model: StepModel, rows: int, context_tokens: int) -> float:
    """Milliseconds of a step that only decodes: `rows` rows over `context_tokens` tokens, summed."""
    return model.predict_ms(StepShape(decode_rows=rows, context_tokens=context_tokens))
