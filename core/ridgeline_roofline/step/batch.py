"""What one step runs: rows that decode, and prompt tokens."""

from dataclasses import dataclass

from ridgeline_contracts.step import StepShape


@dataclass(frozen=True, slots=True)
class StepBatch:
    """Of the whole layout, all DP ranks together. Fractions are allowed: fixed points pass through them."""

    decode_rows: float = 0.0
    context_tokens: float = 0.0
    """Resident context of a decode row, on average."""
    query_tokens: float = 1.0
    """Tokens a decode row runs: 1, and its drafts."""
    prefill_tokens: float = 0.0
    prefill_pairs: float = 0.0
    """Sum over chunks of chunk x context before it + chunk^2 / 2: the (query, key) pairs of attention."""

    @property
    def tokens(self) -> float:
        """Rows of every matrix product."""
        return self.decode_rows * self.query_tokens + self.prefill_tokens

    @property
    def sampled_rows(self) -> float:
        """Rows of the output matrix. How many prompts end in this step is not known: one is assumed."""
        return self.decode_rows * self.query_tokens + (1.0 if self.prefill_tokens else 0.0)

    @property
    def prefill_seen_tokens(self) -> float:
        """Keys that a prompt token meets, on average."""
        return self.prefill_pairs / self.prefill_tokens if self.prefill_tokens else 0.0


def decode_batch(rows: float, context_tokens: float) -> StepBatch:
    return StepBatch(decode_rows=rows, context_tokens=context_tokens)


def prompt_batch(tokens: float, *, cached_tokens: float = 0.0) -> StepBatch:
    """One prompt (or its next chunk) of `tokens` tokens behind `cached_tokens` that have KV already."""
    return StepBatch(prefill_tokens=tokens, prefill_pairs=tokens * cached_tokens + tokens * tokens / 2)


def batch_of(shape: StepShape) -> StepBatch:
    """The contracts' step shape, which sums the context over rows."""
    return StepBatch(
        decode_rows=shape.decode_rows,
        context_tokens=shape.context_tokens / shape.decode_rows if shape.decode_rows else 0.0,
        prefill_tokens=shape.prefill_tokens,
        prefill_pairs=shape.prefill_context_tokens,
    )
