"""`python -m ridgeline_operator run|check`: keep a cluster as its resources say, or ask whether it is ready."""

import argparse
import asyncio
import json
import logging
import os
import signal
import socket
import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import kubernetes
import urllib3
import yaml
from prometheus_client import CollectorRegistry
from ridgeline_contracts import exits
from ridgeline_contracts.clock import SystemClock
from ridgeline_contracts.errors import PeerError, RidgelineError, SettingsError
from ridgeline_process.log_lines import log_to_stderr
from ridgeline_process.status_page import StatusPage

from ridgeline_operator.application import OperatorApplication
from ridgeline_operator.credentials import ApiAccess, access_from_kubeconfig, access_from_pod
from ridgeline_operator.leader import LeadershipLost
from ridgeline_operator.preflight import ClusterFacts, examine
from ridgeline_operator.settings import OperatorSettings, read_settings


def main(arguments: Sequence[str] | None = None) -> int:
    """check: 0 ready; 1 a check does not hold, or the API server did not answer. run: 0 stopped; 1 ended by itself, as
    when its lease was lost. Both: 2 settings that do not work."""
    flags = _parser().parse_args(arguments)
    return _run(flags) if flags.command == "run" else _check(flags)


def _run(flags: argparse.Namespace) -> int:
    log_to_stderr(flags.log_level)
    # A line for every request and event would bury ours.
    for name in ("httpx", "kopf.objects"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        held = yaml.safe_load(Path(flags.config).read_text(encoding="utf-8"))
        settings = read_settings(held)
        access = _access()
    except (OSError, yaml.YAMLError, RidgelineError) as error:
        print(f"error: {error}", file=sys.stderr)
        return exits.USAGE
    identity = flags.identity or f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
    try:
        asyncio.run(_serve(access, settings, identity, flags.status_host, flags.status_port))
    except RidgelineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _access() -> ApiAccess:
    host = os.environ.get("KUBERNETES_SERVICE_HOST")
    if host is not None and "KUBECONFIG" not in os.environ:
        return access_from_pod(host, os.environ.get("KUBERNETES_SERVICE_PORT", "443"))
    return access_from_kubeconfig()


async def _serve(access: ApiAccess, settings: OperatorSettings, identity: str, host: str, port: int) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for caught in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(caught, stop.set)
    page = StatusPage(CollectorRegistry(), lambda: None)
    await page.start(host, port)
    try:
        await OperatorApplication(access, settings, SystemClock(), identity=identity).run(stop)
    except LeadershipLost as error:
        # Nothing may be written from here on: not even tasks may be given the time to end.
        print(f"error: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    finally:
        await page.stop()


def _check(flags: argparse.Namespace) -> int:
    try:
        findings = examine(_read_cluster(flags.request_timeout_s))
    except RidgelineError as error:
        print(f"error: {error}", file=sys.stderr)
        return exits.USAGE if isinstance(error, SettingsError) else 1
    if flags.json:
        print(json.dumps([asdict(finding) for finding in findings]))
    else:
        for finding in findings:
            print(f"{'ok  ' if finding.holds else 'FAIL'}  {finding.check}: {finding.message}")
    return 0 if all(finding.holds for finding in findings) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ridgeline_operator", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    run = commands.add_parser(
        "run", help="keep the cluster as its resources say (KUBECONFIG, or the pod's account)"
    )
    run.add_argument("--config", required=True, help="settings file, which the chart renders")
    run.add_argument("--identity", help="holder of the lease (default: host name and a random part)")
    run.add_argument("--status-host", default="127.0.0.1", help="of /healthz, /readyz and /metrics")
    run.add_argument("--status-port", type=int, default=8080, help="0: any free one")
    run.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    check = commands.add_parser(
        "check", help="ask the cluster what it serves (KUBECONFIG, or the pod's account)"
    )
    check.add_argument("--json", action="store_true", help="print the findings as a JSON list")
    check.add_argument("--request-timeout-s", type=float, default=10.0, help="for each question (default 10)")
    return parser


def _read_cluster(timeout_s: float) -> ClusterFacts:
    """Raises SettingsError without a configuration, PeerError when the API server cannot be asked."""
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ
    config = kubernetes.config
    load: Callable[[], None] = config.load_incluster_config if in_pod else config.load_kube_config
    try:
        load()
    except kubernetes.config.ConfigException as error:
        raise SettingsError(
            f"no cluster is configured ({error}): set KUBECONFIG, or run this in a pod with a service account"
        ) from error
    try:
        with kubernetes.client.ApiClient() as client:
            version = kubernetes.client.VersionApi(client).get_code(_request_timeout=timeout_s)
            groups = kubernetes.client.ApisApi(client).get_api_versions(_request_timeout=timeout_s).groups
    except (kubernetes.client.ApiException, urllib3.exceptions.HTTPError) as error:
        raise PeerError(f"the API server does not answer: {error}") from error
    served = frozenset(each.group_version for group in groups for each in group.versions)
    return ClusterFacts(major=version.major, minor=version.minor, served=served)


if __name__ == "__main__":
    sys.exit(main())
