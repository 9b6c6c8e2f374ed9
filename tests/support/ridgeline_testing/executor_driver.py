"""Plays plans to an executor by hand, in place of an engine: blocks, chunks and batches as a test wants
them."""

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ridgeline_contracts.kv import BlockId
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_engine.seam import (
    BlockAppend,
    BlockCopy,
    Executor,
    Generation,
    InputToken,
    LaunchId,
    RowPlan,
    RowResult,
    SlotAdmit,
    SlotId,
    StepPlan,
    TokenMask,
)

GREEDY = SamplingParams(max_tokens=4096, temperature=0.0)


@dataclass(slots=True)
class DrivenSequence:
    """What the driver knows of one slot."""

    admit: SlotAdmit
    computed: int = 0
    output: list[int] = field(default_factory=list)
    blocks: dict[int, list[BlockId]] = field(default_factory=dict)


class ExecutorDriver:
    """Blocks are handed out in shuffled order, so that no table is contiguous by chance."""

    def __init__(self, executor: Executor, *, shuffle_seed: int = 0) -> None:
        self._executor = executor
        self._free: dict[int, list[BlockId]] = {}
        for group, count in executor.kv_blocks.items():
            blocks = [BlockId(block) for block in range(count)]
            random.Random(shuffle_seed).shuffle(blocks)
            self._free[group] = blocks
        self._launches = itertools.count()
        self._generations = itertools.count(1)
        self._admits: list[SlotAdmit] = []
        self._releases: list[SlotId] = []
        self.sequences: dict[SlotId, DrivenSequence] = {}

    def admit(
        self,
        slot: int,
        prompt: Sequence[int],
        sampling: SamplingParams = GREEDY,
        *,
        seed: int = 0,
        choice: int = 0,
        output: Sequence[int] = (),
        eos_token_ids: Sequence[int] = (),
    ) -> SlotId:
        """Takes effect with the next step."""
        admit = SlotAdmit(
            SlotId(slot),
            Generation(next(self._generations)),
            sampling,
            seed,
            choice,
            tuple(prompt),
            tuple(output),
            tuple(eos_token_ids),
        )
        self._admits.append(admit)
        self.sequences[admit.slot] = DrivenSequence(admit, output=list(output))
        return admit.slot

    def release(self, slot: SlotId) -> None:
        """Takes effect with the next step; the blocks can be handed out at once."""
        for group, blocks in self.sequences.pop(slot).blocks.items():
            self._free[group].extend(blocks)
        self._releases.append(slot)

    def plan(
        self, rows: Mapping[SlotId, Sequence[InputToken]], *, copies: Sequence[BlockCopy] = ()
    ) -> StepPlan:
        """Each slot computes these tokens next; the row wants logits when they end what is known so far."""
        appends = [append for slot, tokens in rows.items() for append in self._grow(slot, len(tokens))]
        planned = tuple(self._row(slot, tuple(tokens)) for slot, tokens in rows.items())
        plan = StepPlan(
            LaunchId(next(self._launches)),
            planned,
            tuple(self._releases),
            tuple(self._admits),
            tuple(appends),
            tuple(copies),
        )
        self._releases, self._admits = [], []
        return plan

    def run(self, plan: StepPlan, masks: Mapping[SlotId, TokenMask] | None = None) -> dict[SlotId, RowResult]:
        """Launches, samples, completes, and notes the tokens of slots that still have that owner."""
        self._executor.launch(plan)
        self._executor.sample(plan.launch, masks or {})
        return self.complete(plan.launch)

    def complete(self, launch: LaunchId) -> dict[SlotId, RowResult]:
        results = {row.slot: row for row in self._executor.complete(launch).rows}
        for slot, row in results.items():
            owner = self.sequences.get(slot)
            if owner is not None and owner.admit.generation == row.generation:
                owner.output.extend(row.tokens)
        return results

    def step(
        self,
        *,
        chunk_tokens: int = 1 << 30,
        slots: Sequence[SlotId] | None = None,
        masks: Mapping[SlotId, TokenMask] | None = None,
    ) -> dict[SlotId, RowResult]:
        """One step in which each slot computes up to `chunk_tokens` of what it knows and has not computed."""
        rows = {}
        for slot in self.sequences if slots is None else slots:
            sequence = self.sequences[slot]
            known = [*sequence.admit.prompt, *sequence.output]
            rows[slot] = known[sequence.computed : sequence.computed + chunk_tokens]
        return self.run(self.plan(rows), masks)

    def generate(
        self, slots: Sequence[SlotId], tokens: int, *, chunk_tokens: int = 1 << 30
    ) -> list[list[int]]:
        """Steps the slots until each has that many output tokens; slots that have them sit out."""
        while waiting := [slot for slot in slots if len(self.sequences[slot].output) < tokens]:
            self.step(chunk_tokens=chunk_tokens, slots=waiting)
        return [self.sequences[slot].output[:tokens] for slot in slots]

    def take_block(self, group: int = 0) -> BlockId:
        """A block of no sequence, for a test that fills tables itself."""
        return self._free[group].pop()

    def _grow(self, slot: SlotId, count: int) -> list[BlockAppend]:
        sequence = self.sequences[slot]
        appends = []
        for group in self._executor.kv_groups:
            held = sequence.blocks.setdefault(group.group, [])
            needed = group.blocks_for(sequence.computed + count) - len(held)
            if needed > 0:
                taken = [self._free[group.group].pop() for _ in range(needed)]
                held.extend(taken)
                appends.append(BlockAppend(slot, group.group, tuple(taken)))
        return appends

    def _row(self, slot: SlotId, tokens: tuple[InputToken, ...]) -> RowPlan:
        sequence = self.sequences[slot]
        start = sequence.computed
        sequence.computed += len(tokens)
        known = len(sequence.admit.prompt) + len(sequence.output)
        ends = sequence.computed >= known
        output_position = max(len(sequence.output), sequence.computed - len(sequence.admit.prompt))
        return RowPlan(slot, sequence.admit.generation, tokens, start, int(ends), output_position)
