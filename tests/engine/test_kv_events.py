"""Events of the prefix cache: numbered without gaps, with a snapshot for whoever fell behind."""

import pytest
from ridgeline_contracts.ids import BlockHash
from ridgeline_contracts.kv import GroupId
from ridgeline_engine.kv_events import KVCleared, KVEventLog, KVEvicted, KVSnapshot, KVStored

STORED = KVStored(BlockHash(b"p" * 16), (BlockHash(b"a" * 16),), GroupId(0))


def _log(events: int, *, capacity: int = 4) -> KVEventLog:
    log = KVEventLog(capacity, snapshot=lambda: (STORED,))
    for _ in range(events):
        log.add(KVCleared())
    return log


def test_events_are_numbered_from_one_and_come_oldest_first() -> None:
    found = _log(3).after(1)
    assert isinstance(found, tuple)
    assert [event.sequence for event in found] == [2, 3]
    assert [event.change for event in found] == [KVCleared()] * 2


def test_a_reader_that_is_up_to_date_gets_nothing() -> None:
    assert _log(3).after(3) == ()


@pytest.mark.parametrize(
    ("events", "after"),
    [
        pytest.param(3, 0, id="a-new-reader"),
        pytest.param(9, 4, id="one-whose-events-are-gone"),
        pytest.param(3, 5, id="one-of-an-earlier-life"),
        pytest.param(0, 0, id="before-the-first-event"),
    ],
)
def test_a_snapshot_replaces_events_that_are_not_there(events: int, after: int) -> None:
    assert _log(events).after(after) == KVSnapshot(events, (STORED,))


def test_the_oldest_kept_event_is_still_given() -> None:
    found = _log(9).after(5)
    assert isinstance(found, tuple)
    assert [event.sequence for event in found] == [6, 7, 8, 9]


def test_changes_are_values() -> None:
    assert KVEvicted((BlockHash(b"a" * 16),), GroupId(0)) == KVEvicted((BlockHash(b"a" * 16),), GroupId(0))
