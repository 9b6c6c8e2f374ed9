"""Builds the real engine, in the core process: sizes first, then allocator, torch executor and engine."""

import logging
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ridgeline_contracts.clock import Clock
from ridgeline_contracts.errors import InvariantError
from ridgeline_contracts.model_folder import ModelFolder
from ridgeline_contracts.step import StepCoefficients
from ridgeline_engine.engine import Engine
from ridgeline_engine.settings import EngineSettings as SchedulingSettings
from ridgeline_roofline.step.linear_form import linearised
from ridgeline_transfer.allocator import PrivateAllocator

from ridgeline_worker.calibrated import calibrated_coefficients
from ridgeline_worker.core_memory import CoreSizes, core_sizes, guessed_step_model
from ridgeline_worker.device_memory import least_free_device_bytes
from ridgeline_worker.host_memory import available_bytes, give_back_freed, resident_bytes
from ridgeline_worker.messages import CoreSpec
from ridgeline_worker.settings import EngineSettings

if TYPE_CHECKING:
    from ridgeline_engine.executors.torch_executor.executor import TorchExecutor

_log = logging.getLogger(__name__)
_MAX_BATCH = 32
_TYPICAL_CONTEXT_TOKENS = 512
_TYPICAL_CHUNK_TOKENS = 256


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is known before torch is loaded."""

    folder: ModelFolder
    settings: EngineSettings
    scheduling: SchedulingSettings

    @property
    def max_batch(self) -> int:
        return self.settings.max_batch or _MAX_BATCH

    def sizes(self, device_bytes: int | None) -> CoreSizes:
        """`device_bytes` None: weights and KV live in the host's memory."""
        return core_sizes(
            self.folder,
            self.settings,
            limit_bytes=available_bytes() if device_bytes is None else device_bytes,
            shares_host_memory=device_bytes is None,
            max_batch=self.max_batch,
            max_step_tokens=self.scheduling.max_step_tokens,
        )


def build_engine(spec: CoreSpec, clock: Clock) -> Engine:
    """Raises SettingsError or OutOfMemory, with the sizes, where the model does not fit; Unsupported for its
    kind."""
    if spec.folder is None:
        raise InvariantError("the core was given no model folder")
    device_bytes = None if spec.settings.device == "cpu" else least_free_device_bytes()
    on_cpu = device_bytes is None
    guess = _first_guess(spec.folder, spec.settings, on_cpu=on_cpu)
    plan = _Plan(spec.folder, spec.settings, _scheduling(spec.folder, spec.settings, guess, on_cpu=on_cpu))
    # Torch takes seconds to load: what cannot fit is to be told before.
    sizes = plan.sizes(device_bytes)
    executor = _load_executor(plan, sizes, clock, expects_cuda=device_bytes is not None)
    scheduling = replace(plan.scheduling, host_copy_bytes_per_ms=executor.host_copy_bytes_per_ms)
    engine = Engine(executor, clock, scheduling)
    for derivation in engine.derivations():
        _log.info("engine.threshold %s", derivation)
    return engine


def _load_executor(plan: _Plan, sizes: CoreSizes, clock: Clock, *, expects_cuda: bool) -> "TorchExecutor":
    from ridgeline_engine.executors.torch_executor.executor import TorchExecutor
    from ridgeline_engine.executors.torch_executor.loading import choose_device
    from ridgeline_engine.executors.torch_executor.settings import TorchSettings

    settings = plan.settings
    if expects_cuda and choose_device(settings.device).type != "cuda":
        # There is a GPU, but this torch cannot use it.
        sizes = plan.sizes(None)
    for line in _told(sizes):
        _log.info("%s", line)
    before = resident_bytes()
    started_ms = clock.monotonic_ms()
    executor = TorchExecutor(
        plan.folder,
        TorchSettings(
            kv_blocks=sizes.kv_blocks,
            host_blocks=sizes.host_blocks,
            cache_dir=settings.cache_folder or Path(tempfile.gettempdir()) / "ridgeline-kernels",
            dtype=settings.dtype,
            weights=settings.weights,
            device=settings.device,
            threads=settings.threads,
            block_tokens=settings.block_tokens,
            max_batch=plan.max_batch,
            max_context_tokens=settings.max_context_tokens,
            deterministic=settings.deterministic,
        ),
        allocator=PrivateAllocator(),
        clock=clock,
    )
    if executor.capabilities.device == "cpu":
        give_back_freed()
        after = resident_bytes()
        measured = sizes.ledger.with_measured({"runtime": before, "weights": after - before})
        for line in _told(replace(sizes, ledger=measured)):
            _log.info("%s", line)
    found = executor.capabilities
    load_ms = clock.monotonic_ms() - started_ms
    _log.info("executor.ready device=%s dtype=%s load_ms=%.0f", found.device, found.weights_dtype, load_ms)
    return executor


def _told(sizes: CoreSizes) -> Iterator[str]:
    yield (
        f"memory.ledger kv_blocks={sizes.kv_blocks} kv_tokens={sizes.ledger.kv_tokens} "
        f"host_kv_blocks={sizes.host_blocks}"
    )
    for line in sizes.ledger.text().splitlines():
        yield f"memory.ledger {line}"


def _scheduling(
    folder: ModelFolder, settings: EngineSettings, guess: StepCoefficients, *, on_cpu: bool
) -> SchedulingSettings:
    max_batch = settings.max_batch or _MAX_BATCH
    return SchedulingSettings(
        eos_token_ids=folder.eos_token_ids,
        weights_revision=folder.weights_revision,
        max_batch=max_batch,
        policy=settings.scheduling.policy,
        preemption=settings.scheduling.preemption,
        tpot_target_ms=settings.scheduling.tpot_target_ms,
        ttft_target_ms=settings.scheduling.ttft_target_ms,
        async_scheduling=settings.scheduling.async_scheduling,
        # While the engine's thread works on a CPU, one of the model's threads waits for its core.
        host_share_ratio=1.0 / settings.threads if on_cpu else 0.0,
        overrides=settings.scheduling.overrides,
        coefficients=guess,
    )


def _first_guess(folder: ModelFolder, settings: EngineSettings, *, on_cpu: bool) -> StepCoefficients:
    """As `ridgeline calibrate` measured it here; elsewhere the linear form of a guessed machine."""
    measured = calibrated_coefficients(folder, settings) if on_cpu else None
    if measured is not None:
        return measured
    max_batch = settings.max_batch or _MAX_BATCH
    return linearised(
        guessed_step_model(folder, settings),
        decode_rows=max_batch,
        context_tokens=max_batch * _TYPICAL_CONTEXT_TOKENS,
        chunk_tokens=_TYPICAL_CHUNK_TOKENS,
    )
