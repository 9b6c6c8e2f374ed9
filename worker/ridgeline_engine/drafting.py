"""A step while it is put together, and the record of a launch until it completes."""

from dataclasses import dataclass, field

from ridgeline_contracts.step import StepShape

from ridgeline_engine.seam import BlockAppend, BlockCopy, LaunchId, RowPlan, SlotAdmit, SlotId, StepPlan
from ridgeline_engine.sequence import Sequence


@dataclass(slots=True)
class StepDraft:
    """Filled by the scheduler in the order of effect. Without rows it is thrown away."""

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

    def add_row(self, sequence: Sequence, count: int) -> None:
        """Plans the next `count` known tokens of a sequence that holds a slot and has blocks for them."""
        assert sequence.slot is not None
        assert sequence.generation is not None
        start, decoding = sequence.planned_tokens, sequence.decoding
        end = start + count
        row = RowPlan(
            slot=sequence.slot,
            generation=sequence.generation,
            tokens=tuple(sequence.tokens[start:end]),
            start=start,
            logits=1 if end == len(sequence.tokens) else 0,
            output_position=sequence.output_tokens,
        )
        self.rows.append(row)
        self.sequences.append(sequence)
        sequence.planned_tokens = end
        if decoding:
            self.decode_rows += 1
            self.context_tokens += end
        else:
            self.prefill_tokens += count
            self.prefill_context_tokens += count * start + count * count // 2

    @property
    def shape(self) -> StepShape:
        return StepShape(
            self.decode_rows, self.context_tokens, self.prefill_tokens, self.prefill_context_tokens
        )

    def plan(self, launch: LaunchId, *, release: tuple[SlotId, ...]) -> StepPlan:
        return StepPlan(
            launch, tuple(self.rows), release, tuple(self.admit), tuple(self.appends), tuple(self.copies)
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
