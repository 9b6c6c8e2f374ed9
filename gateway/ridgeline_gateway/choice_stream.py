"""One choice: token ids in, typed deltas out. Pure; the streaming core's state machine.

OPEN    --feed-->      OPEN      deltas for all text that is safe
OPEN    --feed, end--> STOPPED   a stop string is complete: the last text, then FinishDelta
OPEN    --end-->       ENDED     the engine ended it: held text, then FinishDelta
STOPPED --feed, end--> STOPPED   what the engine still sends is dropped
ENDED   --feed, end--> InvariantError, and nothing changes
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from ridgeline_contracts.errors import InvariantError
from ridgeline_contracts.sampling import TokenLogprob

from ridgeline_gateway.deltas import ContentDelta, Delta, Ending, FinishDelta, TokenAlternative, TokenDetail
from ridgeline_gateway.detokenize import Span, detokenizer
from ridgeline_gateway.stop_strings import StopMatcher
from ridgeline_gateway.token_table import TokenTable


class Phase(StrEnum):
    OPEN = "open"
    STOPPED = "stopped"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class TextRules:
    """What of a request the streaming core needs."""

    stops: tuple[str, ...] = ()
    logprobs: bool = False


class ChoiceStream:
    """The text of one choice. `prompt` seeds the detokenizer: it may end inside a character."""

    __slots__ = ("_details", "_logprobs", "_matcher", "_phase", "_sent", "_table", "_text", "_tokens")

    def __init__(self, table: TokenTable, prompt: Sequence[int], rules: TextRules) -> None:
        self._table = table
        self._text = detokenizer(table, prompt, spans=rules.logprobs)
        self._matcher = StopMatcher(rules.stops)
        self._logprobs = rules.logprobs
        self._details = _PendingDetails(table)
        self._phase = Phase.OPEN
        self._sent = 0
        self._tokens = 0

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def tokens(self) -> int:
        """Tokens up to the one that completed the stop string, or all so far: what the tenant is charged for."""
        return self._tokens

    def feed(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob] = ()) -> list[Delta]:
        """Takes one row. `logprobs` has one entry a token where they were asked for, else none."""
        if self._phase is Phase.ENDED:
            raise InvariantError("a row came for a choice after its end")
        if self._phase is Phase.STOPPED:
            return []
        if self._logprobs and len(logprobs) != len(tokens):
            raise InvariantError(f"a row has {len(tokens)} tokens and {len(logprobs)} logprobs")
        parts: list[str] = []
        for index, token in enumerate(tokens):
            self._tokens += 1
            if self._logprobs:
                self._details.push(logprobs[index])
            released = self._matcher.feed(self._text.feed(token))
            parts.append(released.text)
            if released.stop is not None:
                return self._stopped("".join(parts), released.stop)
        return self._content("".join(parts))

    def end(self, ending: Ending, *, hidden_tokens: int = 0) -> list[Delta]:
        """The engine's last row was fed. Text that was held for a stop string that never came is released.

        `hidden_tokens` were made but are not shown: the end token itself.
        """
        if self._phase is Phase.ENDED:
            raise InvariantError("a choice ended twice")
        if self._phase is Phase.STOPPED:
            return []
        released = self._matcher.feed(self._text.flush())
        if released.stop is not None:
            return self._stopped(released.text, released.stop)
        self._phase = Phase.ENDED
        self._tokens += hidden_tokens
        return [*self._content(released.text + self._matcher.flush()), FinishDelta(ending)]

    def _stopped(self, text: str, stop: str) -> list[Delta]:
        self._phase = Phase.STOPPED
        # Tokens that begin before the cut keep their logprobs, whole, though their text may be cut: all are settled.
        self._text.flush()
        return [*self._content(text), FinishDelta(Ending.STOP, stop)]

    def _content(self, text: str) -> list[Delta]:
        self._sent += len(text)
        if not self._logprobs:
            return [ContentDelta(text)] if text else []
        self._details.settle(self._text.take_spans())
        details = self._details.release(self._sent, cut=self._phase is not Phase.OPEN)
        return [ContentDelta(text, details)] if text or details else []


class _PendingDetails:
    """Logprobs that wait for their token's last character to be sent."""

    __slots__ = ("_settled", "_table", "_unsettled")

    def __init__(self, table: TokenTable) -> None:
        self._table = table
        self._unsettled: deque[TokenLogprob] = deque()
        self._settled: deque[tuple[Span, TokenLogprob]] = deque()

    def push(self, logprob: TokenLogprob) -> None:
        self._unsettled.append(logprob)

    def settle(self, spans: Sequence[Span]) -> None:
        for span in spans:
            self._settled.append((span, self._unsettled.popleft()))

    def release(self, sent_characters: int, *, cut: bool) -> tuple[TokenDetail, ...]:
        """Those whose token begins before `sent_characters` and, unless the text is `cut` there, ends by then."""
        ready = []
        while self._settled:
            span, logprob = self._settled[0]
            if span.begin >= sent_characters or (span.end > sent_characters and not cut):
                break
            self._settled.popleft()
            ready.append(_detail(self._table, logprob, span.begin))
        return tuple(ready)


def _detail(table: TokenTable, logprob: TokenLogprob, begin_characters: int) -> TokenDetail:
    text, data = table.describe(logprob.token)
    top = tuple(TokenAlternative(*table.describe(token), value) for token, value in logprob.top)
    return TokenDetail(text, data, logprob.logprob, top, begin_characters)
