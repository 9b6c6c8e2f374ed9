"""Sequences that wait for a slot: a heap for each tenant and class, and a heap over the tenants.

Within a class those come first that were running before (a preempted sequence keeps its place); then, under a
fair policy, the tenant that has had least; then the rank. Adding and taking cost O(log n); nothing is sorted
anew when a counter moves, because counters only rise: a heap's top that is out of date is put back lower.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from typing import TypeAlias

from ridgeline_contracts.errors import InvariantError
from ridgeline_contracts.ids import TenantId

from ridgeline_engine.policy.accounts import TenantAccount
from ridgeline_engine.policy.ranks import Rank
from ridgeline_engine.request import PriorityClass
from ridgeline_engine.sequence import Sequence, SequenceState

_Entry: TypeAlias = tuple[Rank, Sequence]
_SLACK_ENTRIES = 16
"""Entries of ended sequences that are not worth a clean-up."""


@dataclass(slots=True)
class _Class:
    """One priority class."""

    resumed: list[_Entry] = field(default_factory=list)
    lines: dict[TenantAccount, list[_Entry]] = field(default_factory=dict)
    turns: list[tuple[float, int, TenantAccount]] = field(default_factory=list)
    """A heap with one entry for each line: what the tenant had when the entry was made, and a tie-break."""


class WaitingQueue:
    def __init__(self, *, fair: bool) -> None:
        self._fair = fair
        self._everyone = TenantAccount(TenantId(""), 1.0, 0.0)
        self._members: dict[Sequence, int] = {}
        """With the tokens each has to compute."""
        self._classes = {priority: _Class() for priority in PriorityClass}
        self._tokens = dict.fromkeys(PriorityClass, 0)
        self._counts = dict.fromkeys(PriorityClass, 0)
        self._stale = 0
        self._turn = 0

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Sequence]:
        """In no order that matters."""
        return iter(tuple(self._members))

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._members

    def tokens(self, priority: PriorityClass) -> int:
        """To be computed for the class, cached prefixes included."""
        return self._tokens[priority]

    def count(self, priority: PriorityClass) -> int:
        """Sequences of the class."""
        return self._counts[priority]

    def add(self, sequence: Sequence, *, resumed: bool = False) -> None:
        """`resumed`: it ran before, and goes before those that did not."""
        priority = sequence.request.priority
        self._members[sequence] = sequence.uncomputed_tokens
        self._tokens[priority] += sequence.uncomputed_tokens
        self._counts[priority] += 1
        self._push(self._classes[priority], (sequence.rank, sequence), resumed=resumed)

    def remove(self, sequence: Sequence) -> None:
        """Its entry is dropped when it comes to the top, or when too many of the kind are about."""
        priority = sequence.request.priority
        self._tokens[priority] -= self._members.pop(sequence)
        self._counts[priority] -= 1
        self._stale += 1
        if self._stale > len(self._members) + _SLACK_ENTRIES:
            self._drop_stale()

    def candidates(self, priority: PriorityClass) -> Iterator[Sequence]:
        """In the order in which they are to be admitted. Those not removed by then stay when it is closed."""
        found = self._classes[priority]
        seen: list[tuple[_Entry, bool]] = []
        try:
            while (entry := self._pop(found.resumed)) is not None:
                seen.append((entry, True))
                yield entry[1]
            while (line := self._next_line(found)) is not None:
                seen.append((heappop(line), False))
                yield seen[-1][0][1]
        finally:
            for entry, resumed in seen:
                if entry[1] in self._members:
                    self._push(found, entry, resumed=resumed)

    def check(self) -> None:
        """Raises InvariantError unless every waiting sequence is in exactly one heap."""
        entries = [
            entry[1]
            for found in self._classes.values()
            for heap in (found.resumed, *found.lines.values())
            for entry in heap
            if entry[1] in self._members
        ]
        if len(entries) != len(self._members) or set(entries) != set(self._members):
            raise InvariantError("the waiting queue lost a sequence, or holds one twice")
        if any(each.state is not SequenceState.WAITING for each in self._members):
            raise InvariantError("the waiting queue holds a sequence that is not waiting")
        if any(each.tables or each.slot is not None for each in self._members):
            raise InvariantError("a waiting sequence holds blocks or a slot")

    def _push(self, found: _Class, entry: _Entry, *, resumed: bool) -> None:
        if resumed:
            heappush(found.resumed, entry)
            return
        account = self._account(entry[1])
        line = found.lines.get(account)
        if line is None:
            line = found.lines[account] = []
            self._turn += 1
            heappush(found.turns, (account.served_ms, self._turn, account))
        heappush(line, entry)

    def _pop(self, heap: list[_Entry]) -> _Entry | None:
        while heap:
            entry = heappop(heap)
            if entry[1] in self._members:
                return entry
            self._stale -= 1
        return None

    def _next_line(self, found: _Class) -> list[_Entry] | None:
        """The line whose turn it is; its top is one that waits."""
        while found.turns:
            served_ms, turn, account = found.turns[0]
            line = found.lines[account]
            if (entry := self._pop(line)) is None:
                heappop(found.turns)
                del found.lines[account]
                continue
            heappush(line, entry)
            if served_ms == account.served_ms:
                return line
            heapreplace(found.turns, (account.served_ms, turn, account))
        return None

    def _account(self, sequence: Sequence) -> TenantAccount:
        if not self._fair or sequence.account is None:
            return self._everyone
        return sequence.account

    def _drop_stale(self) -> None:
        for found in self._classes.values():
            for heap in (found.resumed, *found.lines.values()):
                heap[:] = [entry for entry in heap if entry[1] in self._members]
                heapify(heap)
        self._stale = 0
