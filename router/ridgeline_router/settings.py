"""What a router is started with, and the flags of `python -m ridgeline_router`."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from ridgeline_contracts.errors import SettingsError
from ridgeline_process.log_lines import LEVEL_NAMES

from ridgeline_router.decision import DEFAULT_POLICY, POLICIES
from ridgeline_router.discovery import StaticDiscovery, static_discovery
from ridgeline_router.reservations import DEFAULT_LEASE_MS
from ridgeline_router.worker_link import LinkTiming


@dataclass(frozen=True, slots=True)
class RouterSettings:
    host: str = "127.0.0.1"
    port: int = 0
    """0: any free one."""
    metrics_port: int = 0
    policy: str = DEFAULT_POLICY
    lease_ms: float = DEFAULT_LEASE_MS
    history_requests: int = 2000
    timing: LinkTiming = field(default_factory=LinkTiming)
    log_level: str = "info"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{message}; see `python -m ridgeline_router --help`")


def parse_flags(arguments: Sequence[str]) -> tuple[RouterSettings, StaticDiscovery]:
    """Raises SettingsError, which names the flag."""
    flags = _parser().parse_args(arguments)
    settings = RouterSettings(
        host=flags.host,
        port=flags.port,
        metrics_port=flags.metrics_port,
        policy=flags.policy,
        lease_ms=flags.lease_s * 1000,
        history_requests=flags.history_requests,
        timing=LinkTiming(interval_ms=flags.report_interval_ms, lost_after_ms=flags.lost_after_ms),
        log_level=flags.log_level,
    )
    return settings, static_discovery(flags.worker)


def _parser() -> argparse.ArgumentParser:
    defaults = RouterSettings()
    parser = _Parser(
        prog="ridgeline_router", description="Tells gateways where to run requests.", allow_abbrev=False
    )
    parser.add_argument("--host", default=defaults.host)
    parser.add_argument("--port", type=int, default=8100, help="gRPC; 0 takes a free one")
    parser.add_argument(
        "--metrics-port", type=int, default=8101, help="/metrics, /healthz, /readyz; 0 takes a free one"
    )
    parser.add_argument(
        "--worker", action="append", default=[], metavar="ID=HOST:PORT", help="repeat for each worker"
    )
    parser.add_argument("--policy", choices=sorted(POLICIES), default=defaults.policy)
    parser.add_argument("--lease-s", type=float, default=defaults.lease_ms / 1000, help="of a reservation")
    parser.add_argument(
        "--history-requests", type=int, default=defaults.history_requests, help="that Explain knows"
    )
    parser.add_argument("--report-interval-ms", type=int, default=defaults.timing.interval_ms)
    parser.add_argument("--lost-after-ms", type=float, default=defaults.timing.lost_after_ms)
    parser.add_argument("--log-level", choices=LEVEL_NAMES, default=defaults.log_level)
    return parser
