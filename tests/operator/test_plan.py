"""What is rendered for a pool, and what must be done to reach it."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from ridgeline_operator.plan import Apply, Delete, plan
from ridgeline_operator.quantities import bytes_quantity, cores_quantity, quantity_bytes
from ridgeline_operator.render.objects import pool_objects
from ridgeline_operator.render.pods import worker_arguments
from ridgeline_testing.control_plane import ControlPlane, object_path
from ridgeline_testing.pools import SMALL, model_spec, pool_facts, pool_spec
from ridgeline_worker.flags import parse_flags

GOLDEN = Path(__file__).with_name("golden")
CPU = {"gpuClass": "cpu", "layout": {"gpusPerNode": 0}, "resources": {"cpu": "1500m", "memory": "4Gi"}}
POOLS = {
    "single-node": (pool_spec(), model_spec()),
    "two-nodes": (
        pool_spec(
            layout={"tp": 4, "pp": 2, "nodes": 2, "gpusPerNode": 4},
            podTemplate={"spec": {"priorityClassName": "serving"}},
        ),
        model_spec(),
    ),
    "decode-b200": (
        pool_spec(gpuClass="b200", role="decode", engine={"kvMemory": "20Gi", "ttftTargetSeconds": 0.5}),
        model_spec(),
    ),
    "cpu": (pool_spec(**CPU), model_spec(SMALL)),
}


def _facts(name: str, **identity: str) -> Any:
    pool, model = POOLS[name]
    return pool_facts(pool, model, **identity)


def _of(objects: Any, kind: str) -> list[dict[str, Any]]:
    return [each for each in objects if each["kind"] == kind]


def _pod(name: str) -> dict[str, Any]:
    objects = pool_objects(_facts(name))
    (first, *_) = _of(objects, "Deployment") + _of(objects, "StatefulSet")
    found: dict[str, Any] = first["spec"]["template"]
    return found


@pytest.mark.parametrize("name", POOLS)
def test_what_is_rendered_is_what_was_reviewed(name: str) -> None:
    """Written anew by hand: tests/operator/golden/NAME.yaml, after reading the difference."""
    golden = list(yaml.safe_load_all((GOLDEN / f"{name}.yaml").read_text()))
    assert pool_objects(_facts(name)) == golden


@pytest.mark.parametrize("name", POOLS)
def test_the_worker_takes_every_flag_that_is_rendered(name: str) -> None:
    arguments = [each.replace("$(POD_NAME)", "w0") for each in worker_arguments(_facts(name))]
    settings = parse_flags(arguments, default_worker_id="w0", default_threads=4)
    assert settings.serving.pool == "p"


def test_shared_memory_counts_in_the_memory_limit() -> None:
    (container,) = _pod("single-node")["spec"]["containers"]
    assert container["resources"]["limits"]["memory"] == "72Gi"
    (shm,) = [each for each in _pod("single-node")["spec"]["volumes"] if each["name"] == "shm"]
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}


def test_the_start_budget_follows_bytes_and_rate() -> None:
    (container,) = _pod("single-node")["spec"]["containers"]
    probe = container["startupProbe"]
    budget_s = probe["periodSeconds"] * probe["failureThreshold"]
    assert 70.55e9 / 5e8 + 600 < budget_s < 75e9 / 5e8 + 600 + probe["periodSeconds"]


@pytest.mark.parametrize(
    ("name", "locked", "fabric"),
    [
        pytest.param("single-node", False, False, id="one-node"),
        pytest.param("two-nodes", True, True, id="over-nodes"),
        pytest.param("decode-b200", False, False, id="class-without-rdma"),
    ],
)
def test_memory_may_be_locked_only_where_rdma_needs_it(name: str, locked: bool, fabric: bool) -> None:
    (container,) = _pod(name)["spec"]["containers"]
    assert ("add" in container["securityContext"]["capabilities"]) is locked
    assert ("rdma/hca" in container["resources"]["limits"]) is fabric


def test_a_group_is_one_stateful_set_whose_ranks_find_each_other() -> None:
    objects = pool_objects(_facts("two-nodes"))
    sets = _of(objects, "StatefulSet")
    assert [each["metadata"]["name"] for each in sets] == ["p-g0", "p-g1"]
    for each in sets:
        assert each["spec"]["podManagementPolicy"] == "Parallel"
        assert each["spec"]["updateStrategy"] == {"type": "OnDelete"}
        (service,) = [
            s for s in _of(objects, "Service") if s["metadata"]["name"] == each["spec"]["serviceName"]
        ]
        assert service["spec"]["publishNotReadyAddresses"] is True
        assert (
            each["spec"]["selector"]["matchLabels"].items()
            <= each["spec"]["template"]["metadata"]["labels"].items()
        )


def test_a_budget_counts_whole_groups_and_never_forbids_all() -> None:
    budgets = {name: _of(pool_objects(_facts(name)), "PodDisruptionBudget")[0]["spec"] for name in POOLS}
    assert {name: each["maxUnavailable"] for name, each in budgets.items()} == {
        "single-node": 1,
        "two-nodes": 2,
        "decode-b200": 1,
        "cpu": 1,
    }
    assert {each["unhealthyPodEvictionPolicy"] for each in budgets.values()} == {"AlwaysAllow"}


def test_a_pod_template_is_merged_by_names() -> None:
    over = {
        "metadata": {"annotations": {"a": "b"}},
        "spec": {
            "containers": [{"name": "worker", "env": [{"name": "HOME", "value": "/h"}]}, {"name": "side"}],
            "tolerations": None,
        },
    }
    objects = pool_objects(pool_facts(pool_spec(podTemplate=over)))
    template = _of(objects, "Deployment")[0]["spec"]["template"]
    worker, side = template["spec"]["containers"]
    assert side == {"name": "side"}
    assert {each["name"]: each.get("value") for each in worker["env"]}["HOME"] == "/h"
    assert len(worker["env"]) == 3
    assert "tolerations" not in template["spec"]
    assert template["metadata"]["annotations"] == {"a": "b", "ridgeline.dev/model-revision": "r1"}


def test_what_is_missing_is_applied_and_what_is_left_over_is_deleted() -> None:
    objects = pool_objects(_facts("two-nodes"))
    fewer = pool_objects(
        pool_facts(pool_spec(layout={"tp": 4, "pp": 2, "nodes": 2, "gpusPerNode": 4}, replicas=1))
    )
    actions = plan(fewer, [each.manifest for each in plan(objects, []) if isinstance(each, Apply)])
    assert sorted(each.ref[1:] for each in actions if isinstance(each, Delete)) == [
        ("Service", "models", "p-g1"),
        ("StatefulSet", "models", "p-g1"),
    ]


def _stored(manifest: dict[str, Any]) -> dict[str, Any]:
    """As an API server would hold it: with more fields than were sent."""
    held = copy.deepcopy(manifest)
    held["metadata"] |= {"resourceVersion": "7", "uid": "u"}
    held.setdefault("status", {})["observedGeneration"] = 1
    return held


@given(st.integers(0, 4), st.integers(1, 3), st.sampled_from([1, 2]), st.booleans())
def test_planning_again_does_nothing(replicas: int, surge: int, nodes: int, shared: bool) -> None:
    pool = pool_spec(
        replicas=replicas,
        update={"maxSurge": surge},
        layout={"tp": 8 // nodes, "pp": nodes, "nodes": nodes, "gpusPerNode": 8 // nodes},
        resources={"sharedMemory": "3Gi" if shared else "1536Mi"},
    )
    objects = pool_objects(pool_facts(pool))
    actions = plan(objects, [])
    applied = [_stored(each.manifest) for each in actions if isinstance(each, Apply)]
    assert len(applied) == len(objects)
    assert plan(objects, applied) == []


@given(st.data())
def test_any_field_that_somebody_changes_is_set_back(data: st.DataObject) -> None:
    objects = pool_objects(_facts("single-node"))
    applied = [_stored(each.manifest) for each in plan(objects, []) if isinstance(each, Apply)]
    victim = data.draw(st.sampled_from(applied))
    holder = victim
    while True:
        key = data.draw(
            st.sampled_from(sorted(key for key in holder if key not in ("status", "resourceVersion", "uid")))
        )
        if not (isinstance(holder[key], dict) and holder[key]):
            break
        holder = holder[key]
    if key in ("apiVersion", "kind", "name", "namespace") and holder in (victim, victim["metadata"]):
        return
    if holder[key] in (None, False, [], {}):
        return
    holder[key] = "another"
    (action,) = plan(objects, applied)
    assert isinstance(action, Apply)
    assert action.resource_version == "7"


@pytest.mark.parametrize("name", POOLS)
def test_a_real_api_server_holds_what_was_planned(
    control_plane: ControlPlane, namespace: str, name: str
) -> None:
    objects = pool_objects(_facts(name, namespace=namespace, uid="11111111-2222-3333-4444-555555555555"))
    stored = []
    for action in plan(objects, []):
        assert isinstance(action, Apply)
        answer = control_plane.apply(action.manifest, manager="ridgeline-operator")
        assert answer.status_code == 201, answer.text
        stored.append(
            {**answer.json(), "apiVersion": action.manifest["apiVersion"], "kind": action.manifest["kind"]}
        )
    assert plan(objects, stored) == []
    for each in objects:
        # The garbage collector, where it runs, may be quicker: the owner does not exist.
        control_plane.client.delete(object_path(each))


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("16Gi", 16 * 2**30), ("1.5Gi", 3 * 2**29), ("1e3", 1000), ("2k", 2000), ("100m", 1), (".5Ki", 512)],
)
def test_a_quantity_is_read_as_kubernetes_reads_it(text: str, size_bytes: int) -> None:
    assert quantity_bytes(text, field="f") == size_bytes


@pytest.mark.parametrize(("size_bytes", "text"), [(2**34, "16Gi"), (3 * 2**29, "1536Mi"), (1000, "1000")])
def test_bytes_are_written_as_the_api_server_would(size_bytes: int, text: str) -> None:
    assert bytes_quantity(size_bytes) == text
    assert cores_quantity("1500m", field="f") == "1500m"
    assert cores_quantity("2.0", field="f") == "2"
