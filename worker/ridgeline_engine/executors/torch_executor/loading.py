"""From a model folder to a decoder that is ready to run."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from ridgeline_contracts.clock import Clock
from ridgeline_contracts.errors import SettingsError
from ridgeline_contracts.kv import KVDtype, KVGroup
from ridgeline_contracts.model_folder import ModelFolder

from ridgeline_engine.executors.architectures import DecoderShape, kv_groups, read_shape
from ridgeline_engine.executors.matrices import WeightFormat
from ridgeline_engine.executors.rope import cos_sin_table
from ridgeline_engine.executors.sizes import weight_format
from ridgeline_engine.executors.torch_executor.checkpoint import Checkpoint
from ridgeline_engine.executors.torch_executor.decoder import Decoder
from ridgeline_engine.executors.torch_executor.kv_memory import KVMemory
from ridgeline_engine.executors.torch_executor.native_ops import NativeOps
from ridgeline_engine.executors.torch_executor.ops import Ops
from ridgeline_engine.executors.torch_executor.settings import TorchSettings
from ridgeline_engine.executors.torch_executor.torch_ops import TorchOps
from ridgeline_engine.executors.torch_executor.weights import WeightLoader
from ridgeline_engine.seam import KVAllocator


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
    chosen = weight_format(shape, settings.dtype)
    device = choose_device(settings.device)
    if device.type == "cpu":
        torch.set_num_threads(settings.threads)
    context = _context_tokens(shape, settings.max_context_tokens)
    groups = kv_groups(shape, block_tokens=settings.block_tokens, dtype=KVDtype(chosen.value))
    ops = choose_ops(device, chosen, settings=settings, clock=clock)
    if settings.deterministic and not ops.row_invariant:
        raise SettingsError(
            f"deterministic results need the native CPU kernels, but {device} runs plain torch operators: "
            "install a C compiler and use device=cpu, or drop deterministic",
            param="deterministic",
        )
    kv = KVMemory(groups, blocks=settings.kv_blocks, allocator=allocator, device=device)
    with Checkpoint(folder.weight_paths) as checkpoint:
        loader = WeightLoader(checkpoint, shape, ops=ops, weight_format=chosen, device=device)
        weights = loader.load(on_layer=on_layer)
    table = cos_sin_table(shape.rope, head_dim=shape.head_dim, context_tokens=context)
    decoder = Decoder(
        shape,
        weights,
        ops=ops,
        kv_layers=kv.layers,
        group_of_layer=_group_of_layer(shape, groups),
        cos_sin=torch.from_numpy(table).to(device),
    )
    return LoadedModel(shape, chosen, device, ops, decoder, kv, groups, context)


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
    return TorchOps(torch.bfloat16 if weights is WeightFormat.BF16 else torch.float32)


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
