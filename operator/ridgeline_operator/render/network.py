"""How pods are found, who may speak to them, and how many may be missing."""

from typing import Any

from ridgeline_operator.render.facts import (
    GROUP_LABEL,
    GRPC_PORT,
    MODEL_LABEL,
    STATUS_PORT,
    Manifest,
    PoolFacts,
    group_name,
)


def services(facts: PoolFacts) -> list[Manifest]:
    """One for all workers of the pool, which the router follows; one a group, through which ranks meet."""
    leaders = {"apps.kubernetes.io/pod-index": "0"} if facts.grouped else {}
    found = [_headless(facts, facts.name, {**facts.selector, **leaders}, not_ready=False)]
    if facts.grouped:
        found += [
            _headless(
                facts,
                group_name(facts.name, group),
                {**facts.selector, GROUP_LABEL: str(group)},
                not_ready=True,
            )
            for group in range(facts.spec.replicas)
        ]
    return found


def _headless(facts: PoolFacts, name: str, selector: dict[str, str], *, not_ready: bool) -> Manifest:
    spec = {
        "clusterIP": "None",
        "selector": selector,
        "publishNotReadyAddresses": not_ready,
        "ports": [
            {"name": "grpc", "port": GRPC_PORT, "targetPort": GRPC_PORT, "protocol": "TCP"},
            {"name": "status", "port": STATUS_PORT, "targetPort": STATUS_PORT, "protocol": "TCP"},
        ],
    }
    return facts.manifest("v1", "Service", name, {"spec": spec})


def network_policy(facts: PoolFacts) -> Manifest:
    """In: gateway and router by gRPC, monitoring, workers of the same model. Out: those workers, and names."""
    peers: dict[str, Any] = {"podSelector": {"matchLabels": {MODEL_LABEL: facts.model_name}}}
    release = {"matchLabels": {"kubernetes.io/metadata.name": facts.release_namespace}}
    parts = {
        "matchLabels": {"app.kubernetes.io/name": "ridgeline"},
        "matchExpressions": [
            {"key": "app.kubernetes.io/component", "operator": "In", "values": ["gateway", "router"]}
        ],
    }
    ingress: list[dict[str, Any]] = [
        {
            "from": [{"namespaceSelector": release, "podSelector": parts}],
            "ports": [{"port": GRPC_PORT, "protocol": "TCP"}],
        },
        {"from": [peers]},
    ]
    if facts.monitoring_namespace_labels:
        monitoring = {"matchLabels": dict(facts.monitoring_namespace_labels)}
        ports = [{"port": STATUS_PORT, "protocol": "TCP"}]
        ingress.append({"from": [{"namespaceSelector": monitoring}], "ports": ports})
    names = {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}
    egress: list[dict[str, Any]] = [
        {"to": [peers]},
        {
            "to": [{"namespaceSelector": names}],
            "ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}],
        },
    ]
    spec = {
        "podSelector": {"matchLabels": facts.selector},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": ingress,
        "egress": egress,
    }
    return facts.manifest("networking.k8s.io/v1", "NetworkPolicy", facts.name, {"spec": spec})


def disruption_budget(facts: PoolFacts) -> Manifest:
    """Whole groups, at least one: a budget that forbids every disruption stops node upgrades for ever."""
    replicas = max(1, facts.spec.update.max_unavailable)
    spec = {
        "maxUnavailable": replicas * facts.spec.layout.nodes,
        "selector": {"matchLabels": facts.selector},
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    return facts.manifest("policy/v1", "PodDisruptionBudget", facts.name, {"spec": spec})


def explanation(facts: PoolFacts) -> Manifest:
    """Ledger and derivations in full, for `kubectl get configmap`; no pod reads it, so it rolls none."""
    working = "\n".join(f"{each.name} = {each.value}: {each.working}" for each in facts.fits.derivations)
    data = {"ledger": facts.fits.ledger, "derivations": working}
    return facts.manifest("v1", "ConfigMap", f"{facts.name}-explain", {"data": data})
