"""A decoder as arithmetic sees it: groups of equal layers, each a mixer and an MLP.

Parameters are counted as they are held (`parameters`), as one token multiplies with them (`active_parameters`:
no embedding look-up, the chosen experts only) and as matrices that any token may use (`matrix_parameters`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from ridgeline_roofline.catalogue.formats import Dtype
from ridgeline_roofline.catalogue.mixers import Attention, LatentAttention, Mixer, Recurrent


@dataclass(frozen=True, slots=True)
class DenseMlp:
    hidden: int
    ffn: int
    matrices: int = 3
    """3: gate, up, down; 2: without a gate."""
    extra_parameters: int = 0

    @property
    def matrix_parameters(self) -> int:
        return self.matrices * self.hidden * self.ffn

    @property
    def active_parameters(self) -> int:
        return self.matrix_parameters


@dataclass(frozen=True, slots=True)
class MoeMlp:
    hidden: int
    experts: int
    top_k: int
    expert_ffn: int
    shared_ffn: int = 0
    """Width of what every token passes through beside its experts."""
    groups: int = 1
    """Groups of experts that routing is limited to (`topk_groups` of them)."""
    topk_groups: int = 1
    extra_parameters: int = 0

    @property
    def expert_parameters(self) -> int:
        """Of one expert."""
        return 3 * self.hidden * self.expert_ffn

    @property
    def always_parameters(self) -> int:
        """Router and shared experts."""
        return self.hidden * self.experts + 3 * self.hidden * self.shared_ffn

    @property
    def matrix_parameters(self) -> int:
        return self.always_parameters + self.experts * self.expert_parameters

    @property
    def active_parameters(self) -> int:
        return self.always_parameters + self.top_k * self.expert_parameters

    def expected_experts(self, tokens: float) -> float:
        """Distinct experts touched by `tokens` tokens that each choose `top_k` at random.

        experts * (1 - (1 - top_k / experts) ** tokens): the chance that none of them chose a given expert.
        """
        missed = (1.0 - self.top_k / self.experts) ** float(tokens)
        return float(self.experts * (1.0 - missed))


Mlp: TypeAlias = DenseMlp | MoeMlp


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """`count` equal layers. A layer may lack either part: hybrids put them in layers of their own."""

    count: int
    mixer: Mixer | None
    mlp: Mlp | None

    @property
    def matrix_parameters(self) -> int:
        """Of one layer."""
        mixer = 0 if self.mixer is None else self.mixer.matrix_parameters
        return mixer + (0 if self.mlp is None else self.mlp.matrix_parameters)

    @property
    def active_parameters(self) -> int:
        mixer = 0 if self.mixer is None else self.mixer.matrix_parameters
        return mixer + (0 if self.mlp is None else self.mlp.active_parameters)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Read from a config.json. `native_weights` is the format that the checkpoint is published in."""

    model_id: str
    hidden: int
    vocab_tokens: int
    tied_embeddings: bool
    groups: tuple[LayerGroup, ...]
    norm_parameters: int
    """All norms outside mixers: held, never multiplied in a matrix."""
    context_tokens: int
    native_weights: Dtype = Dtype.BF16

    @property
    def layers(self) -> int:
        return sum(group.count for group in self.groups)

    @property
    def head_parameters(self) -> int:
        """Of the matrix that gives logits."""
        return self.hidden * self.vocab_tokens

    @property
    def layer_matrix_parameters(self) -> int:
        """Of all layers together."""
        return sum(group.count * group.matrix_parameters for group in self.groups)

    @property
    def matrix_parameters(self) -> int:
        """All that some token may be multiplied with: layers and head, without the embedding look-up."""
        return self.layer_matrix_parameters + self.head_parameters

    @property
    def active_parameters(self) -> int:
        """What one token is multiplied with: 2 FLOPs each."""
        layers = sum(group.count * group.active_parameters for group in self.groups)
        return layers + self.head_parameters

    @property
    def parameters(self) -> int:
        """All that is held in memory."""
        tables = self.head_parameters * (1 if self.tied_embeddings else 2)
        extra = sum(
            group.count * part.extra_parameters
            for group in self.groups
            for part in (group.mixer, group.mlp)
            if part is not None
        )
        return self.layer_matrix_parameters + tables + extra + self.norm_parameters

    @property
    def is_moe(self) -> bool:
        return any(isinstance(group.mlp, MoeMlp) for group in self.groups)

    @property
    def attention(self) -> Attention | LatentAttention | None:
        """The mixer of the first layer that attends to everything (else of the first that attends)."""
        found = [m for _, m in self.mixers() if isinstance(m, Attention | LatentAttention)]
        full = [mixer for mixer in found if mixer.window_tokens is None]
        return next(iter([*full, *found]), None)

    @property
    def kv_elements_per_token(self) -> int:
        """Of all layers, windows counted as if nothing left them."""
        return sum(count * mixer.kv_elements_per_token for count, mixer in self.mixers())

    @property
    def state_elements(self) -> int:
        """Recurrent state of one sequence, all layers."""
        return sum(count * mixer.state_elements for count, mixer in self.mixers())

    def mixers(self) -> Iterator[tuple[int, Mixer]]:
        """(layers, mixer) of the groups that have one."""
        for group in self.groups:
            if group.mixer is not None:
                yield group.count, group.mixer

    def moe_layers(self) -> Iterator[tuple[int, MoeMlp]]:
        for group in self.groups:
            if isinstance(group.mlp, MoeMlp):
                yield group.count, group.mlp

    def kv_bytes(self, context_tokens: float, dtype: Dtype) -> float:
        """What one sequence of that length keeps, windows freed behind it and states included."""
        resident = sum(
            count * mixer.kv_elements_per_token * mixer.seen_tokens(context_tokens)
            for count, mixer in self.mixers()
        )
        return resident * dtype.bytes_per_element + self.state_elements * _STATE_BYTES

    def pair_flops(self, context_tokens: float) -> float:
        """Attention arithmetic of one new token over `context_tokens` keys, all layers."""
        return sum(
            count * mixer.pair_flops * mixer.seen_tokens(context_tokens) for count, mixer in self.mixers()
        )

    def token_flops(self, context_tokens: float) -> float:
        """All arithmetic of one token: matrices, recurrent updates, attention."""
        recurrent = sum(count * m.token_flops for count, m in self.mixers() if isinstance(m, Recurrent))
        return 2.0 * self.active_parameters + recurrent + self.pair_flops(context_tokens)


_STATE_BYTES = 4
"""Recurrent states are kept in FP32: they are summed into for the whole text."""
