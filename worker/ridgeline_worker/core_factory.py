"""Builds the real engine, in the core process: allocator, torch executor, engine.
Torch is imported by this alone."""

import logging
import tempfile
from pathlib import Path

from ridgeline_contracts.clock import Clock
from ridgeline_contracts.errors import InvariantError
from ridgeline_engine.engine import Engine
from ridgeline_engine.executors.torch_executor.executor import TorchExecutor
from ridgeline_engine.executors.torch_executor.loading import choose_device
from ridgeline_engine.executors.torch_executor.settings import TorchSettings
from ridgeline_engine.settings import EngineSettings as SchedulingSettings
from ridgeline_roofline.step_model import linearised
from ridgeline_transfer.allocator import PrivateAllocator

from ridgeline_worker.core_memory import CoreSizes, core_sizes, guessed_step_model
from ridgeline_worker.device_memory import least_free_device_bytes
from ridgeline_worker.host_memory import available_bytes
from ridgeline_worker.messages import CoreSpec
from ridgeline_worker.settings import EngineSettings

_log = logging.getLogger(__name__)
_MAX_BATCH = 32
_TYPICAL_CONTEXT_TOKENS = 512
_TYPICAL_CHUNK_TOKENS = 256


def build_engine(spec: CoreSpec, clock: Clock) -> Engine:
    """Raises SettingsError or OutOfMemory with the sizes where the model does not fit, Unsupported for
    its kind."""
    folder, settings = spec.folder, spec.settings
    if folder is None:
        raise InvariantError("the core was given no model folder")
    max_batch = settings.max_batch or _MAX_BATCH
    guess = linearised(
        guessed_step_model(folder, settings),
        decode_rows=max_batch,
        context_tokens=max_batch * _TYPICAL_CONTEXT_TOKENS,
        chunk_tokens=_TYPICAL_CHUNK_TOKENS,
    )
    scheduling = SchedulingSettings(
        eos_token_ids=folder.eos_token_ids,
        weights_revision=folder.weights_revision,
        max_batch=max_batch,
        coefficients=guess,
    )
    on_cuda = choose_device(settings.device).type == "cuda"
    device_bytes = least_free_device_bytes() if on_cuda else None
    sizes = core_sizes(
        folder,
        settings,
        limit_bytes=device_bytes or available_bytes(),
        shares_host_memory=device_bytes is None,
        max_batch=max_batch,
        max_step_tokens=scheduling.max_step_tokens,
    )
    for line in sizes.ledger.text().splitlines():
        _log.info("memory %s", line)
    started_ms = clock.monotonic_ms()
    executor = TorchExecutor(
        folder,
        _torch_settings(settings, sizes, max_batch=max_batch),
        allocator=PrivateAllocator(),
        clock=clock,
    )
    _log.info(
        "executor.ready device=%s dtype=%s load_ms=%.0f kv_blocks=%d",
        executor.capabilities.device,
        executor.capabilities.weights_dtype,
        clock.monotonic_ms() - started_ms,
        sizes.kv_blocks,
    )
    return Engine(executor, clock, scheduling)


def _torch_settings(settings: EngineSettings, sizes: CoreSizes, *, max_batch: int) -> TorchSettings:
    return TorchSettings(
        kv_blocks=sizes.kv_blocks,
        cache_dir=settings.cache_folder or Path(tempfile.gettempdir()) / "ridgeline-kernels",
        dtype=settings.dtype,
        device=settings.device,
        threads=settings.threads,
        block_tokens=settings.block_tokens,
        max_batch=max_batch,
        max_context_tokens=settings.max_context_tokens,
    )
