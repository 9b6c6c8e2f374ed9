"""A step as a list of operators, of one GPU of the layout.

Every operator stands for its equal copies in all layers of a group: bytes, FLOPs, launches and messages are
summed over them. Bytes are the least that memory must give: weights once a step, the KV of every row once,
activations in and out of each operator.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from ridgeline_roofline.catalogue.formats import Dtype, Formats
from ridgeline_roofline.catalogue.mixers import Attention, LatentAttention, Mixer, Recurrent
from ridgeline_roofline.catalogue.model_spec import LayerGroup, ModelSpec, MoeMlp
from ridgeline_roofline.step.batch import StepBatch
from ridgeline_roofline.step.collectives import CollectiveKind
from ridgeline_roofline.step.layout import Layout, kv_share

STATE_BYTES = 4
"""A recurrent state's element: FP32."""


class OpKind(StrEnum):
    MATMUL = "matmul"
    ATTENTION = "attention"
    ELEMENTWISE = "elementwise"
    COLLECTIVE = "collective"


@dataclass(frozen=True, slots=True)
class Op:
    """Totals over `launches` equal launches on one GPU."""

    name: str
    kind: OpKind
    launches: int
    flops: float = 0.0
    weight_bytes: float = 0.0
    kv_bytes: float = 0.0
    activation_bytes: float = 0.0
    arithmetic: Dtype = Dtype.BF16
    collective: CollectiveKind | None = None
    message_bytes: float = 0.0
    """Of one launch, for a collective: what one rank contributes."""
    ranks: int = 1
    spread_gpus: int = 1
    """GPUs that the ranks are spread over: says whether the fast domain holds them."""

    @property
    def memory_bytes(self) -> float:
        return self.weight_bytes + self.kv_bytes + self.activation_bytes

    @property
    def intensity_flop_per_byte(self) -> float:
        """Infinite for what touches no memory."""
        return self.flops / self.memory_bytes if self.memory_bytes else float("inf")


def step_ops(model: ModelSpec, layout: Layout, batch: StepBatch, formats: Formats) -> tuple[Op, ...]:
    """All operators of one step in the order of a layer, groups one after the other; empty for no tokens.

    With pp > 1 a token passes all stages one after the other, so that all layers count.
    """
    if batch.tokens == 0:
        return ()
    ops = [op for group in model.groups for op in _Layer(model, group, layout, batch, formats).ops()]
    ops.append(_head(model, layout, batch, formats))
    if layout.pp > 1:
        size = batch.tokens / layout.dp * model.hidden * formats.activations.bytes_per_element
        hop = Op("stage hand-over", OpKind.COLLECTIVE, layout.pp - 1, message_bytes=size, ranks=2)
        ops.append(replace(hop, collective=CollectiveKind.SEND, spread_gpus=layout.tp * layout.pp))
    return tuple(_merged(ops))


def _head(model: ModelSpec, layout: Layout, batch: StepBatch, formats: Formats) -> Op:
    rows = batch.sampled_rows / layout.dp
    # The output matrix and the embedding stay in BF16 where weights are quantised.
    stored = max(formats.weights.bytes_per_element, Dtype.BF16.bytes_per_element)
    width = model.vocab_tokens / layout.tp
    return Op(
        "logits",
        OpKind.MATMUL,
        launches=1,
        flops=2.0 * model.head_parameters * rows / layout.tp,
        weight_bytes=model.head_parameters * stored / layout.tp,
        activation_bytes=rows * (model.hidden + width) * formats.activations.bytes_per_element,
        arithmetic=Dtype.FP32 if formats.weights is Dtype.FP32 else Dtype.BF16,
    )


@dataclass(frozen=True, slots=True)
class _Layer:
    """The operators of a group of equal layers."""

    model: ModelSpec
    group: LayerGroup
    layout: Layout
    batch: StepBatch
    formats: Formats

    def ops(self) -> Iterator[Op]:
        mixer, mlp = self.group.mixer, self.group.mlp
        if mixer is not None:
            yield self._norm()
            yield self._matrix("mixer projections", self._mixer_weights(mixer))
            yield self._recurrence(mixer) if isinstance(mixer, Recurrent) else self._attention(mixer)
            yield from self._all_reduce()
        if mlp is None:
            return
        yield self._norm()
        if isinstance(mlp, MoeMlp):
            yield from self._moe(mlp)
        else:
            yield self._matrix("MLP", mlp.matrix_parameters / self.layout.tp)
            yield from self._all_reduce()

    @property
    def rows(self) -> float:
        """Tokens that one DP rank runs."""
        return self.batch.tokens / self.layout.dp

    @property
    def act(self) -> float:
        return self.formats.activations.bytes_per_element

    def _norm(self) -> Op:
        # Residual and new values in, sum and normed values out.
        size = 4 * self.rows * self.model.hidden * self.act
        return Op("norms", OpKind.ELEMENTWISE, self.group.count, activation_bytes=self.group.count * size)

    def _matrix(self, name: str, parameters: float, *, launches: int = 2) -> Op:
        """All matrices of one kind: `parameters` of one layer on one GPU."""
        count = self.group.count
        # In and out of two chained matrices: hidden, the width between twice, hidden.
        width = parameters / self.model.hidden
        return Op(
            name,
            OpKind.MATMUL,
            count * launches,
            flops=count * 2.0 * parameters * self.rows,
            weight_bytes=count * parameters * self.formats.weights.bytes_per_element,
            activation_bytes=count * self.rows * (2 * self.model.hidden + width) * self.act,
            arithmetic=self._arithmetic,
        )

    @property
    def _arithmetic(self) -> Dtype:
        return self.formats.activations

    def _mixer_weights(self, mixer: Mixer) -> float:
        """Parameters of one layer on one TP rank, copied KV projections included."""
        tp = self.layout.tp
        if isinstance(mixer, Attention):
            kv = 2 * mixer.hidden * mixer.head_dim * mixer.kv_heads
            return (mixer.matrix_parameters - kv) / tp + kv * kv_share(mixer, tp)
        if isinstance(mixer, LatentAttention):
            # What leads into the latents is not split: every rank needs the whole latent.
            shared = mixer.hidden * (mixer.latent_dim + mixer.rope_dim + (mixer.query_latent_dim or 0))
            return (mixer.matrix_parameters - shared) / tp + shared
        return mixer.matrix_parameters / tp

    def _attention(self, mixer: Attention | LatentAttention) -> Op:
        batch, layout, count = self.batch, self.layout, self.group.count
        seen = mixer.seen_tokens(batch.context_tokens)
        prompt_seen = mixer.seen_tokens(batch.prefill_seen_tokens)
        decode_pairs = batch.decode_rows * batch.query_tokens * seen
        prompt_pairs = batch.prefill_tokens * prompt_seen
        read_tokens = batch.decode_rows * seen + prompt_seen
        kv_elements = (read_tokens + batch.tokens) * mixer.kv_elements_per_token
        flops = decode_pairs * mixer.pair_flops + prompt_pairs * _prompt_pair_flops(mixer)
        query_width = (
            mixer.heads * mixer.head_dim if isinstance(mixer, Attention) else mixer.heads * mixer.value_dim
        )
        return Op(
            "window attention" if mixer.window_tokens else "attention",
            OpKind.ATTENTION,
            count,
            flops=count * flops / layout.tp / layout.dp,
            kv_bytes=count
            * kv_elements
            * self.formats.kv.bytes_per_element
            * kv_share(mixer, layout.tp)
            / layout.dp,
            activation_bytes=count * 2 * self.rows * query_width / layout.tp * self.act,
            arithmetic=Dtype.FP32 if self.formats.activations is Dtype.FP32 else Dtype.BF16,
        )

    def _recurrence(self, mixer: Recurrent) -> Op:
        batch, layout, count = self.batch, self.layout, self.group.count
        sequences = batch.decode_rows + (1.0 if batch.prefill_tokens else 0.0)
        state = 2 * sequences * mixer.state_elements * STATE_BYTES  # read and written
        return Op(
            "recurrence",
            OpKind.ATTENTION,
            count,
            flops=count * batch.tokens * mixer.token_flops / layout.tp / layout.dp,
            kv_bytes=count * state / layout.tp / layout.dp,
            activation_bytes=count * 2 * self.rows * mixer.inner_dim / layout.tp * self.act,
        )

    def _moe(self, mlp: MoeMlp) -> Iterator[Op]:
        layout, count, tokens = self.layout, self.group.count, self.batch.tokens
        always = mlp.always_parameters / layout.tp
        yield self._matrix("router and shared experts", always)
        met = tokens if layout.ep > 1 else self.rows
        touched = mlp.expected_experts(met) * mlp.expert_parameters / layout.expert_shards
        work = met * mlp.top_k / layout.expert_shards
        yield Op(
            "experts",
            OpKind.MATMUL,
            2 * count,
            flops=count * 2.0 * work * mlp.expert_parameters,
            weight_bytes=count * touched * self.formats.weights.bytes_per_element,
            activation_bytes=count * work * (2 * self.model.hidden + 3 * mlp.expert_ffn) * self.act,
            arithmetic=self._arithmetic,
        )
        if layout.ep == 1:
            yield from self._all_reduce()
            return
        sent = self.rows / layout.tp * mlp.top_k * self.model.hidden * self.act
        for name in ("dispatch", "combine"):
            yield Op(
                f"expert {name}",
                OpKind.COLLECTIVE,
                count,
                collective=CollectiveKind.ALL_TO_ALL,
                message_bytes=sent,
                ranks=layout.ep,
                spread_gpus=layout.tp * layout.dp,
            )

    def _all_reduce(self) -> Iterator[Op]:
        if self.layout.tp > 1:
            yield Op(
                "all-reduce",
                OpKind.COLLECTIVE,
                self.group.count,
                collective=CollectiveKind.ALL_REDUCE,
                message_bytes=self.rows * self.model.hidden * self.act,
                ranks=self.layout.tp,
                spread_gpus=self.layout.tp,
            )


def _prompt_pair_flops(mixer: Attention | LatentAttention) -> int:
    return mixer.expanded_pair_flops if isinstance(mixer, LatentAttention) else mixer.pair_flops


def _merged(ops: list[Op]) -> Iterator[Op]:
    """Equal operators of different groups as one."""
    merged: dict[tuple[object, ...], Op] = {}
    for op in ops:
        key = (op.name, op.arithmetic, op.message_bytes, op.ranks)
        before = merged.get(key)
        merged[key] = op if before is None else _sum(before, op)
    return iter(merged.values())


def _sum(one: Op, other: Op) -> Op:
    return replace(
        one,
        launches=one.launches + other.launches,
        flops=one.flops + other.flops,
        weight_bytes=one.weight_bytes + other.weight_bytes,
        kv_bytes=one.kv_bytes + other.kv_bytes,
        activation_bytes=one.activation_bytes + other.activation_bytes,
    )
