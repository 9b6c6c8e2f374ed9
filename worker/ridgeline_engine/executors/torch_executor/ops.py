"""The operators that a decoder is made of. Two implementations: `native_ops` (CPU) and `torch_ops` (any
device)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ridgeline_engine.executors.matrices import WeightFormat
from ridgeline_engine.executors.torch_executor.draw_batch import TokenOps


@dataclass(frozen=True, slots=True)
class GroupBatch:
    """Where the tokens of one flattened batch lie in one KV group. R sequences, T tokens."""

    slot_mapping: Tensor
    """int64 [T] on the device: block * block_tokens + offset that a token's KV is written to."""
    block_tables: Tensor
    """int32 [R, widest] on the device."""
    query_start: Tensor
    """int32 [R + 1] on the device: the tokens of sequence r are query_start[r]:query_start[r + 1]."""
    context_lens: Tensor
    """int32 [R] on the device: tokens of the sequence after this step."""
    host_query_start: npt.NDArray[np.int32]
    host_context_lens: npt.NDArray[np.int32]
    block_tokens: int
    window_tokens: int | None


@dataclass(frozen=True, slots=True)
class DecoderBatch:
    """T tokens of R sequences, on the device."""

    ids: Tensor
    """int64 [T]."""
    positions: Tensor
    """int32 [T]."""
    groups: Sequence[GroupBatch]
    """By KV group."""
    logit_rows: Tensor
    """int64 [L]: tokens whose logits are wanted, ascending."""


RowLookup: TypeAlias = Callable[[Tensor], Tensor]
"""Rows of an embedding: int64 [T] -> [T, hidden] in the activations' dtype."""


class PackedMatrix(Protocol):
    def __call__(self, x: Tensor) -> Tensor:
        """x [rows, in] -> [rows, out] in the activations' dtype."""
        ...


class Ops(Protocol):
    """Activations have one dtype throughout; norms and softmax accumulate in fp32.

    A result may lie in a buffer that the next call of the same operator overwrites; all matrices count as one
    operator.
    """

    @property
    def row_invariant(self) -> bool:
        """Whether a row's result is bit for bit independent of the rows beside it, those of its own sequence
        among them: of the batch, and of how a prompt was cut."""
        ...

    @property
    def tokens(self) -> TokenOps:
        """Choosing tokens."""
        ...

    def row_lookup(self, table: Tensor) -> RowLookup:
        """Looks rows of table [vocab, hidden] up; keeps the table."""
        ...

    def tied_row_lookup(self, matrix: PackedMatrix, table: Tensor) -> RowLookup:
        """For an embedding that is the output matrix too: without a second copy of `table` where that can
        be."""
        ...

    def pack_linear(self, weight: Tensor, *, bias: Tensor | None = None, held: WeightFormat) -> PackedMatrix:
        """weight [out, in], bf16 or fp32, to be held as `held`. May keep it, or a copy in a form of its own.

        Raises SettingsError for int8 and int4 where they are not known.
        """
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> Tensor:
        """Norm of each row of x [rows, width]. With `residual`: adds x to it in place, then norms the sum."""
        ...

    def rope_store(
        self,
        qkv: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        kv_layer: Tensor,
        batch: GroupBatch,
        *,
        query_heads: int,
        kv_heads: int,
        head_dim: int,
    ) -> None:
        """Rotates q and k in qkv [T, (query_heads + 2 kv_heads) * head_dim]; writes k and v to the layer's
        blocks."""
        ...

    def plan_attention(self, batch: GroupBatch) -> Any:
        """What `paged_attention` needs of a batch, worked out once for all layers of a group."""
        ...

    def paged_attention(self, q: Tensor, kv_layer: Tensor, plan: Any, *, scale: float) -> Tensor:
        """Causal attention of q [T, query_heads, head_dim] (rows may be strided) over the sequences' blocks.

        Returns [T, query_heads, head_dim]. What lies in a block beyond a sequence's length is never used, not
        even when it is not finite.
        """
        ...

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """[T, 2 * width] -> silu(first half) * second half."""
        ...
