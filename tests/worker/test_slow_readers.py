"""A gateway that stops reading: it loses its own requests, and holds nobody up."""

import grpc
import pytest
from ridgeline_contracts.proto import worker_pb2 as pb
from ridgeline_contracts.proto import worker_pb2_grpc
from ridgeline_worker.rows import PackedRow
from ridgeline_worker.session import GatewaySession, Outbox
from ridgeline_worker.settings import LimitSettings


async def test_a_gateway_that_does_not_read_loses_its_own_requests_and_holds_nobody_up(start_worker) -> None:
    worker = await start_worker(limits=LimitSettings(outbox_rows=2000))
    slow_channel = worker.slow_channel()
    slow = await type(quick := await worker.stream())(worker_pb2_grpc.WorkerStub(slow_channel)).open()
    for number in range(8):
        await slow.submit(f"slow{number}", [10], n=4, max_tokens=1_000_000)
    await quick.submit("quick", [10], max_tokens=400)
    rows = (await quick.rows_until_finished(1))[("quick", 0)]
    assert rows[-1].finish.reason == pb.FINISH_REASON_LENGTH
    while worker.application.front.has_outstanding_work:
        await quick.submit("probe", [10], max_tokens=3)
        await quick.rows_until_finished(1)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await slow.rows_until_finished(1_000_000)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    await slow_channel.close()


def _row(offset: int) -> PackedRow:
    return "r", 0, 0, offset, (offset,), (), None


async def test_an_outbox_holds_rows_up_to_its_bound_and_no_more() -> None:
    session = GatewaySession(1, pb.GatewayHello(), Outbox(max_rows=3))
    session.greet(pb.WorkerHello())
    assert session.offer([_row(0), _row(1)])
    assert session.offer([_row(2)])
    assert not session.offer([_row(3)])
    assert session.overflowed.is_set()
    assert session.outbox.is_empty
    assert not session.offer([])
    assert await session.outbox.take() is None


async def test_what_is_read_makes_room_and_frames_are_numbered_without_gaps() -> None:
    session = GatewaySession(1, pb.GatewayHello(), Outbox(max_rows=1))
    for number in range(1, 4):
        assert session.offer([_row(number)])
        message = await session.outbox.take()
        assert message is not None
        assert message.frame.sequence == number


async def test_a_new_hello_starts_the_numbers_again() -> None:
    session = GatewaySession(1, pb.GatewayHello(), Outbox(max_rows=10))
    session.offer([_row(0)])
    session.greet(pb.WorkerHello())
    session.offer([_row(1)])
    session.outbox.close(discard=False)
    told = []
    while (message := await session.outbox.take()) is not None:
        told.append(message.frame.sequence if message.HasField("frame") else "hello")
    assert told == [1, "hello", 1]
