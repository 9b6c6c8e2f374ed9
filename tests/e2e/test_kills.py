"""Processes killed under load: a clear end for what ran, service again after the restart, nothing left behind."""

import concurrent.futures
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
import pytest
from ridgeline_testing.running import Platform, running_platform, wait_until, wait_until_gone

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
MODEL = "smollm2-135m-instruct"
LOAD = 6


@pytest.fixture
def own_platform(tmp_path: Path) -> Iterator[Platform]:
    with running_platform(tmp_path, "--dtype", "fp32") as running:
        yield running


@dataclass(slots=True)
class Outcome:
    """How one streamed request ended."""

    status: int | None = None
    pieces: int = 0
    error: dict[str, object] | None = None
    done: bool = False
    first_piece: threading.Event = field(default_factory=threading.Event)


def _ask(platform: Platform, outcome: Outcome, *, max_tokens: int) -> Outcome:
    """Streams one answer. A broken connection fails the test: a clear error event is what the issue's text asks."""
    ready = platform.ready()
    body = {
        "model": MODEL,
        "prompt": "Count from one to a thousand: one, two,",
        "max_tokens": max_tokens,
        "stream": True,
        "ignore_eos": True,
    }
    headers = {"Authorization": f"Bearer {ready.api_key}"}
    with httpx.stream(
        "POST", f"{ready.base_url}/completions", json=body, headers=headers, timeout=120
    ) as answer:
        outcome.status = answer.status_code
        if answer.status_code != 200:
            outcome.error = json.loads(answer.read())["error"]
            return outcome
        for line in answer.iter_lines():
            _take(line, outcome)
    return outcome


def _take(line: str, outcome: Outcome) -> None:
    if not line.startswith("data: "):
        return
    if line == "data: [DONE]":
        outcome.done = True
        return
    event = json.loads(line.removeprefix("data: "))
    if "error" in event:
        outcome.error = event["error"]
    elif event["choices"] and event["choices"][0]["text"]:
        outcome.pieces += 1
        outcome.first_piece.set()


def _core_of(front_pid: int) -> psutil.Process:
    children = psutil.Process(front_pid).children()
    assert children, "the worker's front has no core process"
    return children[0]


def _core_under_load(platform: Platform) -> psutil.Process:
    return _core_of(platform.ready().worker_pids[0])


def _front_under_load(platform: Platform) -> psutil.Process:
    return psutil.Process(platform.ready().worker_pids[0])


@pytest.mark.parametrize(
    "victim", [pytest.param(_core_under_load, id="core"), pytest.param(_front_under_load, id="front")]
)
def test_a_killed_worker_process_ends_streams_clearly_and_serves_again(
    own_platform: Platform, victim: Callable[[Platform], psutil.Process]
) -> None:
    outcomes = [Outcome() for _ in range(LOAD)]
    front_pid = own_platform.ready().worker_pids[0]
    old_core = _core_of(front_pid)
    with concurrent.futures.ThreadPoolExecutor(LOAD) as pool:
        running = [pool.submit(_ask, own_platform, outcome, max_tokens=1500) for outcome in outcomes]
        for outcome in outcomes:
            assert outcome.first_piece.wait(timeout=60), own_platform.log_tail()
        killed = victim(own_platform)
        os.kill(killed.pid, signal.SIGKILL)
        late = Outcome()
        running.append(pool.submit(_ask, own_platform, late, max_tokens=8))
        concurrent.futures.wait(running, timeout=180)
        assert all(one.done() for one in running), f"a request hangs:\n{own_platform.log_tail()}"
        for one in running:
            one.result()
    for outcome in outcomes:
        assert outcome.error is not None, "a stream that was cut must say so"
        assert outcome.error["message"]
        assert not outcome.done, "no [DONE] after an error event"
    # A request that came while the worker was down either waited for the restart or was refused clearly.
    assert late.done or late.error is not None
    wait_until_gone([killed, old_core], timeout_s=20)
    wait_until(lambda: _answers(own_platform), timeout_s=120, what="a new answer after the restart")


def _answers(platform: Platform) -> bool:
    outcome = _ask(platform, Outcome(), max_tokens=4)
    return outcome.done and outcome.error is None


def test_a_request_that_has_sent_nothing_is_tried_again_after_the_core_is_killed(
    own_platform: Platform,
) -> None:
    outcome = Outcome()
    core = _core_under_load(own_platform)
    os.kill(core.pid, signal.SIGSTOP)  # the request reaches a core that gives no token
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        running = pool.submit(_ask, own_platform, outcome, max_tokens=8)
        wait_until(lambda: _in_flight(own_platform) > 0, timeout_s=20, what="the request at the worker")
        os.kill(core.pid, signal.SIGKILL)
        running.result(timeout=120)
    assert outcome.error is None, outcome.error
    assert outcome.done
    assert outcome.pieces > 0


def _in_flight(platform: Platform) -> int:
    """Requests that the gateway has in flight, by its own metrics."""
    answer = httpx.get(f"{platform.ready().admin_url}/metrics", timeout=10)
    lines = [
        line for line in answer.text.splitlines() if line.startswith("ridgeline_gateway_requests_in_flight")
    ]
    return int(sum(float(line.rsplit(" ", 1)[1]) for line in lines))


@pytest.mark.parametrize("name", ["gateway_pid", "router_pid"])
def test_a_killed_gateway_or_router_comes_back_under_the_same_address(
    own_platform: Platform, name: str
) -> None:
    before = own_platform.ready()
    old = psutil.Process(getattr(before, name))
    os.kill(old.pid, signal.SIGKILL)
    wait_until_gone([old], timeout_s=20)
    wait_until(
        lambda: own_platform.ready_path.exists() and getattr(own_platform.ready(), name) != old.pid,
        timeout_s=60,
        what="the restarted process in the ready file",
    )
    wait_until(lambda: _answers(own_platform), timeout_s=60, what="an answer after the restart")
    after = own_platform.ready()
    assert after.base_url == before.base_url
    assert after.api_key == before.api_key


def test_a_killed_supervisor_leaves_no_process_behind(own_platform: Platform) -> None:
    family = own_platform.tree()
    assert len(family) >= 4, "gateway, router, worker front, worker core"
    own_platform.supervisor.kill()
    own_platform.supervisor.wait()
    wait_until_gone(family, timeout_s=20)
