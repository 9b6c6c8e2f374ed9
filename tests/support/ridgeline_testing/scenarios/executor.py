"""An executor without a model: a step takes what the step model says, and every token is the same."""

from collections.abc import Mapping

from ridgeline_contracts.capabilities import Capabilities
from ridgeline_contracts.clock import VirtualClock
from ridgeline_contracts.kv import GroupId, KVDtype, KVGroup, KVKind
from ridgeline_contracts.step import StepCoefficients, StepShape
from ridgeline_engine.seam import (
    CopyKind,
    LaunchId,
    RowPlan,
    RowResult,
    SlotId,
    StepPlan,
    StepResult,
    TokenMask,
)

TOKEN_ID = 7
VOCAB_TOKENS = 32_000
BLOCK_TOKENS = 16
_GROUP = KVGroup(GroupId(0), tuple(range(32)), KVKind.FULL, BLOCK_TOKENS, 8, 128, KVDtype.BF16)


class StepModelExecutor:
    """Time passes in `complete`, on `clock`: the model's, and the copies between device and host."""

    def __init__(
        self,
        clock: VirtualClock,
        model: StepCoefficients,
        *,
        blocks: int,
        max_batch: int,
        host_blocks: int = 0,
        copy_bytes_per_ms: float = 25e6,
        max_context_tokens: int = 131_072,
    ) -> None:
        self._clock, self._model = clock, model
        self._blocks, self._host_blocks = blocks, host_blocks
        self._copy_bytes_per_ms = copy_bytes_per_ms
        self._open: dict[LaunchId, tuple[StepPlan, float]] = {}
        self.longest_step_ms = 0.0
        self.prefilled_tokens = 0
        self.capabilities = Capabilities(
            executor="step-model",
            device="none",
            weights_dtype="none",
            vocab_tokens=VOCAB_TOKENS,
            max_context_tokens=max_context_tokens,
            max_batch=max_batch,
            kv_groups=(_GROUP,),
            logprobs=False,
            penalties=False,
            seed=True,
        )

    @property
    def kv_groups(self) -> tuple[KVGroup, ...]:
        return (_GROUP,)

    @property
    def kv_blocks(self) -> Mapping[GroupId, int]:
        return {_GROUP.group: self._blocks}

    @property
    def host_blocks(self) -> Mapping[GroupId, int]:
        return {_GROUP.group: self._host_blocks} if self._host_blocks else {}

    def launch(self, plan: StepPlan) -> LaunchId:
        shape = _shape(plan)
        moved = sum(1 for copy in plan.copies if copy.kind is not CopyKind.ON_DEVICE)
        copy_ms = moved * _GROUP.block_bytes / self._copy_bytes_per_ms
        self.prefilled_tokens += shape.prefill_tokens
        self._open[plan.launch] = (plan, self._model.predict_ms(shape) + copy_ms)
        return plan.launch

    def sample(self, launch: LaunchId, masks: Mapping[SlotId, TokenMask]) -> None:
        """Nothing to do: the token is known."""

    def complete(self, launch: LaunchId) -> StepResult:
        plan, duration_ms = self._open.pop(launch)
        self._clock.advance(duration_ms)
        self.longest_step_ms = max(self.longest_step_ms, duration_ms)
        return StepResult(launch, tuple(_result(row) for row in plan.rows), duration_ms)

    def close(self) -> None:
        """Holds nothing."""


def _result(row: RowPlan) -> RowResult:
    return RowResult(row.slot, row.generation, (TOKEN_ID,) * row.logits)


def _shape(plan: StepPlan) -> StepShape:
    """Rows of one token behind an output are decode rows."""
    rows = context = tokens = product = 0
    for row in plan.rows:
        count = len(row.tokens)
        if count == 1 and row.output_position > 0:
            rows, context = rows + 1, context + row.start + 1
        else:
            tokens, product = tokens + count, product + count * row.start + count * count // 2
    return StepShape(rows, context, tokens, product)
