"""The floor of a step's duration: for each part the slower of moving its bytes and doing its arithmetic.

    linear layers   weights read once; 2 FLOPs a parameter and token
    logits          the head's matrix read once; 2 FLOPs a parameter and sampled row
    attention       KV of the context read, of new tokens written; 4 FLOPs a (query, key) pair, head and dim
    overhead        what a step costs without work

Parts run one after the other, so their times add up. A measured step is never faster; how much slower it is,
is the efficiency that a calibration puts in.
"""

from dataclasses import dataclass

from ridgeline_contracts.step import StepCoefficients, StepModel, StepShape

from ridgeline_roofline.shapes import MachineShape, ModelShape


@dataclass(frozen=True, slots=True)
class StepPart:
    """One kind of work in a step."""

    name: str
    bytes_moved: float
    flops: float
    duration_ms: float

    @property
    def derivation(self) -> str:
        return (
            f"{self.name}: {self.bytes_moved / 1e6:.1f} MB and {self.flops / 1e9:.2f} GFLOP "
            f"take {self.duration_ms:.3f} ms"
        )


@dataclass(frozen=True, slots=True)
class AnalyticStepModel:
    """A StepModel from first principles. `efficiency` (0 to 1] is the share of the floor that is reached."""

    model: ModelShape
    machine: MachineShape
    weight_bytes_per_parameter: float
    kv_token_bytes: float
    """Bytes that one token keeps, all layers together."""
    efficiency: float = 1.0

    def predict_ms(self, shape: StepShape) -> float:
        return sum(part.duration_ms for part in self.parts(shape))

    def parts(self, shape: StepShape) -> tuple[StepPart, ...]:
        """What the step is made of; durations add up to the prediction. A step without tokens is all
        overhead."""
        overhead = StepPart("overhead", 0.0, 0.0, self.machine.step_overhead_ms)
        tokens = shape.decode_rows + shape.prefill_tokens
        if tokens == 0:
            return (overhead,)
        # How many prompts end in this step is not part of the shape: one is assumed.
        sampled = shape.decode_rows + (1 if shape.prefill_tokens else 0)
        model, weight = self.model, self.weight_bytes_per_parameter
        parameters = model.layers * model.layer_parameters
        pairs = shape.context_tokens + shape.prefill_context_tokens
        pair_flops = 4 * model.layers * model.heads * model.head_dim
        kv_tokens = shape.context_tokens + tokens + self._prefill_context_read(shape)
        return (
            self._part("linear layers", parameters * weight, 2.0 * parameters * tokens),
            self._part("logits", model.head_parameters * weight, 2.0 * model.head_parameters * sampled),
            self._part("attention", kv_tokens * self.kv_token_bytes, float(pair_flops * pairs)),
            overhead,
        )

    def _part(self, name: str, bytes_moved: float, flops: float) -> StepPart:
        floor_s = max(bytes_moved / self.machine.bandwidth_bytes_per_s, flops / self.machine.flops_per_s)
        return StepPart(name, bytes_moved, flops, floor_s * 1e3 / self.efficiency)

    def _prefill_context_read(self, shape: StepShape) -> float:
        # A chunk reads the KV before it once: pairs / chunk is its mean context.
        return shape.prefill_context_tokens / shape.prefill_tokens if shape.prefill_tokens else 0.0


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
