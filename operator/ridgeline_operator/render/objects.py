"""All objects of a pool."""

from ridgeline_operator.render.facts import Manifest, PoolFacts
from ridgeline_operator.render.network import disruption_budget, explanation, network_policy, services
from ridgeline_operator.render.workloads import workloads


def pool_objects(facts: PoolFacts) -> list[Manifest]:
    """In the order in which they are applied: what guards and names pods comes before the pods."""
    return [
        network_policy(facts),
        disruption_budget(facts),
        explanation(facts),
        *services(facts),
        *workloads(facts),
    ]
