"""An executor of the seam that computes nothing: each launch is complete at once, with made-up tokens."""

from collections.abc import Mapping

from host_cases import BLOCK_TOKENS, BLOCKS, CONTEXT_TOKENS, MAX_BATCH, VOCABULARY_TOKENS, Watch
from ridgeline_contracts.capabilities import Capabilities
from ridgeline_contracts.kv import GroupId, KVDtype, KVGroup, KVKind
from ridgeline_engine.seam import LaunchId, RowPlan, RowResult, SlotId, StepPlan, StepResult, TokenMask

_GROUP = KVGroup(GroupId(0), tuple(range(30)), KVKind.FULL, BLOCK_TOKENS, 3, 64, KVDtype.BF16)


class NullExecutor:
    """What it does itself is taken off the watch: only the engine's time is measured."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._open: dict[LaunchId, tuple[RowPlan, ...]] = {}
        self.capabilities = Capabilities(
            executor="null",
            device="none",
            weights_dtype="none",
            vocab_tokens=VOCABULARY_TOKENS,
            max_context_tokens=CONTEXT_TOKENS,
            max_batch=MAX_BATCH,
            kv_groups=(_GROUP,),
            logprobs=True,
            penalties=True,
            seed=True,
        )

    @property
    def kv_groups(self) -> tuple[KVGroup, ...]:
        return (_GROUP,)

    @property
    def host_blocks(self) -> Mapping[GroupId, int]:
        return {}

    @property
    def kv_blocks(self) -> Mapping[GroupId, int]:
        return {_GROUP.group: BLOCKS}

    def launch(self, plan: StepPlan) -> LaunchId:
        self._open[plan.launch] = plan.rows
        return plan.launch

    def sample(self, launch: LaunchId, masks: Mapping[SlotId, TokenMask]) -> None:
        """The tokens are made up in `complete`."""

    def complete(self, launch: LaunchId) -> StepResult:
        with self._watch.stopped():
            rows = self._open.pop(launch)
            return StepResult(launch, tuple(_result(row) for row in rows), 0.0)

    def close(self) -> None:
        """Holds nothing."""


def _result(row: RowPlan) -> RowResult:
    if not row.logits:
        return RowResult(row.slot, row.generation, ())
    token = 100 + (row.slot * 7919 + row.start * 31) % 40_000
    return RowResult(row.slot, row.generation, (token,))
