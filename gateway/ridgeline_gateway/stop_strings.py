"""Stop strings over a growing text. Pure.

Rule: reading the text character by character, the first character that completes a stop string ends the
output; if it completes several, the one that begins earliest wins. The text is cut where the winner begins.

Held back is exactly what a continuation could still cut away: the longest end of the text that is a proper
beginning of a stop string which can win at all. A stop string that holds another one before its own last
character can never win, since the inner one completes first; such strings are dropped at the start, or they
would hold text for nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline_contracts.errors import InvariantError


@dataclass(frozen=True, slots=True)
class Released:
    """Text that no continuation can take back. `stop` is set once a stop string is complete: then all is released."""

    text: str
    stop: str | None = None


def winning_stops(stops: Sequence[str]) -> tuple[str, ...]:
    """The stop strings that can ever be the first to complete, each once, in the given order."""
    distinct = tuple(dict.fromkeys(stop for stop in stops if stop))
    return tuple(stop for stop in distinct if not any(other in stop[:-1] for other in distinct))


def _failure_table(pattern: str) -> tuple[int, ...]:
    """Knuth-Morris-Pratt: for each length, the longest proper border of the pattern's beginning of that length."""
    table = [0, 0]
    border = 0
    for character in pattern[1:]:
        while border and pattern[border] != character:
            border = table[border]
        border += pattern[border] == character
        table.append(border)
    return tuple(table)


class StopMatcher:
    """Finds the first stop string in a text that arrives in pieces. Costs O(characters x stop strings)."""

    __slots__ = ("_firsts", "_held", "_matched", "_stopped", "_stops", "_tables")

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._stops = winning_stops(stops)
        self._tables = tuple(_failure_table(stop) for stop in self._stops)
        self._firsts = frozenset(stop[0] for stop in self._stops)
        self._matched = [0] * len(self._stops)
        self._held = ""
        self._stopped = False

    @property
    def held(self) -> str:
        """Text that was fed and is not released yet."""
        return self._held

    def feed(self, text: str) -> Released:
        """Takes the next piece and releases the longest safe beginning. Raises InvariantError after a stop."""
        if self._stopped:
            raise InvariantError("StopMatcher.feed was called after a stop string was complete")
        if not self._held and self._firsts.isdisjoint(text):
            return Released(text)
        known = self._held + text
        for position in range(len(self._held), len(known)):
            winner = self._step(known[position])
            if winner is not None:
                self._stopped, self._held = True, ""
                return Released(known[: position + 1 - len(winner)], winner)
        safe = len(known) - max(self._matched)
        self._held = known[safe:]
        return Released(known[:safe])

    def flush(self) -> str:
        """The held text, once nothing more can come."""
        held, self._held = self._held, ""
        self._matched = [0] * len(self._stops)
        return held

    def _step(self, character: str) -> str | None:
        winner: str | None = None
        for index, stop in enumerate(self._stops):
            matched, table = self._matched[index], self._tables[index]
            while matched and stop[matched] != character:
                matched = table[matched]
            matched += stop[matched] == character
            self._matched[index] = matched
            if matched == len(stop) and (winner is None or len(stop) > len(winner)):
                winner = stop
        return winner
