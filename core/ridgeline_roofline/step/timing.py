"""Operators to milliseconds: for each the slower of its memory traffic and its arithmetic, one after the other.

The total is split into exposed times, which add up: weights, KV and activations at the memory's bandwidth,
compute for what arithmetic takes beyond memory, collectives, and host (launches and the fixed part of a step).
With every factor of `Efficiency` at its default this is a floor: nothing that runs can be faster.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from ridgeline_contracts.step import StepShape

from ridgeline_roofline.catalogue.formats import Formats
from ridgeline_roofline.catalogue.gpus import Gpu
from ridgeline_roofline.catalogue.links import Link, fast_link
from ridgeline_roofline.catalogue.model_spec import ModelSpec
from ridgeline_roofline.step.batch import StepBatch, batch_of
from ridgeline_roofline.step.collectives import (
    CollectiveKind,
    CollectiveTime,
    all_reduce,
    all_to_all,
    hierarchical_all_reduce,
    send,
)
from ridgeline_roofline.step.layout import Layout
from ridgeline_roofline.step.ops import Op, OpKind, step_ops


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Shares of the peaks that are reached (0 to 1], and fixed costs. The defaults give the floor."""

    memory_ratio: float = 1.0
    matmul_ratio: float = 1.0
    attention_ratio: float = 1.0
    """Of both bandwidth and arithmetic, in attention."""
    collective_ratio: float = 1.0
    launch_s: float = 0.0
    """Gap that each launch leaves."""
    host_s: float = 0.0
    """Of a step, whatever it runs: planning, sampling's fixed part."""


FLOOR = Efficiency()


@dataclass(frozen=True, slots=True)
class Fabric:
    """Inside the fast domain, and beyond it."""

    fast: Link
    wide: Link
    domain_gpus: int

    def link_over(self, gpus: int) -> Link:
        """The link that decides a collective over that many GPUs."""
        return self.fast if gpus <= self.domain_gpus else self.wide

    def all_reduce(self, size_bytes: float, ranks: int) -> CollectiveTime:
        """The fastest form over ranks that fill one domain after the other."""
        flat = all_reduce(size_bytes, ranks, self.link_over(ranks))
        if ranks <= self.domain_gpus:
            return flat
        staged = hierarchical_all_reduce(
            size_bytes, ranks, inside=self.domain_gpus, fast=self.fast, wide=self.wide
        )
        return min(flat, staged, key=lambda found: found.seconds)


def fabric_of(gpu: Gpu, wide: Link) -> Fabric:
    return Fabric(fast_link(gpu), wide, int(gpu.domain_gpus.value))


@dataclass(frozen=True, slots=True)
class OpTime:
    """Exposed seconds of one operator; they add up to `seconds`."""

    op: Op
    weights_s: float = 0.0
    kv_s: float = 0.0
    activations_s: float = 0.0
    compute_s: float = 0.0
    """Arithmetic beyond what hides behind memory."""
    collectives_s: float = 0.0
    host_s: float = 0.0

    @property
    def memory_s(self) -> float:
        return self.weights_s + self.kv_s + self.activations_s

    @property
    def seconds(self) -> float:
        return self.memory_s + self.compute_s + self.collectives_s + self.host_s

    @property
    def bound(self) -> str:
        """What decides: memory, compute, or link."""
        if self.op.kind is OpKind.COLLECTIVE:
            return "link"
        return "compute" if self.compute_s > 0 else "memory"


@dataclass(frozen=True, slots=True)
class StepTime:
    """A step on a GPU. The split's parts add up to `seconds`."""

    ops: tuple[OpTime, ...]
    host_fixed_s: float = 0.0

    @property
    def split(self) -> dict[str, float]:
        """Seconds by part: weights, KV, activations, compute, collectives, host."""
        parts = {name: sum(getattr(op, f"{name}_s") for op in self.ops) for name in _PARTS}
        parts["host"] += self.host_fixed_s
        return parts

    @property
    def seconds(self) -> float:
        return sum(self.split.values())

    def total(self, field: str) -> float:
        """Sum over operators of one of their numbers, such as `flops` or `weight_bytes`."""
        return float(sum(getattr(each.op, field) for each in self.ops))


_PARTS = tuple(field.name.removesuffix("_s") for field in fields(OpTime) if field.name.endswith("_s"))


def op_time(op: Op, gpu: Gpu, fabric: Fabric, efficiency: Efficiency = FLOOR) -> OpTime:
    """Seconds of one operator. What the L2 holds of the activations between launches costs no memory time."""
    gaps = op.launches * efficiency.launch_s
    if op.collective is not None:
        one = collective_time(op, fabric).seconds / efficiency.collective_ratio
        return OpTime(op, collectives_s=op.launches * one, host_s=gaps)
    reached = efficiency.attention_ratio if op.kind is OpKind.ATTENTION else 1.0
    rate = gpu.bandwidth_bytes_per_s * efficiency.memory_ratio * reached
    # Of each launch only what exceeds the L2: a threshold would make one more row cost milliseconds.
    spilled = max(0.0, op.activation_bytes - op.launches * gpu.l2.value)
    weights_s, kv_s, activations_s = op.weight_bytes / rate, op.kv_bytes / rate, spilled / rate
    peak = gpu.flops_per_s(op.arithmetic)
    share = efficiency.attention_ratio if op.kind is OpKind.ATTENTION else efficiency.matmul_ratio
    compute_s = max(0.0, op.flops / (peak * share) - (weights_s + kv_s + activations_s))
    return OpTime(op, weights_s, kv_s, activations_s, compute_s, host_s=gaps)


def collective_time(op: Op, fabric: Fabric) -> CollectiveTime:
    """Of one launch."""
    if op.collective is CollectiveKind.ALL_REDUCE:
        return fabric.all_reduce(op.message_bytes, op.ranks)
    link = fabric.link_over(op.spread_gpus)
    if op.collective is CollectiveKind.ALL_TO_ALL:
        return all_to_all(op.message_bytes, op.ranks, link)
    return send(op.message_bytes, link)


def step_time(ops: Sequence[Op], gpu: Gpu, fabric: Fabric, efficiency: Efficiency = FLOOR) -> StepTime:
    return StepTime(tuple(op_time(op, gpu, fabric, efficiency) for op in ops), efficiency.host_s)


@dataclass(frozen=True, slots=True)
class RooflineStepModel:
    """The contracts' StepModel from first principles: one model in one layout on one kind of GPU."""

    model: ModelSpec
    gpu: Gpu
    layout: Layout
    formats: Formats
    fabric: Fabric
    efficiency: Efficiency = FLOOR

    def predict_ms(self, shape: StepShape) -> float:
        return self.step(batch_of(shape)).seconds * 1e3

    def step(self, batch: StepBatch) -> StepTime:
        ops = step_ops(self.model, self.layout, batch, self.formats)
        return step_time(ops, self.gpu, self.fabric, self.efficiency)

    def step_s(self, batch: StepBatch) -> float:
        return self.step(batch).seconds
