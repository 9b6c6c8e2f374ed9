"""Our side of `engine_host.py`: the core's own loop over an executor that does nothing.

One case a line on stdin, `{"seconds": s, "steps": n, "tokens": t, ...}` a line on stdout. A step is what the core
does between two launches: commands taken, the step planned and committed, rows packed, pickled and written to the
front's socket, with KV events, load report and counters. The front's own work on the same rows (the frame on the
wire) is timed apart: it runs in another process.
"""

import argparse
import cProfile
import json
import subprocess
import sys
import time
from pathlib import Path

from _ridgeline_driver import take_stdout
from host_cases import EOS_TOKEN_ID, MAX_BATCH, STEP_TOKENS, Case, Traffic, Watch
from null_executor import NullExecutor
from ridgeline_contracts.clock import SystemClock
from ridgeline_contracts.ids import Attempt, RequestId, TenantId
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_engine.engine import Engine
from ridgeline_engine.request import Request, RequestKey
from ridgeline_engine.settings import EngineSettings
from ridgeline_worker.channel import BlockingChannel, connected_pair
from ridgeline_worker.collector import calm_collector
from ridgeline_worker.core_loop import CoreLoop
from ridgeline_worker.inbox import Inbox
from ridgeline_worker.messages import Command, Event, StepDone, StopCommand, SubmitCommand
from ridgeline_worker.rows import PackedRow, frame_to_wire

_TENANTS = 4
_FRAMES_TIMED = 50
_TARGET_MS = 1_000.0
"""Looked at in each step, but so long that no row pauses because other programs held this one up."""
_READ_AND_FORGET = """
import socket, sys
end = socket.socket(fileno=int(sys.argv[1]))
while end.recv(1 << 20):
    pass
"""


class Steering(Inbox):
    """In the inbox's place: gives the traffic's next requests before each step, and stops the loop at the end."""

    def __init__(self, traffic: Traffic, watch: Watch) -> None:
        super().__init__()
        self._traffic, self._watch = traffic, watch
        self._begun: set[str] = set()
        self.last_rows: tuple[PackedRow, ...] = ()

    def take(self, *, wait: bool) -> list[Command]:
        if not self._watch.before_step(decoding=len(self._begun) >= self._traffic.case.sequences):
            return [StopCommand()]
        with self._watch.stopped():
            return [
                SubmitCommand(_request(name, prompt, output_tokens))
                for name, prompt, output_tokens in self._traffic.due()
            ]

    def saw(self, event: Event) -> None:
        """What the core sent."""
        with self._watch.stopped():
            if not isinstance(event, StepDone):
                raise SystemExit(f"the engine refused: {event}")
            if self._watch.prefilling:
                self._begun.update(row[0] for row in event.rows)
            self._watch.tokens += sum(len(row[4]) for row in event.rows)
            self._traffic.ended(sum(row[6] is not None for row in event.rows))
            self.last_rows = event.rows


def _request(name: str, prompt: list[int], output_tokens: int) -> Request:
    number = int(name.rpartition("-")[2])
    return Request(
        RequestKey(RequestId(name), Attempt(0)),
        tuple(prompt),
        SamplingParams(max_tokens=output_tokens, ignore_eos=True),
        salt=b"salt",
        tenant=TenantId(f"tenant-{number % _TENANTS}"),
        weight=1.0 + number % 2,
    )


def run(case: Case, front: BlockingChannel, profile: cProfile.Profile | None = None) -> dict[str, float]:
    """One case on a new engine, with the policies and targets that a worker starts with."""
    watch = Watch(case)
    executor, clock = NullExecutor(watch), SystemClock()
    settings = EngineSettings(
        eos_token_ids=(EOS_TOKEN_ID,),
        max_batch=MAX_BATCH,
        max_step_tokens=STEP_TOKENS,
        weights_revision="null",
        tpot_target_ms=_TARGET_MS,
    )
    engine = Engine(executor, clock, settings)
    steering = Steering(Traffic(case), watch)

    def send(event: Event) -> None:
        front.send(event)
        steering.saw(event)

    calm_collector()
    if profile is not None:
        profile.enable()
    CoreLoop(engine, steering, send=send, clock=clock).run()
    if profile is not None:
        profile.disable()
    engine.close()
    return watch.answer(front_ms=_front_ms(steering.last_rows))


def _front_ms(rows: tuple[PackedRow, ...]) -> float:
    """The front's time to put one step's rows on the wire."""
    started = time.perf_counter()
    for sequence in range(_FRAMES_TIMED):
        frame_to_wire(sequence, rows).SerializeToString()
    return (time.perf_counter() - started) / _FRAMES_TIMED * 1e3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile", type=Path, help="write what cProfile saw of all cases to this file")
    options = parser.parse_args()
    answers = take_stdout()
    ours, theirs = connected_pair()
    reader = subprocess.Popen(
        [sys.executable, "-c", _READ_AND_FORGET, str(theirs.fileno())], pass_fds=[theirs.fileno()]
    )
    theirs.close()
    profile = cProfile.Profile() if options.profile else None
    try:
        print(json.dumps({"ready": True}), file=answers)
        channel = BlockingChannel(ours)
        for line in sys.stdin:
            print(json.dumps(run(Case.read(json.loads(line)), channel, profile)), file=answers)
    except KeyboardInterrupt:
        pass
    finally:
        reader.kill()
        reader.wait()
        if profile is not None:
            profile.dump_stats(options.profile)


if __name__ == "__main__":
    main()
