"""Blocks: each in one place, held by count, handed out oldest first, never while a launch may touch them."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)
from ridgeline_contracts.errors import InvariantError
from ridgeline_contracts.kv import BlockId, GroupId
from ridgeline_engine.block_pool import BlockPool
from ridgeline_engine.seam import LaunchId

G0, G1 = GroupId(0), GroupId(1)


def _pool(blocks: int = 4, *, evicted: list[BlockId] | None = None) -> BlockPool:
    def on_evict(blocks: Mapping[GroupId, Sequence[BlockId]]) -> None:
        if evicted is not None:
            evicted.extend(blocks[G0])

    return BlockPool({G0: blocks}, on_evict=on_evict)


def _take(pool: BlockPool, count: int) -> tuple[BlockId, ...]:
    return pool.allocate({G0: count})[G0]


def _mark(pool: BlockPool, blocks: Sequence[BlockId]) -> None:
    for block in blocks:
        pool.set_hittable(G0, block, True)


def test_blank_blocks_are_handed_out_before_hittable_ones() -> None:
    evicted: list[BlockId] = []
    pool = _pool(4, evicted=evicted)
    cached = _take(pool, 2)
    _mark(pool, cached)
    pool.release(G0, cached, fence=None)
    assert set(_take(pool, 2)).isdisjoint(cached)
    assert evicted == []


def test_the_tail_of_the_least_recently_freed_is_evicted_first() -> None:
    evicted: list[BlockId] = []
    pool = _pool(4, evicted=evicted)
    older, newer = _take(pool, 2), _take(pool, 2)
    _mark(pool, older)
    _mark(pool, newer)
    pool.release(G0, older, fence=None)
    pool.release(G0, newer, fence=None)
    _take(pool, 3)
    assert evicted == [older[1], older[0], newer[1]]
    assert not pool.is_hittable(G0, older[0])
    assert pool.is_hittable(G0, newer[0])


def test_a_hit_takes_a_free_block_back_and_saves_it() -> None:
    evicted: list[BlockId] = []
    pool = _pool(2, evicted=evicted)
    blocks = _take(pool, 2)
    _mark(pool, blocks)
    pool.release(G0, blocks, fence=None)
    pool.share(G0, blocks[:1])
    assert pool.can_allocate({G0: 1})
    assert not pool.can_allocate({G0: 2})
    assert _take(pool, 1) == blocks[1:]
    assert evicted == [blocks[1]]


def test_blocks_about_to_be_shared_do_not_count_as_room() -> None:
    pool = _pool(2)
    blocks = _take(pool, 1)
    _mark(pool, blocks)
    pool.release(G0, blocks, fence=None)
    assert pool.can_allocate({G0: 2})
    assert not pool.can_allocate({G0: 2}, sharing={G0: blocks})
    assert pool.can_allocate({G0: 1}, sharing={G0: blocks})


def test_a_quarantined_block_is_not_reused_before_its_launch_completed() -> None:
    pool = _pool(1)
    blocks = _take(pool, 1)
    pool.release(G0, blocks, fence=LaunchId(7))
    assert pool.can_allocate({G0: 1}, once_retired=True)
    pool.retire(LaunchId(6))
    assert not pool.can_allocate({G0: 1})
    pool.retire(LaunchId(7))
    assert _take(pool, 1) == blocks


def test_a_quarantined_block_can_be_hit() -> None:
    pool = _pool(1)
    blocks = _take(pool, 1)
    _mark(pool, blocks)
    pool.release(G0, blocks, fence=LaunchId(7))
    pool.share(G0, blocks)
    pool.retire(LaunchId(7))
    assert pool.counts(G0).held == 1
    pool.check()


def test_allocation_is_for_all_groups_or_none() -> None:
    pool = BlockPool({G0: 4, G1: 1}, on_evict=lambda blocks: None)
    assert not pool.can_allocate({G0: 1, G1: 2})
    with pytest.raises(InvariantError):
        pool.allocate({G0: 1, G1: 2})
    assert pool.counts(G0).free == 4
    assert set(pool.allocate({G0: 1, G1: 1})) == {G0, G1}


def test_a_second_release_and_a_share_of_nothing_are_bugs() -> None:
    pool = _pool(2)
    blocks = _take(pool, 1)
    pool.release(G0, blocks, fence=None)
    with pytest.raises(InvariantError, match="released twice"):
        pool.release(G0, blocks, fence=None)
    with pytest.raises(InvariantError, match="nothing is in it"):
        pool.share(G0, blocks)
    pool.check()


def test_an_acquisition_that_breaks_off_changes_nothing_in_any_group() -> None:
    told: list[Mapping[GroupId, Sequence[BlockId]]] = []

    def refuse(blocks: Mapping[GroupId, Sequence[BlockId]]) -> None:
        told.append(blocks)
        raise KeyboardInterrupt

    pool = BlockPool({G0: 4, G1: 4}, on_evict=refuse)
    older, newer = (pool.allocate({G0: 2, G1: 2}) for _ in range(2))
    for table in (older, newer):
        for group, blocks in table.items():
            for block in blocks:
                pool.set_hittable(group, block, True)
            pool.release(group, blocks, fence=None)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            pool.acquire({G0: 1, G1: 3}, sharing={G0: newer[G0][:1]})
        pool.check()
        assert [pool.counts(group).kept for group in (G0, G1)] == [4, 4]
    # The second time asks for the same ones: the order is as it was.
    assert told == [{G0: [older[G0][1]], G1: [older[G1][1], older[G1][0], newer[G1][1]]}] * 2


def test_blocks_in_quarantine_count_as_room_for_when_all_launches_have_completed() -> None:
    pool = _pool(3)
    first, second = _take(pool, 2), _take(pool, 1)
    _mark(pool, first)
    pool.release(G0, first, fence=LaunchId(1))
    assert not pool.can_allocate({G0: 1})
    assert pool.can_allocate({G0: 2}, once_retired=True)
    assert not pool.can_allocate({G0: 3}, once_retired=True)
    assert not pool.can_allocate({G0: 2}, sharing={G0: first[:1]}, once_retired=True)
    pool.release(G0, second, fence=None)
    assert pool.can_allocate({G0: 3}, once_retired=True)


class PoolMachine(RuleBasedStateMachine):
    """Against a model that only counts: who holds what, and which launch keeps what from being reused."""

    tables = Bundle("tables")
    BLOCKS = 6

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool({G0: self.BLOCKS, G1: self.BLOCKS}, on_evict=self._on_evict)
        self.holders: dict[tuple[GroupId, BlockId], int] = {}
        self.fences: dict[tuple[GroupId, BlockId], int] = {}
        self.hittable: set[tuple[GroupId, BlockId]] = set()
        self.launched = self.retired = 0
        self.breaks_off = False

    def _on_evict(self, evicted: Mapping[GroupId, Sequence[BlockId]]) -> None:
        if self.breaks_off:
            raise MemoryError
        for group, blocks in evicted.items():
            for block in blocks:
                assert (group, block) not in self.holders
                self.hittable.remove((group, block))

    @rule(target=tables, group=st.sampled_from([G0, G1]), count=st.integers(1, 4))
    def allocate(self, group: GroupId, count: int) -> object:
        held = {block for found, block in self.holders if found == group}
        fenced = {block for found, block in self.fences if found == group}
        can = self.pool.can_allocate({group: count})
        assert can == (count <= self.BLOCKS - len(held) - len(fenced))
        if not can:
            return multiple()
        blocks = self.pool.allocate({group: count})[group]
        for block in blocks:
            assert block not in held
            assert block not in fenced
            assert (group, block) not in self.hittable
            self.holders[group, block] = 1
        return (group, blocks)

    @rule(table=tables)
    def store(self, table: tuple[GroupId, tuple[BlockId, ...]]) -> None:
        group, blocks = table
        for block in blocks:
            if self.holders.get((group, block)):
                self.pool.set_hittable(group, block, True)
                self.hittable.add((group, block))

    @rule(table=tables)
    def forget(self, table: tuple[GroupId, tuple[BlockId, ...]]) -> None:
        group, blocks = table
        for block in blocks:
            self.pool.set_hittable(group, block, False)
            self.hittable.discard((group, block))

    @rule(target=tables, table=tables, count=st.integers(1, 4))
    def share(self, table: tuple[GroupId, tuple[BlockId, ...]], count: int) -> object:
        group, blocks = table
        head = blocks[:count]
        if any((group, block) not in self.holders and (group, block) not in self.hittable for block in head):
            return multiple()
        self.pool.share(group, head)
        for block in head:
            self.holders[group, block] = self.holders.get((group, block), 0) + 1
            self.fences.pop((group, block), None)
        return (group, head)

    @rule(
        target=tables, table=tables, count=st.integers(1, 4), new=st.integers(0, 4), breaks_off=st.booleans()
    )
    def acquire(
        self, table: tuple[GroupId, tuple[BlockId, ...]], count: int, new: int, breaks_off: bool
    ) -> object:
        """A prefix and new blocks, in both groups at once; in none where it breaks off."""
        group, blocks = table
        head = blocks[:count]
        known = all((group, block) in self.holders or (group, block) in self.hittable for block in head)
        need = {G0: new, G1: new}
        if not known or not self.pool.can_allocate(need, sharing={group: head}):
            return multiple()
        before = [self.pool.counts(each) for each in need]
        self.breaks_off = breaks_off
        try:
            taken = self.pool.acquire(need, sharing={group: head})
        except MemoryError:
            assert [self.pool.counts(each) for each in need] == before
            return multiple()
        finally:
            self.breaks_off = False
        for block in head:
            self.holders[group, block] = self.holders.get((group, block), 0) + 1
            self.fences.pop((group, block), None)
        for each, found in taken.items():
            for block in found:
                assert (each, block) not in self.holders
                assert (each, block) not in self.fences
                self.holders[each, block] = 1
        return multiple((group, head), *((each, found) for each, found in taken.items() if found))

    @rule(table=consumes(tables), fenced=st.booleans())
    def release(self, table: tuple[GroupId, tuple[BlockId, ...]], fenced: bool) -> None:
        group, blocks = table
        fence = LaunchId(self.launched) if fenced and self.launched > self.retired else None
        self.pool.release(group, blocks, fence=fence)
        for block in blocks:
            self.holders[group, block] -= 1
            if self.holders[group, block] == 0:
                del self.holders[group, block]
                if fence is not None:
                    self.fences[group, block] = fence

    @rule()
    def launch(self) -> None:
        self.launched += 1

    @precondition(lambda self: self.launched > self.retired)
    @rule()
    def complete(self) -> None:
        self.retired += 1
        self.pool.retire(LaunchId(self.retired))
        self.fences = {place: fence for place, fence in self.fences.items() if fence > self.retired}

    @invariant()
    def pool_agrees_with_the_count(self) -> None:
        self.pool.check()
        for group in (G0, G1):
            counts = self.pool.counts(group)
            assert counts.held == sum(1 for found, _ in self.holders if found == group)
            assert counts.quarantined == sum(1 for found, _ in self.fences if found == group)
            assert counts.held + counts.free + counts.quarantined == counts.total


def test_the_pool_is_conserved_under_any_history() -> None:
    run_state_machine_as_test(
        PoolMachine, settings=settings(max_examples=60, stateful_step_count=40, deadline=None)
    )


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_pool_is_conserved_under_long_histories() -> None:
    run_state_machine_as_test(
        PoolMachine, settings=settings(max_examples=300, stateful_step_count=80, deadline=None)
    )
