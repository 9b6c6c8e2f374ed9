"""What a step costs: the shape that goes in, the model that answers in milliseconds."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StepShape:
    """One engine step, as far as its duration depends on it."""

    decode_rows: int = 0
    """Sequences that add one token (or its drafts)."""
    context_tokens: int = 0
    """Resident context read by the decode rows, summed."""
    prefill_tokens: int = 0
    """Prompt tokens computed in this step, summed over chunks."""
    prefill_context_tokens: int = 0
    """Sum over chunks of chunk length times the context before it, plus half the chunk squared: attention's work."""


class StepModel(Protocol):
    """Anything that predicts a step: the roofline's analytic model, or coefficients fitted from measured steps."""

    def predict_ms(self, shape: StepShape) -> float: ...


@dataclass(frozen=True, slots=True)
class StepCoefficients:
    """The fitted form, linear in its terms. It travels in a worker's load report."""

    base_ms: float
    per_row_ms: float
    per_context_token_ms: float
    per_prefill_token_ms: float
    per_prefill_context_ms: float

    def predict_ms(self, shape: StepShape) -> float:
        return (
            self.base_ms
            + self.per_row_ms * shape.decode_rows
            + self.per_context_token_ms * shape.context_tokens
            + self.per_prefill_token_ms * shape.prefill_tokens
            + self.per_prefill_context_ms * shape.prefill_context_tokens
        )
