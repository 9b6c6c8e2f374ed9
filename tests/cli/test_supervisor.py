"""The whole family under a supervisor, with processes that exist only here."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest
from ridgeline_cli.up.lifecycle import LifecycleLimits
from ridgeline_cli.up.plan import ChildSpec, ProcessPlan, Role
from ridgeline_cli.up.processes import OnExit, OnLine
from ridgeline_cli.up.ready_file import Pids
from ridgeline_cli.up.runner import Death
from ridgeline_cli.up.supervisor import Supervisor
from ridgeline_contracts.clock import SystemClock

LIMITS = LifecycleLimits(drain_timeout_ms=30, first_delay_ms=1, longest_delay_ms=2)
SIGKILLED, SIGTERMED = -9, -15


def _spec(name: str, role: Role) -> ChildSpec:
    return ChildSpec(name, role, ("never-run",), (), "", start_timeout_ms=60_000)


PLAN = ProcessPlan(
    (
        _spec("router", Role.ROUTER),
        _spec("worker-0", Role.WORKER),
        _spec("worker-1", Role.WORKER),
        _spec("gateway", Role.GATEWAY),
    )
)


@dataclass(slots=True)
class FakeChild:
    pid: int
    spec: ChildSpec
    on_line: OnLine
    on_exit: OnExit
    calls: list[str]
    is_stubborn: bool

    def terminate(self) -> None:
        self.calls.append(f"terminate {self.spec.name}")
        if not self.is_stubborn:
            self.end(0)

    def kill(self) -> None:
        self.calls.append(f"kill {self.spec.name}")
        self.end(SIGKILLED)

    def end(self, exit_code: int) -> None:
        asyncio.get_running_loop().call_soon(self.on_exit, exit_code)


@dataclass(slots=True)
class FakeMachine:
    """Spawner, probe and watcher in one: remembers what it is told."""

    calls: list[str] = field(default_factory=list)
    children: dict[str, FakeChild] = field(default_factory=dict)
    deaths: list[tuple[str, Death]] = field(default_factory=list)
    ready: list[Pids] = field(default_factory=list)
    became_ready: asyncio.Event = field(default_factory=asyncio.Event)
    stubborn: tuple[str, ...] = ()
    ends_at_start: dict[str, int] = field(default_factory=dict)
    probe_fault: Exception | None = None
    _pids: int = 100

    def spawn(self, spec: ChildSpec, *, on_line: OnLine, on_exit: OnExit) -> FakeChild:
        self._pids += 1
        self.calls.append(f"spawn {spec.name}")
        child = FakeChild(self._pids, spec, on_line, on_exit, self.calls, spec.name in self.stubborn)
        self.children[spec.name] = child
        if spec.name in self.ends_at_start:
            on_line("I cannot work like this")
            child.end(self.ends_at_start[spec.name])
        return child

    async def probe(self, spec: ChildSpec) -> None:
        if self.probe_fault is not None:
            raise self.probe_fault
        if spec.name in self.ends_at_start:
            await asyncio.Event().wait()

    async def on_all_ready(self, pids: Pids) -> None:
        self.ready.append(pids)
        self.became_ready.set()

    async def next_ready(self) -> Pids:
        await asyncio.wait_for(self.became_ready.wait(), timeout=10)
        self.became_ready.clear()
        return self.ready[-1]

    def on_line(self, spec: ChildSpec, line: str) -> None: ...

    def on_starting(self, spec: ChildSpec) -> None: ...

    def on_ready(self, spec: ChildSpec, took_ms: float) -> None: ...

    def on_death(self, spec: ChildSpec, death: Death) -> None:
        self.deaths.append((spec.name, death))

    def on_stopping(self, spec: ChildSpec) -> None: ...

    def on_stopped(self, spec: ChildSpec) -> None: ...

    def on_fault(self, error: BaseException) -> None: ...


async def _run(machine: FakeMachine, script: Callable[[Supervisor], Awaitable[None]]) -> int:
    supervisor = Supervisor(
        PLAN,
        clock=SystemClock(),
        spawn=machine.spawn,
        probe=machine.probe,
        watcher=machine,
        on_all_ready=machine.on_all_ready,
        limits=LIMITS,
    )
    running = asyncio.create_task(supervisor.run())
    await script(supervisor)
    return await asyncio.wait_for(running, timeout=10)


async def test_all_are_started_and_stopped_gateway_first_router_last() -> None:
    machine = FakeMachine()

    async def script(supervisor: Supervisor) -> None:
        assert await machine.next_ready() == Pids(gateway=104, router=101, workers=(102, 103))
        supervisor.request_stop()

    assert await _run(machine, script) == 0
    assert machine.calls == [
        *(f"spawn {name}" for name in ("router", "worker-0", "worker-1", "gateway")),
        *(f"terminate {name}" for name in ("gateway", "worker-0", "worker-1", "router")),
    ]


async def test_workers_are_left_alone_until_a_slow_gateway_has_drained() -> None:
    machine = FakeMachine(stubborn=("gateway",))

    async def script(supervisor: Supervisor) -> None:
        await machine.next_ready()
        supervisor.request_stop()

    assert await _run(machine, script) == 0
    stops = [call for call in machine.calls if not call.startswith("spawn")]
    assert stops == [
        "terminate gateway",
        "kill gateway",
        "terminate worker-0",
        "terminate worker-1",
        "terminate router",
    ]


async def test_asking_twice_kills_everything_at_once() -> None:
    machine = FakeMachine(stubborn=("gateway", "worker-0", "worker-1", "router"))

    async def script(supervisor: Supervisor) -> None:
        await machine.next_ready()
        supervisor.request_stop()
        supervisor.request_stop()

    assert await _run(machine, script) == 0
    assert {f"kill {spec.name}" for spec in PLAN.children} <= set(machine.calls)


async def test_a_dead_worker_comes_back_with_a_new_pid_and_its_last_lines_are_kept() -> None:
    machine = FakeMachine()

    async def script(supervisor: Supervisor) -> None:
        before = await machine.next_ready()
        for number in range(30):
            machine.children["worker-1"].on_line(f"line {number}")
        machine.children["worker-1"].end(SIGKILLED)
        after = await machine.next_ready()
        assert (after.gateway, after.router, after.workers[0]) == (
            before.gateway,
            before.router,
            before.workers[0],
        )
        assert after.workers[1] != before.workers[1]
        supervisor.request_stop()

    assert await _run(machine, script) == 0
    ((name, death),) = machine.deaths
    assert (name, death.exit_code) == ("worker-1", SIGKILLED)
    assert death.last_lines == tuple(f"line {number}" for number in range(10, 30))
    assert death.restart_in_ms is not None


@pytest.mark.parametrize(
    ("exit_code", "answer", "tries"),
    [pytest.param(2, 2, 1, id="bad-settings"), pytest.param(SIGTERMED, 1, 3, id="crashes")],
)
async def test_a_child_that_cannot_start_ends_the_whole_run(exit_code: int, answer: int, tries: int) -> None:
    machine = FakeMachine(ends_at_start={"worker-0": exit_code})

    async def script(supervisor: Supervisor) -> None:
        pass

    assert await _run(machine, script) == answer
    assert machine.calls.count("spawn worker-0") == tries
    assert machine.deaths[-1][1].restart_in_ms is None
    assert machine.deaths[-1][1].last_lines == ("I cannot work like this",)
    assert {f"terminate {name}" for name in ("gateway", "worker-1", "router")} <= set(machine.calls)
    assert machine.ready == []


async def test_a_fault_of_the_probe_stops_the_children_and_is_raised() -> None:
    machine = FakeMachine(probe_fault=ZeroDivisionError("a bug"))

    async def script(supervisor: Supervisor) -> None:
        pass

    with pytest.raises(ZeroDivisionError):
        await _run(machine, script)
    assert {f"terminate {spec.name}" for spec in PLAN.children} <= set(machine.calls)


async def test_what_is_done_when_all_is_ready_may_fail_and_still_nothing_is_left() -> None:
    machine = FakeMachine()

    async def failing(pids: Pids) -> None:
        raise ValueError(f"cannot write about {pids}")

    supervisor = Supervisor(
        PLAN,
        clock=SystemClock(),
        spawn=machine.spawn,
        probe=machine.probe,
        watcher=machine,
        on_all_ready=failing,
        limits=LIMITS,
    )
    with pytest.raises(ValueError, match="cannot write"):
        await asyncio.wait_for(supervisor.run(), timeout=10)
    assert {f"terminate {spec.name}" for spec in PLAN.children} <= set(machine.calls)
