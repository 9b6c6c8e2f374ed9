"""A good resource of each kind, and many bad ones: made from the schema's bounds, and by hand for each rule."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from ridgeline_contracts.resources.kinds import API_VERSION, KINDS, custom_resource_definition

GOOD: Mapping[str, dict[str, Any]] = {
    "Model": {
        "source": {
            "hf": {"repository": "meta-llama/Llama-3.3-70B", "tokenSecret": {"name": "hf", "key": "token"}}
        },
        "revision": "main",
        "servedName": "llama",
        "catalogueId": "llama-3.3-70b",
        "formats": [
            {
                "generation": "hopper",
                "weights": "fp8",
                "kv": "bf16",
                "gate": {"passed": True, "evidence": "0.1 %"},
            }
        ],
        "adapters": [{"name": "law", "path": "adapters/law", "rank": 16}],
    },
    "WorkerPool": {
        "modelRef": {"name": "llama", "namespace": "models"},
        "gpuClass": "h100",
        "role": "unified",
        "layout": {"tp": 8, "gpusPerNode": 8},
        "replicas": 2,
        "minReplicas": 1,
        "maxReplicas": 4,
        "engine": {"maxBatch": 64, "maxContextTokens": 8192, "kvMemory": "10Gi", "policy": "fair"},
        "resources": {"cpu": "16", "memory": "64Gi", "sharedMemory": "16Gi"},
        "drain": {"maxSeconds": 60},
        "start": {"loadBytesPerSecond": 1000000000, "compileSeconds": 60},
        "update": {"maxSurge": 1, "maxUnavailable": 0},
        "image": "registry.example/worker:1",
    },
    "Tenant": {
        "displayName": "Acme",
        "quota": {"rateTokensPerSecond": 1000, "burstTokens": 100000},
        "kvQuota": {"rateTokenSecondsPerSecond": 1000, "burstTokenSeconds": 100000},
        "limits": {"maxConcurrentRequests": 8, "maxContextTokens": 8192, "maxOutputTokens": 1024},
        "debtCapTokens": 10,
        "weight": 2,
        "requestClass": "interactive",
        "models": ["llama"],
        "trustGroup": "acme",
        "onStoreLoss": "open",
        "allowedNamespaces": ["acme"],
    },
    "TenantKey": {"tenant": "acme", "secretName": "acme-key", "rotation": 1, "overlapSeconds": 60},
}


@dataclass(frozen=True, slots=True)
class Bad:
    """A manifest that is refused, and parts of the message; after `before` was taken, where a change is bad."""

    manifest: dict[str, Any]
    told: tuple[str, ...]
    before: dict[str, Any]


def manifest_of(kind: str, spec: Mapping[str, Any], name: str = "it") -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": copy.deepcopy(spec)}


def sent(source: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    """The manifest in that namespace; a bare spec of GOOD becomes one. A Tenant gets a name of its own."""
    if "kind" not in source:
        kind = next(name for name, spec in GOOD.items() if spec is source)
        source = manifest_of(kind, source)
    manifest = copy.deepcopy(dict(source))
    if manifest["kind"] == "Tenant":
        manifest["metadata"]["name"] += f"-{namespace}"
    else:
        manifest["metadata"]["namespace"] = namespace
    return manifest


def changed(kind: str, path: str, value: Any) -> dict[str, Any]:
    """The good spec with the field at `path` (dots; numbers are places in lists) set; None removes it."""
    spec = copy.deepcopy(GOOD[kind])
    *above, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    holder: Any = spec
    for part in above:
        holder = holder[part] if isinstance(part, int) else holder.setdefault(part, {})
    if value is None:
        del holder[last]
    else:
        holder[last] = value
    return spec


def _bounds(schema: Mapping[str, Any], good: Any, path: str, field: str) -> Iterator[tuple[str, Any, str]]:
    """(path, bad value, what the message names) for each bound of the schema that `good` lies within."""
    for name in schema.get("required", ()):
        yield f"{path}{name}", None, f"{field}.{name}: Required value"
    for name, part in schema.get("properties", {}).items():
        if name not in good:
            continue
        yield from _of_field(part, good[name], f"{path}{name}", f"{field}.{name}")


def _of_field(part: Mapping[str, Any], good: Any, path: str, field: str) -> Iterator[tuple[str, Any, str]]:
    kind = part["type"]
    if kind == "object" and "properties" in part:
        yield path, "text", field
        yield from _bounds(part, good, f"{path}.", field)
        return
    if kind == "array" and "properties" in part["items"]:
        yield from _bounds(part["items"], good[0], f"{path}.0.", f"{field}[0]")
        return
    if "minimum" in part:
        yield path, part["minimum"] - (0 if part.get("exclusiveMinimum") else 1), field
    if "maximum" in part:
        yield path, int(part["maximum"]) + 1, field
    if "enum" in part:
        yield path, "other", field
    if "pattern" in part:
        yield path, "/No Good/", field
    if "maxLength" in part:
        yield path, "x" * (part["maxLength"] + 1), field
    if kind in ("string", "array", "boolean"):
        yield path, 7, field


def _generated() -> Iterator[Any]:
    for kind in KINDS:
        version = custom_resource_definition(kind)["spec"]["versions"][0]
        schema = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
        for path, value, field in _bounds(schema, GOOD[kind.name], "", "spec"):
            spec = changed(kind.name, path, value)
            shown = "missing" if value is None else str(value)[:12].replace("/", "")
            yield pytest.param(
                Bad(manifest_of(kind.name, spec), (field,), {}), id=f"{kind.name}-{path}-{shown}"
            )


_RULES: tuple[tuple[str, str, Any, str], ...] = (
    ("Model", "source.pvc", {"claimName": "c", "path": "p"}, "give exactly one of hf, pvc, image and s3"),
    ("Model", "source", {}, "give exactly one of hf, pvc, image and s3"),
    ("Model", "formats.0.weights", "nvfp4", "weights nvfp4 need generation blackwell"),
    ("Model", "formats.0.generation", "ampere", "weights fp8 need generation ada, hopper or blackwell"),
    ("Model", "formats", [], "spec.formats"),
    ("WorkerPool", "layout.tp", 16, "tp x pp x dp exceeds nodes x gpusPerNode"),
    ("WorkerPool", "layout.gpusPerNode", 0, "gpusPerNode 0 (a CPU class) holds one rank"),
    ("WorkerPool", "layout.nodes", 16, "some nodes would hold no rank"),
    ("WorkerPool", "layout.ep", 3, "ep must divide tp x dp"),
    ("WorkerPool", "minReplicas", 5, "minReplicas exceeds maxReplicas"),
    ("WorkerPool", "minReplicas", 3, "replicas is below minReplicas"),
    ("WorkerPool", "maxReplicas", 1, "replicas is above maxReplicas"),
    ("WorkerPool", "engine.kvMemory", "much", "engine.kvMemory must be a quantity with its unit"),
    ("WorkerPool", "engine.kvMemory", "0", "engine.kvMemory must be more than 0"),
    ("WorkerPool", "resources.memory", "64 GB", "resources.memory must be a quantity with its unit"),
    ("WorkerPool", "resources.sharedMemory", "-1Gi", "resources.sharedMemory must be more than 0"),
    ("WorkerPool", "update.maxSurge", 0, "maxSurge and maxUnavailable are both 0"),
    ("Tenant", "limits.maxOutputTokens", 10000, "maxOutputTokens exceeds maxContextTokens"),
    ("Tenant", "quota", None, "debtCapTokens needs a quota to overdraw"),
)
_FIXED: tuple[tuple[str, str, Any, str], ...] = (
    ("WorkerPool", "modelRef.name", "other", "make a new pool for another Model"),
    ("WorkerPool", "gpuClass", "b200", "make a new pool on the other class"),
    ("WorkerPool", "role", "decode", "role cannot be changed"),
    ("WorkerPool", "layout.nodes", 2, "layout.nodes cannot be changed"),
    ("WorkerPool", "drain.maxSeconds", 61, "drain.maxSeconds cannot be changed"),
    ("TenantKey", "tenant", "other", "make a new TenantKey for another Tenant"),
    ("TenantKey", "secretName", "other", "make a new TenantKey for another Secret"),
    ("TenantKey", "rotation", 0, "rotation only goes up"),
)


def _long_name() -> Any:
    manifest = manifest_of("WorkerPool", GOOD["WorkerPool"], name="p" * 41)
    return pytest.param(Bad(manifest, ("give a shorter plain name",), {}), id="WorkerPool-name-too-long")


BAD_RESOURCES = [
    *_generated(),
    *(
        pytest.param(
            Bad(manifest_of(kind, changed(kind, path, value)), (told,), {}), id=f"{kind}-rule-{path}-{number}"
        )
        for number, (kind, path, value, told) in enumerate(_RULES)
    ),
    _long_name(),
]
BAD_CHANGES = [
    pytest.param(
        Bad(manifest_of(kind, changed(kind, path, value)), (told,), manifest_of(kind, GOOD[kind])),
        id=f"{kind}-{path}",
    )
    for kind, path, value, told in _FIXED
]
