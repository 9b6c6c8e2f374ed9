"""Any history of submits, cancels and steps, in pools so small that pages are always wanted by two.

Prompts share prefixes within a salt and across salts, and at times nearly all block hashes collide.
Whatever happens, each choice receives a prefix of what it would have got alone, all of it at the end;
cancelled ones get one terminal row and nothing after it; and nothing is left held.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from ridgeline_contracts.blockhash import extend_hashes
from ridgeline_contracts.clock import VirtualClock
from ridgeline_contracts.ids import Attempt, BlockHash, RequestId
from ridgeline_contracts.kv import GroupId
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_engine.engine import Engine
from ridgeline_engine.kv_events import KVEvicted, KVSnapshot, KVStored
from ridgeline_engine.request import FinishReason, OutputRow, PriorityClass, Request, RequestKey
from ridgeline_engine.settings import AsyncScheduling, EngineSettings
from ridgeline_testing.fake_executor import (
    EOS_TOKEN_ID,
    FAKE_STEP,
    FakeExecutor,
    expected_output,
    kv_group,
)

GROUPS = {
    "one": (kv_group(0),),
    "two": (kv_group(0), kv_group(1)),
    "mixed": (kv_group(0), kv_group(1, block_tokens=32)),
    "odd": (kv_group(0, block_tokens=48), kv_group(1, block_tokens=32)),
    "window beside full": (kv_group(0), kv_group(1, window_tokens=20)),
    "windows alone": (kv_group(0, window_tokens=40), kv_group(1, block_tokens=32, window_tokens=33)),
}
SHARED = tuple((17 * index) % 40 for index in range(80))
LONGEST_SHARED_TOKENS = 70
CONTEXT_TOKENS = 120


@dataclass(slots=True)
class Expected:
    """One choice: what it must get, and what it got."""

    output: tuple[int, ...]
    emitted: int
    """Of the output, what an earlier attempt had delivered."""
    got: list[int] = field(default_factory=list)
    rows_after_cancel: int | None = None
    has_deadline: bool = False
    finished: FinishReason | None = None


def _colliding_hashes(parent: BlockHash, tokens: Sequence[int], *, block_tokens: int) -> list[BlockHash]:
    """Two hashes for all blocks there are: nearly every look-up meets another text's block."""
    found = []
    for start in range(0, len(tokens) - len(tokens) % block_tokens, block_tokens):
        (parent,) = extend_hashes(parent, tokens[start : start + block_tokens], block_tokens=block_tokens)
        parent = BlockHash(bytes([parent[0] % 2]) * len(parent))
        found.append(parent)
    return found


class EngineMachine(RuleBasedStateMachine):
    @initialize(
        blocks=st.integers(4, 24),
        groups=st.sampled_from(sorted(GROUPS)),
        batch=st.integers(1, 6),
        step_tokens=st.sampled_from([6, 16, 17, 64]),
        chunk=st.sampled_from([1, 8, 64]),
        target_ms=st.sampled_from([None, 0.1, 4.0]),
        caching=st.booleans(),
        overlap=st.sampled_from(AsyncScheduling),
        collide=st.sampled_from([False, False, True]),
        host_blocks=st.sampled_from([0, 3, 12]),
        preemption=st.sampled_from(["auto", "recompute", "swap", "swap", "wait"]),
    )
    def start(
        self,
        blocks: int,
        groups: str,
        batch: int,
        step_tokens: int,
        chunk: int,
        target_ms: float | None,
        caching: bool,
        overlap: AsyncScheduling,
        collide: bool,
        host_blocks: int,
        preemption: str,
    ) -> None:
        self.patches = ExitStack()
        if collide:
            self.patches.enter_context(patch("ridgeline_engine.sequence.extend_hashes", _colliding_hashes))
        self.clock = VirtualClock()
        self.executor = FakeExecutor(
            self.clock,
            blocks=blocks,
            host_blocks=host_blocks,
            groups=GROUPS[groups],
            max_batch=batch,
            max_context_tokens=CONTEXT_TOKENS,
        )
        self.engine = Engine(
            self.executor,
            self.clock,
            EngineSettings(
                eos_token_ids=(EOS_TOKEN_ID,),
                max_step_tokens=step_tokens,
                min_chunk_tokens=chunk,
                tpot_target_ms=target_ms,
                prefix_cache=caching,
                preemption=preemption,
                host_copy_bytes_per_ms=1e6,
                coefficients=FAKE_STEP,
                async_scheduling=overlap,
            ),
        )
        # Any of these pools holds a window and a block more: only full groups bound a text.
        full = [each.block_tokens for each in GROUPS[groups] if each.window_tokens is None]
        self.limit = min(CONTEXT_TOKENS, blocks * min(full, default=CONTEXT_TOKENS) + 1)
        self.expected: dict[tuple[RequestKey, int], Expected] = {}
        self.arrivals = 0
        self.mirror: set[tuple[GroupId, BlockHash]] = set()
        self.seen_events = 0

    @rule(
        text=st.sampled_from([0, 0, 0, 9]),
        shared=st.sampled_from([0, 16, 32, 48, 64]) | st.integers(0, LONGEST_SHARED_TOKENS),
        tail=st.sampled_from([(), (), (1,), (1, 2)])
        | st.lists(st.integers(0, 39), min_size=1, max_size=20).map(tuple),
        temperature=st.sampled_from([0.0, 1.0]),
        max_tokens=st.integers(1, 30),
        min_tokens=st.sampled_from([0, 0, 3]),
        penalty=st.sampled_from([0.0, 0.0, 1.0]),
        choices=st.sampled_from([1, 1, 1, 1, 3]),
        emitted=st.sampled_from([0, 0, 0, 1, 6]),
        priority=st.sampled_from(PriorityClass),
        patience_ms=st.sampled_from([None, None, 5.0, 60.0]),
        salt=st.sampled_from([b"", b"", b"another"]),
    )
    def submit(
        self,
        text: int,
        shared: int,
        tail: tuple[int, ...],
        temperature: float,
        max_tokens: int,
        min_tokens: int,
        penalty: float,
        choices: int,
        emitted: int,
        priority: PriorityClass,
        patience_ms: float | None,
        salt: bytes,
    ) -> None:
        prompt = SHARED[text : text + shared] + tail or (1,)
        if len(prompt) + emitted >= self.limit:
            return
        self.arrivals += 1
        key = RequestKey(RequestId(f"r{self.arrivals}"), Attempt(0))
        sampling = SamplingParams(
            max_tokens=max_tokens,
            # More than the context leaves room for is refused.
            min_tokens=min(min_tokens, max_tokens, self.limit - len(prompt)),
            temperature=temperature,
            presence_penalty=penalty,
            seed=self.arrivals,
        )
        clipped = replace(sampling, max_tokens=min(max_tokens, self.limit - len(prompt)))
        outputs = [
            expected_output(prompt, clipped, seed=self.arrivals, choice=choice) for choice in range(choices)
        ]
        given = tuple(output[: min(emitted, len(output) - 1)] for output in outputs)
        for choice, output in enumerate(outputs):
            self.expected[key, choice] = Expected(
                output, len(given[choice]), has_deadline=patience_ms is not None
            )
        deadline_ms = None if patience_ms is None else self.clock.now_ms + patience_ms
        self.engine.submit(
            Request(
                key,
                prompt,
                sampling,
                choices=choices,
                emitted=given,
                priority=priority,
                deadline_ms=deadline_ms,
                salt=salt,
            )
        )

    @rule(which=st.integers(0, 100), chance=st.integers(0, 3))
    def cancel(self, which: int, chance: int) -> None:
        if chance:
            return
        live = sorted({key for (key, _), found in self.expected.items() if found.finished is None})
        if not live:
            return
        key = live[which % len(live)]
        took = self.engine.cancel(key)
        for (each, _), found in self.expected.items():
            if each == key and found.finished is None and found.rows_after_cancel is None and took:
                found.rows_after_cancel = 0

    @precondition(lambda self: self.executor.open_launches < 2)
    @rule()
    def launch(self) -> None:
        self.engine.launch()

    @rule()
    def complete(self) -> None:
        self.receive(self.engine.complete())

    @rule(times=st.integers(1, 24))
    def steps(self, times: int) -> None:
        for _ in range(times):
            self.receive(self.engine.step())

    @rule(chance=st.integers(0, 9))
    def clear_cache(self, chance: int) -> None:
        """Seldom: else nothing would ever be hit, or evicted."""
        if chance == 0:
            self.engine.clear_prefix_cache()

    def receive(self, rows: list[OutputRow]) -> None:
        for row in rows:
            found = self.expected[row.key, row.choice]
            assert found.finished is None, "a row after the terminal one"
            assert row.first_offset == found.emitted + len(found.got)
            found.got += row.tokens
            whole = found.output[found.emitted :]
            assert tuple(found.got) == whole[: len(found.got)]
            if found.rows_after_cancel is not None:
                found.rows_after_cancel += 1
            if row.finish is not None:
                found.finished = row.finish.reason
                self.check_finish(found, row)

    def check_finish(self, found: Expected, row: OutputRow) -> None:
        assert row.finish is not None
        counts, reason = row.finish.counts, row.finish.reason
        assert counts.emitted_tokens == len(found.got)
        assert counts.accepted_tokens >= counts.emitted_tokens
        if reason is FinishReason.ERROR:
            assert found.has_deadline
            assert row.finish.error is not None
            assert row.finish.error.code == "deadline_exceeded"
            assert found.got == []
        elif reason is FinishReason.CANCELLED:
            assert found.rows_after_cancel is not None
        else:
            assert tuple(found.got) == found.output[found.emitted :]
            assert reason is (FinishReason.STOP if found.output[-1] == EOS_TOKEN_ID else FinishReason.LENGTH)

    def follow_events(self) -> None:
        found = self.engine.kv_events.after(self.seen_events)
        if isinstance(found, KVSnapshot):
            self.mirror = {(run.group, each) for run in found.stored for each in run.block_hashes}
            self.seen_events = found.sequence
            return
        for event in found:
            assert event.sequence == self.seen_events + 1
            self.seen_events = event.sequence
            change = event.change
            if isinstance(change, KVStored):
                new = {(change.group, each) for each in change.block_hashes}
                assert self.mirror.isdisjoint(new)
                self.mirror |= new
            elif isinstance(change, KVEvicted):
                gone = {(change.group, each) for each in change.block_hashes}
                assert gone <= self.mirror
                self.mirror -= gone
            else:
                self.mirror = set()

    @invariant()
    def all_is_consistent(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.engine.check()
        if all(group.window_tokens is None for group in self.executor.kv_groups):
            scheduler: Any = self.engine._scheduler
            assert scheduler.kv.stranded_bytes() == 0
        self.follow_events()
        snapshot: Any = self.engine.kv_events.after(0)
        assert self.mirror == {(run.group, each) for run in snapshot.stored for each in run.block_hashes}

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        with self.patches:
            self.run_to_the_end()

    def run_to_the_end(self) -> None:
        for _ in range(5_000):
            if not self.engine.has_work:
                break
            self.steps(1)
        assert not self.engine.has_work, "admitted work did not finish"
        assert all(found.finished is not None for found in self.expected.values())
        assert all(found.rows_after_cancel in (None, 1) for found in self.expected.values())
        load = self.engine.load()
        assert (load.running, load.free_blocks) == (0, load.total_blocks)
        self.engine.check()


def test_any_history_gives_each_choice_its_own_text() -> None:
    run_state_machine_as_test(
        EngineMachine, settings=settings(max_examples=40, stateful_step_count=30, deadline=None)
    )


@pytest.mark.long
@pytest.mark.timeout(1_200)
def test_any_long_history_gives_each_choice_its_own_text() -> None:
    run_state_machine_as_test(
        EngineMachine, settings=settings(max_examples=150, stateful_step_count=60, deadline=None)
    )
