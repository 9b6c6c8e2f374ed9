"""Who had to go, why and how: counted for metrics, and the newest with their numbers."""

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ridgeline_roofline.decisions.decision import Decision
from ridgeline_roofline.decisions.preemption import PreemptionKind

from ridgeline_engine.request import RequestKey
from ridgeline_engine.sequence import Sequence

_TRACE_RECORDS: Final = 256


class PreemptionCause(StrEnum):
    POOL = "pool"
    """A running sequence needed a block and none was free."""
    BATCH_SHARE = "batch_share"
    """Batch sequences held more KV than interactive ones can bear, or a slot or blocks that one needs to start."""


@dataclass(frozen=True, slots=True)
class PreemptionRecord:
    at_ms: float
    key: RequestKey
    """Of the one that pays: the victim or, for a wait, the one that pauses."""
    choice: int
    cause: PreemptionCause
    kind: PreemptionKind
    derivation: str


class PreemptionLog:
    def __init__(self) -> None:
        self.counts: dict[tuple[PreemptionCause, PreemptionKind], int] = {}
        self._trace: deque[PreemptionRecord] = deque(maxlen=_TRACE_RECORDS)

    @property
    def trace(self) -> tuple[PreemptionRecord, ...]:
        """The newest 256, oldest first."""
        return tuple(self._trace)

    @property
    def preempted(self) -> int:
        """Sequences that lost slot and blocks; pauses are not among them."""
        return sum(count for (_, kind), count in self.counts.items() if kind is not PreemptionKind.WAIT)

    def add(
        self, sequence: Sequence, cause: PreemptionCause, choice: Decision[PreemptionKind], *, now_ms: float
    ) -> None:
        kind = choice.value
        self.counts[cause, kind] = self.counts.get((cause, kind), 0) + 1
        self._trace.append(
            PreemptionRecord(now_ms, sequence.request.key, sequence.choice, cause, kind, choice.derivation)
        )
