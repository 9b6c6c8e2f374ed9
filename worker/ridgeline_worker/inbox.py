"""The core's inbox: a thread takes commands off the socket while a step runs, the main loop picks them
up between."""

import threading
from collections import deque
from typing import cast

from ridgeline_worker.channel import BlockingChannel
from ridgeline_worker.messages import Command, StopCommand


class Inbox:
    """A queue of commands. When the front is gone, or the stream breaks, its last command is a
    StopCommand."""

    def __init__(self) -> None:
        self._commands: deque[Command] = deque()
        self._changed = threading.Condition()

    def put(self, command: Command) -> None:
        with self._changed:
            self._commands.append(command)
            self._changed.notify()

    def take(self, *, wait: bool) -> list[Command]:
        """All commands that are here. With `wait` it sleeps until there is one."""
        with self._changed:
            while wait and not self._commands:
                self._changed.wait()
            taken = list(self._commands)
            self._commands.clear()
        return taken

    def fill_from(self, channel: BlockingChannel) -> None:
        """Starts the thread that reads the socket until its end."""
        threading.Thread(target=self._read, args=(channel,), name="core-inbox", daemon=True).start()

    def _read(self, channel: BlockingChannel) -> None:
        try:
            while (command := channel.receive()) is not None:
                self.put(cast(Command, command))
        finally:
            # Without this a core whose front broke off would wait for ever.
            self.put(StopCommand())
