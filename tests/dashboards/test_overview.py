"""The dashboard asks only for what the components export."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from ridgeline_gateway.metrics import GatewayMetrics
from ridgeline_router.metrics import RouterMetrics
from ridgeline_worker.metrics import WorkerMetrics

DASHBOARD = Path(__file__).parents[2] / "dashboards" / "overview.json"
PANELS: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]


def _exported(registry: CollectorRegistry) -> dict[str, set[str]]:
    """Series by name, with the labels that they can be grouped by."""
    found: dict[str, set[str]] = {}
    for collector, names in registry._collector_to_names.items():
        labels = set(getattr(collector, "_labelnames", ()))
        found |= {name: labels | ({"le"} if name.endswith("_bucket") else set()) for name in names}
    return found


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    registries = [GatewayMetrics().registry, RouterMetrics().registry, WorkerMetrics().registry]
    return {name: labels for registry in registries for name, labels in _exported(registry).items()}


@pytest.mark.parametrize("panel", [pytest.param(panel, id=panel["title"]) for panel in PANELS])
def test_a_panel_has_a_unit_and_asks_for_exported_series_and_labels(
    panel: dict[str, Any], exported: dict[str, set[str]]
) -> None:
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["description"]
    for target in panel["targets"]:
        names = re.findall(r"ridgeline_\w+", target["expr"])
        assert names, target
        grouped = {
            label for found in re.findall(r"by \(([\w, ]+)\)", target["expr"]) for label in found.split(", ")
        }
        for name in names:
            assert name in exported, name
            assert grouped <= exported[name], (name, grouped)


def test_panels_do_not_share_an_id() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS) == 8
