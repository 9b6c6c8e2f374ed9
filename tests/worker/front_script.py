"""A worker's front as a process of its own around a FakeEngine: for tests that kill or signal it."""

import asyncio
import os
import sys
import uuid
from pathlib import Path

from ridgeline_contracts.clock import SystemClock
from ridgeline_contracts.ids import Incarnation, WorkerId
from ridgeline_contracts.proto import worker_pb2 as pb
from ridgeline_worker.application import WorkerApplication, stop_on_signals
from ridgeline_worker.served import Served, TokenizerFiles
from ridgeline_worker.settings import EngineSettings, ServingSettings, WorkerSettings


async def _main(told_path: Path) -> int:
    settings = WorkerSettings(
        EngineSettings(Path("/nowhere")),
        ServingSettings(WorkerId("w1")),
        core_factory="fake_engine:build_engine",
    )
    application = WorkerApplication(
        settings,
        Served(pb.Variant(model="fake"), TokenizerFiles({}, {})),
        folder=None,
        environment=dict(os.environ),
        clock=SystemClock(),
        product_version="test",
        new_incarnation=lambda: Incarnation(uuid.uuid4().hex),
    )
    with stop_on_signals(application):
        running = asyncio.create_task(application.run())
        addresses = await application.listening
        await application.front.wait_until_ready()
        whole = told_path.with_suffix(".part")
        whole.write_text(f"{addresses.port} {application.supervisor.core_pid}")
        whole.rename(told_path)
        return await running


if __name__ == "__main__":
    sys.exit(asyncio.run(_main(Path(sys.argv[1]))))
