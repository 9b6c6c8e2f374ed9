"""The core process: `python -m ridgeline_worker.core_process FD PARENT_PID`, started by the front alone.

It reads a CoreSpec from the socket, builds the engine and runs it. It ignores SIGINT and SIGTERM, because a
terminal and a supervisor signal whole process groups, and the front ends it when its requests are drained.
"""

import faulthandler
import importlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import cast

from ridgeline_contracts.clock import Clock, SystemClock
from ridgeline_contracts.errors import DeviceFault, InvariantError, RidgelineError, WorkerLost
from ridgeline_process.log_lines import log_to_stderr

from ridgeline_worker.channel import BlockingChannel
from ridgeline_worker.collector import calm_collector
from ridgeline_worker.core_loop import CoreLoop, EngineLike
from ridgeline_worker.inbox import Inbox
from ridgeline_worker.messages import CoreFailed, CoreReady, CoreSpec
from ridgeline_worker.parent import die_with_parent

EXIT_START_FAILED = 3
EXIT_ENGINE_FAILED = 4

_log = logging.getLogger(__name__)
EngineFactory = Callable[[CoreSpec, Clock], EngineLike]


def load_factory(path: str) -> EngineFactory:
    """`module:function` to the function. Raises InvariantError for a path of another form."""
    module_name, separator, function_name = path.partition(":")
    if not separator:
        raise InvariantError(f"core factory {path!r} is not module:function")
    return cast(EngineFactory, getattr(importlib.import_module(module_name), function_name))


def run_core(channel: BlockingChannel, clock: Clock) -> int:
    """Lives one core's life and returns its exit code.
    Whatever goes wrong is told to the front before the end."""
    spec = channel.receive()
    if not isinstance(spec, CoreSpec):
        return 0
    log_to_stderr(spec.log_level)
    engine = _build(spec, channel, clock)
    if engine is None:
        return EXIT_START_FAILED
    calm_collector()
    inbox = Inbox()
    try:
        channel.send(CoreReady(engine.capabilities, engine.load()))
        inbox.fill_from(channel)
        CoreLoop(engine, inbox, send=channel.send, clock=clock).run()
    except BrokenPipeError:
        return 0
    except Exception as error:  # noqa: BLE001 - told to the front; the process ends
        _log.exception("core.failed incarnation=%s", spec.incarnation)
        channel.send(_last_words(error))
        return EXIT_ENGINE_FAILED
    engine.close()
    return 0


def _build(spec: CoreSpec, channel: BlockingChannel, clock: Clock) -> EngineLike | None:
    try:
        return load_factory(spec.factory)(spec, clock)
    except RidgelineError as error:
        channel.send(CoreFailed(error.code, error.message))
    except MemoryError:
        channel.send(
            CoreFailed("out_of_memory", "the host has too little memory for this model's weights and cache")
        )
    except Exception as error:  # noqa: BLE001 - told to the front; the process ends
        _log.exception("core.start_failed incarnation=%s", spec.incarnation)
        channel.send(
            CoreFailed(InvariantError.code, f"the engine could not be built: {type(error).__name__}: {error}")
        )
    return None


def _last_words(error: Exception) -> CoreFailed:
    # The message of an unknown exception stays in the log: it could hold a tenant's tokens.
    if isinstance(error, DeviceFault):
        return CoreFailed(DeviceFault.code, error.message)
    return CoreFailed(WorkerLost.code, f"the engine failed ({type(error).__name__}) and is started again")


def main(arguments: list[str]) -> int:
    faulthandler.enable()
    descriptor, parent_pid = int(arguments[0]), int(arguments[1])
    for ignored in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)
    if not die_with_parent(parent_pid):
        return 0
    return run_core(BlockingChannel(socket.socket(fileno=descriptor)), SystemClock())


if __name__ == "__main__":
    exit_code = main(sys.argv[1:])
    sys.stderr.flush()
    # Not sys.exit: after a device fault the runtime's own teardown can hang.
    os._exit(exit_code)
