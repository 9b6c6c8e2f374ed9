"""Whether a pool can work: format, gate, layout, memory. Facts in, a verdict with its reasons out."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ridgeline_contracts.errors import RidgelineError
from ridgeline_contracts.resources.model import GenerationFormat, ModelSpecResource, ModelStatus
from ridgeline_contracts.resources.status import Derivation
from ridgeline_contracts.resources.worker_pool import PoolRole, WorkerPoolSpec
from ridgeline_roofline.catalogue.formats import Dtype, Formats, arithmetic_of
from ridgeline_roofline.catalogue.gpus import gpu_named
from ridgeline_roofline.catalogue.model_spec import ModelSpec
from ridgeline_roofline.catalogue.models import model_named
from ridgeline_roofline.catalogue.read_config import read_config
from ridgeline_roofline.decisions.capacity_unit import CapacityFacts, capacity_units
from ridgeline_roofline.plan.inputs import PlanInputs, read_inputs
from ridgeline_roofline.plan.topics.memory import TOPIC, ledger, rank_kv_bytes
from ridgeline_roofline.step.layout import Layout, check_layout, kv_copies
from ridgeline_roofline.step.residence import sequence_bytes, weight_bytes
from ridgeline_roofline.units import Unit, show

from ridgeline_operator.gpu_classes import GpuClass
from ridgeline_operator.quantities import quantity_bytes

_DEFAULT_BATCH = 32
_CPU_RUNTIME_BYTES = 1_000_000_000
"""Interpreter, torch, compiled kernels, one step's activations: a guess for pools on CPUs."""
_USABLE_RATIO = 0.92


@dataclass(frozen=True, slots=True)
class Peer:
    """Another pool of the same Model."""

    name: str
    role: PoolRole
    weights: str


@dataclass(frozen=True, slots=True)
class Fits:
    """The pool is accepted."""

    format: GenerationFormat
    served_name: str
    weights_bytes: int
    """Of all GPUs of a replica together: what a start must load."""
    derivations: tuple[Derivation, ...]
    ledger: str
    capacity_per_s: float | None
    """Capacity units of one replica; None where the class is not in the catalogue."""


@dataclass(frozen=True, slots=True)
class Refused:
    reason: str
    message: str
    """What is the matter, the ledger where memory is, and the smallest change that fits."""


def examine(
    pool: WorkerPoolSpec,
    model: ModelSpecResource,
    status: ModelStatus,
    gpu_class: GpuClass,
    *,
    model_name: str,
    peers: Sequence[Peer] = (),
) -> Fits | Refused:
    """The first reason that speaks against the pool, or what it will be run with."""
    chosen = next((each for each in model.formats if each.generation is gpu_class.generation), None)
    if chosen is None:
        listed = " ".join(each.generation for each in model.formats)
        return Refused(
            "NoFormatForGeneration",
            f"Model {model_name} lists formats for {listed}, and class {pool.gpu_class} is of generation "
            f"{gpu_class.generation}: add an entry to the Model's formats, or take another gpuClass",
        )
    refused = _format_refusal(pool, model, chosen, model_name=model_name, peers=peers)
    if refused is not None:
        return refused
    try:
        spec = _shape(model, status, model_name)
        if spec is None:
            return Refused(
                "ShapeUnknown",
                f"the shape of Model {model_name} is not known: set its catalogueId, or wait until it is verified",
            )
        layout = Layout(tp=pool.layout.tp, pp=pool.layout.pp, ep=pool.layout.ep, dp=pool.layout.dp)
        check_layout(spec, layout)
    except RidgelineError as error:
        return Refused("LayoutImpossible", error.message)
    served = model.served_name or model_name
    if gpu_class.catalogue_id is None:
        return _on_cpu(pool, spec, layout, chosen, served)
    return _on_gpu(pool, spec, layout, chosen, served, gpu_id=gpu_class.catalogue_id)


def _format_refusal(
    pool: WorkerPoolSpec,
    model: ModelSpecResource,
    chosen: GenerationFormat,
    *,
    model_name: str,
    peers: Sequence[Peer],
) -> Refused | None:
    if not chosen.gate.passed:
        return Refused(
            "GateNotPassed",
            f"weights {chosen.weights} of Model {model_name} have not passed their gate on {chosen.generation} "
            f"({chosen.gate.evidence}): set gate.passed once they have, or give another format",
        )
    if model.source.pvc is None and model.source.image is None:
        return Refused(
            "SourceNotServed",
            "pods of this version read models from pvc and image sources alone: copy the weights to a volume and "
            "give source.pvc",
        )
    if pool.role is PoolRole.UNIFIED:
        return None
    for peer in peers:
        if peer.role not in (PoolRole.UNIFIED, pool.role) and peer.weights != chosen.weights:
            return Refused(
                "FormatsDisagree",
                f"{pool.role} with weights {chosen.weights} cannot work with {peer.role} pool {peer.name}, whose "
                f"weights are {peer.weights}: KV of one is not that of the other; give both generations one format",
            )
    return None


def _shape(model: ModelSpecResource, status: ModelStatus, model_name: str) -> ModelSpec | None:
    if status.config is not None:
        return read_config(status.config, model_id=model_name)
    return None if model.catalogue_id is None else model_named(model.catalogue_id)


def _on_gpu(
    pool: WorkerPoolSpec,
    spec: ModelSpec,
    layout: Layout,
    chosen: GenerationFormat,
    served_name: str,
    *,
    gpu_id: str,
) -> Fits | Refused:
    inputs = _inputs(pool, spec, layout, chosen, gpu_id)
    copies = kv_copies(spec, layout)
    if copies > 1 and not pool.layout.allow_kv_copies:
        most = max(tp for tp in range(1, layout.tp + 1) if _divides(spec, tp) and _no_copies(spec, tp))
        return Refused(
            "CopiesKvHeads",
            f"tp={layout.tp} is past the KV heads of {spec.model_id}: each KV byte would be held {copies:g} times. "
            f"Smallest change: layout.tp={most} with the other GPUs as pp or dp; or set layout.allowKvCopies",
        )
    lines = ledger(inputs)
    limit = inputs.gpu.memory_bytes * _USABLE_RATIO
    taken = sum(line.size_bytes for line in lines)
    one = rank_kv_bytes(inputs, inputs.context_tokens)
    table = "\n".join(
        [
            *(_line(each.name, each.size_bytes, each.measured, each.working) for each in lines),
            _line("one sequence", one, False, f"KV of {inputs.context_tokens} tokens"),
            f"{'usable':<20} {limit / 1e9:8.2f} GB  {_USABLE_RATIO:.0%} of {inputs.gpu.gpu_id}",
        ]
    )
    if taken + one > limit:
        return Refused(
            "MemoryDoesNotFit",
            f"{spec.model_id} on {inputs.gpu.gpu_id} {layout}: {(taken + one) / 1e9:.1f} GB a GPU are needed for one "
            f"sequence of {inputs.context_tokens} tokens, {limit / 1e9:.1f} GB are usable. Smallest change that fits: "
            f"{_change(inputs)}\n{table}",
        )
    capacity = capacity_units(CapacityFacts(inputs.step_model()))
    sequences = int(layout.dp * (limit - taken) / one)
    return Fits(
        chosen,
        served_name,
        int(weight_bytes(spec, layout, inputs.formats) * layout.gpus),
        (
            Derivation("capacity", f"{capacity.value:.3f} requests/s", capacity.derivation),
            Derivation("kvCopies", f"{copies:g}", "how often each KV byte is held over the TP ranks"),
            Derivation(
                "sequences",
                str(sequences),
                f"a ceiling, at {inputs.context_tokens} tokens: "
                f"{show(limit - taken, Unit.BYTES)} / {show(one, Unit.BYTES)}",
            ),
        ),
        table,
        capacity.value,
    )


def _inputs(
    pool: WorkerPoolSpec, spec: ModelSpec, layout: Layout, chosen: GenerationFormat, gpu_id: str
) -> PlanInputs:
    base = read_inputs({"gpu": gpu_id, "tp": "4"}, defaults=TOPIC.defaults, extras=TOPIC.extras)
    weights = Dtype(chosen.weights.value)
    return replace(
        base,
        model=spec,
        gpus=(gpu_named(gpu_id),),
        fleet_gpus=layout.gpus,
        layout=layout,
        formats=Formats(weights, Dtype(chosen.kv.value), arithmetic_of(weights)),
        batch=pool.engine.max_batch or _DEFAULT_BATCH,
        context_tokens=pool.engine.max_context_tokens or spec.context_tokens,
    )


def _divides(spec: ModelSpec, tp: int) -> bool:
    return all(mixer.heads % tp == 0 for _, mixer in spec.mixers())


def _no_copies(spec: ModelSpec, tp: int) -> bool:
    return kv_copies(spec, Layout(tp=tp)) <= 1


def _change(inputs: PlanInputs) -> str:
    """In the words of the resource's fields: the mildest change with which one sequence fits."""
    kv8 = replace(inputs, formats=replace(inputs.formats, kv=Dtype.FP8))
    weights8 = replace(inputs, formats=Formats(Dtype.FP8, inputs.formats.kv, Dtype.FP8))
    both = replace(weights8, formats=replace(weights8.formats, kv=Dtype.FP8))
    where = "in the Model's formats for this generation"
    candidates = [(f"kv: fp8 {where}", kv8), (f"weights: fp8 {where}", weights8)]
    candidates.append((f"weights: fp8 and kv: fp8 {where}", both))
    if inputs.formats.weights.bytes_per_element < 1 or inputs.formats.weights is Dtype.FP8:
        candidates = candidates[:1]
    for tp in (2, 4, 8, 16):
        if tp > inputs.layout.tp and _divides(inputs.model, tp) and _no_copies(inputs.model, tp):
            wider = replace(inputs, layout=replace(inputs.layout, tp=tp))
            candidates.append((f"layout.tp={tp}, with layout.gpusPerNode and nodes to match", wider))
    for text, changed in candidates:
        if _room(changed) >= rank_kv_bytes(changed, changed.context_tokens):
            return text
    one = rank_kv_bytes(inputs, inputs.context_tokens)
    tokens = int(max(0.0, _room(inputs)) / one * inputs.context_tokens)
    if tokens >= 1024:
        return f"engine.maxContextTokens={tokens // 256 * 256}"
    return "a GPU class with more memory, or more pipeline stages (layout.pp)"


def _room(inputs: PlanInputs) -> float:
    """Bytes of a GPU that are left for KV; below 0 where not even the rest fits."""
    return inputs.gpu.memory_bytes * _USABLE_RATIO - sum(line.size_bytes for line in ledger(inputs))


def _on_cpu(
    pool: WorkerPoolSpec, spec: ModelSpec, layout: Layout, chosen: GenerationFormat, served_name: str
) -> Fits | Refused:
    limit = quantity_bytes(pool.resources.memory, field="spec.resources.memory")
    formats = Formats(Dtype(chosen.weights.value), Dtype(chosen.kv.value), Dtype.BF16)
    context = pool.engine.max_context_tokens or spec.context_tokens
    weights, one = weight_bytes(spec, layout, formats), sequence_bytes(spec, layout, formats, context)
    needed = weights + one + _CPU_RUNTIME_BYTES
    table = "\n".join(
        [
            _line("weights", weights, True, f"{spec.parameters:,} parameters"),
            _line("runtime", _CPU_RUNTIME_BYTES, False, "interpreter, libraries, one step"),
            _line("one sequence", one, False, f"KV of {context} tokens"),
            f"{'limit':<20} {limit / 1e9:8.2f} GB  resources.memory",
        ]
    )
    if needed > limit:
        return Refused(
            "MemoryDoesNotFit",
            f"{spec.model_id} needs {needed / 1e9:.1f} GB for one sequence of {context} tokens and resources.memory is "
            f"{limit / 1e9:.1f} GB. Smallest change that fits: resources.memory={-(-int(needed) // 2**30)}Gi\n{table}",
        )
    return Fits(chosen, served_name, int(weights), (), table, None)


def _line(name: str, size_bytes: float, measured: bool, working: str) -> str:
    return f"{name:<20} {size_bytes / 1e9:8.2f} GB  {'measured' if measured else 'guessed'}: {working}"
