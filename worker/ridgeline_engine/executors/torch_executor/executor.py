"""`TorchExecutor`: the seam's `Executor` over a decoder, a sampler and one thread that drives the device."""

import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from ridgeline_contracts.capabilities import Capabilities
from ridgeline_contracts.clock import Clock
from ridgeline_contracts.errors import (
    DeviceFault,
    InvariantError,
    OutOfMemory,
    RidgelineError,
    Unsupported,
)
from ridgeline_contracts.kv import GroupId, KVGroup
from ridgeline_contracts.model_folder import ModelFolder

from ridgeline_engine.executors.torch_executor.adjustments import check_mask
from ridgeline_engine.executors.torch_executor.launch_thread import LaunchThread
from ridgeline_engine.executors.torch_executor.loading import LoadedModel, load_model
from ridgeline_engine.executors.torch_executor.runner import Outcome, StepRunner
from ridgeline_engine.executors.torch_executor.settings import TorchSettings
from ridgeline_engine.seam import KVAllocator, LaunchId, LayerHook, SlotId, StepPlan, StepResult, TokenMask

_OPEN_LAUNCHES = 2
_CLOSE_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class _Open:
    """A launch between `launch` and `complete`."""

    plan: StepPlan
    masks: Future[Mapping[SlotId, TokenMask]]
    outcome: Future[Outcome]


class TorchExecutor:
    """Loads the model when it is made: raises Unsupported, SettingsError or OutOfMemory then.

    All of torch is called from a thread of its own, in the order of the launches. The memory of the allocator
    is in use until `close`.
    """

    def __init__(
        self,
        model_folder: ModelFolder,
        settings: TorchSettings,
        *,
        allocator: KVAllocator,
        clock: Clock,
        layer_hook: LayerHook | None = None,
        on_layer_loaded: Callable[[int], None] | None = None,
    ) -> None:
        self._settings = settings
        self._open: dict[LaunchId, _Open] = {}
        self._failure: RidgelineError | None = None
        self._host_copy_bytes_per_ms: float | None = None
        self._thread = LaunchThread(name="torch-executor")

        def start() -> tuple[StepRunner, LoadedModel]:
            model = load_model(
                model_folder, settings, allocator=allocator, clock=clock, on_layer=on_layer_loaded
            )
            self._host_copy_bytes_per_ms = model.kv.measure_copies(clock)
            return StepRunner(model, settings, clock=clock, layer_hook=layer_hook), model

        try:
            self._runner, model = self._thread.submit(start).result()
        except BaseException:
            self._thread.close(timeout_s=_CLOSE_TIMEOUT_S)
            raise
        self._kv_groups = model.groups
        self._capabilities = Capabilities(
            executor="torch",
            device=str(model.device),
            weights_dtype=model.weight_format.value,
            vocab_tokens=model.shape.vocab_tokens,
            max_context_tokens=model.max_context_tokens,
            max_batch=settings.max_batch,
            kv_groups=model.groups,
            logprobs=True,
            penalties=True,
            seed=True,
            deterministic=model.ops.row_invariant,
        )

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def kv_groups(self) -> tuple[KVGroup, ...]:
        return self._kv_groups

    @property
    def kv_blocks(self) -> Mapping[GroupId, int]:
        return {group.group: self._settings.kv_blocks for group in self._kv_groups}

    @property
    def host_blocks(self) -> Mapping[GroupId, int]:
        """Blocks that the pool for swapped sequences holds, by group."""
        return {group.group: self._settings.host_blocks for group in self._kv_groups}

    @property
    def host_copy_bytes_per_ms(self) -> float | None:
        """Between the blocks and that pool, as measured at the start; None without the pool."""
        return self._host_copy_bytes_per_ms

    def launch(self, plan: StepPlan) -> LaunchId:
        """Queues a step. Raises InvariantError for a third open launch, the earlier fault after one."""
        if self._failure is not None:
            raise self._failure
        if len(self._open) >= _OPEN_LAUNCHES or plan.launch in self._open:
            raise InvariantError(
                f"launch {plan.launch} while {sorted(self._open)} are open: complete one first"
            )
        masks: Future[Mapping[SlotId, TokenMask]] = Future()
        outcome = self._thread.submit(lambda: self._runner.run(plan, masks))
        self._open[plan.launch] = _Open(plan, masks, outcome)
        return plan.launch

    def sample(self, launch: LaunchId, masks: Mapping[SlotId, TokenMask]) -> None:
        """Lets the launch choose its tokens; a slot without a mask may have any token.

        Raises InvariantError, and leaves the launch unsampled, for a mask that is not of this vocabulary.
        """
        found = self._find(launch)
        if found.masks.done():
            raise InvariantError(f"launch {launch} is sampled twice")
        for slot, mask in masks.items():
            check_mask(slot, mask, vocab_tokens=self._capabilities.vocab_tokens)
        found.masks.set_result(masks)

    def complete(self, launch: LaunchId) -> StepResult:
        """Waits for a launch. Raises DeviceFault when the device failed, InvariantError for a plan that is
        wrong; after that every launch that is still open ends with the same error."""
        found = self._find(launch)
        if self._failure is not None:
            del self._open[launch]
            raise self._failure
        if not found.masks.done():
            raise InvariantError(f"launch {launch} is completed before it is sampled")
        try:
            return found.outcome.result().result(found.plan)
        except Exception as error:
            self._failure = self._fault(launch, error)
            if self._failure is error:
                raise
            raise self._failure from error
        finally:
            del self._open[launch]

    def _fault(self, launch: LaunchId, error: Exception) -> RidgelineError:
        """What a step's error says about the executor; whatever is not the device's is a bug."""
        if isinstance(error, InvariantError | Unsupported | DeviceFault):
            return error
        if isinstance(error, RuntimeError | MemoryError | OutOfMemory):
            return DeviceFault(f"step {launch} failed on {self._capabilities.device}: {error}")
        return InvariantError(f"step {launch} broke off: {type(error).__name__}: {error}")

    def close(self) -> None:
        """Waits for the running step, then lets go of weights and KV. Launches that are open come to
        nothing."""
        for found in self._open.values():
            found.masks.cancel()
        ended = self._thread.close(timeout_s=_CLOSE_TIMEOUT_S)
        self._open.clear()
        if self._failure is not None:
            _forget_locals(self._failure)
        if not ended:
            raise DeviceFault(
                f"a step on {self._capabilities.device} did not end within {_CLOSE_TIMEOUT_S:g} s"
            )
        self._runner.close()

    def _find(self, launch: LaunchId) -> _Open:
        found = self._open.get(launch)
        if found is None:
            raise InvariantError(f"launch {launch} is not open: {sorted(self._open)} are")
        return found


def _forget_locals(error: BaseException) -> None:
    """A traceback keeps tensors over the KV memory alive, which could then not be given back."""
    found: BaseException | None = error
    while found is not None:
        traceback.clear_frames(found.__traceback__)
        found = found.__cause__
