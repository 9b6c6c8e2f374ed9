"""Exactly one terminal row a choice, whatever the order in which tokens, ends, losses and failures come."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ridgeline_contracts.errors import InvariantError, WorkerLost
from ridgeline_contracts.ids import Attempt, RequestId
from ridgeline_contracts.proto import worker_pb2 as pb
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_engine.request import (
    Counts,
    EngineClocks,
    Finish,
    FinishReason,
    OutputRow,
    Request,
    RequestKey,
)
from ridgeline_worker.rows import PackedRow, frame_to_wire, pack_rows
from ridgeline_worker.table import RequestTable

FINISH = Finish(FinishReason.STOP, Counts(1, 0, 1, 1, 1), EngineClocks(None, None, 1.0))
LOST = WorkerLost("gone", retry_after_ms=1)


def _key(name: str) -> RequestKey:
    return RequestKey(RequestId(name), Attempt(0))


def _request(name: str, *, choices: int = 1, emitted: tuple[tuple[int, ...], ...] = ()) -> Request:
    return Request(_key(name), (1, 2), SamplingParams(max_tokens=9), choices=choices, emitted=emitted)


def _row(name: str, choice: int, offset: int, *, ends: bool = False, tokens: int = 1) -> OutputRow:
    return OutputRow(_key(name), choice, offset, (7,) * tokens, finish=FINISH if ends else None)


def _wire(found: dict[int, list[PackedRow]]) -> dict[int, list[pb.Row]]:
    return {session: list(frame_to_wire(1, rows).frame.rows) for session, rows in found.items()}


def test_rows_are_sorted_by_session_and_keep_their_order() -> None:
    table = RequestTable()
    table.open(_request("a"), 1)
    table.open(_request("b"), 2)
    table.open(_request("c"), 1)
    found = _wire(table.take(pack_rows([_row("c", 0, 0), _row("b", 0, 0), _row("a", 0, 0)])))
    assert {key: [row.request_id for row in rows] for key, rows in found.items()} == {1: ["c", "a"], 2: ["b"]}


def test_a_request_leaves_with_its_last_choice() -> None:
    table = RequestTable()
    table.open(_request("a", choices=2), 1)
    table.take(pack_rows([_row("a", 1, 0, ends=True)]))
    assert len(table) == 1
    table.take(pack_rows([_row("a", 0, 0, ends=True)]))
    assert len(table) == 0


def test_rows_of_a_disowned_request_reach_nobody_but_end_it() -> None:
    table = RequestTable()
    table.open(_request("a"), 1)
    assert table.disown(1) == (_key("a"),)
    assert table.take(pack_rows([_row("a", 0, 0, ends=True)])) == {}
    assert len(table) == 0


def test_a_failure_ends_only_the_choices_that_are_open_after_what_was_delivered() -> None:
    table = RequestTable()
    table.open(_request("a", choices=3, emitted=((), (5, 5), ())), 1)
    table.take(pack_rows([_row("a", 0, 0, ends=True), _row("a", 1, 2, tokens=2)]))
    rows = _wire(table.fail(_key("a"), LOST))[1]
    assert [(row.choice, row.first_offset, row.finish.counts.emitted_tokens) for row in rows] == [
        (1, 4, 2),
        (2, 0, 0),
    ]
    assert table.fail(_key("a"), LOST) == {}


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(_row("a", 0, 0), id="after-its-end"),
        pytest.param(_row("a", 1, 5), id="with-a-gap"),
        pytest.param(_row("a", 9, 0), id="of-no-such-choice"),
        pytest.param(_row("z", 0, 0), id="of-no-such-request"),
    ],
)
def test_a_row_that_cannot_be_is_a_broken_core(row) -> None:
    table = RequestTable()
    table.open(_request("a", choices=2), 1)
    table.take(pack_rows([_row("a", 0, 0, ends=True)]))
    with pytest.raises(InvariantError):
        table.take(pack_rows([row]))


def test_a_key_that_is_open_cannot_be_opened_again() -> None:
    table = RequestTable()
    table.open(_request("a"), 1)
    with pytest.raises(InvariantError):
        table.open(_request("a"), 2)


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.integers(0, 3), st.integers(1, 3)),
        st.tuples(st.just("row"), st.integers(0, 3), st.integers(0, 2)),
        st.tuples(st.just("end"), st.integers(0, 3), st.integers(0, 2)),
        st.tuples(st.just("fail"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("fail_all"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@given(_STEPS)
@settings(max_examples=150, deadline=None)
def test_every_choice_that_was_opened_ends_exactly_once(steps) -> None:
    table = RequestTable()
    offsets: dict[tuple[str, int], int] = {}
    ended: list[tuple[str, int]] = []
    opened: list[tuple[str, int]] = []
    lives = 0

    def note(found) -> None:
        ended.extend(
            (row.request_id, row.choice)
            for rows in _wire(found).values()
            for row in rows
            if row.HasField("finish")
        )

    names: dict[int, str] = {}
    for action, slot, number in steps:
        name = names.get(slot)
        if action == "open" and (name is None or _key(name) not in table):
            lives += 1
            names[slot] = name = f"r{lives}"
            table.open(_request(name, choices=number), 1)
            opened += [(name, choice) for choice in range(number)]
            offsets |= {(name, choice): 0 for choice in range(number)}
        elif action in ("row", "end") and (name, number) in offsets and (name, number) not in ended:
            note(table.take(pack_rows([_row(name, number, offsets[(name, number)], ends=action == "end")])))
            offsets[(name, number)] += 1
        elif action == "fail" and name is not None:
            note(table.fail(_key(name), LOST))
        elif action == "fail_all":
            note(table.fail_all(LOST))
    note(table.fail_all(LOST))
    assert sorted(ended) == sorted(opened)
    assert len(table) == 0
