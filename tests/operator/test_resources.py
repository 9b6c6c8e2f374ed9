"""The custom resources: made from the typed classes, taken by a real API server, and strict."""

from pathlib import Path
from typing import Any

import pytest
from ridgeline_contracts.errors import InvalidRequest
from ridgeline_contracts.resources.files import resource_files
from ridgeline_contracts.resources.kinds import KINDS, WORKER_POOL
from ridgeline_contracts.resources.shapes import from_object, to_object
from ridgeline_contracts.resources.worker_pool import Layout, WorkerPoolSpec
from ridgeline_testing.bad_resources import BAD_CHANGES, BAD_RESOURCES, GOOD, sent
from ridgeline_testing.control_plane import ControlPlane, object_path

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", resource_files())
def test_the_committed_files_are_those_that_the_types_make(name: str) -> None:
    assert (ROOT / name).read_text() == resource_files()[name], "run `make resources`"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_good_resource_is_taken_and_read_back_as_its_type(
    control_plane: ControlPlane, namespace: str, kind: Any
) -> None:
    manifest = sent(GOOD[kind.name], namespace)
    answer = control_plane.apply(manifest)
    assert answer.status_code == 201, answer.text
    stored = answer.json()["spec"]
    spec = from_object(kind.spec, stored)
    assert spec == from_object(kind.spec, manifest["spec"]), "the API server's defaults are the type's"
    assert to_object(spec) == stored
    control_plane.client.delete(object_path(manifest)).raise_for_status()


def test_there_are_a_hundred_bad_resources() -> None:
    assert len(BAD_RESOURCES) >= 100


@pytest.mark.parametrize("bad", BAD_RESOURCES)
def test_a_bad_resource_is_refused_with_the_field_and_the_fix(control_plane: ControlPlane, bad: Any) -> None:
    answer = control_plane.create(sent(bad.manifest, "default"))
    assert answer.status_code == 422, answer.text
    message = answer.json()["message"]
    for part in bad.told:
        assert part in message


@pytest.mark.parametrize("change", BAD_CHANGES)
def test_a_change_of_what_is_fixed_is_refused(
    control_plane: ControlPlane, namespace: str, change: Any
) -> None:
    first = control_plane.apply(sent(change.before, namespace))
    assert first.status_code == 201, first.text
    answer = control_plane.apply(sent(change.manifest, namespace))
    assert answer.status_code == 422, answer.text
    for part in change.told:
        assert part in answer.json()["message"]
    control_plane.client.delete(object_path(sent(change.before, namespace))).raise_for_status()


def test_scaling_goes_through_the_scale_subresource_and_is_bounded(
    control_plane: ControlPlane, namespace: str
) -> None:
    manifest = sent(GOOD["WorkerPool"], namespace)
    manifest["spec"] |= {"replicas": 2, "maxReplicas": 3}
    assert control_plane.apply(manifest).status_code == 201
    path = f"{object_path(manifest)}/scale"
    patch = {"headers": {"Content-Type": "application/merge-patch+json"}}
    taken = control_plane.client.patch(path, json={"spec": {"replicas": 3}}, **patch)
    assert taken.json()["spec"]["replicas"] == 3
    refused = control_plane.client.patch(path, json={"spec": {"replicas": 4}}, **patch)
    assert refused.status_code == 422
    assert "raise maxReplicas" in refused.json()["message"]


def test_a_table_shows_whether_a_pool_serves_and_why_not(control_plane: ControlPlane, namespace: str) -> None:
    manifest = sent(GOOD["WorkerPool"], namespace)
    assert control_plane.apply(manifest).status_code == 201
    table = control_plane.client.get(
        object_path(manifest), headers={"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    ).json()
    named = ["Name", *(column.name for column in WORKER_POOL.columns)]
    assert [column["name"] for column in table["columnDefinitions"]] == named


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        pytest.param({"gpuClass": "h100"}, r"spec\.modelRef is missing", id="missing"),
        pytest.param({"modelRef": {"name": "m"}, "gpuClass": 3}, r"spec\.gpuClass=3 is not", id="type"),
        pytest.param(
            {"modelRef": {"name": "m"}, "gpuClass": "a", "role": "both"},
            r"spec\.role='both': give one of unified",
            id="word",
        ),
        pytest.param(
            {"modelRef": {"name": "m"}, "gpuClass": "a", "layout": {"tp": True}},
            r"spec\.layout\.tp=True is not of type int",
            id="bool-is-no-int",
        ),
    ],
)
def test_a_resource_of_another_versions_crd_is_refused_by_its_field(spec: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        from_object(WorkerPoolSpec, spec)


def test_an_absent_field_takes_the_types_default() -> None:
    spec = from_object(WorkerPoolSpec, {"modelRef": {"name": "m"}, "gpuClass": "a"})
    assert spec == WorkerPoolSpec(spec.model_ref, "a")
    assert spec.layout == Layout()
