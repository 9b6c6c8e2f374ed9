"""A worker's pod template."""

from typing import Any, Final

from ridgeline_contracts.resources.model import WeightFormat
from ridgeline_contracts.resources.worker_pool import PoolRole

from ridgeline_operator.quantities import bytes_quantity, cores_quantity, quantity_bytes
from ridgeline_operator.render.facts import GRPC_PORT, STATUS_PORT, Manifest, PoolFacts, group_name
from ridgeline_operator.render.merge import merged

USER_ID: Final = 10001
PROBE_PERIOD_S: Final = 10
GRACE_MARGIN_S: Final = 30
"""Beyond drain.maxSeconds: the worker says goodbye and writes its last lines."""
_WEIGHT_FLAGS: Final = {
    WeightFormat.BF16: ("--dtype", "bf16"),
    WeightFormat.FP32: ("--dtype", "fp32"),
    WeightFormat.INT8: ("--weights", "int8"),
    WeightFormat.INT4: ("--weights", "int4"),
}
"""Other formats are those of the checkpoint itself, which the worker reads from its files."""
# The first SIGTERM drains, a second one would end the worker at once, and the kubelet sends one when this returns.
_PRE_STOP: Final = "kill -TERM 1; while kill -0 1 2>/dev/null; do sleep 1; done"


def start_budget_s(facts: PoolFacts) -> int:
    """Longest start: bytes of one pod over the stated rate, and compiling."""
    pod_bytes = facts.fits.weights_bytes / facts.spec.layout.nodes
    return -int(-pod_bytes // facts.spec.start.load_bytes_per_second) + facts.spec.start.compile_seconds


def pod_template(facts: PoolFacts, *, group: int | None = None) -> Manifest:
    """With the pool's podTemplate merged over it. `group`: of which group it is a rank."""
    from_class = facts.gpu_class
    labels = facts.pod_labels
    spec: dict[str, Any] = {
        "serviceAccountName": "default",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": facts.spec.drain.max_seconds + GRACE_MARGIN_S,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(facts, group)],
        "volumes": _volumes(facts),
    }
    if from_class.node_selector:
        spec["nodeSelector"] = dict(from_class.node_selector)
    if from_class.tolerations:
        spec["tolerations"] = [
            {
                name: value
                for name, value in (
                    ("key", each.key),
                    ("operator", each.operator),
                    ("value", each.value),
                    ("effect", each.effect),
                )
                if value is not None
            }
            for each in from_class.tolerations
        ]
    if from_class.runtime_class is not None:
        spec["runtimeClassName"] = from_class.runtime_class
    if from_class.claim_template is not None:
        spec["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": from_class.claim_template}]
    if group is not None:
        labels = {**labels, "ridgeline.dev/group": str(group)}
        spec["affinity"] = {"podAntiAffinity": _apart(facts, group)}
    # Pods roll when the model's revision changes, even where its path stays.
    annotations = {**from_class.annotations, "ridgeline.dev/model-revision": facts.model_revision}
    metadata: dict[str, Any] = {"labels": labels, "annotations": annotations}
    template: Manifest = merged({"metadata": metadata, "spec": spec}, facts.spec.pod_template or {})
    return template


def _apart(facts: PoolFacts, group: int) -> dict[str, Any]:
    """Ranks of a group on nodes of their own."""
    term = {
        "labelSelector": {"matchLabels": {**facts.selector, "ridgeline.dev/group": str(group)}},
        "topologyKey": "kubernetes.io/hostname",
    }
    return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}


def _container(facts: PoolFacts, group: int | None) -> dict[str, Any]:
    add = ["IPC_LOCK"] if facts.gpu_class.fabric.ipc_lock and _over_fabric(facts) else []
    capabilities: dict[str, Any] = {"drop": ["ALL"]}
    if add:
        capabilities["add"] = add
    return {
        "name": "worker",
        "image": facts.spec.image or facts.gpu_class.image,
        "args": worker_arguments(facts),
        "env": _environment(facts, group),
        "ports": [
            {"name": "grpc", "containerPort": GRPC_PORT, "protocol": "TCP"},
            {"name": "status", "containerPort": STATUS_PORT, "protocol": "TCP"},
        ],
        "resources": _resources(facts),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": capabilities,
        },
        "startupProbe": _probe("/readyz", -(-start_budget_s(facts) // PROBE_PERIOD_S)),
        "livenessProbe": _probe("/healthz", 3),
        "readinessProbe": _probe("/readyz", 1),
        "lifecycle": {"preStop": {"exec": {"command": ["/bin/sh", "-c", _PRE_STOP]}}},
        "volumeMounts": _mounts(facts),
    }


def _over_fabric(facts: PoolFacts) -> bool:
    """It moves KV or activations between nodes."""
    return facts.grouped or facts.spec.role is not PoolRole.UNIFIED


def worker_arguments(facts: PoolFacts) -> list[str]:
    """Flags of `python -m ridgeline_worker`."""
    spec, engine = facts.spec, facts.spec.engine
    flags = ["--host", "0.0.0.0", "--port", str(GRPC_PORT), "--metrics-port", str(STATUS_PORT)]
    flags += ["--worker-id", "$(POD_NAME)", "--pool", facts.name, "--model-name", facts.fits.served_name]
    flags += ["--model", _model_folder(facts), "--cache-dir", "/cache"]
    flags += ["--device", "cpu" if facts.gpu_class.on_cpu else "auto"]
    flags += [*_WEIGHT_FLAGS.get(facts.fits.format.weights, ())]
    flags += ["--drain-max-s", str(spec.drain.max_seconds), "--start-timeout-s", str(start_budget_s(facts))]
    flags += ["--policy", engine.policy.value]
    if engine.max_batch is not None:
        flags += ["--max-batch", str(engine.max_batch)]
    if engine.max_context_tokens is not None:
        flags += ["--max-context", str(engine.max_context_tokens)]
    if engine.kv_memory is not None:
        flags += ["--kv-memory", str(quantity_bytes(engine.kv_memory, field="engine.kvMemory"))]
    if engine.ttft_target_seconds is not None:
        flags += ["--ttft-target-ms", f"{engine.ttft_target_seconds * 1000:g}"]
    if engine.tpot_target_seconds is not None:
        flags += ["--tpot-target-ms", f"{engine.tpot_target_seconds * 1000:g}"]
    return flags


def _environment(facts: PoolFacts, group: int | None) -> list[dict[str, Any]]:
    layout = facts.spec.layout
    found: list[dict[str, Any]] = [
        {"name": "POD_NAME", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}},
        {"name": "HOME", "value": "/cache"},
        {
            "name": "RIDGELINE_LAYOUT",
            "value": f"tp={layout.tp},pp={layout.pp},dp={layout.dp},ep={layout.ep},nodes={layout.nodes}",
        },
    ]
    if group is not None:
        name = group_name(facts.name, group)
        leader = f"{name}-0.{name}.{facts.namespace}.svc"
        found.append({"name": "RIDGELINE_GROUP_LEADER", "value": leader})
    return found


def _resources(facts: PoolFacts) -> dict[str, Any]:
    """GPUs and memory are requested and limited alike; cores are requested alone, so that spare ones are used."""
    asked = facts.spec.resources
    memory = quantity_bytes(asked.memory, field="resources.memory")
    memory += quantity_bytes(asked.shared_memory, field="resources.sharedMemory")
    both: dict[str, str] = {"memory": bytes_quantity(memory)}
    if not facts.gpu_class.on_cpu and facts.gpu_class.claim_template is None:
        both[facts.gpu_class.resource_name] = str(facts.spec.layout.gpus_per_node)
    if _over_fabric(facts):
        both |= facts.gpu_class.fabric.resources
        if facts.gpu_class.fabric.hugepages2_mi is not None:
            both["hugepages-2Mi"] = facts.gpu_class.fabric.hugepages2_mi
    found: dict[str, Any] = {
        "requests": {"cpu": cores_quantity(asked.cpu, field="resources.cpu"), **both},
        "limits": both,
    }
    if facts.gpu_class.claim_template is not None:
        found["claims"] = [{"name": "gpus"}]
    return found


def _probe(path: str, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": STATUS_PORT, "scheme": "HTTP"},
        "periodSeconds": PROBE_PERIOD_S,
        "timeoutSeconds": 5,
        "failureThreshold": max(1, failures),
    }


def _model_folder(facts: PoolFacts) -> str:
    source = facts.source.pvc or facts.source.image
    assert source is not None, "admission takes pvc and image alone"
    return f"/models/{source.path}"


def _volumes(facts: PoolFacts) -> list[dict[str, Any]]:
    shared = quantity_bytes(facts.spec.resources.shared_memory, field="resources.sharedMemory")
    if facts.source.pvc is not None:
        claim = {"claimName": facts.source.pvc.claim_name, "readOnly": True}
        models: dict[str, Any] = {"persistentVolumeClaim": claim}
    else:
        assert facts.source.image is not None, "admission takes pvc and image alone"
        models = {"image": {"reference": facts.source.image.reference, "pullPolicy": "IfNotPresent"}}
    return [
        {"name": "models", **models},
        {"name": "cache", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": bytes_quantity(shared)}},
    ]


def _mounts(facts: PoolFacts) -> list[dict[str, Any]]:
    return [
        {"name": "models", "mountPath": "/models", "readOnly": True},
        {"name": "cache", "mountPath": "/cache"},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
