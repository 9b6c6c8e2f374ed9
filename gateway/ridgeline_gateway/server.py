"""Two HTTP servers in one event loop, from open sockets to an orderly end."""

import asyncio
import contextlib
import errno
import json
import logging
import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from ridgeline_contracts.clock import SystemClock
from ridgeline_contracts.errors import SettingsError

from ridgeline_gateway.connection import BoundedConnection
from ridgeline_gateway.gateway import Gateway
from ridgeline_gateway.settings import GatewaySettings
from ridgeline_gateway.stores import open_stores

_log = logging.getLogger(__name__)
_BACKLOG = 2048
_KEEP_ALIVE_S = 75
"""Longer than clients and balancers keep an idle connection, so that they close it and not we under their request."""
_ADMIN_LIMIT_S = 2


@dataclass(frozen=True, slots=True)
class Listeners:
    """Sockets that are bound and listen."""

    api: socket.socket
    admin: socket.socket

    def urls(self) -> dict[str, str]:
        return {"base_url": _url(self.api), "admin_url": _url(self.admin)}


def open_listeners(settings: GatewaySettings) -> Listeners:
    """Raises SettingsError that names the port which is in use or not allowed."""
    listen = settings.listen
    api = _listen(listen.host, listen.port, flag="--port")
    try:
        return Listeners(api, _listen(listen.admin_host, listen.admin_port, flag="--admin-port"))
    except SettingsError:
        api.close()
        raise


async def serve(settings: GatewaySettings, listeners: Listeners, *, ready_file: Path | None) -> None:
    """Serves until SIGTERM or SIGINT, then drains: not ready, `drain_delay_ms` of further service, streams finish."""
    clock = SystemClock()
    stores = open_stores(settings, clock=clock)
    gateway = Gateway(settings, stores, clock=clock)
    gateway.start()
    timing = settings.timing
    api = _server(gateway.app, limit_s=timing.drain_limit_ms / 1000)
    admin = _server(gateway.admin_app, limit_s=_ADMIN_LIMIT_S)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    serving = asyncio.create_task(api.serve(sockets=[listeners.api]))
    administering = asyncio.create_task(admin.serve(sockets=[listeners.admin]))
    try:
        if ready_file is not None:
            _write_ready_file(ready_file, listeners)
        _log.info("gateway.listening base_url=%s admin_url=%s", *listeners.urls().values())
        await _first(stop, serving, administering)
        gateway.drain()
        _log.info("gateway.draining delay_ms=%d limit_ms=%d", timing.drain_delay_ms, timing.drain_limit_ms)
        await asyncio.sleep(timing.drain_delay_ms / 1000)
        api.should_exit = True
        await serving
        admin.should_exit = True
        await administering
    finally:
        await gateway.close()
        _log.info("gateway.stopped")


async def _first(stop: asyncio.Event, *servers: asyncio.Task[None]) -> None:
    """Waits for a signal. A server that ends by itself ends the process, with its error if it has one."""
    waiting = asyncio.create_task(stop.wait())
    done, _ = await asyncio.wait((waiting, *servers), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    for task in done:
        task.result()


class _Server(uvicorn.Server):
    """Leaves signals to `serve`, which has two servers to end in order."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _server(app: FastAPI, *, limit_s: float) -> _Server:
    return _Server(
        uvicorn.Config(
            app,
            loop="uvloop",
            http=BoundedConnection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=max(1, round(limit_s)),
        )
    )


def _listen(host: str, port: int, *, flag: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((host, port))
        opened.listen(_BACKLOG)
    except OSError as error:
        opened.close()
        in_use = error.errno == errno.EADDRINUSE
        reason = "is in use" if in_use else f"cannot be opened ({error.strerror})"
        raise SettingsError(f"port {port} of {host} {reason}: give another {flag}") from error
    opened.setblocking(False)
    return opened


def _url(opened: socket.socket) -> str:
    host, port = opened.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}"


def _write_ready_file(path: Path, listeners: Listeners) -> None:
    content = json.dumps({**listeners.urls(), "pid": os.getpid()})
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as opened:
        opened.write(content + "\n")
    partial.replace(path)
