"""The waiting queue: order among tenants and ranks, whatever comes, goes and is charged."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ridgeline_contracts.blockhash import HashScope
from ridgeline_contracts.errors import InvariantError
from ridgeline_contracts.ids import Attempt, RequestId, TenantId
from ridgeline_contracts.kv import GroupId
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_engine.kv_tables import GroupTable
from ridgeline_engine.policy.accounts import TenantAccount, TenantAccounts
from ridgeline_engine.policy.waiting import WaitingQueue
from ridgeline_engine.request import PriorityClass, Request, RequestKey
from ridgeline_engine.seam import SlotId
from ridgeline_engine.sequence import Family, Progress, Sequence, SequenceState

INTERACTIVE, BATCH = PriorityClass.INTERACTIVE, PriorityClass.BATCH
MakeSequence = Callable[..., Sequence]


def _maker() -> MakeSequence:
    accounts = TenantAccounts()

    def make(
        order: float, tenant: str = "", priority: PriorityClass = INTERACTIVE, tokens: int = 5
    ) -> Sequence:
        request = Request(
            RequestKey(RequestId(f"{tenant}{order}"), Attempt(0)),
            (1,) * tokens,
            SamplingParams(max_tokens=4),
            tenant=TenantId(tenant),
            priority=priority,
        )
        return Sequence(
            family=Family(request),
            request=request,
            prompt_tokens=tokens,
            choice=0,
            rank=(float(priority is BATCH), order),
            seed=0,
            max_output_tokens=4,
            scope=HashScope(b"", "w", ""),
            end_token_ids=frozenset(),
            progress=Progress(0.0),
            tokens=[1] * tokens,
            account=accounts.enter(TenantId(tenant), 1.0),
        )

    return make


@pytest.fixture
def make_sequence() -> MakeSequence:
    return _maker()


def _account(sequence: Sequence) -> TenantAccount:
    assert sequence.account is not None
    return sequence.account


def _order(queue: WaitingQueue, priority: PriorityClass = INTERACTIVE) -> list[Sequence]:
    found = list(queue.candidates(priority))
    queue.check()
    return found


def test_without_fairness_the_rank_alone_decides(make_sequence: MakeSequence) -> None:
    queue = WaitingQueue(fair=False)
    sequences = [make_sequence(order, tenant) for order, tenant in ((3, "a"), (1, "b"), (2, "a"))]
    _account(sequences[1]).charge(99.0)
    for each in sequences:
        queue.add(each)
    assert _order(queue) == [sequences[1], sequences[2], sequences[0]]


def test_the_tenant_that_had_least_goes_first_and_ranks_decide_within_it(make_sequence: MakeSequence) -> None:
    queue = WaitingQueue(fair=True)
    greedy = [make_sequence(order, "greedy") for order in (2, 1)]
    modest = [make_sequence(order, "modest") for order in (9, 8)]
    for each in (*greedy, *modest):
        queue.add(each)
    _account(greedy[0]).charge(10.0)
    assert _order(queue) == [modest[1], modest[0], greedy[1], greedy[0]]


def test_turns_change_while_candidates_are_taken(make_sequence: MakeSequence) -> None:
    queue = WaitingQueue(fair=True)
    for order, tenant in ((1, "a"), (2, "a"), (3, "b"), (4, "b")):
        queue.add(make_sequence(order, tenant))
    taken = []
    for each in queue.candidates(INTERACTIVE):
        queue.remove(each)
        _account(each).charge(10.0)
        taken.append(each.rank[1])
    assert taken == [1, 3, 2, 4]


def test_one_that_ran_before_goes_before_all_who_did_not(make_sequence: MakeSequence) -> None:
    queue = WaitingQueue(fair=True)
    early, late, resumed = make_sequence(1, "a"), make_sequence(2, "b"), make_sequence(9, "c")
    _account(resumed).charge(50.0)
    queue.add(early)
    queue.add(late)
    queue.add(resumed, resumed=True)
    assert _order(queue) == [resumed, early, late]
    assert _order(queue) == [resumed, early, late]


def test_a_reader_that_stops_early_leaves_the_rest_where_it_was(make_sequence: MakeSequence) -> None:
    queue = WaitingQueue(fair=True)
    sequences = [make_sequence(order) for order in range(4)]
    for each in sequences:
        queue.add(each)
    reader = queue.candidates(INTERACTIVE)
    assert [next(reader), next(reader)] == sequences[:2]
    queue.remove(sequences[0])
    reader.close()
    assert _order(queue) == sequences[1:]


def test_the_classes_wait_apart_and_their_tokens_are_counted(make_sequence: MakeSequence) -> None:
    queue = WaitingQueue(fair=True)
    live, later = make_sequence(1, tokens=7), make_sequence(1, priority=BATCH, tokens=11)
    queue.add(later)
    queue.add(live)
    assert (_order(queue), _order(queue, BATCH)) == ([live], [later])
    assert (queue.tokens(INTERACTIVE), queue.tokens(BATCH), len(queue)) == (7, 11, 2)
    queue.remove(live)
    assert (queue.tokens(INTERACTIVE), queue.tokens(BATCH), len(queue)) == (0, 11, 1)
    assert live not in queue
    assert later in queue


def test_sequences_are_counted_by_class(make_sequence: MakeSequence) -> None:
    queue = WaitingQueue(fair=True)
    live = [make_sequence(order) for order in range(4)]
    later = [make_sequence(order, priority=BATCH) for order in range(2)]
    for each in (*live, *later):
        queue.add(each)
    queue.remove(live[1])
    assert (queue.count(INTERACTIVE), queue.count(BATCH), len(queue)) == (3, 2, 5)
    queue.remove(later[0])
    assert (queue.count(INTERACTIVE), queue.count(BATCH), len(queue)) == (3, 1, 4)


def test_what_left_the_queue_does_not_stay_in_memory(make_sequence: MakeSequence) -> None:
    queue = WaitingQueue(fair=True)
    first = make_sequence(0)
    queue.add(first)
    for order in range(1, 500):
        gone = make_sequence(order)
        queue.add(gone)
        queue.remove(gone)
    entries: Any = queue._classes[INTERACTIVE].lines[_account(first)]
    assert len(entries) < 40
    assert _order(queue) == [first]


def test_check_finds_a_waiting_sequence_that_holds_a_slot(make_sequence: MakeSequence) -> None:
    queue = WaitingQueue(fair=True)
    sequence = make_sequence(1)
    queue.add(sequence)
    sequence.slot = SlotId(3)
    with pytest.raises(InvariantError, match="holds blocks or a slot"):
        queue.check()


def test_check_finds_a_sequence_that_does_not_wait(make_sequence: MakeSequence) -> None:
    queue = WaitingQueue(fair=True)
    sequence = make_sequence(1)
    queue.add(sequence)
    sequence.state = SequenceState.RUNNING
    with pytest.raises(InvariantError, match=r"^the waiting queue holds a sequence that is not waiting$"):
        queue.check()


def test_check_finds_a_waiting_sequence_that_holds_blocks(make_sequence: MakeSequence) -> None:
    queue = WaitingQueue(fair=True)
    sequence = make_sequence(1)
    queue.add(sequence)
    sequence.tables[GroupId(0)] = GroupTable()
    with pytest.raises(InvariantError, match=r"^a waiting sequence holds blocks or a slot$"):
        queue.check()


@pytest.mark.parametrize("resumed", [True, False])
@pytest.mark.parametrize("lost", [True, False])
def test_check_finds_a_sequence_that_is_lost_or_queued_twice(
    make_sequence: MakeSequence, lost: bool, resumed: bool
) -> None:
    queue = WaitingQueue(fair=True)
    first, second = make_sequence(1), make_sequence(2)
    queue.add(first)
    queue.add(second, resumed=resumed)
    queue.check()
    found: Any = queue._classes[INTERACTIVE]
    heap = found.resumed if resumed else found.lines[_account(second)]
    entry = next(each for each in heap if each[1] is second)
    if lost:
        heap.remove(entry)
    else:
        heap.append(entry)
    with pytest.raises(InvariantError, match=r"^the waiting queue lost a sequence, or holds one twice$"):
        queue.check()


def test_one_queued_in_the_place_of_another_is_found(make_sequence: MakeSequence) -> None:
    queue = WaitingQueue(fair=True)
    first, second = make_sequence(1), make_sequence(2)
    queue.add(first)
    queue.add(second)
    heap: Any = queue._classes[INTERACTIVE].lines[_account(first)]
    heap[1] = heap[0]
    with pytest.raises(InvariantError, match="holds one twice"):
        queue.check()


@pytest.mark.parametrize(
    ("gone", "kept"),
    [pytest.param(17, 1 + 17, id="not-worth-a-clean-up"), pytest.param(18, 1, id="cleaned-up")],
)
def test_ended_sequences_are_cleaned_up_beyond_a_slack_of_sixteen_and_those_that_wait(
    make_sequence: MakeSequence, gone: int, kept: int
) -> None:
    queue = WaitingQueue(fair=True)
    first = make_sequence(0)
    queue.add(first)
    ended = [make_sequence(order) for order in range(1, gone + 1)]
    for each in ended:
        queue.add(each)
    for each in ended:
        queue.remove(each)
    heap: Any = queue._classes[INTERACTIVE].lines[_account(first)]
    assert len(heap) == kept
    assert _order(queue) == [first]


@settings(max_examples=150, deadline=None)
@given(data=st.data(), fair=st.booleans())
def test_any_history_gives_the_order_of_a_full_sort(data: st.DataObject, fair: bool) -> None:
    make_sequence = _maker()
    queue = WaitingQueue(fair=fair)
    waiting: list[tuple[Sequence, bool]] = []

    def expected() -> list[Sequence]:
        ordered = sorted(
            waiting,
            key=lambda each: (
                not each[1],
                _account(each[0]).served_ms if fair and not each[1] else 0.0,
                each[0].rank,
            ),
        )
        return [each for each, _ in ordered]

    for order in range(data.draw(st.integers(1, 25))):
        change = data.draw(st.sampled_from(["add", "add", "remove", "charge", "read"]))
        if change == "add":
            resumed = data.draw(st.booleans())
            # Unlike counters for unlike tenants, so that a tie between tenants cannot occur.
            sequence = make_sequence(
                data.draw(st.integers(0, 5)) + order / 100, data.draw(st.sampled_from("abc"))
            )
            if _account(sequence).served_ms == 0.0:
                _account(sequence).charge({"a": 0.25, "b": 0.5, "c": 0.75}[sequence.request.tenant])
            queue.add(sequence, resumed=resumed)
            waiting.append((sequence, resumed))
        elif change == "remove" and waiting:
            gone = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
            queue.remove(gone[0])
        elif change == "charge" and waiting:
            _account(waiting[data.draw(st.integers(0, len(waiting) - 1))][0]).charge(
                data.draw(st.integers(1, 9))
            )
        else:
            reader = queue.candidates(INTERACTIVE)
            some = data.draw(st.integers(0, len(waiting)))
            found = [next(reader) for _ in range(some)]
            reader.close()
            if fair is False or len({_account(each).served_ms for each, _ in waiting}) == len(
                {_account(each) for each, _ in waiting}
            ):
                assert found == expected()[:some]
        queue.check()
    assert sorted(map(id, queue)) == sorted(id(each) for each, _ in waiting)
