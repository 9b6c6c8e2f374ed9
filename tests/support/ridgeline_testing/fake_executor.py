"""An executor without a model, for tests of the engine: the next token is a hash of all tokens it reads.

It reads them where a real one reads keys and values: through the slot's block tables, out of physical blocks
that keep what was last written. A wrong table, a stale page, a wrong prefix hit or a lost copy gives other
tokens than `expected_output`, which never saw a block.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
from ridgeline_contracts.capabilities import Capabilities
from ridgeline_contracts.clock import VirtualClock
from ridgeline_contracts.kv import BlockId, GroupId, KVDtype, KVGroup, KVKind
from ridgeline_contracts.sampling import SamplingParams, TokenLogprob
from ridgeline_contracts.step import StepCoefficients, StepShape
from ridgeline_engine.sampler_oracle import Floats32, SamplerRow, sample_row
from ridgeline_engine.seam import (
    BlockAppend,
    BlockCopy,
    CopyKind,
    LaunchId,
    RowPlan,
    RowResult,
    SlotAdmit,
    SlotId,
    StepPlan,
    StepResult,
    TokenMask,
    TokenRef,
)

VOCAB_TOKENS = 40
EOS_TOKEN_ID = 3
FAKE_STEP = StepCoefficients(
    base_ms=2.0,
    per_row_ms=0.25,
    per_context_token_ms=0.001,
    per_prefill_token_ms=0.125,
    per_prefill_context_ms=0.0005,
)


def kv_group(number: int = 0, *, block_tokens: int = 16, window_tokens: int | None = None) -> KVGroup:
    kind = KVKind.FULL if window_tokens is None else KVKind.WINDOW
    return KVGroup(
        GroupId(number), (number,), kind, block_tokens, 1, 8, KVDtype.FP32, window_tokens=window_tokens
    )


def fake_logits(context: Sequence[int]) -> Floats32:
    """float32 [VOCAB_TOKENS], a function of all tokens before."""
    digest = blake2b(np.asarray(context, dtype=np.int64).tobytes(), digest_size=8).digest()
    words = np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))
    return words.standard_normal(VOCAB_TOKENS).astype(np.float32)


def expected_output(
    prompt: Sequence[int],
    sampling: SamplingParams,
    *,
    seed: int = 0,
    choice: int = 0,
    eos_token_ids: tuple[int, ...] = (EOS_TOKEN_ID,),
) -> tuple[int, ...]:
    """The whole output of one choice, by the sampler's oracle and without an engine."""
    output: tuple[int, ...] = ()
    eos = () if sampling.ignore_eos else eos_token_ids
    while len(output) < sampling.max_tokens:
        row = SamplerRow(sampling, seed, choice, tuple(prompt), output, eos)
        token = sample_row(fake_logits([*prompt, *output]), row).token
        assert token is not None
        output += (token,)
        if len(output) > sampling.min_tokens and token in (*eos, *sampling.stop_token_ids):
            break
    return output


@dataclass(slots=True)
class _Slot:
    admit: SlotAdmit
    tables: dict[GroupId, list[BlockId]] = field(default_factory=dict)
    output: list[int] = field(default_factory=list)
    open_rows: list[RowPlan] = field(default_factory=list)
    """Of launches that have not completed, oldest first."""
    next_start: int = 0
    """No later row starts before."""

    @property
    def first_query(self) -> int:
        """The first position that may still see KV."""
        return self.open_rows[0].start if self.open_rows else self.next_start


class FakeExecutor:
    """Obeys the seam to the letter and asserts that the engine does. Rows run in `sample`; time passes in
    `complete`, on `clock`."""

    def __init__(
        self,
        clock: VirtualClock,
        *,
        blocks: int | Mapping[GroupId, int] = 64,
        host_blocks: int = 0,
        groups: Sequence[KVGroup] = (kv_group(),),
        max_batch: int = 8,
        max_context_tokens: int = 512,
    ) -> None:
        self._clock = clock
        self._kv_groups = tuple(groups)
        self._kv_blocks = {
            group.group: blocks if isinstance(blocks, int) else blocks[group.group] for group in groups
        }
        self._host_blocks = {group.group: host_blocks for group in groups}
        self._capabilities = Capabilities(
            executor="fake",
            device="none",
            weights_dtype="none",
            vocab_tokens=VOCAB_TOKENS,
            max_context_tokens=max_context_tokens,
            max_batch=max_batch,
            kv_groups=self._kv_groups,
            logprobs=True,
            penalties=True,
            seed=True,
        )
        self._memory: dict[tuple[GroupId, BlockId, int], tuple[int, int]] = {}
        """By group, block and offset: the position and the token whose KV lies there."""
        self._host: dict[tuple[GroupId, BlockId, int], tuple[int, int]] = {}
        self._slots: dict[SlotId, _Slot] = {}
        self._generations: dict[SlotId, int] = {}
        self._open: dict[LaunchId, StepPlan] = {}
        self._touched: dict[LaunchId, dict[tuple[SlotId, int], set[tuple[GroupId, BlockId]]]] = {}
        """By open launch and owner of a slot: the blocks that its queries may see."""
        self._results: dict[LaunchId, StepResult] = {}
        self.plans: list[StepPlan] = []
        self.faults: dict[tuple[int, ...], str] = {}
        """By prompt: the fault of each row that samples for it."""
        self.closed = False

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def kv_groups(self) -> tuple[KVGroup, ...]:
        return self._kv_groups

    @property
    def kv_blocks(self) -> Mapping[GroupId, int]:
        return self._kv_blocks

    @property
    def open_launches(self) -> int:
        return len(self._open)

    @property
    def host_blocks(self) -> Mapping[GroupId, int]:
        return self._host_blocks

    def launch(self, plan: StepPlan) -> LaunchId:
        assert len(self._open) < 2
        assert plan.rows
        self.plans.append(plan)
        self._apply_changes(plan)
        assert len({row.slot for row in plan.rows}) == len(plan.rows)
        assert all(each in self._results for each in self._open), "a launch before it is not sampled yet"
        self._open[plan.launch] = plan
        for row in plan.rows:
            self._slots[row.slot].open_rows.append(row)
        self._touched[plan.launch] = {
            (row.slot, row.generation): {
                (group.group, block)
                for group in self._kv_groups
                for block in self._seen(self._slots[row.slot], group)
            }
            for row in plan.rows
        }
        return plan.launch

    def sample(self, launch: LaunchId, masks: Mapping[SlotId, TokenMask]) -> None:
        assert launch not in self._results
        plan = self._open[launch]
        rows = tuple(self._run_row(row, masks.get(row.slot)) for row in plan.rows)
        self._results[launch] = StepResult(launch, rows, FAKE_STEP.predict_ms(_shape(plan)))

    def complete(self, launch: LaunchId) -> StepResult:
        assert launch == min(self._open)
        del self._open[launch], self._touched[launch]
        result = self._results[launch]
        for done in result.rows:
            if self._generations[done.slot] == done.generation and done.slot in self._slots:
                slot = self._slots[done.slot]
                row = slot.open_rows.pop(0)
                slot.next_start = row.start + len(row.tokens) - row.draft_tokens
        self._clock.advance(result.device_ms)
        return result

    def again(self, launch: LaunchId, appends: tuple[BlockAppend, ...]) -> StepResult:
        """One further step of the rows of the newest plan, as a twin runs it."""
        assert not self._open
        before, drawn = self.plans[-1], self._results[LaunchId(launch - 1)].rows
        rows = tuple(
            row._replace(
                tokens=result.tokens,
                start=row.start + len(row.tokens),
                output_position=row.output_position + 1,
            )
            for row, result in zip(before.rows, drawn, strict=True)
        )
        self.launch(StepPlan(launch, rows, appends=appends))
        self.sample(launch, {})
        return self.complete(launch)

    def close(self) -> None:
        self.closed = True

    def _apply_changes(self, plan: StepPlan) -> None:
        for slot in plan.release:
            del self._slots[slot]
        for admit in plan.admit:
            assert admit.slot not in self._slots
            assert admit.generation > self._generations.get(admit.slot, 0)
            self._generations[admit.slot] = admit.generation
            self._slots[admit.slot] = _Slot(admit, output=list(admit.output))
        for append in plan.appends:
            self._slots[append.slot].tables.setdefault(append.group, []).extend(append.blocks)
        for copy in plan.copies:
            self._copy(copy)

    def _run_row(self, row: RowPlan, mask: TokenMask | None) -> RowResult:
        slot = self._slots[row.slot]
        assert self._generations[row.slot] == row.generation
        assert row.tokens
        for offset, token in enumerate(row.tokens):
            self._write(row, row.start + offset, self._resolve(token))
        context = self._read(slot, row)
        if row.logits == 0:
            assert -1 not in context, "a chunk read a page that is not its own"
            return RowResult(row.slot, row.generation, ())
        if slot.admit.prompt in self.faults:
            return RowResult(row.slot, row.generation, (), fault=self.faults[slot.admit.prompt])
        assert row.output_position == len(slot.output)
        admit = slot.admit
        sampled = sample_row(
            fake_logits(context),
            SamplerRow(
                admit.sampling,
                admit.seed,
                admit.choice,
                admit.prompt,
                tuple(slot.output),
                admit.eos_token_ids,
                mask,
            ),
        )
        if sampled.token is None:
            return RowResult(row.slot, row.generation, (), fault=sampled.fault)
        slot.output.append(sampled.token)
        logprobs: tuple[TokenLogprob, ...] = () if sampled.logprob is None else (sampled.logprob,)
        return RowResult(row.slot, row.generation, (sampled.token,), logprobs)

    def _copy(self, copy: BlockCopy) -> None:
        """Whole blocks: what was never written, or belonged to an earlier owner, comes along."""
        source = self._host if copy.kind is CopyKind.SWAP_IN else self._memory
        target = self._host if copy.kind is CopyKind.SWAP_OUT else self._memory
        host = self._host_blocks[copy.group]
        assert copy.kind is not CopyKind.SWAP_IN or 0 <= copy.source < host
        assert copy.kind is not CopyKind.SWAP_OUT or 0 <= copy.target < host
        if copy.kind is CopyKind.SWAP_OUT:
            assert not any(
                (earlier.kind, earlier.group, earlier.source) == (CopyKind.SWAP_IN, copy.group, copy.target)
                for plan in self._open.values()
                for earlier in plan.copies
            ), "a host block was written while an open launch may read it"
        else:
            self._assert_untouched(copy.group, copy.target, by=None)
        for offset in range(self._block_tokens(copy.group)):
            found = source.get((copy.group, copy.source, offset))
            if found is None:
                target.pop((copy.group, copy.target, offset), None)
            else:
                target[copy.group, copy.target, offset] = found

    def _write(self, row: RowPlan, position: int, token: int) -> None:
        for group in self._kv_groups:
            block = self._slots[row.slot].tables[group.group][position // group.block_tokens]
            users = [slot for slot, each in self._slots.items() if block in self._seen(each, group)]
            assert users == [row.slot], "a shared block was written"
            self._assert_untouched(group.group, block, by=(row.slot, row.generation))
            self._memory[group.group, block, position % group.block_tokens] = (position, token)

    def _assert_untouched(self, group: GroupId, block: BlockId, *, by: tuple[SlotId, int] | None) -> None:
        """No other owner's row of a launch that has not completed may see a block that is written."""
        for owners in self._touched.values():
            for owner, blocks in owners.items():
                assert owner == by or (group, block) not in blocks, "a block was written under an open launch"

    def _seen(self, slot: _Slot, group: KVGroup) -> list[BlockId]:
        """The table but for what no query of the slot sees any more: that may be anybody's by now."""
        first = 0 if group.window_tokens is None else max(0, slot.first_query - group.window_tokens + 1)
        return slot.tables.get(group.group, [])[first // group.block_tokens :]

    def _read(self, slot: _Slot, row: RowPlan) -> list[int]:
        """What the row's queries see at the positions up to their own: a wrong position or a difference between
        groups reads as -1. What no group sees any more is taken as it was."""
        known = [*slot.admit.prompt, *slot.output]
        read = []
        for position in range(row.start + len(row.tokens)):
            found = {
                self._memory.get(
                    (
                        group.group,
                        slot.tables[group.group][position // group.block_tokens],
                        position % group.block_tokens,
                    )
                )
                for group in self._kv_groups
                if group.window_tokens is None or position > row.start - group.window_tokens
            }
            if not found:
                read.append(known[position])
                continue
            entry = found.pop()
            read.append(entry[1] if not found and entry is not None and entry[0] == position else -1)
        return read

    def _resolve(self, token: int | TokenRef) -> int:
        if not isinstance(token, TokenRef):
            return token
        tokens = self._results[token.launch].rows[token.row].tokens
        # Of a row with a fault anything may be read: what stands behind it is dropped.
        return tokens[-1] if tokens else 0

    def _block_tokens(self, group: GroupId) -> int:
        return next(each.block_tokens for each in self._kv_groups if each.group == group)


def _shape(plan: StepPlan) -> StepShape:
    """As an executor sees it: a row of one token that samples is a decode row."""
    decode = [row for row in plan.rows if len(row.tokens) == 1 and row.output_position > 0]
    prefill = [row for row in plan.rows if row not in decode]
    return StepShape(
        decode_rows=len(decode),
        context_tokens=sum(row.start + 1 for row in decode),
        prefill_tokens=sum(len(row.tokens) for row in prefill),
        prefill_context_tokens=sum(
            len(row.tokens) * row.start + len(row.tokens) ** 2 // 2 for row in prefill
        ),
    )
