"""Whether a cluster is ready for the operator."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from ridgeline_operator.preflight import ClusterFacts, examine

OURS = "ridgeline.dev/v1alpha1"


@pytest.mark.parametrize(
    ("facts", "holds"),
    [
        pytest.param(ClusterFacts("1", "37", frozenset({"apps/v1", OURS})), [True, True], id="ready"),
        pytest.param(ClusterFacts("1", "29+", frozenset({OURS})), [True, True], id="a-suffix-is-no-fault"),
        pytest.param(ClusterFacts("1", "28", frozenset({OURS})), [False, True], id="too-old"),
        pytest.param(ClusterFacts("1", "x", frozenset({OURS})), [False, True], id="unreadable"),
        pytest.param(ClusterFacts("1", "37", frozenset({"apps/v1"})), [True, False], id="no-resources"),
    ],
)
def test_a_cluster_is_judged_by_version_and_served_resources(facts: ClusterFacts, holds: list[bool]) -> None:
    assert [finding.holds for finding in examine(facts)] == holds


def test_another_version_of_the_resources_is_named() -> None:
    finding = examine(ClusterFacts("1", "37", frozenset({"ridgeline.dev/v1beta1"})))[1]
    assert not finding.holds
    assert "v1beta1" in finding.message


class FakeApiServer(BaseHTTPRequestHandler):
    """Answers the two questions that `check` asks."""

    def do_GET(self) -> None:
        answers = {
            "/version/": {"major": "1", "minor": "37", "gitVersion": "v1.37.0", **_BUILD},
            "/apis/": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_GROUP]},
        }
        body = json.dumps(answers[self.path]).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Keeps the test's output quiet."""


_GROUP = {
    "name": "ridgeline.dev",
    "versions": [{"groupVersion": OURS, "version": "v1alpha1"}],
    "preferredVersion": {"groupVersion": OURS, "version": "v1alpha1"},
}
_BUILD = dict.fromkeys(("gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler", "platform"), "x")


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeApiServer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    path = tmp_path / "kubeconfig"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
                "users": [{"name": "u", "user": {}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )
    yield path
    server.shutdown()
    thread.join()
    server.server_close()


def _check(kubeconfig: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "ridgeline_operator", "check", "--json"]
    environment = os.environ | {"KUBECONFIG": str(kubeconfig)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)


def test_check_asks_the_configured_cluster_and_prints_its_findings(kubeconfig: Path) -> None:
    ended = _check(kubeconfig)
    assert ended.returncode == 0, ended.stderr
    assert [finding["holds"] for finding in json.loads(ended.stdout)] == [True, True]


def test_check_without_a_configuration_ends_with_exit_code_2(tmp_path: Path) -> None:
    ended = _check(tmp_path / "none")
    assert ended.returncode == 2
    assert "KUBECONFIG" in ended.stderr
