"""Whether a cluster is ready for the operator: facts in, findings out. No I/O."""

from dataclasses import dataclass

API_GROUP = "ridgeline.dev"
API_VERSION = "v1alpha1"
OLDEST_MINOR = 29
"""Of Kubernetes 1.x: the oldest release that the chart renders for."""


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """What the API server said of itself."""

    major: str
    minor: str
    """May carry a suffix, as in `31+`."""
    served: frozenset[str]
    """`group/version` of every API that it serves."""


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    holds: bool
    message: str


def examine(facts: ClusterFacts) -> tuple[Finding, ...]:
    """One finding a check, in the order in which to mend them."""
    return (_version(facts), _resources(facts))


def _version(facts: ClusterFacts) -> Finding:
    digits = facts.minor.rstrip("+")
    told = f"Kubernetes {facts.major}.{facts.minor}"
    if not digits.isdigit():
        return Finding("kubernetes-version", False, f"{told}: its minor version cannot be read")
    if (int(facts.major), int(digits)) < (1, OLDEST_MINOR):
        return Finding(
            "kubernetes-version", False, f"{told} is too old: upgrade to 1.{OLDEST_MINOR} or newer"
        )
    return Finding("kubernetes-version", True, told)


def _resources(facts: ClusterFacts) -> Finding:
    wanted = f"{API_GROUP}/{API_VERSION}"
    if wanted in facts.served:
        return Finding("custom-resources", True, f"{wanted} is served")
    others = sorted(found for found in facts.served if found.startswith(f"{API_GROUP}/"))
    instead = f"; served instead: {', '.join(others)}" if others else ""
    return Finding(
        "custom-resources",
        False,
        f"{wanted} is not served{instead}: install the custom resource definitions first",
    )
