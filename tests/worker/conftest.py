"""A worker on a loopback port with a FakeEngine in a real core process, and a gateway that talks to it."""

import asyncio
import hashlib
import itertools
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Protocol

import grpc
import pytest
import pytest_asyncio
from ridgeline_contracts.clock import SystemClock
from ridgeline_contracts.ids import Incarnation, WorkerId
from ridgeline_contracts.proto import worker_pb2 as pb
from ridgeline_contracts.proto import worker_pb2_grpc
from ridgeline_contracts.wire import CONTRACT_VERSION
from ridgeline_worker.application import WorkerApplication
from ridgeline_worker.served import Served, TokenizerFiles
from ridgeline_worker.settings import EngineSettings, LimitSettings, ServingSettings, WorkerSettings

VARIANT = pb.Variant(model="fake", weights_revision="w", tokenizer_hash="t", template_hash="c")
FILE = b"{}" * 600_000
HERE = Path(__file__).parent


class Stream:
    """A gateway's session, read by hand."""

    def __init__(
        self, stub: "worker_pb2_grpc.WorkerAsyncStub", *, contract_version: int = CONTRACT_VERSION
    ) -> None:
        self.call = stub.Session()
        self.sequences: list[int] = []
        self.hellos: list[pb.WorkerHello] = []
        self._version = contract_version

    async def open(self) -> "Stream":
        hello = pb.GatewayHello(gateway_id="g1", gateway_incarnation="i1", contract_version=self._version)
        await self.call.write(pb.GatewayMessage(hello=hello))
        first = await self.call.read()
        self.hellos.append(first.hello)
        return self

    async def submit(self, request_id: str, ids: list[int], **fields: object) -> None:
        max_tokens = fields.pop("max_tokens", 4)
        submit = pb.Submit(
            **{
                "request_id": request_id,
                "n": 1,
                "variant": VARIANT,
                "prompt": [pb.PromptSegment(tokens=pb.Tokens(ids=ids))],
                "sampling": pb.Sampling(
                    max_tokens=max_tokens, temperature=0.0, top_p=1.0, repetition_penalty=1.0
                ),
                "kind": pb.KIND_GENERATE,
                **fields,
            }
        )
        await self.call.write(pb.GatewayMessage(submit=submit))

    async def cancel(self, request_id: str, attempt: int = 0) -> None:
        await self.call.write(pb.GatewayMessage(cancel=pb.Cancel(request_id=request_id, attempt=attempt)))

    async def frame(self) -> pb.StepFrame | None:
        """The next frame; hellos on the way are noted. None at the stream's end."""
        while True:
            message = await self.call.read()
            if message is grpc.aio.EOF:
                return None
            if message.WhichOneof("message") == "frame":
                self.sequences.append(message.frame.sequence)
                return message.frame
            self.hellos.append(message.hello)
            self.sequences.clear()

    async def rows_until_finished(self, terminals: int) -> dict[tuple[str, int], list[pb.Row]]:
        """Rows by (request, choice), until so many choices have ended."""
        rows: dict[tuple[str, int], list[pb.Row]] = {}
        while terminals:
            frame = await self.frame()
            assert frame is not None, "the stream ended"
            for row in frame.rows:
                rows.setdefault((row.request_id, row.choice), []).append(row)
                terminals -= row.HasField("finish")
        return rows


class Worker:
    def __init__(
        self, application: WorkerApplication, running: asyncio.Task[int], address: str, metrics: str
    ) -> None:
        self.application = application
        self.running = running
        self.address = address
        self.metrics = metrics
        self.channel = grpc.aio.insecure_channel(address)
        self.stub = worker_pb2_grpc.WorkerStub(self.channel)

    def slow_channel(self) -> grpc.aio.Channel:
        """One that reads nothing ahead of its application."""
        options = (
            ("grpc.http2.bdp_probe", 0),
            ("grpc.http2.lookahead_bytes", 1024),
            ("grpc.use_local_subchannel_pool", 1),
        )
        return grpc.aio.insecure_channel(self.address, options=options)

    async def stream(self, **options: int) -> Stream:
        return await Stream(self.stub, **options).open()


class StartWorker(Protocol):
    async def __call__(self, *, factory: str = ..., limits: LimitSettings = ...) -> Worker: ...


@asynccontextmanager
async def _running_worker(factory: str, limits: LimitSettings) -> AsyncIterator[Worker]:
    numbers = itertools.count(1)
    sha256 = hashlib.sha256(FILE).hexdigest()
    application = WorkerApplication(
        WorkerSettings(
            EngineSettings(Path("/nowhere")),
            ServingSettings(WorkerId("w1")),
            limits,
            core_factory=factory,
            log_level="error",
        ),
        Served(VARIANT, TokenizerFiles({"tokenizer.json": sha256}, {sha256: FILE})),
        folder=None,
        environment=core_environment(),
        clock=SystemClock(),
        product_version="test",
        new_incarnation=lambda: Incarnation(f"i{next(numbers)}"),
    )
    running = asyncio.create_task(application.run())
    addresses = await application.listening
    worker = Worker(
        application, running, f"127.0.0.1:{addresses.port}", f"http://127.0.0.1:{addresses.metrics_port}"
    )
    try:
        yield worker
    finally:
        await worker.channel.close()
        if not running.done():
            application.stop()
            application.stop()
            await running


def core_environment() -> dict[str, str]:
    """The surroundings, with this folder importable by name so that a core finds `fake_engine`, and what suites
    share."""
    folders = (HERE, HERE.parent / "support", os.environ.get("PYTHONPATH", ""))
    return dict(os.environ) | {"PYTHONPATH": ":".join(map(str, folders))}


@pytest.fixture
async def start_worker() -> AsyncIterator[StartWorker]:
    """Starts workers of this one test."""
    async with AsyncExitStack() as stack:

        async def start(
            *, factory: str = "fake_engine:build_engine", limits: LimitSettings | None = None
        ) -> Worker:
            return await stack.enter_async_context(_running_worker(factory, limits or LimitSettings()))

        yield start


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker() -> AsyncIterator[Worker]:
    """One worker for a module whose tests do it no harm."""
    async with _running_worker("fake_engine:build_engine", LimitSettings()) as running:
        yield running


@pytest.fixture
def core_surroundings() -> dict[str, str]:
    """The environment in which a core finds `fake_engine`."""
    return core_environment()
