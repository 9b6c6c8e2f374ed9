"""The requests that the core holds, and whose they are: the place where `exactly one terminal row` is
kept true."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ridgeline_contracts.errors import InvariantError, RidgelineError
from ridgeline_engine.request import Counts, Request, RequestKey

from ridgeline_worker.rows import PackedRow, error_row


@dataclass(slots=True)
class _OpenRequest:
    session_id: int | None
    """None: its session is gone; the core is still to tell that the request has ended."""
    prompt_tokens: int
    next_offset: dict[int, int]
    """By choice that has not ended: the offset of the next token."""
    start_offset: dict[int, int] = field(default_factory=dict)

    def advance(self, choice: int, first_offset: int, tokens: int) -> None:
        expected = self.next_offset[choice]
        if first_offset != expected:
            raise InvariantError(f"choice {choice} continues at offset {first_offset}, expected {expected}")
        self.next_offset[choice] = expected + tokens


class RequestTable:
    """Requests by key. A request leaves when its last choice has ended."""

    def __init__(self) -> None:
        self._open: dict[RequestKey, _OpenRequest] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, key: RequestKey) -> bool:
        return key in self._open

    def owner(self, key: RequestKey) -> int | None:
        """The session that the request belongs to, if both still exist."""
        request = self._open.get(key)
        return None if request is None else request.session_id

    def keys_of(self, session_id: int) -> tuple[RequestKey, ...]:
        return tuple(key for key, request in self._open.items() if request.session_id == session_id)

    def open(self, request: Request, session_id: int) -> None:
        """Takes a request in. Raises InvariantError for a key that is held already: ask first."""
        if request.key in self._open:
            raise InvariantError(f"request {request.key} is in the table already")
        emitted = request.emitted or ((),) * request.choices
        offsets = {choice: len(tokens) for choice, tokens in enumerate(emitted)}
        self._open[request.key] = _OpenRequest(session_id, len(request.prompt), offsets, dict(offsets))

    def disown(self, session_id: int) -> tuple[RequestKey, ...]:
        """A session is gone: its requests stay until the core has ended them, but nobody hears of it."""
        keys = self.keys_of(session_id)
        for key in keys:
            self._open[key].session_id = None
        return keys

    def take(self, rows: Iterable[PackedRow]) -> dict[int, list[PackedRow]]:
        """A step's rows by session, in order. Raises InvariantError for a row of a choice that has ended."""
        by_session: dict[int, list[PackedRow]] = {}
        for row in rows:
            session_id = self._advance(row)
            if session_id is not None:
                by_session.setdefault(session_id, []).append(row)
        return by_session

    def _advance(self, row: PackedRow) -> int | None:
        request_id, attempt, choice, first_offset, tokens, _, finish = row
        key = RequestKey(request_id, attempt)  # type: ignore[arg-type]  # plain values from our own pack_rows
        request = self._open.get(key)
        if request is None or choice not in request.next_offset:
            raise InvariantError(f"the core sent a row for {key}, choice {choice}, which has ended")
        request.advance(choice, first_offset, len(tokens))
        if finish is not None:
            self._end_choice(key, request, choice)
        return request.session_id

    def fail(self, key: RequestKey, error: RidgelineError) -> dict[int, list[PackedRow]]:
        """Ends a request with an error: one terminal row for each choice that is still open."""
        request = self._open.get(key)
        if request is None:
            return {}
        rows = list(self._error_rows(key, request, error))
        del self._open[key]
        return {} if request.session_id is None else {request.session_id: rows}

    def fail_all(self, error: RidgelineError) -> dict[int, list[PackedRow]]:
        by_session: dict[int, list[PackedRow]] = {}
        for key in list(self._open):
            for session_id, rows in self.fail(key, error).items():
                by_session.setdefault(session_id, []).extend(rows)
        return by_session

    def _end_choice(self, key: RequestKey, request: _OpenRequest, choice: int) -> None:
        del request.next_offset[choice]
        if not request.next_offset:
            del self._open[key]

    @staticmethod
    def _error_rows(key: RequestKey, request: _OpenRequest, error: RidgelineError) -> Iterator[PackedRow]:
        for choice, offset in sorted(request.next_offset.items()):
            emitted = offset - request.start_offset[choice]
            # What the core computed died with it; what reached the gateway is known here.
            counts = Counts(request.prompt_tokens, 0, 0, emitted, emitted)
            yield error_row(key, choice, error, first_offset=offset, counts=counts)


def refusal_rows(submit_key: RequestKey, offsets: Iterable[int], error: RidgelineError) -> list[PackedRow]:
    """Terminal rows for a Submit that never reached the table; `offsets` holds one entry a choice."""
    return [
        error_row(submit_key, choice, error, first_offset=offset, counts=Counts(0, 0, 0, 0, 0))
        for choice, offset in enumerate(offsets)
    ]
