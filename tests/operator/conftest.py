import os
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from ridgeline_contracts.resources.kinds import KINDS, custom_resource_definition
from ridgeline_testing.control_plane import ControlPlane, programs_folder

MISSING = "system program missing: kube-apiserver"


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A real API server that serves our resources."""
    programs = programs_folder()
    if programs is None:
        stop: Callable[[str], Any] = (
            pytest.fail if os.environ.get("RIDGELINE_REQUIRE_PROGRAMS") == "1" else pytest.skip
        )
        stop(MISSING)
    assert programs is not None
    plane = ControlPlane(programs, tmp_path_factory.mktemp("kube"))
    try:
        plane.start()
        for kind in KINDS:
            answer = plane.apply(custom_resource_definition(kind))
            assert answer.status_code == 201, answer.text
        for kind in KINDS:
            plane.until(
                lambda path=kind.api_path: plane.client.get(path).status_code == 200, f"{kind.name} served"
            )
        yield plane
    finally:
        plane.stop()


@pytest.fixture(scope="session")
def cluster(control_plane: ControlPlane) -> ControlPlane:
    """The same, with controllers, scheduler and simulated nodes of two generations."""
    control_plane.start_controllers()
    for number in range(2):
        control_plane.node(f"h100-{number}", gpus=8, product="NVIDIA-H100-80GB-HBM3", taint="nvidia.com/gpu")
        control_plane.node(f"b200-{number}", gpus=8, product="NVIDIA-B200", taint="nvidia.com/gpu")
    control_plane.node("cpu-0", gpus=0, product="none")
    return control_plane


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    name = f"t-{uuid.uuid4().hex[:8]}"
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    control_plane.client.post("/api/v1/namespaces", json=manifest).raise_for_status()
    yield name
    control_plane.client.delete(f"/api/v1/namespaces/{name}")
