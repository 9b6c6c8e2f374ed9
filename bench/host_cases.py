"""The traffic of `engine_host.py`, the same for both sides: prompts, when they come, and when the watch runs.

Without imports beyond the standard library, since vLLM's own environment reads it too.
"""

import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

VOCABULARY_TOKENS = 49_152
CONTEXT_TOKENS = 8_192
BLOCK_TOKENS = 16
MAX_BATCH = 256
STEP_TOKENS = 2_048
BLOCKS = 40_000
EOS_TOKEN_ID = 2


@dataclass(frozen=True, slots=True)
class Case:
    """`sequences` are always live: as one ends the next one comes. The watch runs from the end of the warm-up, and
    counts `steps` steps; a case of decode alone has outputs that do not end before."""

    name: str
    sequences: int
    prompt_tokens: int
    output_tokens: int
    warmup_steps: int
    steps: int

    @classmethod
    def decode(cls, sequences: int, *, prompt_tokens: int, warmup_steps: int, steps: int) -> "Case":
        return cls(
            f"decode, {sequences} sequences", sequences, prompt_tokens, CONTEXT_TOKENS, warmup_steps, steps
        )

    @property
    def is_decode(self) -> bool:
        """No sequence ends, so that after the warm-up no prompt comes."""
        return self.output_tokens == CONTEXT_TOKENS

    @classmethod
    def read(cls, message: Mapping[str, Any]) -> "Case":
        return cls(**message)

    def message(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class Traffic:
    """Which prompts are to be submitted next. Lengths differ by up to a block, so that blocks fill in turn."""

    case: Case
    live: int = 0
    made: int = 0
    _drawn: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._drawn = random.Random(self.case.name)

    def due(self) -> Iterator[tuple[str, list[int], int]]:
        """Name, prompt and output tokens of each request that is missing now."""
        while self.live < self.case.sequences:
            self.live += 1
            self.made += 1
            tokens = self.case.prompt_tokens + self.made * 7 % BLOCK_TOKENS
            most = min(self.case.output_tokens, CONTEXT_TOKENS - tokens)
            # The first ones end one after the other, not all at once.
            share = self.made / self.case.sequences if self.made <= self.case.sequences else 1.0
            output = most if self.case.is_decode else max(1, round(most * share))
            yield f"{self.case.name}-{self.made}", self._drawn.choices(range(100, 40_000), k=tokens), output

    def ended(self, count: int) -> None:
        self.live -= count


@dataclass(slots=True)
class Watch:
    """Time of the steps that count, without what the bench itself does in them.

    Of the thread, in processor time: another process of the machine lengthens it far less than the wall's time, and
    a loop that never waits takes the same of both.
    """

    case: Case
    prefilling: bool = True
    steps: int = 0
    tokens: int = 0
    _warm: int = 0
    _started: float = 0.0
    _wall_started: float = 0.0
    _apart: float = 0.0
    _wall_apart: float = 0.0
    seconds: float = 0.0
    wall_seconds: float = 0.0

    @property
    def running(self) -> bool:
        return self._started > 0.0

    def before_step(self, *, decoding: bool) -> bool:
        """To be asked before each step; False once enough were measured. `decoding`: all have begun to."""
        if self.running:
            self.steps += 1
            if self.steps == self.case.steps:
                self.seconds = time.thread_time() - self._started - self._apart
                self.wall_seconds = time.perf_counter() - self._wall_started - self._wall_apart
                return False
            return True
        self.prefilling = self.prefilling and not decoding
        if not self.prefilling:
            self._warm += 1
            if self._warm > self.case.warmup_steps:
                self._apart = self._wall_apart = 0.0
                self.tokens = 0
                self._wall_started, self._started = time.perf_counter(), time.thread_time()
        return True

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """What is done inside is not counted."""
        wall_began, began = time.perf_counter(), time.thread_time()
        try:
            yield
        finally:
            self._apart += time.thread_time() - began
            self._wall_apart += time.perf_counter() - wall_began

    def answer(self, **more: float) -> dict[str, float]:
        return {
            "seconds": self.seconds,
            "wall_seconds": self.wall_seconds,
            "steps": self.steps,
            "tokens": self.tokens,
            **more,
        }
