"""The operator's own process against a real control plane: pools become pods on the right nodes, and stay so."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ridgeline_operator.groups import SAME_START_S
from ridgeline_testing.bad_resources import manifest_of
from ridgeline_testing.control_plane import ControlPlane, object_path
from ridgeline_testing.pools import CLASSES_HELD, LLAMA

LAYOUT = {"tp": 8, "gpusPerNode": 8}
RELEASE = "default"
MODEL = {**LLAMA, "source": {"image": {"reference": "registry.example/llama:1", "path": "llama"}}}
"""In an image, which needs no volume to be bound."""


class OperatorProcess:
    """`python -m ridgeline_operator run`, to be stopped, killed, paused."""

    def __init__(self, plane: ControlPlane, folder: Path, identity: str, *, lease_s: int = 15) -> None:
        config = folder / f"{identity}.yaml"
        classes = {**CLASSES_HELD, "h100": {**CLASSES_HELD["h100"], "runtimeClass": None}}
        classes["h100"].pop("runtimeClass")
        held = {"releaseNamespace": RELEASE, "gpuClasses": classes, "leaseSeconds": lease_s}
        config.write_text(yaml.safe_dump(held))
        self.log = folder / f"{identity}.log"
        command = [sys.executable, "-P", "-m", "ridgeline_operator", "run", "--config", str(config)]
        command += ["--identity", identity, "--status-port", "0"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, env=os.environ | {"KUBECONFIG": str(plane.kubeconfig)}, stdout=log, stderr=log
            )

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=30)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def start_operator(cluster: ControlPlane, tmp_path: Path) -> Iterator[Callable[..., OperatorProcess]]:
    started: list[OperatorProcess] = []

    def start(identity: str = "one", **options: Any) -> OperatorProcess:
        started.append(OperatorProcess(cluster, tmp_path, identity, **options))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.send_signal(signal.SIGCONT)
            each.kill()
        assert "Traceback" not in (text := each.log.read_text()), text[-3000:]
    cluster.client.delete(f"/apis/coordination.k8s.io/v1/namespaces/{RELEASE}/leases/ridgeline-operator")


def _put(plane: ControlPlane, namespace: str, kind: str, spec: Any, name: str) -> dict[str, Any]:
    manifest = manifest_of(kind, spec, name)
    manifest["metadata"]["namespace"] = namespace
    answer = plane.apply(manifest, manager="kubectl")
    assert answer.is_success, answer.text
    found: dict[str, Any] = answer.json()
    return found


def _pool(plane: ControlPlane, namespace: str, name: str = "p", **fields: Any) -> str:
    spec = {"modelRef": {"name": "llama"}, "gpuClass": "h100", "layout": LAYOUT, "replicas": 1, **fields}
    return object_path(_put(plane, namespace, "WorkerPool", spec, name))


def _condition(plane: ControlPlane, path: str, kind: str) -> dict[str, Any]:
    found = (plane.get(path) or {}).get("status", {}).get("conditions", [])
    return next((each for each in found if each["type"] == kind), {})


def _reason(plane: ControlPlane, path: str, reason: str, kind: str = "Ready", **more: Any) -> dict[str, Any]:
    def seen() -> Any:
        found = _condition(plane, path, kind)
        return found if found.get("reason") == reason else None

    try:
        found: dict[str, Any] = plane.until(seen, f"{kind} {reason} of {path}", **more)
    except AssertionError as error:
        raise AssertionError(f"{error}, but {_condition(plane, path, kind)}") from None
    return found


def _pods(plane: ControlPlane, namespace: str, pool: str = "p") -> list[dict[str, Any]]:
    return plane.items(f"/api/v1/namespaces/{namespace}/pods", labelSelector=f"ridgeline.dev/pool={pool}")


def _versions(plane: ControlPlane, paths: list[str]) -> dict[str, str]:
    return {path: plane.get(path)["metadata"]["resourceVersion"] for path in paths}  # type: ignore[index]


def _settled(plane: ControlPlane, paths: list[str]) -> dict[str, str]:
    """Their resourceVersions, once nothing has changed for 3 s."""
    seen: list[tuple[float, dict[str, str]]] = []

    def calm() -> bool:
        now = _versions(plane, paths)
        if not seen or seen[-1][1] != now:
            seen.append((time.monotonic(), now))
        return time.monotonic() - seen[-1][0] > 3

    plane.until(calm, "a calm cluster")
    return seen[-1][1]


def _workload(namespace: str, name: str = "p", kind: str = "deployments") -> str:
    return f"/apis/apps/v1/namespaces/{namespace}/{kind}/{name}"


def test_pools_of_both_generations_land_on_their_nodes_and_are_kept(
    cluster: ControlPlane, namespace: str, start_operator: Callable[..., OperatorProcess]
) -> None:
    operator = start_operator()
    old = _pool(cluster, namespace, "old")
    waits = _reason(cluster, old, "ModelMissing")
    assert "create it, or mend modelRef" in waits["message"]
    model = object_path(_put(cluster, namespace, "Model", MODEL, "llama"))
    new = _pool(cluster, namespace, "new", gpuClass="b200")
    _reason(cluster, old, "AllServing")
    _reason(cluster, new, "AllServing")
    for name, product in (("old", "h100"), ("new", "b200")):
        (pod,) = _pods(cluster, namespace, name)
        assert pod["spec"]["nodeName"].startswith(product)
        assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "8"
    status = cluster.get(old)["status"]  # type: ignore[index]
    assert (status["gpus"], status["readyReplicas"], status["weightsFormat"]) == (8, 1, "fp8")
    assert float(status["capacityReady"]) > 1
    _reason(cluster, model, "Served")

    # A deleted child comes back; a changed one is set back; ours carry neither finalizers nor annotations of Kopf.
    cluster.client.delete(_workload(namespace, "old")).raise_for_status()
    cluster.until(lambda: cluster.get(_workload(namespace, "old")), "the Deployment again")
    service = f"/api/v1/namespaces/{namespace}/services/new"
    cluster.client.delete(service).raise_for_status()
    cluster.until(lambda: cluster.get(service), "the Service again")
    metadata = cluster.get(new)["metadata"]  # type: ignore[index]
    assert "finalizers" not in metadata
    assert "annotations" not in metadata

    # Scaling, with its bound by nodes told by class and number.
    patch: Any = {"headers": {"Content-Type": "application/merge-patch+json"}}
    cluster.client.patch(f"{new}/scale", json={"spec": {"replicas": 3}}, **patch).raise_for_status()
    told = "2 of 3 replicas serve: 1 pods of class b200 (8 GPUs each) have no node"
    cluster.until(lambda: _condition(cluster, new, "Ready").get("message", "").startswith(told), told)
    assert _condition(cluster, new, "Ready")["reason"] == "NoNodeFree"
    scale = cluster.get(f"{new}/scale")
    assert scale is not None
    assert scale["status"] == {"replicas": 3, "selector": "ridgeline.dev/pool=new"}
    assert operator.end() == 0


def test_a_refused_spec_changes_nothing_and_the_last_accepted_one_is_healed(
    cluster: ControlPlane, namespace: str, start_operator: Callable[..., OperatorProcess]
) -> None:
    first = start_operator()
    _put(cluster, namespace, "Model", MODEL, "llama")
    pool = _pool(cluster, namespace)
    _reason(cluster, pool, "AllServing")
    _pool(cluster, namespace, layout={"tp": 5, "gpusPerNode": 8})
    refused = _reason(cluster, pool, "LayoutImpossible", kind="Accepted")
    assert "tp=5 does not divide the 64 query heads" in refused["message"]
    assert _condition(cluster, pool, "Ready")["status"] == "True"
    first.kill()
    cluster.client.delete(_workload(namespace)).raise_for_status()
    cluster.until(lambda: not cluster.get(_workload(namespace)), "the Deployment gone")
    cluster.client.delete(f"/apis/coordination.k8s.io/v1/namespaces/{RELEASE}/leases/ridgeline-operator")
    start_operator("two")
    found = cluster.until(lambda: cluster.get(_workload(namespace)), "the Deployment again")
    (container,) = found["spec"]["template"]["spec"]["containers"]
    assert {"name": "RIDGELINE_LAYOUT", "value": "tp=8,pp=1,dp=1,ep=1,nodes=1"} in container["env"]


@pytest.mark.long
def test_faults_are_named_and_end_when_their_cause_ends(
    cluster: ControlPlane, namespace: str, start_operator: Callable[..., OperatorProcess]
) -> None:
    start_operator()
    _put(cluster, namespace, "Model", MODEL, "llama")
    image = {"metadata": {"annotations": {"test/fate": "image"}}}
    pool = _pool(cluster, namespace, podTemplate=image)
    assert "registry.example/worker-cuda:1" in _reason(cluster, pool, "ImageUnavailable")["message"]
    _pool(cluster, namespace, podTemplate={"metadata": {"annotations": {"test/fate": "crash"}}})
    crash = _reason(cluster, pool, "CrashLooping")["message"]
    assert "last with exit code 1" in crash
    _pool(cluster, namespace, podTemplate={})
    _reason(cluster, pool, "AllServing")

    # A field that another manager took is named, and taken back once that one gives it up.
    theirs = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "p", "namespace": namespace},
    }
    theirs["spec"] = {"revisionHistoryLimit": 9}
    assert cluster.apply(theirs, manager="somebody").is_success
    owned = _reason(cluster, pool, "FieldOwnedByOther", kind="Applied")
    assert '"somebody"' in owned["message"]
    del theirs["spec"]
    assert cluster.apply(theirs, manager="somebody").is_success
    _reason(cluster, pool, "AsPlanned", kind="Applied")

    # A namespace's quota.
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": namespace}}
    quota["spec"] = {"hard": {"pods": "1"}}
    assert cluster.create(quota).is_success
    _pool(cluster, namespace, podTemplate={}, replicas=2)
    assert "exceeded quota" in _reason(cluster, pool, "PodsRefused")["message"]
    cluster.client.delete(object_path(quota)).raise_for_status()
    cluster.client.delete(_workload(namespace)).raise_for_status()
    _reason(cluster, pool, "AllServing")


@pytest.mark.long
def test_the_api_server_may_go_away_and_twenty_pools_converge(
    cluster: ControlPlane, namespace: str, start_operator: Callable[..., OperatorProcess]
) -> None:
    operator = start_operator(lease_s=30)
    _put(cluster, namespace, "Model", MODEL, "llama")
    first = _pool(cluster, namespace, "first")
    _reason(cluster, first, "AllServing")
    cluster.stop_api_server()
    cluster.start_api_server()
    pools = [
        _pool(
            cluster,
            namespace,
            f"p{number}",
            layout={"tp": 1, "gpusPerNode": 1},
            engine={"maxContextTokens": 4096},
        )
        for number in range(20)
    ]
    for each in pools:
        cluster.until(lambda path=each: _condition(cluster, path, "Accepted").get("status") == "True", each)
    assert operator.process.poll() is None

    # Level and calm: nothing is written again while nothing changes.
    before = _settled(cluster, pools)
    operator.end()
    again = start_operator("two")
    cluster.until(lambda: "leading" in again.log.read_text(), "the second one leads")
    cluster.client.delete(_workload(namespace, "p19")).raise_for_status()
    cluster.until(lambda: cluster.get(_workload(namespace, "p19")), "resync has come to the last pool")
    assert _versions(cluster, pools[:-1]) == {each: before[each] for each in pools[:-1]}


@pytest.mark.long
def test_a_group_over_two_nodes_is_scheduled_and_recreated_whole(
    cluster: ControlPlane, namespace: str, start_operator: Callable[..., OperatorProcess]
) -> None:
    start_operator()
    _put(cluster, namespace, "Model", MODEL, "llama")
    layout = {"tp": 8, "pp": 2, "nodes": 2, "gpusPerNode": 8}
    pool = _pool(cluster, namespace, layout=layout)
    _reason(cluster, pool, "AllServing")
    ranks = {pod["metadata"]["name"]: pod for pod in _pods(cluster, namespace)}
    assert sorted(ranks) == ["p-g0-0", "p-g0-1"]
    assert {pod["spec"]["nodeName"] for pod in ranks.values()} == {"h100-0", "h100-1"}
    scale = cluster.get(f"{pool}/scale")
    assert scale is not None
    selector = scale["status"]["selector"]
    leaders = cluster.items(f"/api/v1/namespaces/{namespace}/pods", labelSelector=selector)
    assert [each["metadata"]["name"] for each in leaders] == ["p-g0-0"]

    # Ranks that were made within 5 s count as made together.
    time.sleep(SAME_START_S + 1)
    cluster.client.delete(f"/api/v1/namespaces/{namespace}/pods/p-g0-1").raise_for_status()
    before = {pod["metadata"]["uid"] for pod in ranks.values()}

    def renewed() -> bool:
        now = {pod["metadata"]["uid"] for pod in _pods(cluster, namespace)}
        return len(now) == 2 and not now & before

    cluster.until(renewed, "both ranks anew")
    _reason(cluster, pool, "AllServing")

    # A changed template: the group is replaced whole, though its StatefulSet never does so by itself.
    before = {pod["metadata"]["uid"] for pod in _pods(cluster, namespace)}
    _pool(cluster, namespace, layout=layout, engine={"maxBatch": 7})
    cluster.until(renewed, "both ranks of the new template")
    arguments = [pod["spec"]["containers"][0]["args"] for pod in _pods(cluster, namespace)]
    assert all("7" in each[each.index("--max-batch") + 1] for each in arguments)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_of_two_groups_on_three_nodes_one_serves_and_the_other_gives_its_gpus_back(
    cluster: ControlPlane, namespace: str, start_operator: Callable[..., OperatorProcess]
) -> None:
    cluster.node("h100-2", gpus=8, product="NVIDIA-H100-80GB-HBM3", taint="nvidia.com/gpu")
    try:
        start_operator()
        _put(cluster, namespace, "Model", MODEL, "llama")
        layout = {"tp": 8, "pp": 2, "nodes": 2, "gpusPerNode": 8}
        pool = _pool(cluster, namespace, layout=layout, replicas=2)
        told = "1 of 2 replicas serve: 1 pods of class h100 (8 GPUs each) have no node"
        cluster.until(lambda: _condition(cluster, pool, "Ready").get("message", "").startswith(told), told)

        def held() -> int:
            return sum("nodeName" in pod["spec"] for pod in _pods(cluster, namespace))

        assert held() == 3
        cluster.until(lambda: held() == 2, "the partial group to hold no GPU", within_s=80)
        assert (cluster.get(pool) or {})["status"]["readyReplicas"] == 1
        # More nodes: the next try finds them.
        cluster.node("h100-3", gpus=8, product="NVIDIA-H100-80GB-HBM3", taint="nvidia.com/gpu")
        _reason(cluster, pool, "AllServing", within_s=60)
    finally:
        for name in ("h100-2", "h100-3"):
            cluster.client.delete(f"/api/v1/nodes/{name}")


@pytest.mark.long
@pytest.mark.timeout(200)
def test_a_leader_that_was_stopped_past_its_lease_writes_nothing_more(
    cluster: ControlPlane, namespace: str, start_operator: Callable[..., OperatorProcess]
) -> None:
    rounds = 3
    _put(cluster, namespace, "Model", MODEL, "llama")
    pool = _pool(cluster, namespace, layout={"tp": 1, "gpusPerNode": 1}, engine={"maxContextTokens": 4096})
    leader = start_operator("op-0", lease_s=3)
    cluster.until(lambda: "leading" in leader.log.read_text(), "a leader")
    for number in range(1, rounds + 1):
        successor = start_operator(f"op-{number}", lease_s=3)
        leader.process.send_signal(signal.SIGSTOP)
        # Work that both would do.
        cluster.client.delete(_workload(namespace))
        cluster.until(lambda now=successor: "leading" in now.log.read_text(), "a successor")
        cluster.until(lambda: cluster.get(_workload(namespace)), "the Deployment again")
        leader.process.send_signal(signal.SIGCONT)
        assert leader.process.wait(timeout=30) == 1, "it ends by itself"
        leader = successor
    _reason(cluster, pool, "AllServing")
    # What was on its way when a leader was stopped may arrive late; against what its successor wrote it is refused.
    writes = [json.loads(line) for line in cluster.audit_log.read_text().splitlines()]
    taken = [
        each
        for each in writes
        if "/op-" in each.get("userAgent", "") and each["responseStatus"]["code"] < 400
    ]
    by_object: dict[str, list[int]] = {}
    for each in sorted(taken, key=lambda each: str(each["stageTimestamp"])):
        path = each["requestURI"].partition("?")[0].removesuffix("/status")
        by_object.setdefault(path, []).append(int(each["userAgent"].rpartition("-")[2]))
    for path, order in by_object.items():
        assert order == sorted(order), f"an old leader changed {path} after its successor did"
    assert {number for order in by_object.values() for number in order} == set(range(rounds + 1))
