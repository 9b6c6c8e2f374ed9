"""`python -m ridgeline_gateway`: flags and environment, read once, into frozen settings."""

import argparse
import importlib.metadata
import os
import secrets
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import uvloop
from ridgeline_contracts.errors import SettingsError
from ridgeline_contracts.exits import USAGE
from ridgeline_contracts.ids import GatewayId, Incarnation
from ridgeline_process.log_lines import LEVEL_NAMES, log_to_stderr

from ridgeline_gateway.private_files import kept_secret, read_secret
from ridgeline_gateway.server import open_listeners, serve
from ridgeline_gateway.settings import (
    GatewaySettings,
    Identity,
    LimitSettings,
    ListenSettings,
    Secrets,
    StoreSettings,
    TimingSettings,
)

ADMIN_KEY_VARIABLE = "RIDGELINE_ADMIN_KEY"
REDIS_VARIABLE = "RIDGELINE_REDIS_URL"
_LIMITS, _TIMING, _LISTEN = LimitSettings(), TimingSettings(), ListenSettings()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ridgeline-gateway",
        description="Serves the OpenAI-compatible API: tenants, quota, tokenising, streams.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--host", default=_LISTEN.host, help="address of the API (default %(default)s)")
    add(
        "--port",
        type=_port,
        default=_LISTEN.port,
        help="port of the API, 0: any free one (default %(default)s)",
    )
    add("--admin-host", default=_LISTEN.admin_host, help="address of the admin API (default %(default)s)")
    add(
        "--admin-port",
        type=_port,
        default=_LISTEN.admin_port,
        help="port of the admin API, health and metrics",
    )
    add("--router", required=True, metavar="HOST:PORT", help="the router's gRPC address")
    add("--data-dir", required=True, type=Path, help="where tenants, secrets and tokenizer files are kept")
    add(
        "--admin-key-file",
        type=Path,
        help=f"file of mode 0600 with the admin key (else ${ADMIN_KEY_VARIABLE}, else one kept in the data folder)",
    )
    add(
        "--pepper-file",
        type=Path,
        help="file of mode 0600 with the key pepper (else DATA_DIR/pepper, made if missing)",
    )
    add(
        "--redis-url-file",
        type=Path,
        help=f"file of mode 0600 with redis://... of the store that gateways share (else ${REDIS_VARIABLE}, else "
        "SQLite files in the data folder)",
    )
    add(
        "--gateway-id", default=None, help="this gateway's name towards workers (default: host name and port)"
    )
    add("--ready-file", type=Path, help="written with base_url, admin_url and pid once both ports listen")
    add(
        "--max-body-bytes",
        type=_positive,
        default=_LIMITS.max_body_bytes,
        help="largest request (default %(default)s)",
    )
    add(
        "--default-output-tokens",
        type=_positive,
        default=_LIMITS.default_output_tokens,
        help="most tokens of a chat reply whose request states none (default %(default)s)",
    )
    add(
        "--request-deadline-s",
        type=_seconds,
        default=_TIMING.request_deadline_ms / 1000,
        help="longest life of a request (default %(default)g)",
    )
    add(
        "--ttft-target-s",
        type=_seconds,
        default=None,
        help="interactive requests that would wait longer for their first token get 503 at once (default: all wait)",
    )
    add(
        "--status-wait-s",
        type=_seconds,
        default=_TIMING.status_wait_ms / 1000,
        help="how long a stream's status waits for the first token (default %(default)g)",
    )
    add(
        "--retry-wait-s",
        type=_seconds,
        default=_TIMING.retry_wait_ms / 1000,
        help="how long a request that lost its worker waits for another (default %(default)g)",
    )
    add(
        "--drain-delay-s",
        type=_seconds,
        default=_TIMING.drain_delay_ms / 1000,
        help="after SIGTERM: how long new requests are still taken, not ready (default %(default)g)",
    )
    add(
        "--drain-limit-s",
        type=_seconds,
        default=_TIMING.drain_limit_ms / 1000,
        help="after that: how long streams may take to finish (default %(default)g)",
    )
    add("--log-level", default="info", choices=LEVEL_NAMES)
    return parser


def read_settings(arguments: argparse.Namespace, environment: Mapping[str, str]) -> GatewaySettings:
    """Raises SettingsError that names the flag or variable at fault."""
    data_dir: Path = arguments.data_dir
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"--data-dir {data_dir} cannot be made ({error.strerror})") from error
    gateway_id = arguments.gateway_id or f"{socket.gethostname()}:{arguments.port}"
    return GatewaySettings(
        identity=Identity(
            gateway_id=GatewayId(gateway_id),
            incarnation=Incarnation(secrets.token_hex(8)),
            product_version=_version(),
        ),
        router_address=_address(arguments.router),
        store=StoreSettings(data_dir, _redis_url(arguments, environment)),
        secrets=_secrets(arguments, data_dir, environment),
        listen=ListenSettings(arguments.host, arguments.port, arguments.admin_host, arguments.admin_port),
        limits=LimitSettings(
            max_body_bytes=arguments.max_body_bytes, default_output_tokens=arguments.default_output_tokens
        ),
        timing=TimingSettings(
            request_deadline_ms=round(arguments.request_deadline_s * 1000),
            ttft_target_ms=None if arguments.ttft_target_s is None else round(arguments.ttft_target_s * 1000),
            status_wait_ms=round(arguments.status_wait_s * 1000),
            retry_wait_ms=round(arguments.retry_wait_s * 1000),
            drain_delay_ms=round(arguments.drain_delay_s * 1000),
            drain_limit_ms=round(arguments.drain_limit_s * 1000),
        ),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parsed = _parser().parse_args(arguments)
    log_to_stderr(parsed.log_level)
    try:
        settings = read_settings(parsed, os.environ)
        listeners = open_listeners(settings)
        uvloop.run(serve(settings, listeners, ready_file=parsed.ready_file))
    except SettingsError as error:
        print(f"ridgeline-gateway: {error.message}", file=sys.stderr)
        return USAGE
    return 0


def _secrets(arguments: argparse.Namespace, data_dir: Path, environment: Mapping[str, str]) -> Secrets:
    if arguments.admin_key_file is not None:
        admin_key = read_secret(arguments.admin_key_file, flag="--admin-key-file")
    elif ADMIN_KEY_VARIABLE in environment:
        admin_key = environment[ADMIN_KEY_VARIABLE]
    else:
        admin_key = kept_secret(
            data_dir / "admin-key", lambda: secrets.token_urlsafe(32), flag="the admin key"
        )
    if arguments.pepper_file is not None:
        pepper = read_secret(arguments.pepper_file, flag="--pepper-file")
    else:
        pepper = kept_secret(data_dir / "pepper", lambda: secrets.token_hex(32), flag="the pepper")
    return Secrets(pepper=pepper.encode(), admin_key=admin_key)


def _redis_url(arguments: argparse.Namespace, environment: Mapping[str, str]) -> str | None:
    if arguments.redis_url_file is not None:
        return read_secret(arguments.redis_url_file, flag="--redis-url-file")
    return environment.get(REDIS_VARIABLE) or None


def _version() -> str:
    try:
        return importlib.metadata.version("ridgeline")
    except importlib.metadata.PackageNotFoundError:
        # Run from a source tree that is on the path but not installed.
        return "0"


def _address(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isdigit()):
        raise SettingsError(f"--router {text!r} is not HOST:PORT")
    return text


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"{port} is not a port: give 0 to 65535")
    return port


def _positive(text: str) -> int:
    number = int(text)
    if number <= 0:
        raise argparse.ArgumentTypeError(f"{number} is not positive")
    return number


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < 1e7:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
