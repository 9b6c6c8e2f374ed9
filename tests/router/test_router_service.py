"""The router on loopback ports, with workers that are servers of their own: route, explain, failover, follow."""

import asyncio
import itertools
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator

import grpc
import pytest
from ridgeline_contracts.clock import SystemClock
from ridgeline_contracts.ids import ReservationId
from ridgeline_contracts.proto import router_pb2 as pb
from ridgeline_contracts.proto import router_pb2_grpc, worker_pb2, worker_pb2_grpc
from ridgeline_router.application import RouterApplication
from ridgeline_router.discovery import static_discovery
from ridgeline_router.settings import RouterSettings
from ridgeline_router.worker_link import LinkTiming

VARIANT = worker_pb2.Variant(model="chat", weights_revision="v1")


class FakeWorker(worker_pb2_grpc.WorkerServicer):
    """Serves the load stream alone."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.incarnation = f"{name}-1"
        self.ready = True
        self.silent = False
        self.changed = asyncio.Event()
        self.port = 0
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        self._server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        worker_pb2_grpc.add_WorkerServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0)

    async def Load(self, request, context):
        while True:
            if not self.silent:
                yield worker_pb2.LoadReport(
                    worker_id=self.name,
                    worker_incarnation=self.incarnation,
                    ready=self.ready,
                    variants=[VARIANT],
                    pool="default",
                    role="unified",
                    tokenizer_files={"tokenizer.json": "abc"},
                )
            self.changed.clear()
            try:
                await asyncio.wait_for(self.changed.wait(), request.interval_ms / 1000)
            except TimeoutError:
                continue

    Session = TokenizerFile = KvEvents = Drain = None


class Scene:
    def __init__(self, workers: list[FakeWorker], port: int, metrics_port: int) -> None:
        self.workers = workers
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        self.stub = router_pb2_grpc.RouterStub(self.channel)
        self.metrics = f"http://127.0.0.1:{metrics_port}"
        self.sets = self.stub.Workers(pb.WorkersRequest())
        self.last = pb.WorkerSet()

    async def until(self, *states: int) -> pb.WorkerSet:
        """Follows the stream of workers until they have these states, in the order of their ids."""
        while [each.state for each in self.last.workers] != list(states):
            self.last = await self.sets.read()
        return self.last

    async def route(self, **fields) -> pb.RouteReply:
        fields = {"request_id": "r", "model": "chat", "expected_output_tokens": 50} | fields
        return await self.stub.Route(pb.RouteRequest(**fields))


READY, LOST, STARTING = pb.WORKER_STATE_READY, pb.WORKER_STATE_LOST, pb.WORKER_STATE_STARTING


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    workers = [FakeWorker("a"), FakeWorker("b")]
    for worker in workers:
        await worker.start()
    numbers = itertools.count()
    application = RouterApplication(
        RouterSettings(timing=LinkTiming(interval_ms=50, lost_after_ms=400, first_pause_ms=20)),
        static_discovery([f"{each.name}=127.0.0.1:{each.port}" for each in workers]),
        clock=SystemClock(),
        new_reservation_id=lambda: ReservationId(f"x{next(numbers)}"),
    )
    running = asyncio.create_task(application.run())
    addresses = await application.listening
    scene = Scene(workers, addresses.port, addresses.metrics_port)
    yield scene
    application.stop()
    assert await running == 0
    while await scene.sets.read() is not grpc.aio.EOF:
        pass
    assert await scene.sets.code() == grpc.StatusCode.OK
    await scene.channel.close()
    for worker in workers:
        await worker.stop()


async def test_a_placed_request_names_worker_life_reason_and_reservation(scene) -> None:
    told = await scene.until(READY, READY)
    assert told.workers[0].tokenizer_files["tokenizer.json"] == "abc"
    assert told.workers[0].variants == [VARIANT]
    placement = (await scene.route()).placement
    assert (placement.decode.worker_id, placement.decode.worker_incarnation) == ("a", "a-1")
    assert not placement.HasField("prefill")
    assert placement.reason.startswith("least_predicted_load")
    assert placement.estimates.total_ms > 0
    assert (await scene.route()).placement.decode.worker_id == "b"
    await scene.stub.Release(pb.ReleaseRequest(reservation_id=placement.reservation_id))
    await scene.stub.Release(pb.ReleaseRequest(reservation_id=placement.reservation_id))
    assert (await scene.route()).placement.decode.worker_id == "a"


async def test_explain_tells_each_attempt_with_its_candidates(scene) -> None:
    await scene.until(READY, READY)
    await scene.route(request_id="q", attempt=0)
    await scene.route(request_id="q", attempt=1, pins=pb.Pins(excluded_worker_ids=["a"]))
    told = await scene.stub.Explain(pb.ExplainRequest(request_id="q"))
    assert [each.attempt for each in told.decisions] == [0, 1]
    assert told.decisions[1].reply.placement.decode.worker_id == "b"
    assert [(each.worker_id, each.eligible) for each in told.decisions[1].candidates] == [
        ("a", False),
        ("b", True),
    ]
    assert len((await scene.stub.Explain(pb.ExplainRequest(request_id="unknown"))).decisions) == 0


async def test_an_unknown_model_is_not_found_and_an_absent_revision_unavailable(scene) -> None:
    await scene.until(READY, READY)
    assert (await scene.route(model="none")).refusal.code == "not_found"
    refusal = (await scene.route(variant=worker_pb2.Variant(model="chat", weights_revision="v2"))).refusal
    assert refusal.code == "unavailable"
    assert refusal.retry_after_ms > 0


async def test_a_worker_that_dies_is_lost_and_comes_back_under_a_new_life(scene) -> None:
    await scene.until(READY, READY)
    first = scene.workers[0]
    await first.stop()
    await scene.until(LOST, READY)
    assert {(await scene.route()).placement.decode.worker_id for _ in range(3)} == {"b"}
    first.incarnation = "a-2"
    await first.start()
    told = await scene.until(READY, READY)
    assert told.workers[0].worker_incarnation == "a-2"
    assert (await scene.route()).placement.decode.worker_id == "a"


async def test_a_worker_that_falls_silent_is_lost_without_a_broken_stream(scene) -> None:
    await scene.until(READY, READY)
    scene.workers[1].silent = True
    await scene.until(READY, LOST)
    scene.workers[1].silent = False
    await scene.until(READY, READY)


async def test_a_worker_whose_engine_starts_again_gets_nothing_meanwhile(scene) -> None:
    await scene.until(READY, READY)
    scene.workers[0].ready = False
    scene.workers[0].changed.set()
    await scene.until(STARTING, READY)
    assert (await scene.route()).placement.decode.worker_id == "b"


async def test_the_status_page_tells_readiness_and_metrics(scene) -> None:
    await scene.until(READY, READY)
    await scene.route()

    def get(path: str) -> str:
        with urllib.request.urlopen(scene.metrics + path, timeout=5) as answer:
            return answer.read().decode()

    assert await asyncio.to_thread(get, "/readyz") == "ready\n"
    metrics = await asyncio.to_thread(get, "/metrics")
    assert 'ridgeline_router_workers{state="ready"} 2.0' in metrics
    assert 'ridgeline_router_decisions_total{outcome="placed"} 1.0' in metrics


async def test_a_port_in_use_is_one_line_and_code_2() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        flags = ["--port", str(taken.getsockname()[1]), "--metrics-port", "0", "--worker", "a=127.0.0.1:9"]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "ridgeline_router", *flags, stderr=asyncio.subprocess.PIPE
        )
        _, told = await process.communicate()
    assert process.returncode == 2
    assert told.decode().count("\n") == 1
    assert "give another --port" in told.decode()
