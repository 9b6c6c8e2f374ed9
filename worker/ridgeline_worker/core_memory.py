"""How the core divides its memory before it loads anything: the start-up ledger. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ridgeline_contracts.errors import SettingsError
from ridgeline_contracts.kv import KVGroup
from ridgeline_contracts.model_folder import ModelFolder
from ridgeline_engine.executors.architectures import kv_groups, read_shape
from ridgeline_engine.executors.sizes import estimate, kv_dtype, weight_format
from ridgeline_roofline.catalogue.formats import Dtype, Formats
from ridgeline_roofline.catalogue.host_cpu import modest_cpu
from ridgeline_roofline.catalogue.links import fast_link
from ridgeline_roofline.catalogue.read_config import read_config
from ridgeline_roofline.memory import MemoryFacts, MemoryLedger, memory_ledger
from ridgeline_roofline.shapes import model_shape
from ridgeline_roofline.step.layout import Layout
from ridgeline_roofline.step.timing import Efficiency, Fabric, RooflineStepModel

from ridgeline_worker.memory_advice import changes_that_fit
from ridgeline_worker.settings import WEIGHTS, EngineSettings

DEFAULT_KV_BYTES = 1 << 30
"""On a host, whose memory others want too, the cache is not all that is left; on a device it is."""
_HOST_RUNTIME_BYTES = 250_000_000
"""Interpreter and torch with its libraries, as seen on Linux."""
_DEVICE_RUNTIME_BYTES = 500_000_000
_MIN_KV_TOKENS = 1024
_ACTIVATION_BYTES_PER_ELEMENT = 4
_GUESSED_HOST_S = 1e-3


@dataclass(frozen=True, slots=True)
class CoreSizes:
    """What the executor is made with."""

    kv_blocks: int
    host_blocks: int
    """In each KV group, for sequences that are swapped out."""
    max_context_tokens: int
    ledger: MemoryLedger


def core_sizes(
    folder: ModelFolder,
    settings: EngineSettings,
    *,
    limit_bytes: int,
    shares_host_memory: bool,
    max_batch: int,
    max_step_tokens: int,
) -> CoreSizes:
    """Raises SettingsError with the whole ledger, and the smallest changes that would fit, where the model does not;
    Unsupported for its architecture."""

    def sized(changed: EngineSettings) -> CoreSizes:
        return _sizes(
            folder,
            changed,
            limit_bytes=limit_bytes,
            shares_host_memory=shares_host_memory,
            max_batch=changed.max_batch or max_batch,
            max_step_tokens=max_step_tokens,
        )

    try:
        return sized(settings)
    except SettingsError as refused:
        tried = replace(
            settings,
            max_batch=settings.max_batch or max_batch,
            max_context_tokens=settings.max_context_tokens or folder.context_tokens,
        )
        # Rounded weights run on CPUs alone.
        known = WEIGHTS if shares_host_memory else (settings.weights,)
        found = changes_that_fit(
            tried, lambda changed: changed.weights in known and _is_sized(sized, changed)
        )
        if not found:
            raise
        advice = "; or ".join(found)
        raise SettingsError(f"{refused.message}\nwhat would fit: {advice}", param=refused.param) from refused


def _is_sized(sized: Callable[[EngineSettings], CoreSizes], changed: EngineSettings) -> bool:
    try:
        sized(changed)
    except SettingsError:
        return False
    return True


def _sizes(
    folder: ModelFolder,
    settings: EngineSettings,
    *,
    limit_bytes: int,
    shares_host_memory: bool,
    max_batch: int,
    max_step_tokens: int,
) -> CoreSizes:
    context = settings.max_context_tokens or folder.context_tokens
    shape = read_shape(folder.config)
    dtype = kv_dtype(shape, settings.dtype)
    groups = kv_groups(shape, block_tokens=settings.block_tokens, dtype=dtype)
    sizes = estimate(
        folder.config,
        dtype=settings.dtype,
        weights=settings.weights,
        block_tokens=settings.block_tokens,
        max_batch=max_batch,
        max_step_tokens=max_step_tokens,
        max_context_tokens=context,
    )
    kv_limit = settings.kv_bytes or (DEFAULT_KV_BYTES if shares_host_memory else None)
    if settings.kv_blocks is not None:
        kv_limit = settings.kv_blocks * sum(group.block_bytes for group in groups)
    host_blocks = _host_blocks(settings, groups)
    ledger = memory_ledger(
        MemoryFacts(
            limit_bytes=limit_bytes,
            # Operators may keep a second form of a matrix, for batches of another size.
            weights_bytes=sizes.weight_bytes + (0 if settings.deterministic else sizes.second_form_bytes),
            runtime_bytes=_HOST_RUNTIME_BYTES if shares_host_memory else _DEVICE_RUNTIME_BYTES,
            model=model_shape(folder.config),
            groups=groups,
            activation_bytes_per_element=_ACTIVATION_BYTES_PER_ELEMENT,
            max_step_tokens=max_step_tokens,
            max_batch=max_batch,
            max_context_tokens=context,
            kv_limit_bytes=kv_limit,
            swapped_kv_bytes=host_blocks * sum(each.block_bytes for each in groups)
            if shares_host_memory
            else 0,
            loading_bytes=sizes.loading_bytes + (folder.weight_bytes if shares_host_memory else 0),
        ),
        min_kv_tokens=_least_tokens(settings, context),
    )
    return CoreSizes(min(ledger.kv_blocks.values()), host_blocks, context, ledger)


def _host_blocks(settings: EngineSettings, groups: Sequence[KVGroup]) -> int:
    """Raises SettingsError for memory that holds not even one."""
    each_bytes = sum(group.block_bytes for group in groups)
    blocks = settings.host_kv_bytes // each_bytes
    if settings.host_kv_bytes and blocks == 0:
        raise SettingsError(
            f"--host-kv-memory={settings.host_kv_bytes}: a block of {settings.block_tokens} tokens takes "
            f"{each_bytes} bytes; give as many at least, or leave it out",
            param="host_kv_memory",
        )
    return blocks


def _least_tokens(settings: EngineSettings, context_tokens: int) -> int:
    if settings.kv_blocks is not None:
        # A stated count is taken at its word; it only has to fit.
        return settings.block_tokens
    return min(_MIN_KV_TOKENS, context_tokens) // settings.block_tokens * settings.block_tokens


def guessed_step_model(folder: ModelFolder, settings: EngineSettings) -> RooflineStepModel:
    """The prediction before anything was measured, for a modest CPU; the engine fits it to its own steps."""
    shape = read_shape(folder.config)
    kv = Dtype(kv_dtype(shape, settings.dtype).value)
    chosen = weight_format(shape, settings.dtype, settings.weights)
    cpu = modest_cpu(settings.threads)
    return RooflineStepModel(
        model=read_config(folder.config, model_id=folder.name),
        gpu=cpu,
        layout=Layout(),
        # Activations are as wide as KV on a CPU.
        formats=Formats(Dtype(chosen.value), kv, kv),
        fabric=Fabric(fast_link(cpu), fast_link(cpu), domain_gpus=1),
        efficiency=Efficiency(host_s=_GUESSED_HOST_S),
    )
