"""What `up` does around its children: the tenant's key, readiness, what a person sees."""

import asyncio
import io
import json
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from rich.console import Console
from ridgeline_cli.up.display import UpDisplay
from ridgeline_cli.up.local_tenant import TENANT_ID, ensure_tenant_key
from ridgeline_cli.up.plan import (
    ChildSpec,
    KeyFiles,
    ModelFacts,
    PlanFacts,
    Ports,
    ProcessPlan,
    Role,
    plan_processes,
)
from ridgeline_cli.up.probes import ReadyProbe
from ridgeline_cli.up.ready_file import Pids, Ready
from ridgeline_cli.up.runner import Death
from ridgeline_cli.up.serving import Serving, curl_line
from ridgeline_contracts.errors import PeerError
from ridgeline_contracts.keys import parse_key

WORKER = ChildSpec("worker-0", Role.WORKER, ("never-run",), (), "", start_timeout_ms=1)
GATEWAY = ChildSpec("gateway", Role.GATEWAY, ("never-run",), (), "", start_timeout_ms=1)
PLAN = ProcessPlan((WORKER, GATEWAY))


@dataclass(slots=True)
class FakeAdminPort:
    """The gateway's admin API, as far as `up` uses it."""

    tenants: dict[str, object] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)
    revoked: list[str] = field(default_factory=list)
    broken: bool = False

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if self.broken:
            return httpx.Response(500, text="on fire")
        if request.url.path == f"/admin/tenants/{TENANT_ID}/keys":
            key = json.loads(request.content)["key"]
            if key in self.revoked:
                return httpx.Response(409)
            self.keys.append(key)
            return httpx.Response(201, json={})
        if request.method == "PUT":
            self.tenants[TENANT_ID] = json.loads(request.content)
            return httpx.Response(201, json={})
        return httpx.Response(200 if TENANT_ID in self.tenants else 404, json={})

    async def ensure(self, path: Path) -> str:
        async with httpx.AsyncClient(transport=httpx.MockTransport(self), base_url="http://admin") as client:
            return await ensure_tenant_key(path, client)


async def test_a_first_run_makes_the_tenant_and_a_private_key(tmp_path: Path) -> None:
    port, path = FakeAdminPort(), tmp_path / "tenant"
    key = await port.ensure(path)
    assert parse_key(key).reveal() == key == path.read_text().strip()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert port.keys == [key]
    assert TENANT_ID in port.tenants


async def test_later_runs_keep_the_key_and_the_tenant_as_it_was_set(tmp_path: Path) -> None:
    port, path = FakeAdminPort(), tmp_path / "tenant"
    key = await port.ensure(path)
    port.tenants[TENANT_ID] = "changed by hand"
    assert await port.ensure(path) == key
    assert port.tenants[TENANT_ID] == "changed by hand"


async def test_a_lost_tenant_store_is_filled_again_with_the_same_key(tmp_path: Path) -> None:
    path = tmp_path / "tenant"
    key = await FakeAdminPort().ensure(path)
    emptied = FakeAdminPort()
    assert await emptied.ensure(path) == key
    assert emptied.keys == [key]


async def test_a_refused_key_is_replaced(tmp_path: Path) -> None:
    port, path = FakeAdminPort(), tmp_path / "tenant"
    port.revoked.append(await port.ensure(path))
    new = await port.ensure(path)
    assert new not in port.revoked
    assert path.read_text().strip() == new


async def test_any_other_refusal_is_told(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match=r"the gateway answered 500 to POST .*on fire"):
        await FakeAdminPort(broken=True).ensure(tmp_path / "tenant")


async def test_the_probe_asks_until_the_answer_is_200() -> None:
    statuses = ["503 Service Unavailable", "404 Not Found", "200 OK", "never asked"]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {statuses.pop(0)}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    probe = ReadyProbe()
    spec = ChildSpec("x", Role.WORKER, (), (), f"http://127.0.0.1:{port}/readyz", start_timeout_ms=1)
    async with server:
        await asyncio.wait_for(probe(spec), timeout=30)
    await probe.close()
    assert statuses == ["never asked"]


def _shown(act: Callable[[UpDisplay], None], *, terminal: bool = False) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=80, color_system=None)
    display = UpDisplay(console, PLAN)
    act(display)
    display.close_start_list()
    held = console.file
    assert isinstance(held, io.StringIO)
    return held.getvalue()


def test_lines_carry_their_childs_name_and_are_never_wrapped_or_read_as_markup() -> None:
    line = "[bold]not markup[/] " + "x" * 200
    assert _shown(lambda display: display.on_line(WORKER, line)) == f"worker-0 | {line}\n"
    assert _shown(lambda display: display.on_line(GATEWAY, "hi")) == "gateway  | hi\n"


def test_a_death_is_told_with_its_last_lines_and_what_comes_next() -> None:
    again = _shown(lambda display: display.on_death(WORKER, Death(-9, ("one", "two"), 500.0)))
    assert "worker-0 | died: killed by SIGKILL; starting again in 0.5 s\n" in again
    assert "worker-0 |   > one\nworker-0 |   > two\n" in again
    final = _shown(lambda display: display.on_death(WORKER, Death(2, (), None)))
    assert final == "worker-0 | died: exit code 2\n"


def test_a_terminal_shows_the_list_of_children_while_they_start() -> None:
    def start(display: UpDisplay) -> None:
        display.on_starting(WORKER)
        display.on_ready(WORKER, 1500.0)
        display.close_start_list()
        display.on_stopped(WORKER)

    shown = _shown(start, terminal=True)
    assert "worker-0: ready" in shown
    assert "worker-0 | ready after 1.5 s" in shown
    assert shown.rstrip().endswith("worker-0 | stopped")


def test_the_summary_holds_what_a_person_needs_to_begin() -> None:
    facts = PlanFacts(
        python="python",
        model=ModelFacts("tiny", Path("/m"), 1),
        dtype="bf16",
        threads_per_worker=2,
        kv_bytes=1,
        ports=Ports(8000, 8001, 1, 2, workers=(3,), worker_metrics=(4,)),
        keys=KeyFiles(Path("p"), Path("a"), Path("t")),
        data_dir=Path("/d"),
        cache_dir=Path("/c"),
    )
    plan = plan_processes(facts)
    console = Console(file=io.StringIO())
    serving = Serving(facts, plan, "admin-secret", (Path("/d/ready.json"),), UpDisplay(console, plan), print)
    ready = Ready(serving.base_url, "rl-key", serving.admin_url, "admin-secret", Pids(1, 2, (3,)))
    text = "\n".join(serving.summary(ready))
    for words in (
        "tiny (bf16",
        "http://127.0.0.1:8000/v1",
        "rl-key",
        "http://127.0.0.1:8001",
        "/d/ready.json",
    ):
        assert words in text
    assert "admin-secret" not in text
    assert curl_line(ready, "tiny") in text
