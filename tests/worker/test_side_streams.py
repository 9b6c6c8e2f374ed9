"""What a worker serves besides sessions: load, drain, tokenizer files, cache events, the status page."""

import hashlib
import urllib.error
import urllib.request

import grpc
import pytest
from ridgeline_contracts.proto import worker_pb2 as pb

FILE = b"{}" * 600_000


async def _status(url: str) -> tuple[int, str]:
    import asyncio

    def get() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    return await asyncio.to_thread(get)


async def test_a_load_report_tells_what_the_router_needs(start_worker) -> None:
    worker = await start_worker()
    stream = await worker.stream()
    await stream.submit("r1", [10], max_tokens=1_000_000)
    await stream.frame()
    async for report in worker.stub.Load(pb.LoadRequest(interval_ms=50)):
        if report.running:
            break
    assert report.ready
    assert not report.draining
    assert (report.worker_id, report.pool, report.role) == ("w1", "default", "unified")
    assert (report.free_blocks, report.total_blocks) == (99, 100)
    assert report.step_model.base_ms == 1.0
    assert [each.model for each in report.variants] == ["fake"]
    assert report.tokenizer_files["tokenizer.json"] == hashlib.sha256(FILE).hexdigest()


async def test_a_drain_refuses_new_work_says_so_and_counts_what_still_runs(start_worker) -> None:
    worker = await start_worker()
    stream = await worker.stream()
    await stream.submit("long", [10], max_tokens=1_000_000)
    await stream.frame()
    reply = await worker.stub.Drain(pb.DrainRequest(max_wait_ms=50))
    assert reply.unfinished == 1
    await stream.submit("late", [10])
    rows = await stream.rows_until_finished(1)
    assert rows[("late", 0)][-1].finish.error_code == "overloaded"
    async for report in worker.stub.Load(pb.LoadRequest(interval_ms=50)):
        if report.draining:
            break
    assert (await _status(f"{worker.metrics}/readyz"))[0] == 503
    await stream.cancel("long")
    assert (await worker.stub.Drain(pb.DrainRequest(max_wait_ms=5000))).unfinished == 0


async def test_a_tokenizer_file_comes_by_its_hash_in_pieces(start_worker) -> None:
    worker = await start_worker()
    sha256 = hashlib.sha256(FILE).hexdigest()
    pieces = [piece.data async for piece in worker.stub.TokenizerFile(pb.TokenizerFileRequest(sha256=sha256))]
    assert len(pieces) == 2
    assert b"".join(pieces) == FILE
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await worker.stub.TokenizerFile(pb.TokenizerFileRequest(sha256="0" * 64)).read()
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND


async def test_cache_events_begin_with_a_snapshot_and_go_on_by_number(start_worker) -> None:
    worker = await start_worker()
    stream = await worker.stream()
    await stream.submit("r1", [10])
    await stream.rows_until_finished(1)
    events = worker.stub.KvEvents(pb.KvEventsRequest())
    first = await events.read()
    assert first.snapshot.last
    assert [block for stored in first.snapshot.stored for block in stored.block_hashes] == [
        b"r1".ljust(16, b".")
    ]
    await stream.submit("r2", [10])
    second = await events.read()
    assert second.sequence == first.sequence + 1
    assert list(second.stored.block_hashes) == [b"r2".ljust(16, b".")]
    again = worker.stub.KvEvents(
        pb.KvEventsRequest(after_sequence=first.sequence, core_incarnation=first.core_incarnation)
    )
    assert (await again.read()).stored.block_hashes == second.stored.block_hashes


async def test_every_stream_ends_in_order_when_the_worker_stops(start_worker, caplog) -> None:
    worker = await start_worker()
    session = await worker.stream()
    load = worker.stub.Load(pb.LoadRequest(interval_ms=60_000))
    events = worker.stub.KvEvents(pb.KvEventsRequest())
    await load.read()
    await events.read()
    worker.application.stop()
    assert await worker.running == 0
    assert await session.frame() is None
    while await load.read() is not grpc.aio.EOF:
        pass
    assert await events.read() is grpc.aio.EOF
    for call in (session.call, load, events):
        assert await call.code() == grpc.StatusCode.OK
    assert not [record for record in caplog.records if record.name.startswith("grpc")]


async def test_the_status_page_tells_health_readiness_and_metrics(start_worker) -> None:
    worker = await start_worker()
    stream = await worker.stream()
    await stream.submit("r1", [10])
    await stream.rows_until_finished(1)
    assert await _status(f"{worker.metrics}/healthz") == (200, "ok\n")
    assert await _status(f"{worker.metrics}/readyz") == (200, "ready\n")
    assert (await _status(f"{worker.metrics}/other"))[0] == 404
    _, metrics = await _status(f"{worker.metrics}/metrics")
    assert 'ridgeline_worker_requests_submitted_total{priority_class="interactive"} 1.0' in metrics
    assert "ridgeline_worker_step_predicted_seconds_count" in metrics
    assert 'ridgeline_worker_kv_blocks{state="total"} 100.0' in metrics
