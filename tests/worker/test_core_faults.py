"""A core that dies, hangs or breaks its word: every choice still ends exactly once, and the worker serves again."""

import asyncio
import os
import signal

import psutil
import pytest
from ridgeline_contracts.exits import GPU_FAULT, USAGE
from ridgeline_contracts.proto import worker_pb2 as pb
from ridgeline_worker.settings import LimitSettings

HANG, FAULT, CRASH, REPEAT_FINISH = 1, 2, 3, 5
LONG = 1_000_000


async def _ready_after(worker, core_incarnation: str) -> pb.LoadReport:
    async for report in worker.stub.Load(pb.LoadRequest(interval_ms=50)):
        if report.ready and report.core_incarnation != core_incarnation:
            return report
    raise AssertionError("the load stream ended")


async def _serves(worker) -> None:
    stream = await worker.stream()
    await stream.submit("after", [10], max_tokens=3)
    rows = (await stream.rows_until_finished(1))[("after", 0)]
    assert rows[-1].finish.reason == pb.FINISH_REASON_LENGTH


async def test_a_killed_core_ends_every_choice_once_and_new_work_succeeds(start_worker) -> None:
    worker = await start_worker()
    first, second = await worker.stream(), await worker.stream()
    for number in range(5):
        await first.submit(f"a{number}", [10], n=2, max_tokens=LONG)
        await second.submit(f"b{number}", [20], max_tokens=LONG)
    await first.frame()
    await second.frame()
    core_pid = worker.application.supervisor.core_pid
    assert core_pid is not None, "no core: psutil would take the test itself"
    old_core = psutil.Process(core_pid)
    os.kill(old_core.pid, signal.SIGKILL)
    for stream, terminals in ((first, 10), (second, 5)):
        rows = await stream.rows_until_finished(terminals)
        for choice_rows in rows.values():
            assert [row.HasField("finish") for row in choice_rows].count(True) == 1
            last = choice_rows[-1]
            assert last.finish.error_code == "worker_lost"
            assert last.finish.retry_after_ms > 0
            assert last.finish.counts.emitted_tokens == last.first_offset
    await _ready_after(worker, first.hellos[0].core_incarnation)
    # The session lives on: a hello names the new core, and frames count from 1 again.
    await first.submit("again", [10], max_tokens=3)
    rows = (await first.rows_until_finished(1))[("again", 0)]
    assert [row.first_offset for row in rows] == [0, 1, 2]
    assert first.hellos[-1].core_incarnation != first.hellos[0].core_incarnation
    assert first.sequences == [1, 2, 3]
    assert not old_core.is_running()


async def test_work_that_comes_while_there_is_no_core_is_refused_with_a_time_to_come_again(
    start_worker,
) -> None:
    worker = await start_worker()
    stream = await worker.stream()
    worker.application.front._capabilities = None  # as between a core's death and its successor
    await stream.submit("r1", [10])
    (row,) = (await stream.rows_until_finished(1))[("r1", 0)]
    assert row.finish.error_code == "unavailable"
    assert row.finish.retry_after_ms > 0


@pytest.mark.parametrize(
    ("order", "code"),
    [
        pytest.param(FAULT, "device_fault", id="device-fault"),
        pytest.param(CRASH, "worker_lost", id="exception"),
        pytest.param(REPEAT_FINISH, "worker_lost", id="a-second-terminal-row"),
    ],
)
async def test_a_failing_core_fails_its_requests_by_cause_and_comes_back(start_worker, order, code) -> None:
    worker = await start_worker()
    stream = await worker.stream()
    await stream.submit("bystander", [10], max_tokens=LONG)
    await stream.frame()
    await stream.submit("culprit", [order], max_tokens=1)
    rows = await stream.rows_until_finished(1 if order == REPEAT_FINISH else 2)
    if order == REPEAT_FINISH:
        rows |= await stream.rows_until_finished(1)
    assert rows[("bystander", 0)][-1].finish.error_code == code
    await _ready_after(worker, stream.hellos[0].core_incarnation)
    await _serves(worker)


async def test_a_second_device_fault_within_the_window_ends_the_front_by_its_exit_code(start_worker) -> None:
    worker = await start_worker()
    stream = await worker.stream()
    await stream.submit("r1", [FAULT])
    await stream.rows_until_finished(1)
    await _ready_after(worker, stream.hellos[0].core_incarnation)
    await stream.submit("r2", [FAULT])
    await stream.rows_until_finished(1)
    assert await worker.running == GPU_FAULT


async def test_the_watchdog_kills_a_core_that_hangs_with_work(start_worker) -> None:
    worker = await start_worker(limits=LimitSettings(watchdog_ms=400))
    stream = await worker.stream()
    hung = psutil.Process(worker.application.supervisor.core_pid)
    await stream.submit("r1", [HANG])
    (row,) = (await stream.rows_until_finished(1))[("r1", 0)]
    assert row.finish.error_code == "worker_lost"
    await _ready_after(worker, stream.hellos[0].core_incarnation)
    assert not hung.is_running()
    await _serves(worker)


async def test_the_watchdog_leaves_an_idle_core_alone(start_worker) -> None:
    worker = await start_worker(limits=LimitSettings(watchdog_ms=100))
    stream = await worker.stream()
    pid = worker.application.supervisor.core_pid
    reports = worker.stub.Load(pb.LoadRequest(interval_ms=50))
    for _ in range(8):
        await reports.read()
    assert worker.application.supervisor.core_pid == pid
    await stream.submit("r1", [10])
    await stream.rows_until_finished(1)


async def test_an_engine_that_cannot_be_built_ends_the_first_start_as_the_callers_error(start_worker) -> None:
    from ridgeline_contracts.errors import SettingsError

    worker = await start_worker(factory="fake_engine:refuse_to_build")
    with pytest.raises(SettingsError, match="no engine can be built from this folder"):
        await asyncio.shield(worker.running)
    assert USAGE == 2
