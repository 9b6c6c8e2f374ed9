"""What a completed row means for its sequence. Changes the sequence; knows no queue and no executor.

It runs for each row of each step, so it is written for speed: few calls, no objects.
"""

from collections.abc import Iterable

from ridgeline_contracts.errors import InvariantError

from ridgeline_engine.request import FinishReason
from ridgeline_engine.seam import RowPlan, RowResult
from ridgeline_engine.sequence import Sequence


def check_rows(rows: Iterable[RowPlan], results: Iterable[RowResult], *, vocab_tokens: int) -> None:
    """Raises InvariantError where the executor answered something else than was asked. As many of both."""
    for row, result in zip(rows, results, strict=True):
        if row.slot != result.slot or row.generation != result.generation:
            raise InvariantError(
                f"the executor answered for slot {result.slot} generation {result.generation}, "
                f"asked was slot {row.slot} generation {row.generation}"
            )
        if result.fault is not None:
            continue
        tokens, most = result.tokens, row.logits
        if len(tokens) > most or (most and not tokens):
            raise InvariantError(f"a row that wants {most} logits gave {len(tokens)} tokens")
        for token in tokens:
            if not 0 <= token < vocab_tokens:
                raise InvariantError(f"the executor sampled {tokens}; the vocabulary has {vocab_tokens}")


def accept(
    sequence: Sequence, row: RowPlan, result: RowResult, *, now_ms: float
) -> tuple[int, FinishReason | None]:
    """The row's positions have KV now, but for drafts that were rejected; what was sampled joins the text, up to
    the first token that ends it. Returns how many tokens that are (0 in the middle of a prompt), and why it ends.

    An end token is kept and counted. What was sampled behind it is accepted, but neither kept nor emitted.
    """
    run, sampled = len(row.tokens), result.tokens
    progress = sequence.progress
    progress.computed_tokens += run
    sequence.computed_tokens = row.start + run
    if row.draft_tokens:
        rejected = row.draft_tokens - max(0, len(sampled) - 1)
        sequence.computed_tokens -= rejected
        sequence.planned_tokens -= rejected
    if not sampled:
        return 0, None
    sequence.pending_tokens -= 1
    progress.accepted_tokens += len(sampled)
    if progress.first_token_ms is None:
        progress.first_token_ms = now_ms
    text, ends, most = sequence.tokens, sequence.end_token_ids, sequence.max_output_tokens
    output = len(text) - sequence.prompt_tokens
    for kept, token in enumerate(sampled, 1):
        text.append(token)
        if output + kept >= most or token in ends:
            reason = finish_reason(sequence)
            if reason is not None:
                return kept, reason
    return len(sampled), None


def finish_reason(sequence: Sequence) -> FinishReason | None:
    """Why a sequence ends after its last token: at an end token (once min_tokens came before it), or at its
    length."""
    output = sequence.output_tokens
    if output > sequence.request.sampling.min_tokens and sequence.tokens[-1] in sequence.end_token_ids:
        return FinishReason.STOP
    return FinishReason.LENGTH if output >= sequence.max_output_tokens else None
