"""The executor seam: what the engine tells an executor, and what it hears back.

A plan is a delta over stable slots. The executor keeps per slot: the block tables, the sampling parameters
and the penalty state; the engine keeps everything that decides. The sampler lives behind the seam, on the
device.

    launch = executor.launch(plan)       # returns at once; at most two launches are open
    executor.sample(launch, masks)       # masks may be filled while the device runs
    result = executor.complete(launch)   # waits

Random numbers are addressed, not streamed: by (seed, choice, output position, draw), so that batching,
compaction, preemption and continuation do not change a seeded text.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, NewType, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt
from ridgeline_contracts.capabilities import Capabilities
from ridgeline_contracts.kv import BlockId, GroupId, KVGroup
from ridgeline_contracts.sampling import SamplingParams, TokenLogprob

SlotId = NewType("SlotId", int)
Generation = NewType("Generation", int)
"""The engine's count of a slot's owners: a late result for an earlier owner is recognised by it."""
LaunchId = NewType("LaunchId", int)
TokenMask = npt.NDArray[np.uint32]
"""ceil(vocab / 32) words, bit set = allowed, little end first."""
ABSENT_BLOCK = BlockId(0)
"""Fills a window group's table up to the first block that is there. A valid id, so that tables stay arrays."""


class TokenRef(NamedTuple):
    """An input token that is not known yet: the last one sampled by row `row` of launch `launch`."""

    launch: LaunchId
    row: int


InputToken: TypeAlias = int | TokenRef


@dataclass(frozen=True, slots=True)
class SlotAdmit:
    """A new owner of a slot. Its block tables start empty and its penalty state is built from `prompt` and
    `output`."""

    slot: SlotId
    generation: Generation
    sampling: SamplingParams
    seed: int
    """64 bits; of the request's own seed or a hash of its id."""
    choice: int
    prompt: tuple[int, ...]
    output: tuple[int, ...] = ()
    """Tokens that were emitted before (an earlier attempt, or before a preemption)."""
    eos_token_ids: tuple[int, ...] = ()
    """For min_tokens: these, and the stop token ids, are masked until it is reached. Empty under
    ignore_eos."""
    adapter_slot: int | None = None


@dataclass(frozen=True, slots=True)
class BlockAppend:
    """Blocks added to the end of a slot's table in one KV group: entry i holds positions i x block_tokens and up.

    In a window group the engine drops blocks that no position still to be computed can see, and tells nobody: the
    executor's table keeps the stale id, and the block may be another sequence's by now. Behind a prefix hit such
    entries are ABSENT_BLOCK from the start. Attention must not read through them, not even to multiply by zero:
    what lies there may be NaN.
    """

    slot: SlotId
    group: GroupId
    blocks: tuple[BlockId, ...]


class CopyKind(StrEnum):
    ON_DEVICE = "on_device"
    """Copy-on-write: the writer gets the copy."""
    SWAP_OUT = "swap_out"
    """To the host's pool, whose blocks have ids of their own, 0 to host_blocks[group] - 1: `source` is the device's,
    `target` the host's."""
    SWAP_IN = "swap_in"
    """Back: `source` is the host's, `target` the device's."""


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """One whole block of one group. Copies run in the order given, after the launches before and before the
    rows: a later copy or a row of the same plan may write what an earlier copy read."""

    kind: CopyKind
    group: GroupId
    source: BlockId
    target: BlockId


class RowPlan(NamedTuple):
    """One slot's part of a step: `tokens` at positions start, start+1, ...; KV is written for each of them.

    A named tuple, as are results: one is made for each row of each step, in a third of a frozen dataclass's time.
    """

    slot: SlotId
    generation: Generation
    tokens: tuple[InputToken, ...]
    start: int
    logits: int
    """How many of the last positions want logits and a sampled token: 0 in the middle of a prompt, 1 at its
    end and in decode, 1 + drafts when verifying."""
    output_position: int
    """Index in the output of the first token sampled here: the address of its random numbers."""
    draft_tokens: int = 0
    """How many of the last `tokens` are drafts to be verified."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A step. Order of effect: release, admit, appends, copies, rows."""

    launch: LaunchId
    rows: tuple[RowPlan, ...]
    release: tuple[SlotId, ...] = ()
    admit: tuple[SlotAdmit, ...] = ()
    appends: tuple[BlockAppend, ...] = ()
    copies: tuple[BlockCopy, ...] = ()


class RowResult(NamedTuple):
    """What one row gave: no token (mid-prompt), one, or several (accepted drafts and the bonus)."""

    slot: SlotId
    generation: Generation
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    """As many as tokens where they were asked for, else empty."""
    fault: str | None = None
    """A fault of this row alone (its logits were not finite, say); the other rows stand."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """Rows in the plan's order. `device_ms` is the time from the start of the work to its end on the
    device."""

    launch: LaunchId
    rows: tuple[RowResult, ...]
    device_ms: float


class KVAllocator(Protocol):
    """Gives the memory that holds KV: private, shared between processes, or registered with a NIC."""

    def allocate(self, size_bytes: int) -> memoryview:
        """Zeroed, aligned to at least 64 bytes, alive until `close`. Raises OutOfMemory naming size and
        limit."""
        ...

    def close(self) -> None: ...


LayerHook: TypeAlias = Callable[[LaunchId, int], None]
"""Called as (launch, layer) when that layer's KV of the launch is written: transfer may start to read it."""


class Executor(Protocol):
    """Runs plans. `launch` and `sample` never block; calls come from one thread.

    Raises DeviceFault from `complete` when the device failed: nothing of the executor may be used after that.
    """

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def kv_groups(self) -> tuple[KVGroup, ...]: ...

    @property
    def kv_blocks(self) -> Mapping[GroupId, int]:
        """Blocks that the memory holds, by group."""
        ...

    @property
    def host_blocks(self) -> Mapping[GroupId, int]:
        """Blocks that the host's pool for swapped sequences holds, by group; a group that is not named has
        none."""
        ...

    def launch(self, plan: StepPlan) -> LaunchId: ...

    def sample(self, launch: LaunchId, masks: Mapping[SlotId, TokenMask]) -> None: ...

    def complete(self, launch: LaunchId) -> StepResult: ...

    def close(self) -> None: ...


@runtime_checkable
class RepeatingExecutor(Protocol):
    """An executor that can run the same rows over and over at little cost: a twin."""

    def again(self, launch: LaunchId, appends: tuple[BlockAppend, ...]) -> StepResult:
        """Runs, samples and completes the rows of the launch completed last once more, as `launch`: each row takes
        the token that it drew then, one position on. No launch is open. `appends` take effect before."""
        ...
