"""The core's loop without a process: what it sends, when it sleeps, how it ends."""

import asyncio
import importlib.util
import threading
from pathlib import Path

import pytest
from ridgeline_contracts.clock import VirtualClock
from ridgeline_contracts.ids import Attempt, RequestId
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_engine.request import Request, RequestKey
from ridgeline_worker.channel import AsyncChannel, BlockingChannel, connected_pair
from ridgeline_worker.core_loop import LOAD_INTERVAL_MS, CoreLoop
from ridgeline_worker.inbox import Inbox
from ridgeline_worker.messages import CancelCommand, Refused, StepDone, StopCommand, SubmitCommand

_SPEC = importlib.util.spec_from_file_location("fake_engine_here", Path(__file__).parent / "fake_engine.py")
assert _SPEC is not None
assert _SPEC.loader is not None
fake_engine = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(fake_engine)


def _request(name: str, prompt: int = 10, max_tokens: int = 3) -> Request:
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0)
    return Request(RequestKey(RequestId(name), Attempt(0)), (prompt,), params)


def _run(*commands, stop_after: int, clock: VirtualClock | None = None) -> list:
    """Runs the loop over the commands until so many events were sent."""
    inbox, sent = Inbox(), []

    def send(event) -> None:
        sent.append(event)
        if len(sent) >= stop_after:
            inbox.put(StopCommand())

    for command in commands:
        inbox.put(command)
    CoreLoop(fake_engine.FakeEngine(), inbox, send=send, clock=clock or VirtualClock()).run()
    return sent


def test_each_step_is_told_with_its_rows_and_its_measurement() -> None:
    sent = _run(SubmitCommand(_request("a")), stop_after=3)
    assert all(isinstance(event, StepDone) for event in sent)
    assert [event.rows[0][3] for event in sent] == [0, 1, 2]
    assert [event.rows[0][6] is not None for event in sent] == [False, False, True]
    assert all(event.stats.predicted_ms == 2.5 for event in sent)
    assert len(sent[0].kv_changes) > 0
    assert sent[1].kv_changes == ()


def test_the_load_is_not_taken_with_each_step_but_always_with_the_last() -> None:
    sent = _run(SubmitCommand(_request("a", max_tokens=4)), stop_after=4)
    assert [event.load is not None for event in sent] == [True, False, False, True]
    assert sent[-1].load.running == 0


def test_the_load_is_taken_again_when_its_interval_is_over() -> None:
    clock = VirtualClock()

    class MovingClock(VirtualClock):
        def monotonic_ms(self) -> float:
            self.advance(LOAD_INTERVAL_MS)
            return self.now_ms

    sent = _run(SubmitCommand(_request("a", max_tokens=4)), stop_after=4, clock=MovingClock())
    assert all(event.load is not None for event in sent)
    assert clock.monotonic_ms() == 0


def test_what_the_engine_refuses_is_told_and_nothing_runs() -> None:
    (event,) = _run(SubmitCommand(_request("a", fake_engine.REFUSE)), stop_after=1)
    assert event == Refused(_request("a").key, "invalid_request", "the prompt begins with 4: give another")


def test_a_cancel_ends_a_request_with_the_next_step() -> None:
    request = _request("a", max_tokens=1000)
    (event,) = _run(SubmitCommand(request), CancelCommand((request.key,)), stop_after=1)
    assert event.rows[0][6][0] == "cancelled"


def test_a_fault_of_the_engine_leaves_the_loop_as_it_is() -> None:
    with pytest.raises(RuntimeError, match="by order of the test"):
        _run(SubmitCommand(_request("a", fake_engine.CRASH)), stop_after=1)


def test_a_front_that_is_gone_stops_the_loop() -> None:
    ours, theirs = connected_pair()
    inbox, channel = Inbox(), BlockingChannel(theirs)
    inbox.fill_from(channel)
    loop = CoreLoop(fake_engine.FakeEngine(), inbox, send=channel.send, clock=VirtualClock())
    thread = threading.Thread(target=loop.run)
    thread.start()
    ours.close()
    thread.join(timeout=5)
    assert not thread.is_alive()
    theirs.close()


async def test_messages_cross_the_socket_whole_both_ways_and_its_end_is_seen() -> None:
    ours, theirs = connected_pair()
    near, far = await AsyncChannel.open(ours), BlockingChannel(theirs)
    big = SubmitCommand(Request(_request("a").key, tuple(range(100_000)), SamplingParams(max_tokens=1)))
    near.send(big)
    near.send(StopCommand())
    received: list[object] = []
    reader = threading.Thread(target=lambda: received.extend([far.receive(), far.receive()]))
    reader.start()
    far.send("up")
    assert await near.receive() == "up"
    await asyncio.to_thread(reader.join)
    assert received == [big, StopCommand()]
    theirs.close()
    far._reader.close()
    assert await near.receive() is None
    near.close()
