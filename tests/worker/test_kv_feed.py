"""Cache events: a listener that keeps up gets each one, one that does not gets a snapshot that says the same."""

from hypothesis import given, settings
from hypothesis import strategies as st
from ridgeline_contracts.ids import BlockHash, Incarnation
from ridgeline_contracts.kv import GroupId
from ridgeline_contracts.proto import worker_pb2 as pb
from ridgeline_engine.kv_events import KVCleared, KVEvicted, KVStored
from ridgeline_worker.kv_feed import KvFeed

GROUP = GroupId(0)
ROOT = BlockHash(b"root".ljust(16))


def _block(number: int) -> BlockHash:
    return BlockHash(number.to_bytes(16, "big"))


def _feed(**options: int) -> KvFeed:
    feed = KvFeed(**options)
    feed.restart(Incarnation("c1"))
    return feed


class _Mirror:
    """What a router would know."""

    def __init__(self) -> None:
        self.blocks: set[bytes] = set()
        self.last: pb.KvEvent | None = None
        self.snapshots = 0
        self._in_snapshot = False

    def apply(self, event: pb.KvEvent) -> None:
        match event.WhichOneof("event"):
            case "snapshot":
                if not self._in_snapshot:
                    self.blocks.clear()
                    self.snapshots += 1
                self._in_snapshot = not event.snapshot.last
                self.blocks |= {block for stored in event.snapshot.stored for block in stored.block_hashes}
            case "stored":
                self.blocks |= set(event.stored.block_hashes)
            case "evicted":
                self.blocks -= set(event.evicted.block_hashes)
            case "cleared":
                self.blocks.clear()
        self.last = event


async def _catch_up(feed: KvFeed, mirror: _Mirror) -> None:
    request = pb.KvEventsRequest()
    if mirror.last is not None:
        request.after_sequence = mirror.last.sequence
        request.core_incarnation = mirror.last.core_incarnation
        if (mirror.last.sequence, mirror.last.core_incarnation) == feed.position:
            return
    async for event in feed.follow(request):
        mirror.apply(event)
        whole = not event.HasField("snapshot") or event.snapshot.last
        if whole and (event.sequence, event.core_incarnation) == feed.position:
            return


async def test_a_listener_that_keeps_up_gets_single_events_with_their_parents() -> None:
    feed, mirror = _feed(), _Mirror()
    await _catch_up(feed, mirror)
    feed.apply([KVStored(ROOT, (_block(1), _block(2)), GROUP)])
    await _catch_up(feed, mirror)
    assert mirror.last.stored.parent_hash == ROOT
    assert mirror.snapshots == 1
    feed.apply([KVEvicted((_block(2),), GROUP)])
    await _catch_up(feed, mirror)
    assert mirror.blocks == {_block(1)}
    assert mirror.snapshots == 1


async def test_a_listener_that_fell_out_of_the_ring_gets_a_snapshot() -> None:
    feed, mirror = _feed(ring_events=2), _Mirror()
    await _catch_up(feed, mirror)
    for number in range(5):
        feed.apply([KVStored(ROOT, (_block(number),), GROUP)])
    await _catch_up(feed, mirror)
    assert mirror.snapshots == 2
    assert mirror.blocks == {_block(number) for number in range(5)}


async def test_a_new_core_begins_at_1_with_an_empty_cache() -> None:
    feed, mirror = _feed(), _Mirror()
    feed.apply([KVStored(ROOT, (_block(1),), GROUP)])
    await _catch_up(feed, mirror)
    feed.restart(Incarnation("c2"))
    await _catch_up(feed, mirror)
    assert mirror.blocks == set()
    assert (mirror.last.sequence, mirror.last.core_incarnation) == (1, "c2")


async def test_a_position_of_the_future_is_answered_by_a_snapshot() -> None:
    feed = _feed()
    stream = feed.follow(pb.KvEventsRequest(after_sequence=99, core_incarnation="c1"))
    assert (await anext(stream)).HasField("snapshot")
    await stream.aclose()


async def test_a_snapshot_of_many_blocks_comes_in_parts_that_keep_parents() -> None:
    feed, mirror = _feed(), _Mirror()
    chain = tuple(_block(number) for number in range(3000))
    feed.apply([KVStored(ROOT, chain, GROUP)])
    await _catch_up(feed, mirror)
    assert mirror.blocks == set(chain)
    stream = feed.follow(pb.KvEventsRequest())
    first = await anext(stream)
    assert not first.snapshot.last
    assert first.snapshot.stored[0].parent_hash == ROOT
    assert first.snapshot.stored[1].parent_hash == chain[0]
    await stream.aclose()


_CHANGES = st.lists(
    st.one_of(
        st.builds(lambda number: KVStored(ROOT, (_block(number),), GROUP), st.integers(0, 9)),
        st.builds(lambda number: KVEvicted((_block(number),), GROUP), st.integers(0, 9)),
        st.just(KVCleared()),
        st.just("catch up"),
        st.just("restart"),
    ),
    max_size=40,
)


@given(_CHANGES, st.integers(1, 5))
@settings(max_examples=100, deadline=None)
def test_whenever_a_listener_has_caught_up_it_knows_what_is_cached(steps, ring_events) -> None:
    import asyncio

    async def run() -> None:
        feed, mirror, lives = _feed(ring_events=ring_events), _Mirror(), 1
        cached: set[bytes] = set()
        for step in steps:
            match step:
                case "catch up":
                    await _catch_up(feed, mirror)
                    assert mirror.blocks == cached
                case "restart":
                    lives += 1
                    feed.restart(Incarnation(f"c{lives}"))
                    cached = set()
                case KVStored():
                    cached |= set(step.block_hashes)
                    feed.apply([step])
                case KVEvicted():
                    cached -= set(step.block_hashes)
                    feed.apply([step])
                case KVCleared():
                    cached = set()
                    feed.apply([step])
        await _catch_up(feed, mirror)
        assert mirror.blocks == cached

    asyncio.run(run())
