"""A FakeEngine that runs in a real core process. The first prompt token says what it is to do."""

import threading

from ridgeline_contracts.blockhash import HashScope, root_hash
from ridgeline_contracts.capabilities import Capabilities
from ridgeline_contracts.clock import Clock
from ridgeline_contracts.errors import DeviceFault, InvalidRequest
from ridgeline_contracts.ids import BlockHash
from ridgeline_contracts.kv import GroupId, KVDtype, KVGroup, KVKind
from ridgeline_contracts.step import StepCoefficients, StepShape
from ridgeline_engine.kv_events import KVEventLog, KVStored
from ridgeline_engine.request import (
    Counts,
    EngineClocks,
    Finish,
    FinishReason,
    OutputRow,
    PriorityClass,
    Request,
    RequestKey,
)
from ridgeline_engine.snapshots import ClassLoad, EngineCounts, LoadSnapshot, StepStats
from ridgeline_worker.messages import CoreSpec

HANG, FAULT, CRASH, REFUSE, REPEAT_FINISH = 1, 2, 3, 4, 5
VOCAB_TOKENS = 100_000
STEP_S = 0.002
GROUP = KVGroup(GroupId(0), (0,), KVKind.FULL, block_tokens=16, heads=1, head_dim=8, dtype=KVDtype.FP32)


class _Running:
    def __init__(self, request: Request) -> None:
        self.request = request
        emitted = request.emitted or ((),) * request.choices
        self.start = [len(tokens) for tokens in emitted]
        self.offset = list(self.start)


class FakeEngine:
    """Each step gives each request's every choice one token: the prompt's last token plus the token's offset."""

    def __init__(self) -> None:
        self._running: dict[RequestKey, _Running] = {}
        self._cancelled: set[RequestKey] = set()
        self._kv = KVEventLog(64, snapshot=lambda: tuple(self._stored))
        self._stored: list[KVStored] = []
        self._steps = 0
        self._last_step: StepStats | None = None
        self._repeat: list[OutputRow] = []
        self._pause = threading.Event()

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities("fake", "cpu", "fp32", VOCAB_TOKENS, 4096, 64, (GROUP,), max_choices=4, seed=True)

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._repeat)

    def submit(self, request: Request) -> None:
        if request.prompt[0] == REFUSE:
            raise InvalidRequest("the prompt begins with 4: give another", param="prompt")
        request.sampling.check(vocab_tokens=VOCAB_TOKENS)
        self._running[request.key] = _Running(request)
        stored = KVStored(root_hash(HashScope(request.salt, "w")), (_block(request),), GroupId(0))
        self._stored.append(stored)
        self._kv.add(stored)

    def cancel(self, key: RequestKey) -> bool:
        self._cancelled.add(key)
        return key in self._running

    def step(self) -> list[OutputRow]:
        self._pause.wait(STEP_S)
        rows, self._repeat = self._repeat, []
        for key, running in list(self._running.items()):
            _misbehave(running.request.prompt[0])
            rows += [self._row(running, choice) for choice in range(running.request.choices)]
            if rows[-1].finish is not None:
                del self._running[key]
                if running.request.prompt[0] == REPEAT_FINISH:
                    self._repeat = [rows[-1]]
        self._cancelled.clear()
        self._steps += 1
        self._last_step = StepStats(StepShape(decode_rows=len(rows)), len(rows), 0, 2.0, 1.0, 0.5, 2.5)
        return rows

    def _row(self, running: _Running, choice: int) -> OutputRow:
        request, offset = running.request, running.offset[choice]
        if request.key in self._cancelled:
            return OutputRow(
                request.key, choice, offset, (), finish=_finish(running, choice, FinishReason.CANCELLED)
            )
        running.offset[choice] += 1
        ends = offset + 1 >= request.sampling.max_tokens
        finish = _finish(running, choice, FinishReason.LENGTH) if ends else None
        return OutputRow(request.key, choice, offset, (request.prompt[-1] + offset,), finish=finish)

    @property
    def kv_events(self) -> KVEventLog:
        return self._kv

    def load(self) -> LoadSnapshot:
        return LoadSnapshot(
            classes=(ClassLoad(PriorityClass.INTERACTIVE, 0, 0),),
            running=len(self._running),
            free_blocks=100 - len(self._running),
            cached_blocks=self._kv.sequence,
            total_blocks=100,
            step_model=StepCoefficients(1.0, 0.5, 0.0, 0.01, 0.0),
            draining=False,
        )

    @property
    def last_step(self) -> tuple[int, StepStats | None]:
        return self._steps, self._last_step

    def counts(self) -> EngineCounts:
        """As if every step wasted a row, and every other one preempted somebody."""
        return EngineCounts((("pool", "recompute", self._steps // 2),), wasted_rows=self._steps)

    def close(self) -> None:
        return None


def _misbehave(order: int) -> None:
    if order == HANG:
        threading.Event().wait()
    if order == FAULT:
        raise DeviceFault("an illegal address, by order of the test")
    if order == CRASH:
        raise RuntimeError("by order of the test")


def _block(request: Request) -> BlockHash:
    return BlockHash(request.key.request_id.encode().ljust(16, b".")[:16])


def _finish(running: _Running, choice: int, reason: FinishReason) -> Finish:
    made = running.offset[choice] - running.start[choice]
    counts = Counts(len(running.request.prompt), 0, len(running.request.prompt) + made, made, made)
    return Finish(reason, counts, EngineClocks(0.1, 0.2, 0.3))


def build_engine(spec: CoreSpec, clock: Clock) -> FakeEngine:
    return FakeEngine()


def refuse_to_build(spec: CoreSpec, clock: Clock) -> FakeEngine:
    raise InvalidRequest("no engine can be built from this folder: give another")
