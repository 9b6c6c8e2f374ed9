"""Who waits and who runs: a slot with the one, nothing with the other, and a check that finds what is wrong."""

from collections.abc import Callable
from typing import Any

import pytest
from ridgeline_contracts.errors import InvariantError
from ridgeline_engine.kv_manager import KVManager
from ridgeline_engine.queues import Queues
from ridgeline_engine.seam import LaunchId, TokenRef
from ridgeline_engine.sequence import Sequence, SequenceState
from ridgeline_engine.slots import Slots
from ridgeline_testing.fake_executor import kv_group
from ridgeline_testing.sequences import sequence


@pytest.fixture
def queues() -> Queues:
    group = kv_group()
    kv = KVManager((group,), {group.group: 8}, prefix_cache=False, event_buffer=8)
    return Queues(kv, Slots(3), fair=True)


def _arrive(queues: Queues, *, rank: float, **changes: Any) -> Sequence:
    found = sequence(f"r{rank}", rank=rank, **changes)
    found.account = queues.accounts.enter(found.request.tenant, 1.0)
    queues.waiting.add(found)
    return found


def _run(queues: Queues, found: Sequence) -> None:
    slot = queues.start(found)
    queues.kv.admit(found, queues.kv.find(found), slot)


def test_a_sequence_that_starts_leaves_the_waiting_and_takes_a_slot(queues: Queues) -> None:
    first, second = _arrive(queues, rank=1.0), _arrive(queues, rank=2.0)
    assert queues.start(second) == 0
    assert (second.slot, second.generation, second.state) == (0, 1, SequenceState.RUNNING)
    assert (list(queues.waiting), queues.running) == ([first], [second])


def test_the_running_stand_in_the_order_of_rank(queues: Queues) -> None:
    found = [_arrive(queues, rank=rank) for rank in (3.0, 1.0, 2.0)]
    for each in found:
        _run(queues, each)
    assert [each.rank[1] for each in queues.running] == [1.0, 2.0, 3.0]
    queues.stop(found[2], fence=None)
    assert [each.rank[1] for each in queues.running] == [1.0, 3.0]


def test_one_that_stops_gives_its_slot_back_and_forgets_what_was_open(queues: Queues) -> None:
    found = _arrive(queues, rank=1.0)
    _run(queues, found)
    found.pending_tokens, found.newest_pending = 1, TokenRef(LaunchId(4), 0)
    queues.stop(found, fence=LaunchId(4))
    assert (found.slot, found.generation) == (None, None)
    assert (found.pending_tokens, found.newest_pending) == (0, None)
    assert queues.slots.free == 2
    queues.slots.retire(LaunchId(4))
    assert queues.slots.free == 3


@pytest.mark.parametrize("rank", [pytest.param(0.0, id="before-all"), pytest.param(9.0, id="behind-all")])
def test_what_does_not_run_cannot_stop(queues: Queues, rank: float) -> None:
    _run(queues, _arrive(queues, rank=1.0))
    with pytest.raises(InvariantError, match="does not run"):
        queues.stop(sequence("stranger", rank=rank), fence=None)


def test_another_of_the_same_rank_does_not_run(queues: Queues) -> None:
    _run(queues, _arrive(queues, rank=1.0))
    with pytest.raises(InvariantError, match="does not run"):
        queues.stop(sequence("double", rank=1.0), fence=None)


def _swap(queues: Queues) -> None:
    queues.running.reverse()


def _wait(queues: Queues) -> None:
    queues.running[0].state = SequenceState.WAITING


def _plan_too_much(queues: Queues) -> None:
    queues.running[0].planned_tokens = queues.running[0].context_tokens + 1


def _compute_too_much(queues: Queues) -> None:
    queues.running[0].computed_tokens = queues.running[0].planned_tokens + 1


def _run_ahead(queues: Queues) -> None:
    queues.running[0].pending_tokens = 1


def _lose_an_account(queues: Queues) -> None:
    account = queues.running[0].account
    assert account is not None
    account.sequences += 1


def _lose_a_slot(queues: Queues) -> None:
    queues.slots.take()
    queues.slots._leased.clear()


def _lose_a_block(queues: Queues) -> None:
    next(iter(queues.running[0].tables.values())).blocks.pop()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        pytest.param(_swap, "out of order", id="order"),
        pytest.param(_wait, "not running", id="state"),
        pytest.param(_plan_too_much, "planned more than it has", id="planned"),
        pytest.param(_compute_too_much, "computed more than was planned", id="computed"),
        pytest.param(_run_ahead, "has others to run", id="pending"),
        pytest.param(_lose_an_account, "other sequences than the queues hold", id="accounts"),
        pytest.param(_lose_a_slot, "slots lost", id="slots"),
        pytest.param(_lose_a_block, "capacity differs|holders and tables differ", id="blocks"),
    ],
)
def test_check_finds_what_is_wrong(queues: Queues, spoil: Callable[[Queues], None], message: str) -> None:
    for rank in (1.0, 2.0):
        _run(queues, _arrive(queues, rank=rank))
    _arrive(queues, rank=3.0)
    queues.check()
    spoil(queues)
    with pytest.raises(InvariantError, match=message):
        queues.check()
