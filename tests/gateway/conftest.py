"""Fakes that speak the real gRPC contracts on loopback, a small tokenizer, and a gateway in front of them."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import uvicorn
from ridgeline_contracts.capabilities import Capabilities
from ridgeline_contracts.clock import SystemClock
from ridgeline_contracts.ids import GatewayId, Incarnation, TenantId
from ridgeline_contracts.keys import generate_key, hash_key
from ridgeline_contracts.model_folder import tokenizer_hash
from ridgeline_contracts.proto import router_pb2, router_pb2_grpc, worker_pb2, worker_pb2_grpc
from ridgeline_contracts.wire import CONTRACT_VERSION, capabilities_to_wire
from ridgeline_gateway.gateway import Gateway, GatewayStores
from ridgeline_gateway.quota import InProcessQuota
from ridgeline_gateway.settings import GatewaySettings, Identity, Secrets, StoreSettings, TimingSettings
from ridgeline_gateway.tenants import KeyRecord, Tenant
from ridgeline_gateway.tenants_sqlite import SqliteTenants
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

MODEL = "fake-model"
PEPPER = b"a pepper for the tests"
ADMIN_KEY = "an admin key for the tests"
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
EOS = 2
CAPABILITIES = Capabilities(
    executor="torch",
    device="cpu",
    weights_dtype="fp32",
    vocab_tokens=400,
    max_context_tokens=4096,
    max_batch=8,
    kv_groups=(),
    max_choices=4,
    logprobs=True,
    penalties=True,
    seed=True,
)
_CORPUS = (
    "the quick brown fox jumps over the lazy dog",
    "hello world, hello there",
    "naïve café, 日本語, 🎉🎉",
)


def small_tokenizer() -> Tokenizer:
    """Byte-level BPE of some 300 tokens; ids 0, 1, 2 are ChatML's special tokens, the last is a plain added
    one.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<think>", special=False)])
    return tokenizer


@dataclass(frozen=True, slots=True)
class FakeModelFiles:
    """What a worker offers of a model."""

    files: dict[str, bytes]
    tokenizer: Tokenizer

    @property
    def hashes(self) -> dict[str, str]:
        return {name: sha256(content).hexdigest() for name, content in self.files.items()}

    @property
    def variant(self) -> worker_pb2.Variant:
        template = self.files["chat_template.jinja"].decode()
        return worker_pb2.Variant(
            model=MODEL,
            weights_revision="weights-1",
            tokenizer_hash=tokenizer_hash(self.files["tokenizer.json"], template),
            template_hash=sha256(template.encode()).hexdigest(),
        )


@pytest.fixture(scope="session")
def model_files() -> FakeModelFiles:
    tokenizer = small_tokenizer()
    config = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "add_bos_token": False}
    files = {
        "tokenizer.json": tokenizer.to_str().encode(),
        "tokenizer_config.json": json.dumps(config).encode(),
        "chat_template.jinja": TEMPLATE.encode(),
    }
    return FakeModelFiles(files, tokenizer)


@dataclass(slots=True)
class FakeReply:
    """What a worker answers: tokens by choice (the last list repeats), so many a step, then a finish."""

    tokens: list[list[int]]
    step_tokens: int = 1
    reason: worker_pb2.FinishReason.ValueType = worker_pb2.FINISH_REASON_LENGTH
    error_code: str = ""
    cached_tokens: int = 0
    logprobs: bool = False
    pause_before: dict[int, asyncio.Event] = field(default_factory=dict)
    """By step: waits for the event first."""
    break_at: int | None = None
    """Breaks the whole session before this step."""
    first_offset: int = 0


@dataclass(slots=True)
class _Running:
    submit: worker_pb2.Submit
    task: asyncio.Task[None]
    sent: list[int]
    ended: list[bool]
    reply: FakeReply


class FakeWorker(worker_pb2_grpc.WorkerServicer):
    """A worker that answers from `reply_for`, one step after the other, as fast as it is read."""

    def __init__(
        self, worker_id: str, files: FakeModelFiles, capabilities: Capabilities = CAPABILITIES
    ) -> None:
        self.worker_id = worker_id
        self.files = files
        self.capabilities = capabilities
        self.incarnation = "life-1"
        self.reply_for: Callable[[worker_pb2.Submit], FakeReply] = lambda submit: FakeReply([[40, 41, 42]])
        self.submits: list[worker_pb2.Submit] = []
        self.cancels: list[worker_pb2.Cancel] = []
        self.cancelled = asyncio.Event()
        self.submitted = asyncio.Event()
        self.answered = asyncio.Event()
        """Set when the last row of a reply has been sent."""
        self.file_requests = 0
        self.ignores_cancel = False
        self.skip_sequence = False
        """Once: the next frame's number leaves one out."""
        self.contract_version = CONTRACT_VERSION
        self.port = 0
        self._server: grpc.aio.Server | None = None
        self._break = asyncio.Event()
        self._session: _FakeSession | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._break = asyncio.Event()
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        worker_pb2_grpc.add_WorkerServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    def info(
        self, state: router_pb2.WorkerState.ValueType = router_pb2.WORKER_STATE_READY
    ) -> router_pb2.WorkerInfo:
        return router_pb2.WorkerInfo(
            worker_id=self.worker_id,
            worker_incarnation=self.incarnation,
            address=self.address,
            pool="default",
            role="unified",
            state=state,
            variants=[self.files.variant],
            tokenizer_files=self.files.hashes,
        )

    async def Session(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        first = await anext(request_iterator)
        assert first.HasField("hello")
        await context.write(worker_pb2.WorkerMessage(hello=self.hello()))
        session = self._session = _FakeSession(self, context)
        reading = asyncio.create_task(session.read(request_iterator))
        breaking = asyncio.create_task(self._break.wait())
        try:
            await asyncio.wait((reading, breaking), return_when=asyncio.FIRST_COMPLETED)
            if self._break.is_set():
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the fake worker died")
        finally:
            reading.cancel()
            breaking.cancel()
            session.close()

    async def TokenizerFile(self, request: Any, context: Any) -> AsyncIterator[worker_pb2.FilePiece]:
        self.file_requests += 1
        by_hash = {self.files.hashes[name]: content for name, content in self.files.files.items()}
        content = by_hash[request.sha256]
        for start in range(0, len(content), 1000):
            yield worker_pb2.FilePiece(data=content[start : start + 1000])

    def answer(self, tokens: list[list[int]], **more: Any) -> FakeReply:
        """From now on every request gets this reply, which is given back for further changes."""
        reply = self.made(tokens, **more)
        self.reply_for = lambda submit: reply
        return reply

    def made(self, tokens: list[list[int]], **more: Any) -> FakeReply:
        """A reply for a `reply_for` of the test's own."""
        return FakeReply(tokens, **more)

    def say(self, text: str, **more: Any) -> FakeReply:
        """Replies with a text and the end token."""
        tokens = self.files.tokenizer.encode(text).ids
        return self.answer([[*tokens, EOS]], reason=worker_pb2.FINISH_REASON_STOP, **more)

    def die(self) -> None:
        """Every session breaks, as when the process is killed."""
        self._break.set()
        self._break = asyncio.Event()

    async def greet_again(self) -> None:
        """As when a new engine has started behind this front."""
        assert self._session is not None
        await self._session.greet()

    def hello(self) -> worker_pb2.WorkerHello:
        return worker_pb2.WorkerHello(
            worker_id=self.worker_id,
            worker_incarnation=self.incarnation,
            core_incarnation=f"{self.incarnation}-core",
            contract_version=self.contract_version,
            capabilities=capabilities_to_wire(self.capabilities),
            variants=[self.files.variant],
            tokenizer_files=self.files.hashes,
        )


class _FakeSession:
    def __init__(self, worker: FakeWorker, context: Any) -> None:
        self._worker = worker
        self._context = context
        self._running: dict[tuple[str, int], _Running] = {}
        self._sequence = 0
        self._writing = asyncio.Lock()

    async def read(self, commands: Any) -> None:
        async for message in commands:
            if message.HasField("submit"):
                self._submit(message.submit)
            else:
                await self._cancel(message.cancel)

    async def greet(self) -> None:
        async with self._writing:
            self._sequence = 0
            await self._context.write(worker_pb2.WorkerMessage(hello=self._worker.hello()))

    def close(self) -> None:
        for running in self._running.values():
            running.task.cancel()

    def _submit(self, submit: worker_pb2.Submit) -> None:
        self._worker.submits.append(submit)
        self._worker.submitted.set()
        reply = self._worker.reply_for(submit)
        count = max(1, submit.n)
        running = _Running(submit, asyncio.current_task(), [0] * count, [False] * count, reply)  # type: ignore[arg-type]
        self._running[submit.request_id, submit.attempt] = running
        running.task = asyncio.create_task(self._answer(running))

    async def _answer(self, running: _Running) -> None:
        reply, count = running.reply, len(running.sent)
        tokens = [reply.tokens[min(choice, len(reply.tokens) - 1)] for choice in range(count)]
        step = 0
        while not all(running.ended):
            if step in reply.pause_before:
                await reply.pause_before[step].wait()
            if reply.break_at == step:
                self._worker.die()
                return
            rows = [
                self._row(running, choice, tokens[choice])
                for choice in range(count)
                if not running.ended[choice]
            ]
            await self._frame(rows)
            step += 1
        self._worker.answered.set()

    def _row(self, running: _Running, choice: int, tokens: list[int]) -> worker_pb2.Row:
        reply, start = running.reply, running.sent[choice]
        piece = [] if reply.error_code else tokens[start : start + reply.step_tokens]
        row = worker_pb2.Row(
            request_id=running.submit.request_id,
            attempt=running.submit.attempt,
            choice=choice,
            first_offset=start + reply.first_offset,
            tokens=piece,
        )
        if running.submit.sampling.HasField("logprobs"):
            row.logprobs.extend(
                worker_pb2.TokenLogprob(
                    token=token, logprob=-0.5, top_tokens=[token, 45], top_logprobs=[-0.5, -1.5]
                )
                for token in piece
            )
        running.sent[choice] += len(piece)
        if reply.error_code or running.sent[choice] >= len(tokens):
            reason = worker_pb2.FINISH_REASON_ERROR if reply.error_code else reply.reason
            row.finish.CopyFrom(self._finish(running, choice, reason))
            running.ended[choice] = True
        return row

    def _finish(
        self, running: _Running, choice: int, reason: worker_pb2.FinishReason.ValueType
    ) -> worker_pb2.Finish:
        prompt = len(running.submit.prompt[0].tokens.ids)
        return worker_pb2.Finish(
            reason=reason,
            error_code=running.reply.error_code,
            error_message="the fake worker was told to fail" if running.reply.error_code else "",
            counts=worker_pb2.Counts(
                prompt_tokens=prompt,
                cached_tokens=running.reply.cached_tokens,
                computed_tokens=0 if running.reply.error_code else prompt + running.sent[choice],
                accepted_tokens=running.sent[choice],
                emitted_tokens=running.sent[choice],
            ),
            clocks=worker_pb2.EngineClocks(engine_queue_ms=1.5, engine_ttft_ms=2.5, engine_total_ms=3.5),
        )

    async def _cancel(self, cancel: worker_pb2.Cancel) -> None:
        self._worker.cancels.append(cancel)
        running = self._running.get((cancel.request_id, cancel.attempt))
        if running is not None and not all(running.ended) and not self._worker.ignores_cancel:
            running.task.cancel()
            await asyncio.gather(running.task, return_exceptions=True)
            rows = []
            for choice, ended in enumerate(running.ended):
                if not ended:
                    running.ended[choice] = True
                    finish = self._finish(running, choice, worker_pb2.FINISH_REASON_CANCELLED)
                    rows.append(
                        worker_pb2.Row(
                            request_id=cancel.request_id,
                            attempt=cancel.attempt,
                            choice=choice,
                            first_offset=running.sent[choice],
                            finish=finish,
                        )
                    )
            await self._frame(rows)
        self._worker.cancelled.set()

    async def _frame(self, rows: list[worker_pb2.Row]) -> None:
        # A frame must not be lost in the middle: cancellation waits for the write.
        await asyncio.shield(self._write(rows))

    async def _write(self, rows: list[worker_pb2.Row]) -> None:
        async with self._writing:
            self._sequence += 2 if self._worker.skip_sequence else 1
            self._worker.skip_sequence = False
            frame = worker_pb2.StepFrame(sequence=self._sequence, rows=rows)
            await self._context.write(worker_pb2.WorkerMessage(frame=frame))


class FakeRouter(router_pb2_grpc.RouterServicer):
    """A router that places on the first ready worker that is not excluded."""

    def __init__(self) -> None:
        self.workers: dict[str, router_pb2.WorkerInfo] = {}
        self.routes: list[router_pb2.RouteRequest] = []
        self.releases: list[router_pb2.ReleaseRequest] = []
        self.released = asyncio.Event()
        self.routed = asyncio.Event()
        self.refusal: router_pb2.Refusal | None = None
        self.hold: asyncio.Event | None = None
        """Route waits for it."""
        self.port = 0
        self._changed = asyncio.Event()
        self._server: grpc.aio.Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        router_pb2_grpc.add_RouterServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    def tell(self, *infos: router_pb2.WorkerInfo) -> None:
        self.workers = {info.worker_id: info for info in infos}
        self._changed.set()
        self._changed = asyncio.Event()

    async def Route(self, request: Any, context: Any) -> router_pb2.RouteReply:
        self.routes.append(request)
        self.routed.set()
        if self.hold is not None:
            await self.hold.wait()
        if self.refusal is not None:
            return router_pb2.RouteReply(refusal=self.refusal)
        for info in self.workers.values():
            ready = info.state == router_pb2.WORKER_STATE_READY
            if ready and info.worker_id not in request.pins.excluded_worker_ids:
                placement = router_pb2.Placement(
                    decode=router_pb2.WorkerRef(
                        worker_id=info.worker_id, worker_incarnation=info.worker_incarnation
                    ),
                    reason="first",
                    reservation_id=f"reservation-{len(self.routes)}",
                    estimates=router_pb2.Estimates(ttft_ms=7.0),
                )
                return router_pb2.RouteReply(placement=placement)
        refusal = router_pb2.Refusal(code="unavailable", message="no worker is ready", retry_after_ms=50)
        return router_pb2.RouteReply(refusal=refusal)

    async def Release(self, request: Any, context: Any) -> router_pb2.ReleaseReply:
        self.releases.append(request)
        self.released.set()
        return router_pb2.ReleaseReply()

    async def Workers(self, request: Any, context: Any) -> AsyncIterator[router_pb2.WorkerSet]:
        while True:
            changed = self._changed
            yield router_pb2.WorkerSet(workers=self.workers.values())
            await changed.wait()


@dataclass(slots=True)
class Platform:
    """A gateway over fakes, and a tenant's key."""

    gateway: Gateway
    router: FakeRouter
    workers: list[FakeWorker]
    key: str
    tenant: Tenant
    stores: GatewayStores
    client: httpx.AsyncClient
    admin: httpx.AsyncClient

    @property
    def worker(self) -> FakeWorker:
        return self.workers[0]

    async def put_tenant(self, **changes: Any) -> None:
        self.tenant = replace(self.tenant, **changes)
        await self.stores.tenants.put_tenant(self.tenant)
        self.gateway.authenticator.forget()

    async def settled(self) -> None:
        """Waits until nothing runs in the background."""
        await self.gateway.background.finish(limit_ms=5000)

    async def nothing_reserved(self) -> None:
        """Waits until the tenant holds no reservation."""
        async with asyncio.timeout(10):
            while await self.reserved_micro():  # noqa: ASYNC110  # a bucket has no event to wait on
                await asyncio.sleep(0.005)

    async def reserved_micro(self) -> int:
        return (await self.stores.quota.standing(self.tenant)).reserved_micro


TIMING = TimingSettings(
    connect_wait_ms=1000, retry_wait_ms=3000, retry_poll_ms=20, settle_wait_ms=2000, reconnect_last_ms=100
)


@asynccontextmanager
async def running_platform(
    files: FakeModelFiles,
    folder: Path,
    *,
    workers: int = 1,
    timing: TimingSettings = TIMING,
    capabilities: Capabilities = CAPABILITIES,
) -> AsyncIterator[Platform]:
    async with AsyncExitStack() as stack:
        fakes = [FakeWorker(f"worker-{index}", files, capabilities) for index in range(workers)]
        router = FakeRouter()
        for fake in (*fakes, router):
            await fake.start()
            stack.push_async_callback(fake.stop)
        router.tell(*(fake.info() for fake in fakes))
        settings = GatewaySettings(
            identity=Identity(GatewayId("gateway-1"), Incarnation("life-1"), "0.1.0"),
            router_address=router.address,
            store=StoreSettings(folder),
            secrets=Secrets(PEPPER, ADMIN_KEY),
            timing=timing,
        )
        clock = SystemClock()
        stores = GatewayStores(SqliteTenants(settings.store.tenants_file), InProcessQuota(clock))
        gateway = Gateway(settings, stores, clock=clock)
        stack.push_async_callback(gateway.close)
        tenant = Tenant(TenantId("acme"), "Acme")
        await stores.tenants.put_tenant(tenant)
        key = generate_key(lambda count: bytes(range(count)))
        if not await stores.tenants.keys(tenant.tenant_id):
            record = KeyRecord(key.key_id, tenant.tenant_id, hash_key(key, PEPPER), created_ms=0)
            await stores.tenants.add_key(record)
        gateway.start()
        for fake in fakes:
            while not any(link.worker_id == fake.worker_id for link in gateway.links.serving(files.variant)):
                await gateway.links.change()
        client = httpx.AsyncClient(
            transport=httpx.ASGITransport(gateway.app),
            base_url="http://gateway",
            headers={"authorization": f"Bearer {key.reveal()}"},
        )
        admin = httpx.AsyncClient(
            transport=httpx.ASGITransport(gateway.admin_app),
            base_url="http://admin",
            headers={"authorization": f"Bearer {ADMIN_KEY}"},
        )
        await stack.enter_async_context(client)
        await stack.enter_async_context(admin)
        yield Platform(gateway, router, fakes, key.reveal(), tenant, stores, client, admin)


@pytest.fixture
def gateway_over_fakes() -> Any:
    """A function that runs a platform: `lacks` names a capability to switch off, `timing` gives other waits."""

    def run(files: FakeModelFiles, folder: Path, *, lacks: str | None = None, **options: Any) -> Any:
        capabilities = CAPABILITIES if lacks is None else replace(CAPABILITIES, **{lacks: False})
        if "timing" in options:
            options["timing"] = replace(TIMING, **options["timing"])
        return running_platform(files, folder, capabilities=capabilities, **options)

    return run


@pytest.fixture
async def platform(model_files: FakeModelFiles, tmp_path: Path) -> AsyncIterator[Platform]:
    async with running_platform(model_files, tmp_path) as running:
        yield running


@pytest.fixture
async def two_worker_platform(model_files: FakeModelFiles, tmp_path: Path) -> AsyncIterator[Platform]:
    async with running_platform(model_files, tmp_path, workers=2) as running:
        yield running


@pytest.fixture
def serve() -> Any:
    """A function that serves an application over HTTP and gives its URL."""
    return serving


@pytest.fixture
async def served(platform: Platform) -> AsyncIterator[str]:
    """The base URL of the platform's API behind a real HTTP server."""
    async with serving(platform.gateway.app) as url:
        yield url


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[str]:
    server = _QuietServer(
        uvicorn.Config(
            app, host="127.0.0.1", port=0, lifespan="off", log_config=None, ws="none", loop="asyncio"
        )
    )
    task = asyncio.create_task(server.serve())
    await server.listening.wait()
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await task


class _QuietServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
