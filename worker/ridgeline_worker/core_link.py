"""The front's side of one core: starts the process, talks to it, and sees its end."""

import asyncio
import logging
import os
import sys
from collections.abc import Mapping
from typing import cast

from ridgeline_contracts.clock import Clock

from ridgeline_worker.channel import AsyncChannel, connected_pair
from ridgeline_worker.messages import Command, CoreSpec, Event, StopCommand

_log = logging.getLogger(__name__)
_STOP_TIMEOUT_S = 5.0
_STDERR = 2


class CoreLink:
    """One core process. `last_heard_ms` moves with every message; the watchdog reads it."""

    def __init__(
        self, spec: CoreSpec, process: asyncio.subprocess.Process, channel: AsyncChannel, clock: Clock
    ) -> None:
        self.spec = spec
        self.last_heard_ms = clock.monotonic_ms()
        self.was_hung = False
        self._process = process
        self._channel = channel
        self._clock = clock

    @classmethod
    async def start(cls, spec: CoreSpec, *, environment: Mapping[str, str], clock: Clock) -> "CoreLink":
        """A new process, not a fork, so that the front's threads and gRPC's state stay out of it.

        To be called on the process's main thread: the core dies with the thread that started it.
        """
        ours, theirs = connected_pair()
        command = (
            sys.executable,
            "-P",
            "-m",
            "ridgeline_worker.core_process",
            str(theirs.fileno()),
            str(os.getpid()),
        )
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=_STDERR,
            pass_fds=(theirs.fileno(),),
            env=dict(environment),
        )
        theirs.close()
        channel = await AsyncChannel.open(ours)
        channel.send(spec)
        _log.info("core.started pid=%d incarnation=%s", process.pid, spec.incarnation)
        return cls(spec, process, channel, clock)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, command: Command) -> None:
        self._channel.send(command)

    async def receive(self) -> Event | None:
        """The next event; None when the process has closed its end."""
        event = await self._channel.receive()
        self.last_heard_ms = self._clock.monotonic_ms()
        return cast(Event | None, event)

    def kill_hung(self) -> None:
        """The watchdog's end of it."""
        self.was_hung = True
        self.end_now()

    def end_now(self) -> None:
        if self._process.returncode is None:
            self._process.kill()

    async def wait(self) -> int:
        """Waits for the end and returns the exit code (negative: the signal that ended it)."""
        code = await self._process.wait()
        self._channel.close()
        return code

    async def stop(self) -> None:
        """Asks it to end, and kills it when it does not within five seconds."""
        self.send(StopCommand())
        try:
            await asyncio.wait_for(self._process.wait(), _STOP_TIMEOUT_S)
        except TimeoutError:
            self.end_now()
        await self.wait()
