"""`python -m ridgeline_operator check`: is this cluster ready for the operator?"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict

import kubernetes
import urllib3
from ridgeline_contracts import exits
from ridgeline_contracts.errors import PeerError, RidgelineError, SettingsError

from ridgeline_operator.preflight import ClusterFacts, examine


def main(arguments: Sequence[str] | None = None) -> int:
    """0: ready. 1: a check does not hold, or the API server did not answer. 2: no way to reach a cluster."""
    flags = _parser().parse_args(arguments)
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
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
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
