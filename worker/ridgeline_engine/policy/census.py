"""The running sequences in numbers: what the thresholds of a step depend on, in one pass."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from ridgeline_engine.request import PriorityClass
from ridgeline_engine.sequence import Sequence


@dataclass(slots=True)
class ClassCensus:
    rows: int = 0
    decoding: list[Sequence] = field(default_factory=list)
    """Rows that decode, in the order of rank."""
    decode_context_tokens: int = 0
    context_tokens: int = 0
    """Tokens of these rows, computed or not: what their decode steps read, and their blocks hold."""

    @property
    def decode_rows(self) -> int:
        return len(self.decoding)

    @property
    def mean_context_tokens(self) -> int:
        return self.context_tokens // self.rows if self.rows else 0


@dataclass(slots=True)
class Census:
    interactive: ClassCensus = field(default_factory=ClassCensus)
    batch: ClassCensus = field(default_factory=ClassCensus)
    prefills: list[Sequence] = field(default_factory=list)
    """Running sequences with prompt left to compute, in the order of rank."""

    @property
    def interactive_prefill_tokens(self) -> int:
        """That running interactive prompts still lack."""
        return sum(
            each.uncomputed_tokens
            for each in self.prefills
            if each.request.priority is PriorityClass.INTERACTIVE
        )

    def of(self, priority: PriorityClass) -> ClassCensus:
        return self.interactive if priority is PriorityClass.INTERACTIVE else self.batch


def take_census(running: Iterable[Sequence]) -> Census:
    """Of the running sequences in the order of rank."""
    found = Census()
    interactive, batch = found.interactive, found.batch
    for sequence in running:
        # The properties `context_tokens`, `uncomputed_tokens` and `decoding` in one look: this runs each step.
        pending = sequence.pending_tokens
        tokens = len(sequence.tokens) + pending
        prompt = sequence.prompt_tokens
        uncomputed = tokens - sequence.planned_tokens
        if pending and tokens - prompt >= sequence.max_output_tokens:
            uncomputed = 0
        mine = interactive if sequence.request.priority is PriorityClass.INTERACTIVE else batch
        mine.rows += 1
        mine.context_tokens += tokens
        if uncomputed == 1 and tokens > prompt:
            mine.decoding.append(sequence)
            mine.decode_context_tokens += tokens
        elif uncomputed > 0:
            found.prefills.append(sequence)
    return found
