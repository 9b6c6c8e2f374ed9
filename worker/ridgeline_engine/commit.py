"""What a completed row means for its sequence. Changes the sequence; knows no queue and no executor."""

from dataclasses import dataclass

from ridgeline_contracts.errors import InvariantError
from ridgeline_contracts.sampling import TokenLogprob

from ridgeline_engine.request import FinishReason
from ridgeline_engine.seam import RowPlan, RowResult
from ridgeline_engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Accepted:
    """Tokens to emit, with the reason to end after them, if any."""

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    reason: FinishReason | None


def check_row(row: RowPlan, result: RowResult, *, vocab_tokens: int) -> None:
    """Raises InvariantError where the executor answered something else than was asked."""
    if (row.slot, row.generation) != (result.slot, result.generation):
        raise InvariantError(
            f"the executor answered for slot {result.slot} generation {result.generation}, "
            f"asked was slot {row.slot} generation {row.generation}"
        )
    if result.fault is not None:
        return
    least, most = (1, row.logits) if row.logits else (0, 0)
    if not least <= len(result.tokens) <= most:
        raise InvariantError(f"a row that wants {row.logits} logits gave {len(result.tokens)} tokens")
    if any(not 0 <= token < vocab_tokens for token in result.tokens):
        raise InvariantError(f"the executor sampled {result.tokens}; the vocabulary has {vocab_tokens}")


def advance(sequence: Sequence, row: RowPlan, result: RowResult) -> None:
    """The row's positions have KV now, but for drafts that were rejected."""
    rejected = row.draft_tokens - max(0, len(result.tokens) - 1)
    sequence.computed_tokens = row.start + len(row.tokens) - rejected
    sequence.planned_tokens -= rejected
    if row.logits:
        sequence.pending_tokens -= 1


def accept(sequence: Sequence, result: RowResult, *, now_ms: float) -> Accepted | None:
    """Appends the sampled tokens up to the first that ends the sequence; None in the middle of a prompt.

    An end token is kept and counted. What was sampled behind it is accepted, but neither kept nor emitted.
    """
    if not result.tokens:
        return None
    progress = sequence.progress
    before, reason = len(sequence.tokens), None
    for token in result.tokens:
        sequence.tokens.append(token)
        reason = finish_reason(sequence)
        if reason is not None:
            break
    kept = len(sequence.tokens) - before
    progress.accepted_tokens += len(result.tokens)
    if progress.first_token_ms is None:
        progress.first_token_ms = now_ms
    return Accepted(tuple(sequence.tokens[before:]), result.logprobs[:kept], reason)


def finish_reason(sequence: Sequence) -> FinishReason | None:
    """Why a sequence ends after its last token: at an end token (once min_tokens came before it), or at its
    length."""
    output = sequence.output_tokens
    if output > sequence.request.sampling.min_tokens and sequence.tokens[-1] in sequence.end_token_ids:
        return FinishReason.STOP
    return FinishReason.LENGTH if output >= sequence.max_output_tokens else None
