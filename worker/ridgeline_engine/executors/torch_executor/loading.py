"""From a model folder to a decoder that is ready to run."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from ridgeline_contracts.clock import Clock
from ridgeline_contracts.errors import SettingsError
from ridgeline_contracts.kv import KVGroup
from ridgeline_contracts.model_folder import ModelFolder
from ridgeline_kernels.cpu.program import HEAD_MULTIPLE
from torch import Tensor

from ridgeline_engine.executors.architectures import DecoderShape, kv_groups, read_shape
from ridgeline_engine.executors.matrices import WeightFormat
from ridgeline_engine.executors.rope import cos_sin_table
from ridgeline_engine.executors.sizes import full_format, kv_dtype, weight_format
from ridgeline_engine.executors.torch_executor.checkpoint import Checkpoint
from ridgeline_engine.executors.torch_executor.decoder import Decoder
from ridgeline_engine.executors.torch_executor.kv_memory import KVMemory
from ridgeline_engine.executors.torch_executor.native_ops import NativeOps
from ridgeline_engine.executors.torch_executor.ops import Ops
from ridgeline_engine.executors.torch_executor.recorded import record_decoder
from ridgeline_engine.executors.torch_executor.settings import TorchSettings
from ridgeline_engine.executors.torch_executor.torch_ops import TorchOps
from ridgeline_engine.executors.torch_executor.weights import DecoderWeights, WeightLoader
from ridgeline_engine.seam import KVAllocator

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    shape: DecoderShape
    weight_format: WeightFormat
    device: torch.device
    ops: Ops
    decoder: Decoder
    kv: KVMemory
    groups: tuple[KVGroup, ...]
    max_context_tokens: int


def load_model(
    folder: ModelFolder,
    settings: TorchSettings,
    *,
    allocator: KVAllocator,
    clock: Clock,
    on_layer: Callable[[int], None] | None = None,
) -> LoadedModel:
    """Allocates KV first, so that too little memory shows before minutes of loading.

    To be called from the thread that will run the model: torch counts its threads by the thread that calls
    it. Raises Unsupported, SettingsError and OutOfMemory, each naming its cause.
    """
    shape = read_shape(folder.config)
    chosen = weight_format(shape, settings.dtype, settings.weights)
    device = choose_device(settings.device)
    if device.type == "cpu":
        torch.set_num_threads(settings.threads)
    context = _context_tokens(shape, settings.max_context_tokens)
    groups = kv_groups(shape, block_tokens=settings.block_tokens, dtype=kv_dtype(shape, settings.dtype))
    ops = choose_ops(device, chosen, settings=settings, clock=clock)
    if settings.deterministic:
        _check_invariant(ops, shape, device)
    kv = KVMemory(
        groups,
        blocks=settings.kv_blocks,
        allocator=allocator,
        device=device,
        host_blocks=settings.host_blocks,
    )
    with Checkpoint(folder.weight_paths) as checkpoint:
        loader = WeightLoader(
            checkpoint,
            shape,
            ops=ops,
            weight_format=chosen,
            full_format=full_format(shape, settings.dtype),
            device=device,
        )
        weights = loader.load(on_layer=on_layer)
    if isinstance(ops, NativeOps):
        for held, error in ops.rounding.items():
            _log.info("weights.rounded format=%s error_ratio=%.4f", held, error.ratio)
    table = cos_sin_table(shape.rope, head_dim=shape.head_dim, context_tokens=context)
    parts = _Parts(kv.layers, _group_of_layer(shape, groups), torch.from_numpy(table).to(device))
    decoder = _decoder(shape, weights, ops, parts)
    return LoadedModel(shape, chosen, device, ops, decoder, kv, groups, context)


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a decoder runs over besides its weights."""

    kv_layers: list[Tensor]
    group_of_layer: list[int]
    cos_sin: Tensor


def _decoder(shape: DecoderShape, weights: DecoderWeights, ops: Ops, parts: _Parts) -> Decoder:
    recorded = record_decoder(
        ops,
        shape,
        weights,
        kv_layers=parts.kv_layers,
        group_of_layer=parts.group_of_layer,
        cos_sin=parts.cos_sin,
    )
    return Decoder(
        shape,
        weights,
        ops=ops,
        kv_layers=parts.kv_layers,
        group_of_layer=parts.group_of_layer,
        cos_sin=parts.cos_sin,
        recorded=recorded,
    )


def choose_device(setting: str) -> torch.device:
    """auto is CUDA where there is a device. Raises SettingsError for a name that torch does not know or
    have."""
    if setting == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(setting)
    except RuntimeError as error:
        raise SettingsError(
            f"device={setting!r} is not known: give auto, cpu or cuda:N", param="device"
        ) from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SettingsError(
            f"device={setting!r}, but torch finds no CUDA device here: give cpu", param="device"
        )
    return device


def choose_ops(device: torch.device, weights: WeightFormat, *, settings: TorchSettings, clock: Clock) -> Ops:
    """Native kernels on a CPU, torch's operators elsewhere."""
    if device.type == "cpu":
        return NativeOps(
            settings.cache_dir,
            threads=settings.threads,
            clock=clock,
            weights=weights,
            deterministic=settings.deterministic,
        )
    return TorchOps(torch.float32 if weights is WeightFormat.FP32 else torch.bfloat16)


def _check_invariant(ops: Ops, shape: DecoderShape, device: torch.device) -> None:
    """Raises SettingsError where rows would depend on each other."""
    if not ops.row_invariant:
        raise SettingsError(
            f"deterministic results need the native CPU kernels, but {device} runs plain torch operators: "
            "install a C compiler and use device=cpu, or drop deterministic",
            param="deterministic",
        )
    if shape.head_dim % HEAD_MULTIPLE:
        raise SettingsError(
            f"deterministic results need heads of a multiple of {HEAD_MULTIPLE} features, but the model has "
            f"head_dim={shape.head_dim}: drop deterministic",
            param="deterministic",
        )


def _context_tokens(shape: DecoderShape, wanted: int | None) -> int:
    if wanted is not None and wanted > shape.context_tokens:
        raise SettingsError(
            f"max_context_tokens={wanted} is more than the model's {shape.context_tokens}",
            param="max_context_tokens",
        )
    return wanted or shape.context_tokens


def _group_of_layer(shape: DecoderShape, groups: tuple[KVGroup, ...]) -> list[int]:
    index_of = {layer: index for index, group in enumerate(groups) for layer in group.layers}
    return [index_of[layer] for layer in range(shape.layers)]
