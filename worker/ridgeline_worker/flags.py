"""The command line of `python -m ridgeline_worker`, to settings."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from ridgeline_contracts.blockhash import GRANULE_TOKENS
from ridgeline_contracts.errors import SettingsError
from ridgeline_contracts.ids import ModelName, WorkerId
from ridgeline_process.log_lines import LEVEL_NAMES

from ridgeline_worker.scheduling_flags import add_scheduling_flags, scheduling_choices
from ridgeline_worker.settings import (
    DTYPES,
    WEIGHTS,
    EngineSettings,
    LimitSettings,
    ServingSettings,
    WorkerSettings,
)

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_size_bytes(text: str) -> int:
    """`1GB`, `512MiB`, `1.5g`, `4096`: powers of 1000, with an i powers of 1024.
    Raises SettingsError otherwise."""
    found = _SIZE.fullmatch(text.strip())
    size_bytes = (
        0
        if found is None
        else int(float(found[1]) * (1024 if found[3] else 1000) ** _POWERS[found[2].lower()])
    )
    if size_bytes <= 0:
        raise SettingsError(f"size {text!r} is not understood: write 1GB, 512MiB or a number of bytes")
    return size_bytes


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{message}; see `python -m ridgeline_worker --help`")


def parse_flags(arguments: Sequence[str], *, default_worker_id: str, default_threads: int) -> WorkerSettings:
    """Raises SettingsError, which names the flag."""
    flags = _parser(default_worker_id, default_threads).parse_args(arguments)
    if flags.kv_memory is not None and flags.kv_blocks is not None:
        raise SettingsError("--kv-memory and --kv-blocks both set the cache's size: give one of them")
    for name in ("threads", "kv_blocks", "block_tokens", "max_batch", "max_context"):
        value = getattr(flags, name)
        if value is not None and value <= 0:
            raise SettingsError(f"--{name.replace('_', '-')}={value}: give at least 1")
    if flags.block_tokens % GRANULE_TOKENS:
        raise SettingsError(f"--block-tokens={flags.block_tokens}: give a multiple of {GRANULE_TOKENS}")
    return WorkerSettings(_engine(flags), _serving(flags), _limits(flags), log_level=flags.log_level)


def _engine(flags: argparse.Namespace) -> EngineSettings:
    return EngineSettings(
        model_folder=flags.model,
        dtype=flags.dtype,
        weights=flags.weights,
        device=flags.device,
        threads=flags.threads,
        kv_bytes=None if flags.kv_memory is None else parse_size_bytes(flags.kv_memory),
        kv_blocks=flags.kv_blocks,
        host_kv_bytes=0 if flags.host_kv_memory is None else parse_size_bytes(flags.host_kv_memory),
        block_tokens=flags.block_tokens,
        max_batch=flags.max_batch,
        max_context_tokens=flags.max_context,
        deterministic=flags.deterministic,
        cache_folder=flags.cache_dir,
        scheduling=scheduling_choices(flags),
    )


def _serving(flags: argparse.Namespace) -> ServingSettings:
    return ServingSettings(
        worker_id=WorkerId(flags.worker_id),
        model_name=None if flags.model_name is None else ModelName(flags.model_name),
        host=flags.host,
        port=flags.port,
        metrics_port=flags.metrics_port,
        pool=flags.pool,
        price_version=flags.price_version,
    )


def _limits(flags: argparse.Namespace) -> LimitSettings:
    return LimitSettings(
        watchdog_ms=flags.watchdog_s * 1000,
        start_timeout_ms=flags.start_timeout_s * 1000,
        drain_max_ms=flags.drain_max_s * 1000,
        outbox_rows=flags.outbox_rows,
    )


def _parser(default_worker_id: str, default_threads: int) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="ridgeline_worker", description="Serves one model to gateways over gRPC.", allow_abbrev=False
    )
    limits = LimitSettings()
    serving = parser.add_argument_group("serving")
    serving.add_argument("--worker-id", default=default_worker_id)
    serving.add_argument("--model-name", help="name that tenants ask for (default: the folder's)")
    serving.add_argument("--host", default="127.0.0.1")
    serving.add_argument("--port", type=int, default=8200, help="gRPC; 0 takes a free one")
    serving.add_argument(
        "--metrics-port", type=int, default=8201, help="/metrics, /healthz, /readyz; 0 takes a free one"
    )
    serving.add_argument("--pool", default="default")
    serving.add_argument("--price-version", default="")
    serving.add_argument("--log-level", choices=LEVEL_NAMES, default="info")
    engine = parser.add_argument_group("engine")
    engine.add_argument("--model", type=Path, required=True, help="model folder, Hugging Face layout")
    engine.add_argument("--dtype", choices=DTYPES, default="auto")
    engine.add_argument(
        "--weights",
        choices=WEIGHTS,
        default="auto",
        help="of the matrices: as --dtype says, or rounded at load",
    )
    engine.add_argument("--device", default="auto", help="auto, cpu or cuda:N")
    engine.add_argument("--threads", type=int, default=default_threads)
    engine.add_argument(
        "--kv-memory", "--kv-bytes", help="size of the KV cache, such as 1GB or 512MiB (default: derived)"
    )
    engine.add_argument("--kv-blocks", type=int, help="the same, in blocks")
    engine.add_argument(
        "--host-kv-memory",
        "--host-kv-bytes",
        help="host memory for the KV of sequences that are swapped out, such as 4GB (default: none, no swap)",
    )
    engine.add_argument("--block-tokens", type=int, default=GRANULE_TOKENS)
    engine.add_argument("--max-batch", type=int, help="sequences that run at once (default: derived)")
    engine.add_argument("--max-context", type=int, help="tokens of prompt and output (default: the model's)")
    engine.add_argument(
        "--deterministic",
        action="store_true",
        help="a request's logits are the same bits in any batch; on CPUs, and slower",
    )
    engine.add_argument("--cache-dir", type=Path, help="where compiled kernels and packed weights are kept")
    add_scheduling_flags(parser)
    bounds = parser.add_argument_group("bounds")
    bounds.add_argument("--watchdog-s", type=float, default=limits.watchdog_ms / 1000)
    bounds.add_argument("--start-timeout-s", type=float, default=limits.start_timeout_ms / 1000)
    bounds.add_argument("--drain-max-s", type=float, default=limits.drain_max_ms / 1000)
    bounds.add_argument(
        "--outbox-rows", type=int, default=limits.outbox_rows, help="unread rows a gateway may leave"
    )
    return parser
