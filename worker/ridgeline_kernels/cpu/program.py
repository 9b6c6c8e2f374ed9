"""A decoder as one native call: its layers are recorded once, a step fills in where its tensors lie.

The structures mirror `csrc/step.c` field by field.
"""

import ctypes
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from ridgeline_contracts.errors import InvariantError, OutOfMemory
from torch import Tensor

from ridgeline_kernels.cpu.forms import LinearCall
from ridgeline_kernels.cpu.linear import PackedLinear
from ridgeline_kernels.cpu.native import NativeLibrary

_FAULTS = {
    1: "a position is outside the table of rotations",
    3: "query_start, context_lens and the rows do not fit together",
    4: "a block is outside the cache",
    5: "a slot is outside the cache",
}
_OUT_OF_MEMORY = 2
HEAD_MULTIPLE = 16
"""Attention's kernel takes heads of so many features, or twice, three times as many."""


@dataclass(frozen=True, slots=True)
class RecordedLayer:
    """One layer. Norm weights are fp32 vectors; those of heads may be missing."""

    input_norm: Tensor
    query_norm: Tensor | None
    key_norm: Tensor | None
    feed_forward_norm: Tensor
    qkv: PackedLinear
    output: PackedLinear
    gate_up: PackedLinear
    down: PackedLinear
    kv_layer: Tensor
    """[blocks, kv_heads, 2, block_tokens, head_dim]; only its address is kept."""
    kv_group: int


@dataclass(frozen=True, slots=True)
class RecordedModel:
    layers: Sequence[RecordedLayer]
    final_norm: Tensor
    head: PackedLinear
    cos_sin: Tensor
    """fp32 [context, head_dim], see `CpuOps.rope_store`."""
    query_heads: int
    kv_heads: int
    head_dim: int
    epsilon: float
    scale: float
    invariant: bool = False
    """See `CpuOps.paged_attention`."""


@dataclass(frozen=True, slots=True)
class StepGroup:
    """Where the tokens lie in one KV group; see `CpuOps.paged_attention`."""

    slot_mapping: Tensor
    block_tables: Tensor
    query_start: Tensor
    context_lens: Tensor
    window: int | None


@dataclass(frozen=True, slots=True)
class StepTensors:
    """One step: int32 positions [rows], int64 wanted rows, ascending, and a KV group's tensors each."""

    positions: Tensor
    wanted: Tensor
    groups: Sequence[StepGroup]


class _Matrix(ctypes.Structure):
    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("in_", ctypes.c_long),
        ("depth", ctypes.c_long),
        ("out", ctypes.c_long),
        ("group", ctypes.c_long),
        ("format", ctypes.c_long),
    )


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("input_norm", "query_norm", "key_norm", "feed_forward_norm")),
        *((name, _Matrix) for name in ("qkv", "output", "gate_up", "down")),
        ("cache", ctypes.c_void_p),
        ("kv_group", ctypes.c_long),
    )


_COUNTS = (
    *("layer_count", "hidden", "feed_forward", "query_heads", "kv_heads", "head_dim", "context"),
    *("blocks", "block_tokens", "kv_is_bf16", "threads", "invariant"),
)


class _Model(ctypes.Structure):
    _fields_ = (
        ("layers", ctypes.POINTER(_Layer)),
        ("final_norm", ctypes.c_void_p),
        ("head", _Matrix),
        ("cos_sin", ctypes.c_void_p),
        *((name, ctypes.c_long) for name in _COUNTS),
        ("epsilon", ctypes.c_double),
        ("scale", ctypes.c_double),
    )


class _Group(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("slots", "tables", "query_start", "context")),
        *((name, ctypes.c_long) for name in ("table_width", "sequences", "window")),
    )


_BUFFERS = ("residual", "normed", "qkv", "attended", "change", "gate_up", "activated", "logits")


class _Step(ctypes.Structure):
    _fields_ = (
        ("positions", ctypes.c_void_p),
        ("groups", ctypes.POINTER(_Group)),
        ("wanted", ctypes.c_void_p),
        *((name, ctypes.c_void_p) for name in _BUFFERS),
        *((name, ctypes.c_long) for name in ("rows", "wanted_rows", "first", "last")),
    )


class DecoderProgram:
    """A recorded decoder. Not thread-safe: a step's results lie in buffers that the next one overwrites."""

    def __init__(self, library: NativeLibrary, model: RecordedModel, *, threads: int) -> None:
        """Every matrix must be in one native form; `can_record` tells."""
        self._run = library.step
        # What the addresses point into; the cache belongs to another, who may want to give it back.
        self._kept = [model.head, model.final_norm, model.cos_sin, *map(_weights, model.layers)]
        self._layers = (_Layer * len(model.layers))(*(_layer(layer) for layer in model.layers))
        self._recorded = _recorded(model, self._layers, threads)
        self._vocabulary = model.head.out_features
        first = model.layers[0]
        self._widths = {
            "normed": first.qkv.in_features,
            "qkv": first.qkv.out_features,
            "attended": first.output.in_features,
            "change": first.down.out_features,
            "gate_up": first.gate_up.out_features,
            "activated": first.down.in_features,
        }
        self._buffers: dict[str, Tensor] = {}
        self._places: dict[str, int] = {}
        """Addresses of the buffers between operators."""
        self._most_rows = 0

    @property
    def layers(self) -> int:
        return len(self._layers)

    def begin(self, residual: Tensor, tensors: StepTensors) -> "OpenStep":
        """A step over residual fp32 [rows, hidden], which it overwrites."""
        rows, wanted = residual.shape[0], tensors.wanted.shape[0]
        groups = (_Group * len(tensors.groups))(*(_group(group) for group in tensors.groups))
        logits = self._buffer("logits", wanted, self._vocabulary)
        if rows > self._most_rows:
            self._most_rows = rows
            self._places = {
                name: self._buffer(name, rows, width).data_ptr() for name, width in self._widths.items()
            }
        step = _Step(
            positions=tensors.positions.data_ptr(),
            groups=groups,
            wanted=tensors.wanted.data_ptr(),
            residual=residual.data_ptr(),
            logits=logits.data_ptr(),
            rows=rows,
            wanted_rows=wanted,
            **self._places,
        )
        return OpenStep(step, logits, (residual, tensors, groups))

    def run(self, step: "OpenStep", first: int, last: int) -> None:
        """Runs layers first <= layer < last, and the head after the very last one.

        Raises InvariantError for a batch that contradicts itself or the cache, OutOfMemory for scratch space.
        """
        step.fields.first, step.fields.last = first, last
        fault = self._run(ctypes.addressof(self._recorded), ctypes.addressof(step.fields))
        if fault == _OUT_OF_MEMORY:
            raise OutOfMemory("no memory for the scratch space of a step; lower the batch or the chunk size")
        if fault:
            raise InvariantError(f"step of {step.fields.rows} rows: {_FAULTS.get(fault, f'fault {fault}')}")

    def _buffer(self, name: str, rows: int, width: int) -> Tensor:
        held = self._buffers.get(name)
        if held is None or held.shape[0] < rows:
            held = self._buffers[name] = torch.empty((rows, width), dtype=torch.float32)
        return held[:rows]


@dataclass(frozen=True, slots=True)
class OpenStep:
    """A step that is being run, layer by layer or at once."""

    fields: Any
    logits: Tensor
    """fp32 [wanted rows, vocabulary], there after the last layer."""
    kept: tuple[object, ...]
    """What the addresses in `fields` point into."""


def can_record(model: RecordedModel) -> bool:
    """Whether a decoder can be one call: each matrix in one native form, heads of whole vectors."""
    layers = [(layer.qkv, layer.output, layer.gate_up, layer.down) for layer in model.layers]
    matrices = (model.head, *itertools.chain.from_iterable(layers))
    return model.head_dim % HEAD_MULTIPLE == 0 and all(each.native_call is not None for each in matrices)


def _weights(layer: RecordedLayer) -> tuple[object, ...]:
    norms = (layer.input_norm, layer.query_norm, layer.key_norm, layer.feed_forward_norm)
    return (*norms, layer.qkv, layer.output, layer.gate_up, layer.down)


def _native_call(matrix: PackedLinear) -> LinearCall:
    if matrix.native_call is None:
        raise InvariantError(f"a matrix in forms {matrix.form_names} cannot be part of a native step")
    return matrix.native_call


def _matrix(matrix: PackedLinear) -> _Matrix:
    call = _native_call(matrix)
    return _Matrix(call.weight_at, call.bias_at, call.features, call.depth, call.out, call.group, call.format)


def _layer(layer: RecordedLayer) -> _Layer:
    return _Layer(
        input_norm=layer.input_norm.data_ptr(),
        query_norm=_place(layer.query_norm),
        key_norm=_place(layer.key_norm),
        feed_forward_norm=layer.feed_forward_norm.data_ptr(),
        qkv=_matrix(layer.qkv),
        output=_matrix(layer.output),
        gate_up=_matrix(layer.gate_up),
        down=_matrix(layer.down),
        cache=layer.kv_layer.data_ptr(),
        kv_group=layer.kv_group,
    )


def _recorded(model: RecordedModel, layers: Any, threads: int) -> _Model:
    cache = model.layers[0].kv_layer
    return _Model(
        layers=layers,
        final_norm=model.final_norm.data_ptr(),
        head=_matrix(model.head),
        cos_sin=model.cos_sin.data_ptr(),
        layer_count=len(model.layers),
        hidden=len(model.final_norm),
        feed_forward=model.layers[0].down.in_features,
        query_heads=model.query_heads,
        kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        context=len(model.cos_sin),
        blocks=len(cache),
        block_tokens=cache.shape[3],
        kv_is_bf16=cache.dtype == torch.bfloat16,
        threads=threads,
        invariant=model.invariant,
        epsilon=model.epsilon,
        scale=model.scale,
    )


def _group(group: StepGroup) -> _Group:
    return _Group(
        slots=group.slot_mapping.data_ptr(),
        tables=group.block_tables.data_ptr(),
        query_start=group.query_start.data_ptr(),
        context=group.context_lens.data_ptr(),
        table_width=group.block_tables.shape[1],
        sequences=group.context_lens.shape[0],
        window=group.window or 0,
    )


def _place(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
