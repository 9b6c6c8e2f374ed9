"""A real Kubernetes control plane on loopback: etcd, API server, and on demand controllers, scheduler and kwok."""

import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import yaml

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok")
_STAGES = Path(__file__).with_name("kwok_stages.yaml")
_START_S = 60.0


def programs_folder() -> Path | None:
    """KUBEBUILDER_ASSETS, else the cache that `.ci/run` unpacks into, else PATH; None where one is missing."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "ridgeline-kube"
    named = os.environ.get("KUBEBUILDER_ASSETS")
    candidates = [Path(named)] if named else [cache]
    on_path = shutil.which("kube-apiserver")
    candidates += [Path(on_path).parent] if on_path else []
    for folder in candidates:
        if all(os.access(folder / program, os.X_OK) for program in PROGRAMS):
            return folder
    return None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class ControlPlane:
    """Every program is a child that `stop` ends. Nothing is kept between two of them."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs = programs
        self._folder = folder
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._etcd_port, self._peer_port, self._port = _free_port(), _free_port(), _free_port()
        self.token = secrets.token_hex(16)
        self.url = f"https://127.0.0.1:{self._port}"
        self.audit_log = folder / "audit.log"
        self.client = httpx.Client(
            base_url=self.url, verify=False, headers={"Authorization": f"Bearer {self.token}"}, timeout=30.0
        )

    @property
    def kubeconfig(self) -> Path:
        return self._folder / "kubeconfig"

    def start(self) -> None:
        """etcd and the API server; returns once it is ready."""
        (self._folder / "tokens.csv").write_text(f"{self.token},admin,admin,system:masters\n")
        key = self._folder / "sa.key"
        subprocess.run(
            ["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True, timeout=60
        )
        self.kubeconfig.write_text(yaml.safe_dump(self._kubeconfig()))
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{self._peer_port}"
        self._run(
            *("etcd", "--data-dir", str(self._folder / "etcd"), "--unsafe-no-fsync"),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"default={peer}"),
        )
        self.start_api_server()

    def start_api_server(self) -> None:
        key = str(self._folder / "sa.key")
        policy = self._folder / "audit.yaml"
        policy.write_text(
            "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\n"
            "rules: [{level: Metadata, verbs: [create, update, patch, delete]}]\n"
        )
        self._run(
            *("kube-apiserver", "--etcd-servers", f"http://127.0.0.1:{self._etcd_port}"),
            *("--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1"),
            *("--secure-port", str(self._port), "--cert-dir", str(self._folder / "certs")),
            *("--authorization-mode", "RBAC", "--token-auth-file", str(self._folder / "tokens.csv")),
            *("--service-cluster-ip-range", "10.96.0.0/16", "--endpoint-reconciler-type", "none"),
            *("--service-account-issuer", "https://kubernetes.default.svc"),
            *("--service-account-key-file", key, "--service-account-signing-key-file", key),
            *("--audit-policy-file", str(policy), "--audit-log-path", str(self.audit_log)),
        )
        self._wait("the API server", lambda: self.client.get("/readyz").status_code == 200)

    def start_controllers(self) -> None:
        """Controller-manager, scheduler and simulated nodes."""
        config = str(self.kubeconfig)
        self._run(
            *("kube-controller-manager", "--kubeconfig", config, "--bind-address", "127.0.0.1"),
            *("--secure-port", str(_free_port()), "--cert-dir", str(self._folder / "certs-cm")),
            *("--service-account-private-key-file", str(self._folder / "sa.key")),
            *("--use-service-account-credentials", "--leader-elect=false"),
        )
        self._run(
            *("kube-scheduler", "--kubeconfig", config, "--bind-address", "127.0.0.1"),
            *("--secure-port", str(_free_port()), "--cert-dir", str(self._folder / "certs-sc")),
            "--leader-elect=false",
        )
        self._run(
            *("kwok", "--kubeconfig", config, "--manage-all-nodes", "--config", str(_STAGES)),
            *("--server-address", f"127.0.0.1:{_free_port()}"),
            # Without a lease a node counts as lost after 40 s, and its pods as not ready.
            *("--node-lease-duration-seconds", "40"),
        )

    def stop_api_server(self) -> None:
        """At once, as a crash would."""
        child = self._children.pop("kube-apiserver")
        child.kill()
        child.wait()

    def stop(self) -> None:
        for child in self._children.values():
            child.kill()
        for child in self._children.values():
            child.wait()
        self._children.clear()
        self.client.close()

    def _kubeconfig(self) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "local", "cluster": {"server": self.url, "insecure-skip-tls-verify": True}}
            ],
            "users": [{"name": "admin", "user": {"token": self.token}}],
            "contexts": [{"name": "local", "context": {"cluster": "local", "user": "admin"}}],
            "current-context": "local",
        }

    def _run(self, program: str, *arguments: str) -> None:
        with (self._folder / f"{program}.log").open("ab") as log:
            self._children[program] = subprocess.Popen(
                [str(self._programs / program), *arguments], stdout=log, stderr=log, cwd=self._folder
            )

    def _wait(self, what: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            ended = [name for name, child in self._children.items() if child.poll() is not None]
            if ended:
                tail = (self._folder / f"{ended[0]}.log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{ended[0]} ended:\n{tail}")
            try:
                if ready():
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        raise RuntimeError(f"{what} was not ready within {_START_S} s")

    # What tests do with it.

    def apply(self, manifest: dict[str, Any], *, manager: str = "test") -> httpx.Response:
        """Server-side apply, forced. The caller looks at the status."""
        return self.client.patch(
            object_path(manifest),
            params={"fieldManager": manager, "force": "true"},
            headers={"Content-Type": "application/apply-patch+yaml"},
            content=yaml.safe_dump(manifest),
        )

    def create(self, manifest: dict[str, Any]) -> httpx.Response:
        """A plain create. The caller looks at the status."""
        return self.client.post(object_path(manifest).rpartition("/")[0], json=manifest)

    def get(self, path: str) -> dict[str, Any] | None:
        """The object, or None where there is none."""
        answer = self.client.get(path)
        if answer.status_code == 404:
            return None
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    def items(self, path: str, **query: str) -> list[dict[str, Any]]:
        answer = self.client.get(path, params=query)
        answer.raise_for_status()
        found: list[dict[str, Any]] = answer.json()["items"]
        return found

    def node(self, name: str, *, gpus: int, product: str, taint: str | None = None) -> None:
        """A simulated node with so many GPUs."""
        capacity = {"cpu": "192", "memory": "2Ti", "pods": "110", "ephemeral-storage": "4Ti"}
        if gpus:
            capacity |= {"nvidia.com/gpu": str(gpus), "rdma/hca": str(gpus)}
        labels = {"kubernetes.io/hostname": name, "nvidia.com/gpu.product": product}
        taints = [{"key": taint, "effect": "NoSchedule", "value": "present"}] if taint else []
        body = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "spec": {"taints": taints},
            "status": {"capacity": capacity, "allocatable": capacity},
        }
        self.client.post("/api/v1/nodes", json=body).raise_for_status()

    def until(self, condition: Callable[[], Any], what: str, *, within_s: float = 45.0) -> Any:
        """What `condition` returned once it was true. Raises AssertionError that says what never came."""
        deadline = time.monotonic() + within_s
        while True:
            try:
                if found := condition():
                    return found
            except httpx.TransportError:
                pass
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {within_s} s: {what}")
            time.sleep(0.1)


PLURALS = {"NetworkPolicy": "networkpolicies"}


def object_path(manifest: dict[str, Any]) -> str:
    """Where the object of a manifest lives."""
    version, kind, metadata = manifest["apiVersion"], manifest["kind"], manifest["metadata"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    plural = PLURALS.get(kind, f"{kind.lower()}s")
    namespace = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
    return f"{root}{namespace}/{plural}/{metadata['name']}"
