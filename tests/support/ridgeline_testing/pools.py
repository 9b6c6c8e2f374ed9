"""Pools, models and GPU classes as the operator's tests use them."""

from collections.abc import Mapping
from typing import Any

from ridgeline_contracts.resources.model import ModelSpecResource, ModelStatus
from ridgeline_contracts.resources.shapes import from_object
from ridgeline_contracts.resources.worker_pool import WorkerPoolSpec
from ridgeline_operator.admission import Fits, Peer, Refused, examine
from ridgeline_operator.gpu_classes import read_gpu_classes
from ridgeline_operator.render.facts import PoolFacts

_TAINT = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
CLASSES_HELD: Mapping[str, Any] = {
    "h100": {
        "generation": "hopper",
        "catalogueId": "h100-sxm",
        "image": "registry.example/worker-cuda:1",
        "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
        "tolerations": _TAINT,
        "runtimeClass": "nvidia",
        "fabric": {"resources": {"rdma/hca": "1"}, "ipcLock": True},
    },
    "b200": {
        "generation": "blackwell",
        "catalogueId": "b200",
        "image": "registry.example/worker-cuda:1",
        "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-B200"},
        "tolerations": _TAINT,
    },
    "cpu": {"generation": "cpu", "image": "registry.example/worker-cpu:1"},
}
CLASSES = read_gpu_classes(CLASSES_HELD)
PASSED = {"passed": True, "evidence": "see the model card"}
LLAMA: Mapping[str, Any] = {
    "source": {"pvc": {"claimName": "weights", "path": "llama"}},
    "revision": "r1",
    "catalogueId": "llama-3.3-70b",
    "formats": [
        {"generation": "hopper", "weights": "fp8", "gate": PASSED},
        {"generation": "blackwell", "weights": "fp8", "gate": PASSED},
    ],
}
SMALL: Mapping[str, Any] = {
    "source": {"pvc": {"claimName": "weights", "path": "smollm2"}},
    "revision": "r1",
    "catalogueId": "smollm2-135m",
    "formats": [{"generation": "cpu", "weights": "bf16", "gate": PASSED}],
}


def pool_spec(**fields: Any) -> WorkerPoolSpec:
    """Two H100 replicas of TP8 unless told otherwise; fields as in the resource."""
    held = {"modelRef": {"name": "llama"}, "gpuClass": "h100", "replicas": 2}
    held["layout"] = {"tp": 8, "gpusPerNode": 8}
    read: WorkerPoolSpec = from_object(WorkerPoolSpec, held | fields)
    return read


def model_spec(held: Mapping[str, Any] = LLAMA, **fields: Any) -> ModelSpecResource:
    read: ModelSpecResource = from_object(ModelSpecResource, {**held, **fields})
    return read


def verdict(
    pool: WorkerPoolSpec, model: ModelSpecResource, *, status: ModelStatus | None = None, peers: Any = ()
) -> Fits | Refused:
    found: tuple[Peer, ...] = tuple(peers)
    return examine(
        pool, model, status or ModelStatus(), CLASSES[pool.gpu_class], model_name="llama", peers=found
    )


def pool_facts(
    pool: WorkerPoolSpec | None = None,
    model: ModelSpecResource | None = None,
    *,
    name: str = "p",
    namespace: str = "models",
    uid: str = "0",
) -> PoolFacts:
    """Of an accepted pool."""
    pool, model = pool or pool_spec(), model or model_spec()
    fits = verdict(pool, model)
    assert isinstance(fits, Fits), fits
    return PoolFacts(
        name=name,
        namespace=namespace,
        uid=uid,
        spec=pool,
        model_name="llama",
        source=model.source,
        model_revision=model.revision,
        fits=fits,
        gpu_class=CLASSES[pool.gpu_class],
        release_namespace="ridgeline",
        monitoring_namespace_labels={"kubernetes.io/metadata.name": "monitoring"},
    )
