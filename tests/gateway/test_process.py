"""`python -m ridgeline_gateway` as a process: flags, ports, files, signals."""

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from ridgeline_contracts.errors import SettingsError
from ridgeline_gateway.__main__ import main
from ridgeline_gateway.private_files import kept_secret, read_secret

ROUTER = "127.0.0.1:1"


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        pytest.param(["--frobnicate"], "--frobnicate", id="unknown-flag"),
        pytest.param(["--port", "70000"], "70000", id="no-such-port"),
        pytest.param(["--router", "nowhere"], "--router", id="router-without-port"),
        pytest.param(["--pepper-file", "missing"], "--pepper-file", id="missing-file"),
    ],
)
def test_a_wrong_flag_is_named_with_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], names: str
) -> None:
    base = ["--data-dir", str(tmp_path), "--port", "0", "--admin-port", "0"]
    assert exit_code([*base, *(["--router", ROUTER] if "--router" not in flags else []), *flags]) == 2
    assert names in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--port", "--admin-port"])
def test_a_port_in_use_is_one_line_that_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], taken_port: int, flag: str
) -> None:
    other = "--admin-port" if flag == "--port" else "--port"
    assert (
        exit_code(["--data-dir", str(tmp_path), "--router", ROUTER, flag, str(taken_port), other, "0"]) == 2
    )
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert f"port {taken_port}" in lines[0]
    assert flag in lines[0]


def exit_code(flags: list[str]) -> int | str | None:
    try:
        return main(flags)
    except SystemExit as ended:
        return ended.code


async def test_it_serves_drains_and_exits_with_0(tmp_path: Path, platform: Any) -> None:
    """Against the fakes' router: ready, one reply, then SIGTERM in the middle of a stream that may finish."""
    ready_file, admin_key = tmp_path / "ready.json", tmp_path / "admin"
    admin_key.write_text("an admin key for this test\n")
    admin_key.chmod(0o600)
    flags = ["--port", "0", "--admin-port", "0", "--router", platform.router.address]
    flags += ["--data-dir", str(tmp_path / "data"), "--ready-file", str(ready_file)]
    flags += ["--admin-key-file", str(admin_key), "--drain-delay-s", "0.3"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "ridgeline_gateway", *flags, stderr=asyncio.subprocess.PIPE
    )
    try:
        ready = await asyncio.to_thread(read_when_there, ready_file)
        assert ready_file.stat().st_mode & 0o777 == 0o600
        assert ready["pid"] == process.pid
        async with httpx.AsyncClient(base_url=ready["admin_url"]) as admin:
            admin.headers["authorization"] = "Bearer an admin key for this test"
            await readiness(admin, "ready")
            await admin.put("/admin/tenants/acme", json={})
            key = (await admin.post("/admin/tenants/acme/keys")).json()["key"]
            await _drain(process, ready, key, platform, admin)
        assert await asyncio.wait_for(process.wait(), 20) == 0
        assert process.stderr is not None
        log = (await process.stderr.read()).decode()
        assert "Traceback" not in log
        assert "gateway.stopped" in log
        assert key not in log
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _drain(
    process: Any, ready: dict[str, Any], key: str, platform: Any, admin: httpx.AsyncClient
) -> None:
    reply = platform.worker.say("hello world")
    reply.pause_before[2] = asyncio.Event()
    headers = {"authorization": f"Bearer {key}"}
    body = {"model": "fake-model", "messages": [{"role": "user", "content": "hello"}], "stream": True}
    async with (
        httpx.AsyncClient(base_url=ready["base_url"], headers=headers, timeout=30) as client,
        client.stream("POST", "/v1/chat/completions", json=body) as answer,
    ):
        assert answer.status_code == 200
        os.kill(process.pid, signal.SIGTERM)
        await readiness(admin, "draining")
        # Within the delay new requests are still taken.
        models = await client.get("/v1/models")
        assert (models.status_code, models.headers["connection"]) == (200, "close")
        await asyncio.sleep(0.4)
        reply.pause_before[2].set()
        text = "".join([part async for part in answer.aiter_text()])
    assert text.endswith("data: [DONE]\n\n")


async def readiness(admin: httpx.AsyncClient, wanted: str) -> None:
    """Waits until /readyz says `wanted`, as its status or its reason."""
    async with asyncio.timeout(30):
        while wanted not in (await admin.get("/readyz")).json().values():  # noqa: ASYNC110  # another process
            await asyncio.sleep(0.02)


def read_when_there(path: Path) -> dict[str, Any]:
    deadline = time.monotonic() + 30
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return dict(json.loads(path.read_text()))


def test_a_secret_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("sesame sesame sesame")
    path.chmod(0o644)
    with pytest.raises(SettingsError, match="chmod 600"):
        read_secret(path, flag="--admin-key-file")
    path.chmod(0o600)
    assert read_secret(path, flag="--admin-key-file") == "sesame sesame sesame"
    path.write_text(" \n")
    with pytest.raises(SettingsError, match="empty"):
        read_secret(path, flag="--admin-key-file")


def test_a_secret_is_made_once_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "pepper"
    first = kept_secret(path, lambda: "made first", flag="the pepper")
    assert first == kept_secret(path, lambda: "made second", flag="the pepper") == "made first"
    assert path.stat().st_mode & 0o777 == 0o600
