"""A step while it is put together, and the record of a launch until it completes."""

from dataclasses import dataclass, field

from ridgeline_contracts.step import StepShape

from ridgeline_engine.seam import (
    BlockAppend,
    BlockCopy,
    InputToken,
    LaunchId,
    RowPlan,
    SlotAdmit,
    SlotId,
    StepPlan,
    TokenRef,
)
from ridgeline_engine.sequence import Sequence


@dataclass(slots=True)
class StepDraft:
    """Filled by the scheduler in the order of effect. Without rows it is thrown away."""

    launch: LaunchId
    """Which launch it will be."""
    rows: list[RowPlan] = field(default_factory=list)
    sequences: list[Sequence] = field(default_factory=list)
    """Of the rows, in their order."""
    admit: list[SlotAdmit] = field(default_factory=list)
    appends: list[BlockAppend] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    decode_rows: int = 0
    context_tokens: int = 0
    prefill_tokens: int = 0
    prefill_context_tokens: int = 0
    cached_tokens: int = 0
    preempted: bool = False
    failed: list[tuple[Sequence, Exception]] = field(default_factory=list)
    """Waiting sequences whose request the host could not work on."""

    def add_decode(self, sequence: Sequence) -> None:
        """Plans the one token, known or pending, that a decoding sequence has to run; it has a block for it."""
        start, text = sequence.planned_tokens, sequence.tokens
        token: InputToken = text[-1]
        if sequence.pending_tokens:
            assert sequence.newest_pending is not None
            token = TokenRef(*sequence.newest_pending)
        self.decode_rows += 1
        self.context_tokens += start + 1
        self._add(sequence, (token,), start, 1)

    def add_chunk(self, sequence: Sequence, count: int) -> None:
        """Plans the next `count` known tokens of a sequence that has a slot and blocks for them."""
        start = sequence.planned_tokens
        end = start + count
        ends = end == len(sequence.tokens)
        if ends and count == 1 and end > sequence.prompt_tokens:
            self.add_decode(sequence)
            return
        self.prefill_tokens += count
        self.prefill_context_tokens += count * start + count * count // 2
        self._add(sequence, tuple(sequence.tokens[start:end]), start, int(ends))

    def _add(self, sequence: Sequence, tokens: tuple[InputToken, ...], start: int, logits: int) -> None:
        slot, generation, pending = sequence.slot, sequence.generation, sequence.pending_tokens
        assert slot is not None
        assert generation is not None
        position = len(sequence.tokens) + pending - sequence.prompt_tokens
        if logits:
            sequence.newest_pending = (self.launch, len(self.rows))
            sequence.pending_tokens = pending + 1
        sequence.planned_tokens = start + len(tokens)
        self.rows.append(RowPlan(slot, generation, tokens, start, logits, position))
        self.sequences.append(sequence)

    @property
    def shape(self) -> StepShape:
        return StepShape(
            self.decode_rows, self.context_tokens, self.prefill_tokens, self.prefill_context_tokens
        )

    def plan(self, *, release: tuple[SlotId, ...]) -> StepPlan:
        return StepPlan(
            self.launch, tuple(self.rows), release, tuple(self.admit), tuple(self.appends), tuple(self.copies)
        )


@dataclass(slots=True)
class OpenLaunch:
    """A launch between `launch` and `complete`. Its sequences may have ended or moved on by then."""

    plan: StepPlan
    sequences: tuple[Sequence, ...]
    shape: StepShape
    cached_tokens: int
    predicted_ms: float
    started_ms: float
    host_ms: float
    """Spent outside the executor before the launch."""
