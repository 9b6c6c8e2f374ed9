"""What runs the pods: a Deployment of single-pod replicas, or one StatefulSet a group."""

from ridgeline_operator.render.facts import GROUP_LABEL, Manifest, PoolFacts, group_name
from ridgeline_operator.render.pods import pod_template, start_budget_s

_PROGRESS_MARGIN_S = 600
"""For pulling the image, beyond the start budget, before a Deployment counts as stuck."""


def workloads(facts: PoolFacts) -> list[Manifest]:
    if not facts.grouped:
        return [_deployment(facts)]
    return [_stateful_set(facts, group) for group in range(facts.spec.replicas)]


def _deployment(facts: PoolFacts) -> Manifest:
    spec = {
        "replicas": facts.spec.replicas,
        "selector": {"matchLabels": facts.selector},
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {
                "maxSurge": facts.spec.update.max_surge,
                "maxUnavailable": facts.spec.update.max_unavailable,
            },
        },
        "progressDeadlineSeconds": start_budget_s(facts) + _PROGRESS_MARGIN_S,
        "revisionHistoryLimit": 3,
        "template": pod_template(facts),
    }
    return facts.manifest("apps/v1", "Deployment", facts.name, {"spec": spec})


def _stateful_set(facts: PoolFacts, group: int) -> Manifest:
    """Parallel: ranks wait for each other. OnDelete: a group is replaced whole, by us."""
    name = group_name(facts.name, group)
    spec = {
        "replicas": 0 if group in facts.paused_groups else facts.spec.layout.nodes,
        "serviceName": name,
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "OnDelete"},
        "selector": {"matchLabels": {**facts.selector, GROUP_LABEL: str(group)}},
        "revisionHistoryLimit": 3,
        "template": pod_template(facts, group=group),
    }
    return facts.manifest("apps/v1", "StatefulSet", name, {"spec": spec})
