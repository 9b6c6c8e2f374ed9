"""The front as a process: killed, it leaves no core; told to stop, it drains and ends with 0."""

import asyncio
import os
import signal
import sys
import threading
from pathlib import Path

import grpc
import psutil
import pytest
from ridgeline_contracts.proto import worker_pb2 as pb
from ridgeline_contracts.proto import worker_pb2_grpc

SCRIPT = Path(__file__).parent / "front_script.py"
VARIANT = pb.Variant(model="fake")


class Front:
    def __init__(self, process: asyncio.subprocess.Process, port: int, core_pid: int) -> None:
        self.process = process
        self.port = port
        self.core = psutil.Process(core_pid)


@pytest.fixture
async def front(tmp_path, core_surroundings):
    told = tmp_path / "told"
    process = await asyncio.create_subprocess_exec(sys.executable, SCRIPT, told, env=core_surroundings)
    while not told.exists():
        assert process.returncode is None
        await asyncio.sleep(0.02)
    port, core_pid = map(int, told.read_text().split())
    front = Front(process, port, core_pid)
    yield front
    if process.returncode is None:
        process.kill()
        await process.wait()
    await _gone(front.core)


async def _gone(process: psutil.Process) -> None:
    """Waits for the end of a process that is not ours to reap; a zombie counts as gone."""
    wait_until_gone = asyncio.to_thread(_wait_until_gone, process)
    await asyncio.wait_for(wait_until_gone, 20)


def _wait_until_gone(process: psutil.Process) -> None:
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        threading.Event().wait(0.01)


async def _session(front: Front, max_tokens: int):
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{front.port}")
    call = worker_pb2_grpc.WorkerStub(channel).Session()
    await call.write(pb.GatewayMessage(hello=pb.GatewayHello(gateway_id="g", contract_version=1)))
    await call.read()
    submit = pb.Submit(
        request_id="r",
        variant=VARIANT,
        prompt=[pb.PromptSegment(tokens=pb.Tokens(ids=[10]))],
        sampling=pb.Sampling(max_tokens=max_tokens, top_p=1.0, repetition_penalty=1.0),
    )
    await call.write(pb.GatewayMessage(submit=submit))
    await call.read()
    return channel, call


@pytest.mark.timeout(30)
async def test_a_front_killed_by_sigkill_takes_its_core_along_also_one_that_works(front) -> None:
    channel, _ = await _session(front, max_tokens=1_000_000)
    front.process.send_signal(signal.SIGKILL)
    await front.process.wait()
    await _gone(front.core)
    await channel.close()


async def test_the_core_shrugs_off_the_signals_of_a_terminal(front) -> None:
    for ignored in (signal.SIGINT, signal.SIGTERM):
        os.kill(front.core.pid, ignored)
    channel, call = await _session(front, max_tokens=3)
    row = (await call.read()).frame.rows[0]
    assert row.first_offset == 1
    await channel.close()


@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGINT])
async def test_a_front_told_to_stop_lets_its_requests_end_and_exits_with_0(front, told) -> None:
    channel, call = await _session(front, max_tokens=200)
    front.process.send_signal(told)
    offset = 0
    while (message := await call.read()) is not grpc.aio.EOF:
        offset = message.frame.rows[-1].first_offset
        finish = message.frame.rows[-1].finish
    assert offset == 199
    assert finish.reason == pb.FINISH_REASON_LENGTH
    assert await front.process.wait() == 0
    await channel.close()


async def test_a_second_signal_ends_at_once_and_says_so_to_the_gateway(front) -> None:
    channel, call = await _session(front, max_tokens=1_000_000)
    front.process.send_signal(signal.SIGTERM)
    await call.read()
    front.process.send_signal(signal.SIGTERM)
    while (message := await call.read()) is not grpc.aio.EOF:
        finish = message.frame.rows[-1].finish
    assert finish.error_code == "worker_lost"
    assert await front.process.wait() == 0
    await channel.close()
