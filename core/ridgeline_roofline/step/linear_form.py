"""Any step model as the linear coefficients that a worker reports and fits."""

from ridgeline_contracts.step import StepCoefficients, StepModel, StepShape


def linearised(
    model: StepModel, *, decode_rows: int, context_tokens: int, chunk_tokens: int
) -> StepCoefficients:
    """Coefficients that equal `model` for a typical decode step and for that step with a typical chunk added.

    Used as the first guess of a fit and wherever a linear form is wanted. All arguments are at least 1.
    """
    alone = model.predict_ms(StepShape(decode_rows=1, context_tokens=1))
    batch = model.predict_ms(StepShape(decode_rows=decode_rows, context_tokens=decode_rows))
    full = model.predict_ms(StepShape(decode_rows=decode_rows, context_tokens=context_tokens))
    mixed = model.predict_ms(StepShape(decode_rows, context_tokens, prefill_tokens=chunk_tokens))
    deep_context = chunk_tokens * chunk_tokens
    deep = model.predict_ms(StepShape(decode_rows, context_tokens, chunk_tokens, deep_context))
    per_row_ms = max(0.0, batch - alone) / max(1, decode_rows - 1)
    per_context_ms = max(0.0, full - batch) / max(1, context_tokens - decode_rows)
    return StepCoefficients(
        base_ms=max(0.0, alone - per_row_ms - per_context_ms),
        per_row_ms=per_row_ms,
        per_context_token_ms=per_context_ms,
        per_prefill_token_ms=max(0.0, mixed - full) / chunk_tokens,
        per_prefill_context_ms=max(0.0, deep - mixed) / deep_context,
    )
