"""The chart: what it renders, and an install on a real API server whose operator works with the rights it got."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ridgeline_contracts.resources.shapes import fields_of
from ridgeline_operator.gpu_classes import GpuClass
from ridgeline_operator.settings import read_settings
from ridgeline_testing.control_plane import ControlPlane, object_path

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "ridgeline"
GOLDEN = Path(__file__).with_name("golden")
RELEASE = "rl"
FIXED = ["--set", "existingSecret=ours"]
"""What the chart would draw at random is given."""


@pytest.fixture(scope="session")
def helm() -> str:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "ridgeline-helm" / "helm"
    found = shutil.which("helm") or (str(cache) if cache.is_file() else None)
    if found is None:
        required = os.environ.get("RIDGELINE_REQUIRE_PROGRAMS") == "1"
        (pytest.fail if required else pytest.skip)("system program missing: helm")
    return found


@pytest.fixture
def template(helm: str) -> Callable[..., list[dict[str, Any]]]:
    def render(*options: str, kube_version: str = "1.37.0") -> list[dict[str, Any]]:
        command = [helm, "template", RELEASE, str(CHART), "--namespace", "ridgeline"]
        command += ["--kube-version", kube_version, *options]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if ended.returncode:
            raise ValueError(ended.stderr)
        return [each for each in yaml.safe_load_all(ended.stdout) if each]

    return render


def _named(objects: list[dict[str, Any]], kind: str, part: str) -> dict[str, Any]:
    name = f"{RELEASE}-{part}"
    return next(each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name))


def test_the_chart_is_linted(helm: str) -> None:
    ended = subprocess.run([helm, "lint", "--strict", str(CHART)], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stdout


@pytest.mark.parametrize("kube_version", ["1.29.0", "1.37.0"])
def test_what_is_rendered_is_what_was_reviewed(template: Any, kube_version: str) -> None:
    golden = [each for each in yaml.safe_load_all((GOLDEN / "chart.yaml").read_text()) if each]
    assert template(*FIXED, kube_version=kube_version) == golden


@pytest.mark.parametrize("part", ["gateway", "router", "operator"])
def test_a_part_takes_every_flag_that_is_rendered(template: Any, part: str) -> None:
    (container,) = _named(template(*FIXED), "Deployment", part)["spec"]["template"]["spec"]["containers"]
    flags = {each.partition("=")[0] for each in container["args"] if each.startswith("--")}
    command = [
        sys.executable,
        "-P",
        "-m",
        f"ridgeline_{part}",
        *(["run"] if part == "operator" else []),
        "--help",
    ]
    told = subprocess.run(command, capture_output=True, text=True, timeout=100).stdout
    assert flags <= set(re.findall(r"--[a-z][a-z-]*", told))


def test_the_operator_reads_the_settings_that_are_rendered(template: Any) -> None:
    held = _named(template(*FIXED), "ConfigMap", "operator")["data"]["settings.yaml"]
    settings = read_settings(yaml.safe_load(held))
    assert settings.release_namespace == "ridgeline"
    assert sorted(settings.gpu_classes) == ["b200", "cpu", "h100"]


def test_the_values_schema_knows_every_field_of_a_gpu_class() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    known = schema["properties"]["gpuClasses"]["additionalProperties"]["properties"]
    assert set(known) == {each.name for each in fields_of(GpuClass)}
    assert set(schema["properties"]) - {"global"} == set(yaml.safe_load((CHART / "values.yaml").read_text()))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        pytest.param(["--set", "gatway.replicas=3"], "gatway", id="misspelt"),
        pytest.param(["--set", "gpuClasses.x.generation=kepler"], "generation", id="generation"),
        pytest.param(["--set", "router.workers={w0}"], "workers", id="worker-without-address"),
    ],
)
def test_a_bad_value_stops_the_install_by_its_name(template: Any, options: list[str], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        template(*FIXED, *options)


def test_under_an_hpa_the_deployment_has_no_replicas(template: Any) -> None:
    objects = template(*FIXED, "--set", "gateway.autoscaling.enabled=true")
    assert "replicas" not in _named(objects, "Deployment", "gateway")["spec"]
    assert _named(objects, "HorizontalPodAutoscaler", "gateway")["spec"]["minReplicas"] == 2


def test_without_redis_there_is_none(template: Any) -> None:
    objects = template(*FIXED, "--set", "redis.enabled=false", "--set", "redis.externalUrlSecret=theirs")
    assert not [each for each in objects if "redis" in each["metadata"]["name"]]
    (container,) = _named(objects, "Deployment", "gateway")["spec"]["template"]["spec"]["containers"]
    (url,) = [each for each in container["env"] if each["name"] == "RIDGELINE_REDIS_URL"]
    assert url["valueFrom"]["secretKeyRef"] == {"name": "theirs", "key": "url"}


def test_the_chart_of_the_crds_adopts_what_is_there_and_leaves_it_behind(
    helm: str, control_plane: ControlPlane
) -> None:
    kubeconfig = ["--kubeconfig", str(control_plane.kubeconfig), "--namespace", "default"]
    chart = str(ROOT / "charts" / "ridgeline-crds")
    for _ in range(2):
        command = [
            helm,
            "upgrade",
            "--install",
            "crds",
            chart,
            "--take-ownership",
            "--force-conflicts",
            *kubeconfig,
        ]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=100)
        assert ended.returncode == 0, ended.stderr
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/workerpools.ridgeline.dev"
    held = control_plane.get(path)
    assert held is not None
    assert held["metadata"]["annotations"]["meta.helm.sh/release-name"] == "crds"
    subprocess.run([helm, "uninstall", "crds", *kubeconfig], check=True, capture_output=True, timeout=100)
    assert control_plane.get(path) is not None, "with the CRDs, every pool would go"


@pytest.fixture
def restricted(control_plane: ControlPlane) -> Iterator[str]:
    """A namespace whose admission takes restricted pods alone."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ridgeline", "labels": labels}}
    control_plane.create(manifest).raise_for_status()
    yield "ridgeline"
    control_plane.client.delete("/api/v1/namespaces/ridgeline")


def test_an_installed_operator_serves_the_examples_with_the_rights_it_got(
    helm: str, cluster: ControlPlane, restricted: str, tmp_path: Path
) -> None:
    kubeconfig = ["--kubeconfig", str(cluster.kubeconfig), "--namespace", restricted]
    install = [helm, "install", RELEASE, str(CHART), "--skip-crds", *kubeconfig]
    ended = subprocess.run(install, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr
    pods = f"/api/v1/namespaces/{restricted}/pods"
    expected = {"gateway": 2, "router": 1, "operator": 2}

    def counts() -> dict[str, int]:
        parts = [each["metadata"]["labels"]["app.kubernetes.io/component"] for each in cluster.items(pods)]
        return {part: parts.count(part) for part in expected}

    cluster.until(lambda: counts() == expected, "pods that the restricted level lets in")

    account = f"/api/v1/namespaces/{restricted}/serviceaccounts/{RELEASE}-operator/token"
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = cluster.client.post(account, json=asked).json()["status"]["token"]
    held = yaml.safe_load(cluster.kubeconfig.read_text())
    held["users"][0]["user"]["token"] = token
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(held))
    config = cluster.get(f"/api/v1/namespaces/{restricted}/configmaps/{RELEASE}-operator")
    assert config is not None
    (tmp_path / "settings.yaml").write_text(config["data"]["settings.yaml"])
    command = [
        sys.executable,
        "-P",
        "-m",
        "ridgeline_operator",
        "run",
        "--config",
        str(tmp_path / "settings.yaml"),
    ]
    log = (tmp_path / "log").open("wb")
    operator = subprocess.Popen(
        [*command, "--status-port", "0"],
        env=os.environ | {"KUBECONFIG": str(tmp_path / "kubeconfig")},
        stdout=log,
        stderr=log,
    )
    try:
        _examples(cluster)
    finally:
        operator.terminate()
        assert operator.wait(timeout=30) == 0
        log.close()
    told = (tmp_path / "log").read_text()
    assert "forbidden" not in told, told[-2000:]
    assert "Traceback" not in told, told[-2000:]

    subprocess.run([helm, "uninstall", RELEASE, *kubeconfig], check=True, capture_output=True, timeout=100)
    cluster.client.delete("/api/v1/namespaces/models")
    left = cluster.items("/apis/apps/v1/deployments", labelSelector=f"app.kubernetes.io/instance={RELEASE}")
    assert left == []


def _examples(cluster: ControlPlane) -> None:
    for name in ("models", "acme"):
        cluster.create(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        ).raise_for_status()
    applied = []
    for path in sorted((ROOT / "docs" / "examples").glob("*.yaml")):
        for manifest in yaml.safe_load_all(path.read_text()):
            answer = cluster.apply(manifest)
            assert answer.is_success, f"{path.name}: {answer.text}"
            applied.append(manifest)
    for manifest in applied:
        if manifest["kind"] == "WorkerPool":
            path = object_path(manifest)
            cluster.until(lambda at=path: _accepted(cluster, at), f"{path} accepted and applied")
    cluster.client.delete("/apis/ridgeline.dev/v1alpha1/tenants/acme").raise_for_status()


def _accepted(cluster: ControlPlane, path: str) -> bool:
    conditions = (cluster.get(path) or {}).get("status", {}).get("conditions", [])
    held = {each["type"]: each["status"] for each in conditions}
    return (held.get("Accepted"), held.get("Applied")) == ("True", "True")
