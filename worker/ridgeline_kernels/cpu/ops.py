"""The operators as the executor calls them: shapes checked here, then the C library or the torch reference."""

import logging
from collections.abc import Sequence
from pathlib import Path

import torch
from ridgeline_contracts.clock import Clock, SystemClock
from ridgeline_contracts.errors import InvariantError, OutOfMemory
from torch import Tensor

from ridgeline_kernels.cpu import reference
from ridgeline_kernels.cpu.build import CompileFailed, build_library, find_toolchain
from ridgeline_kernels.cpu.checks import (
    check_batch,
    check_cache,
    check_dense,
    check_range,
    check_rows,
    output,
)
from ridgeline_kernels.cpu.chooser import FormName, LinearChooser
from ridgeline_kernels.cpu.linear import PackedLinear
from ridgeline_kernels.cpu.native import NativeLibrary, load_library
from ridgeline_kernels.cpu.program import HEAD_MULTIPLE, DecoderProgram, RecordedModel, can_record
from ridgeline_kernels.cpu.quantised import QuantFormat, RoundingError
from ridgeline_kernels.cpu.sampling import CpuTokens

COMPILERS = ("cc", "gcc", "clang")

_log = logging.getLogger(__name__)


def load_cpu_ops(
    cache_dir: Path, threads: int, *, compilers: Sequence[str] = COMPILERS, clock: Clock | None = None
) -> "CpuOps":
    """Operators for `threads` threads, compiled into `cache_dir` on first use (some seconds).

    `compilers` are program names or paths, tried in order. Without one that works a warning says so and the torch
    reference is used. `threads` should equal torch.get_num_threads(): both share one OpenMP pool, which is torn
    down and started again whenever the number changes. `clock` times the forms of linear layers (the machine's own
    if None).
    """
    library = None
    try:
        library = load_library(build_library(cache_dir, find_toolchain(compilers)))
    except (CompileFailed, OSError) as error:
        _log.warning("CPU operators run on plain torch, which is several times slower: %s", error)
    return CpuOps(
        library, threads, choices=LinearChooser(cache_dir, library, threads, clock=clock or SystemClock())
    )


class CpuOps:
    """Operators of a transformer step. All activations are fp32 tensors on the CPU; see `reference` for the maths.

    With the library (`native`), each row's result is the same bit for bit whatever other rows are in the batch, as
    long as linear layers are packed with form "native" (always so for fp32 weights).
    """

    def __init__(self, library: NativeLibrary | None, threads: int, *, choices: LinearChooser) -> None:
        if threads < 1:
            raise InvariantError(f"threads must be at least 1, not {threads}")
        self._library = library
        self._choices = choices
        self.threads = threads

    @property
    def native(self) -> bool:
        return self._library is not None

    @property
    def tokens(self) -> CpuTokens | None:
        """Choosing tokens in C; None without the library."""
        return None if self._library is None else CpuTokens(self._library, threads=self.threads)

    @property
    def description(self) -> str:
        """One line for logs."""
        kind = "torch reference (no compiler)"
        if self._library is not None:
            dots = ", bf16 dot products" if self._library.rounds_activations() else ""
            kind = f"native ({self._library.path.name}{dots})"
        return f"CPU operators: {kind}, {self.threads} threads, {torch.backends.cpu.get_cpu_capability()}"

    def pack_linear(
        self, weight: Tensor, *, bias: Tensor | None = None, form: FormName = "auto"
    ) -> PackedLinear:
        """Packs weight [out, in], fp32 or bf16, with bias [out] or None. The weight itself is not kept.

        "auto" takes the native form for fp32. For bf16 it compares native, oneDNN and torch by a short measurement,
        once per shape and machine, and keeps the best one or two; where torch has no bf16 in hardware it takes
        native, or without a compiler "torch-fp32", a widened copy of twice the size. A form that cannot work here
        raises InvariantError.
        """
        if weight.dim() != 2 or weight.dtype not in (torch.float32, torch.bfloat16):
            raise InvariantError(
                f"a linear weight is fp32 or bf16 [out, in], not {weight.dtype} {weight.shape}"
            )
        return self._choices.pack(weight, bias, form=form)

    def pack_quantised(
        self, weight: Tensor, quant: QuantFormat, *, bias: Tensor | None = None
    ) -> tuple[PackedLinear, RoundingError]:
        """Packs weight [out, in], fp32 or bf16, as codes of 8 or 4 bits: (the matrix, what rounding cost it).

        The weight itself is not kept. With the library activations are rounded to 16 bits of the largest in their
        group of input features; without it they stay fp32.
        """
        if weight.dim() != 2 or weight.dtype not in (torch.float32, torch.bfloat16):
            raise InvariantError(
                f"a linear weight is fp32 or bf16 [out, in], not {weight.dtype} {weight.shape}"
            )
        return self._choices.pack_quantised(weight, bias, quant)

    def record(self, model: RecordedModel) -> DecoderProgram | None:
        """The decoder as one native call; None where it cannot be one."""
        if self._library is None or not can_record(model):
            return None
        return DecoderProgram(self._library, model, threads=self.threads)

    def rms_norm(
        self,
        x: Tensor,
        weight: Tensor,
        eps: float,
        residual: Tensor | None = None,
        *,
        out: Tensor | None = None,
    ) -> Tensor:
        """residual (if any) += x in place; returns residual (or x) / rms * weight.

        x and residual [rows, hidden], rows may be strided; weight [hidden]; out contiguous [rows, hidden] and may
        be x itself if x is contiguous.
        """
        rows, hidden = x.shape
        check_rows("x", x, (rows, hidden))
        check_dense("weight", weight, (hidden,), torch.float32)
        if residual is not None:
            check_rows("residual", residual, (rows, hidden))
        out = output(out, (rows, hidden))
        if self._library is None:
            return out.copy_(reference.rms_norm(x, weight, eps, residual))
        self._library.rms_norm(
            x.data_ptr(),
            x.stride(0),
            weight.data_ptr(),
            eps,
            None if residual is None else residual.data_ptr(),
            0 if residual is None else residual.stride(0),
            out.data_ptr(),
            rows,
            hidden,
            self.threads,
        )
        return out

    def silu_mul(self, gate_up: Tensor, *, out: Tensor | None = None) -> Tensor:
        """gate_up [rows, 2 * ffn] -> [rows, ffn]: silu of the first half times the second."""
        rows, both = gate_up.shape
        check_rows("gate_up", gate_up, (rows, both))
        if both % 2:
            raise InvariantError(f"gate_up needs an even number of columns, not {both}")
        out = output(out, (rows, both // 2))
        if self._library is None:
            return out.copy_(reference.silu_mul(gate_up))
        self._library.silu_mul(
            gate_up.data_ptr(), gate_up.stride(0), out.data_ptr(), rows, both // 2, self.threads
        )
        return out

    def rope_store(
        self,
        qkv: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        kv_layer: Tensor,
        slot_mapping: Tensor,
        *,
        query_heads: int,
        kv_heads: int,
        head_dim: int,
    ) -> None:
        """Rotates q and k of qkv in place and writes k and v of each row into the layer's paged cache.

        qkv [rows, (query_heads + 2 * kv_heads) * head_dim]; positions int32 [rows]; cos_sin [context, head_dim]
        fp32, the cosines of the head_dim / 2 angles, then the sines (Hugging Face Llama: i and i + head_dim / 2
        are a pair); kv_layer [blocks, kv_heads, 2, block_tokens, head_dim] bf16 or fp32; slot_mapping int64 [rows],
        block * block_tokens + offset, negative for a row that is not stored. Raises InvariantError, before it
        writes anything, for a position or slot outside its table.
        """
        rows = qkv.shape[0]
        check_rows("qkv", qkv, (rows, (query_heads + 2 * kv_heads) * head_dim))
        check_dense("positions", positions, (rows,), torch.int32)
        check_dense("slot_mapping", slot_mapping, (rows,), torch.int64)
        check_dense("cos_sin", cos_sin, (cos_sin.shape[0], head_dim), torch.float32)
        blocks, block_tokens = check_cache(kv_layer, kv_heads, head_dim)
        if self._library is None:
            check_range("position", positions, cos_sin.shape[0])
            check_range("slot", slot_mapping, blocks * block_tokens, low=None)
            reference.rope_store(
                qkv, positions, cos_sin, kv_layer, slot_mapping, query_heads=query_heads, kv_heads=kv_heads
            )
            return
        fault = self._library.rope_store(
            qkv.data_ptr(),
            qkv.stride(0),
            positions.data_ptr(),
            cos_sin.data_ptr(),
            cos_sin.shape[0],
            kv_layer.data_ptr(),
            kv_layer.dtype == torch.bfloat16,
            blocks,
            block_tokens,
            slot_mapping.data_ptr(),
            rows,
            query_heads,
            kv_heads,
            head_dim,
            self.threads,
        )
        if fault == 1:
            check_range("position", positions, cos_sin.shape[0])
        if fault == 2:
            check_range("slot", slot_mapping, blocks * block_tokens, low=None)

    def paged_attention(
        self,
        q: Tensor,
        kv_layer: Tensor,
        block_tables: Tensor,
        query_start: Tensor,
        context_lens: Tensor,
        *,
        scale: float,
        window: int | None = None,
        invariant: bool = False,
        out: Tensor | None = None,
    ) -> Tensor:
        """Causal attention of a batch of sequences over the paged cache, prefill chunks and decode rows mixed.

        q [rows, query_heads, head_dim], rows may be strided; kv_layer as in `rope_store`; block_tables int32
        [seqs, max_blocks]; query_start int32 [seqs + 1], from 0 to rows; context_lens int32 [seqs], tokens in the
        cache including these queries. Query i of n with context c sees keys j <= c - n + i, and with a window only
        j > c - n + i - window. `invariant`: with the library a row's bits do not depend on how many queries of its
        sequence are in the batch; long prompts are slower so. Returns [rows, query_heads, head_dim]. Raises
        InvariantError for lengths that do not fit together or a block outside the cache.
        """
        rows, query_heads, head_dim = q.shape
        kv_heads = kv_layer.shape[1]
        seqs, table_width = block_tables.shape
        if q.dtype != torch.float32 or q.stride(2) != 1 or (q.stride(1) != head_dim and query_heads > 1):
            raise InvariantError(
                f"q must be fp32 and contiguous in a row, not {q.dtype} strides {q.stride()}"
            )
        if query_heads % kv_heads:
            raise InvariantError(f"{query_heads} query heads do not share {kv_heads} kv heads evenly")
        if window is not None and window < 1:
            raise InvariantError(f"window must be at least 1 token or None, not {window}")
        blocks, block_tokens = check_cache(kv_layer, kv_heads, head_dim)
        check_dense("block_tables", block_tables, (seqs, table_width), torch.int32)
        check_dense("query_start", query_start, (seqs + 1,), torch.int32)
        check_dense("context_lens", context_lens, (seqs,), torch.int32)
        out = output(out, (rows, query_heads, head_dim))
        if self._library is None or head_dim % HEAD_MULTIPLE:
            check_batch(
                block_tables, query_start, context_lens, rows=rows, blocks=blocks, block_tokens=block_tokens
            )
            return out.copy_(
                reference.paged_attention(
                    q, kv_layer, block_tables, query_start, context_lens, scale=scale, window=window
                )
            )
        fault = self._library.paged_attention(
            q.data_ptr(),
            q.stride(0),
            kv_layer.data_ptr(),
            kv_layer.dtype == torch.bfloat16,
            blocks,
            block_tokens,
            block_tables.data_ptr(),
            table_width,
            query_start.data_ptr(),
            context_lens.data_ptr(),
            seqs,
            rows,
            query_heads,
            kv_heads,
            head_dim,
            scale,
            window or 0,
            out.data_ptr(),
            query_heads * head_dim,
            invariant,
            self.threads,
        )
        if fault == 2:
            raise OutOfMemory(
                "no memory for the scratch space of attention; lower the batch or the chunk size"
            )
        if fault:
            check_batch(
                block_tables, query_start, context_lens, rows=rows, blocks=blocks, block_tokens=block_tokens
            )
        return out
