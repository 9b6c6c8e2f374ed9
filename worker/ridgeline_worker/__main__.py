"""`python -m ridgeline_worker`: the front process.
Everything that it takes from its surroundings it takes here."""

import asyncio
import os
import socket
import sys
import uuid
from importlib.metadata import PackageNotFoundError, version

from ridgeline_contracts.clock import SystemClock
from ridgeline_contracts.errors import RidgelineError
from ridgeline_contracts.exits import USAGE
from ridgeline_contracts.ids import Incarnation
from ridgeline_contracts.model_folder import ModelFolder, load_model_folder
from ridgeline_process.log_lines import log_to_stderr

from ridgeline_worker.application import WorkerApplication, stop_on_signals
from ridgeline_worker.flags import parse_flags
from ridgeline_worker.served import served_from
from ridgeline_worker.settings import WorkerSettings


def _new_incarnation() -> Incarnation:
    return Incarnation(uuid.uuid4().hex)


def _product_version() -> str:
    try:
        return version("ridgeline")
    except PackageNotFoundError:
        return "unpackaged"


def core_environment(surroundings: dict[str, str], threads: int) -> dict[str, str]:
    """The core's environment: OpenMP must know its threads, and that they sleep when idle, before torch
    loads."""
    defaults = {"OMP_WAIT_POLICY": "passive"}
    return defaults | surroundings | {"OMP_NUM_THREADS": str(threads)}


async def _run(settings: WorkerSettings, folder: ModelFolder) -> int:
    serving = settings.serving
    application = WorkerApplication(
        settings,
        served_from(folder, model_name=serving.model_name, price_version=serving.price_version),
        folder=folder,
        environment=core_environment(dict(os.environ), settings.engine.threads),
        clock=SystemClock(),
        product_version=_product_version(),
        new_incarnation=_new_incarnation,
    )
    with stop_on_signals(application):
        return await application.run()


def main(arguments: list[str]) -> int:
    """One clear line and exit code 2 for what the caller can mend."""
    try:
        settings = parse_flags(
            arguments,
            default_worker_id=f"{socket.gethostname()}-{os.getpid()}",
            default_threads=len(os.sched_getaffinity(0)),
        )
        log_to_stderr(settings.log_level)
        folder = load_model_folder(settings.engine.model_folder)
        return asyncio.run(_run(settings, folder))
    except RidgelineError as error:
        print(f"ridgeline_worker: {error.message}", file=sys.stderr)
        return USAGE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
