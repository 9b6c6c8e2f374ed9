"""A worker that speaks the real gRPC contract on loopback and answers what a test tells it to."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
from ridgeline_contracts.capabilities import Capabilities
from ridgeline_contracts.proto import router_pb2, worker_pb2, worker_pb2_grpc
from ridgeline_contracts.wire import CONTRACT_VERSION, capabilities_to_wire

from ridgeline_testing.fake_model import EOS, FakeModelFiles

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
    step_ms: float = 0.0
    """How long a step takes at least."""


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
        self.counted: dict[str, worker_pb2.Counts] = {}
        """What the terminal rows of each request said, summed over choices but for the prompt."""
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
            if reply.step_ms:
                await asyncio.sleep(reply.step_ms / 1000)
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
        finish = worker_pb2.Finish(
            reason=reason,
            error_code=running.reply.error_code,
            error_message="the fake worker was told to fail" if running.reply.error_code else "",
            counts=worker_pb2.Counts(
                prompt_tokens=prompt,
                cached_tokens=running.reply.cached_tokens,
                computed_tokens=0
                if running.reply.error_code
                else prompt - running.reply.cached_tokens + running.sent[choice],
                accepted_tokens=running.sent[choice],
                emitted_tokens=running.sent[choice],
            ),
            clocks=worker_pb2.EngineClocks(engine_queue_ms=1.5, engine_ttft_ms=2.5, engine_total_ms=3.5),
        )
        counts = self._worker.counted.setdefault(running.submit.request_id, worker_pb2.Counts())
        counts.prompt_tokens = prompt
        counts.cached_tokens = finish.counts.cached_tokens
        counts.emitted_tokens += finish.counts.emitted_tokens
        return finish

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
