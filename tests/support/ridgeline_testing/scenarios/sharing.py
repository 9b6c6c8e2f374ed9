"""What sharing blocks saves: a published trace through the engine, counting what tables name and what is held.

A block that several sequences share, by a prefix hit or as choices of one request, is named by each of their tables
and held once. Saved is what the tables name beyond what is held, summed over the steps; and prompt tokens that were
hits instead of being computed.
"""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ridgeline_contracts.clock import VirtualClock
from ridgeline_contracts.ids import Attempt, RequestId
from ridgeline_contracts.kv import GroupId
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_engine.engine import Engine
from ridgeline_engine.request import Request, RequestKey
from ridgeline_engine.settings import EngineSettings

from ridgeline_testing.scenarios.driver import MODEL
from ridgeline_testing.scenarios.executor import TOKEN_ID, StepModelExecutor

_TRACE = Path(__file__).with_name("conversation_trace.csv")
_SYSTEM_TOKENS = 512
"""What all prompts of the trace begin with."""
_BLOCKS = 200_000
_REPLY_TOKENS = 64
"""Of the user's next turn."""
TITLE = "Sharing of blocks: the first 24 s of a published conversation trace"


@dataclass(frozen=True, slots=True)
class Ask:
    at_ms: float
    prompt: tuple[int, ...]
    output_tokens: int
    choices: int = 1
    salt: bytes = b""


def trace() -> list[Ask]:
    """The trace with made-up tokens: equal where its hashes are equal, unlike elsewhere."""
    lines = [line for line in _TRACE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    asks = []
    for number, row in enumerate(csv.DictReader(lines), 1):
        tokens = int(row["prompt_tokens"])
        own = ((number * 7_919 + index * 31) % 31_000 for index in range(tokens - _SYSTEM_TOKENS))
        prompt = (*range(_SYSTEM_TOKENS), *own)
        asks.append(Ask(float(row["at_ms"]), prompt, int(row["output_tokens"])))
    return asks


def workloads() -> dict[str, list[Ask]]:
    base = trace()
    again = [
        replace(ask, at_ms=ask.at_ms + 60_000.0, prompt=(*ask.prompt, *_answer(ask), *_reply(number)))
        for number, ask in enumerate(base)
    ]
    return {
        "as it is": base,
        "each conversation a second time, a turn longer": [*base, *again],
        "four choices of each answer": [replace(ask, choices=4) for ask in base],
        "a tenant of its own for each": [
            replace(ask, salt=str(number).encode()) for number, ask in enumerate(base)
        ],
    }


def _answer(ask: Ask) -> tuple[int, ...]:
    return (TOKEN_ID,) * ask.output_tokens


def _reply(number: int) -> tuple[int, ...]:
    return tuple((number * 104_729 + index * 17) % 31_000 for index in range(_REPLY_TOKENS))


def measure(asks: Sequence[Ask]) -> dict[str, float]:
    """Runs to the end. Ratios of the blocks named and of the prompt tokens, and the most blocks held at once."""
    clock = VirtualClock()
    executor = StepModelExecutor(clock, MODEL, blocks=_BLOCKS, max_batch=1_024)
    engine = Engine(
        executor, clock, EngineSettings(eos_token_ids=(), coefficients=MODEL, tpot_target_ms=None)
    )
    named = held = most_held = prompt_tokens = cached_tokens = 0
    for rows in _steps(engine, clock, asks):
        tables, blocks = _counted(engine)
        named, held, most_held = named + tables, held + blocks, max(most_held, blocks)
        for row in rows:
            if row.finish is not None:
                prompt_tokens += row.finish.counts.prompt_tokens
                cached_tokens += row.finish.counts.cached_tokens
    return {
        "blocks_saved_ratio": 1 - held / named,
        "prompt_tokens_hit_ratio": cached_tokens / prompt_tokens,
        "most_blocks_held": most_held,
    }


def _steps(engine: Engine, clock: VirtualClock, asks: Sequence[Ask]) -> Iterator[list[Any]]:
    coming = sorted(enumerate(asks), key=lambda each: each[1].at_ms)
    while coming or engine.has_work:
        while coming and coming[0][1].at_ms <= clock.now_ms:
            number, ask = coming.pop(0)
            sampling = SamplingParams(max_tokens=ask.output_tokens, ignore_eos=True)
            key = RequestKey(RequestId(f"r{number}"), Attempt(0))
            engine.submit(Request(key, ask.prompt, sampling, choices=ask.choices, salt=ask.salt))
        if engine.has_work:
            yield engine.step()
        else:
            clock.advance(coming[0][1].at_ms - clock.now_ms)


def _counted(engine: Engine) -> tuple[int, int]:
    """Blocks that tables name, and blocks that are held."""
    scheduler: Any = engine._scheduler
    named = sum(len(each.tables[GroupId(0)].blocks) for each in scheduler.running)
    return named, scheduler.kv.pool.counts(GroupId(0)).held
