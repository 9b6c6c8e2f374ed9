"""The Worker contract over gRPC: streams and their ends. What they mean is `front`'s."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import grpc
from ridgeline_contracts.errors import NotFound, PeerError
from ridgeline_contracts.proto import worker_pb2 as pb
from ridgeline_contracts.proto import worker_pb2_grpc

from ridgeline_worker.front import Front
from ridgeline_worker.session import GatewaySession

_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
_DEFAULT_INTERVAL_MS = 1000
_INTERVAL_RANGE_MS = (50, 60_000)
_LOAD_GAP_MS = 50
"""A report follows a change within this; more changes meanwhile share one report."""


class WorkerService(worker_pb2_grpc.WorkerServicer):
    """One instance serves all streams."""

    def __init__(self, front: Front) -> None:
        self._front = front

    async def Session(  # type: ignore[override]  # the stub's union does not know coroutines that write
        self, request_iterator: AsyncIterator[pb.GatewayMessage], context: _Context
    ) -> None:
        first = await anext(request_iterator, None)
        if first is None or first.WhichOneof("message") != "hello":
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, "the first message of a session must be a hello"
            )
        await self._ready(context)
        session = self._front.open_session(first.hello)
        try:
            await self._run(session, request_iterator, context)
        finally:
            self._front.end_session(session)

    async def _ready(self, context: _Context) -> None:
        try:
            await self._front.wait_until_ready()
        except PeerError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, error.message)

    async def _run(
        self, session: GatewaySession, commands: AsyncIterator[pb.GatewayMessage], context: _Context
    ) -> None:
        """Until the outbox is closed and read, or the stream breaks, or the gateway stops reading."""
        writer = asyncio.create_task(_write(session, context))
        reader = asyncio.create_task(self._read(session, commands))
        overflow = asyncio.create_task(session.overflowed.wait())
        tasks = (writer, reader, overflow)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if reader.done():
                reader.result()
                await asyncio.wait((writer, overflow), return_when=asyncio.FIRST_COMPLETED)
            if session.overflowed.is_set():
                writer.cancel()
                await context.abort(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    "the gateway left too many rows unread and lost its requests: open a new session",
                )
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, session: GatewaySession, commands: AsyncIterator[pb.GatewayMessage]) -> None:
        async for message in commands:
            match message.WhichOneof("message"):
                case "submit":
                    self._front.submit(session, message.submit)
                case "cancel":
                    self._front.cancel(session, message.cancel)
                case _:
                    # A later contract's command: to ignore it is what protobuf's own rules ask.
                    continue
        await self._front.wait_until_answered(session)

    async def TokenizerFile(
        self, request: pb.TokenizerFileRequest, context: _Context
    ) -> AsyncIterator[pb.FilePiece]:
        try:
            pieces = self._front.served.files.pieces(request.sha256)
        except NotFound as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, error.message)
        for piece in pieces:
            yield pb.FilePiece(data=piece)

    async def KvEvents(self, request: pb.KvEventsRequest, context: _Context) -> AsyncIterator[pb.KvEvent]:
        await self._ready(context)
        async with contextlib.aclosing(self._front.kv_feed.follow(request)) as events:
            async for event in events:
                yield event

    async def Load(self, request: pb.LoadRequest, context: _Context) -> AsyncIterator[pb.LoadReport]:
        low, high = _INTERVAL_RANGE_MS
        interval_ms = min(high, max(low, request.interval_ms or _DEFAULT_INTERVAL_MS))
        changed = self._front.load_changed
        while not self._front.is_closed:
            seen = changed.version
            yield self._front.report()
            await asyncio.sleep(_LOAD_GAP_MS / 1000)
            await changed.after(seen, timeout_ms=interval_ms - _LOAD_GAP_MS)

    async def Drain(self, request: pb.DrainRequest, context: _Context) -> pb.DrainReply:
        return pb.DrainReply(unfinished=await self._front.drain(request.max_wait_ms))


async def _write(session: GatewaySession, context: _Context) -> None:
    while (message := await session.outbox.take()) is not None:
        await context.write(message)
