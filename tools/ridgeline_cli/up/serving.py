"""Runs a plan for a person: signals, the display, the tenant's key, the ready files, the summary."""

import asyncio
import json
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ridgeline_contracts.clock import Clock

from ridgeline_cli.up.display import UpDisplay
from ridgeline_cli.up.local_tenant import admin_client, ensure_tenant_key
from ridgeline_cli.up.plan import PlanFacts, ProcessPlan, address
from ridgeline_cli.up.probes import ReadyProbe
from ridgeline_cli.up.processes import local_spawner
from ridgeline_cli.up.ready_file import Pids, Ready, write_ready
from ridgeline_cli.up.supervisor import Supervisor


@dataclass(frozen=True, slots=True)
class Serving:
    """One run of `up`."""

    facts: PlanFacts
    plan: ProcessPlan
    admin_key: str
    ready_paths: tuple[Path, ...]
    display: UpDisplay
    print_line: Callable[[str], None]
    """Writes a line of the summary to stdout."""

    @property
    def base_url(self) -> str:
        return f"http://{address(self.facts.ports.gateway)}/v1"

    @property
    def admin_url(self) -> str:
        return f"http://{address(self.facts.ports.admin)}"

    async def run(self, *, clock: Clock, environ: Mapping[str, str]) -> int:
        """Serves until it is stopped by a signal.

        Returns the exit code; no child and no ready file is left.
        """
        probe = ReadyProbe()
        announcer = _Announcer(self)
        supervisor = Supervisor(
            self.plan,
            clock=clock,
            spawn=local_spawner(environ),
            probe=probe,
            watcher=self.display,
            on_all_ready=announcer.announce,
        )
        # What a killed run has left behind must not be taken for this one.
        announcer.withdraw()
        try:
            with _stopped_by_signals(supervisor, self.display):
                return await supervisor.run()
        finally:
            self.display.close_start_list()
            announcer.withdraw()
            await probe.close()

    async def ready(self, pids: Pids) -> Ready:
        """What to tell the world, the tenant's key checked or made."""
        async with admin_client(self.admin_url, self.admin_key) as client:
            api_key = await ensure_tenant_key(self.facts.keys.tenant_key, client)
        return Ready(self.base_url, api_key, self.admin_url, self.admin_key, pids)

    def summary(self, ready: Ready) -> list[str]:
        """The lines that a person needs: where, with which key, and something to paste."""
        return [
            "",
            f"Ridgeline serves {self.facts.model.name} ({self.facts.dtype}, {self.facts.workers} worker(s), "
            f"{self.facts.threads_per_worker} thread(s) each)",
            f"  base URL    {ready.base_url}",
            f"  API key     {ready.api_key}",
            f"  admin URL   {ready.admin_url}",
            f"  ready file  {self.ready_paths[0]}",
            "",
            curl_line(ready, self.facts.model.name),
            "",
            "Or, in another terminal: ridgeline chat. Ctrl-C drains and stops.",
        ]


class _Announcer:
    """Writes the ready files at each change of pids, and says the summary once."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._has_spoken = False

    async def announce(self, pids: Pids) -> None:
        ready = await self._serving.ready(pids)
        if not self._has_spoken:
            self._serving.display.close_start_list()
            for line in self._serving.summary(ready):
                self._serving.print_line(line)
            self._has_spoken = True
        for path in self._serving.ready_paths:
            write_ready(path, ready)

    def withdraw(self) -> None:
        for path in self._serving.ready_paths:
            with suppress(FileNotFoundError):
                path.unlink()


def curl_line(ready: Ready, model: str) -> str:
    """A command to paste into a shell. URL, key and model hold no character that a shell would change."""
    body = {"model": model, "messages": [{"role": "user", "content": "Hello!"}], "stream": True}
    return (
        f"curl -N {ready.base_url}/chat/completions -H 'Authorization: Bearer {ready.api_key}' "
        f"-H 'Content-Type: application/json' -d '{json.dumps(body)}'"
    )


@contextmanager
def _stopped_by_signals(supervisor: Supervisor, display: UpDisplay) -> Iterator[None]:
    loop = asyncio.get_running_loop()

    def stop() -> None:
        display.close_start_list()
        supervisor.request_stop()

    numbers = [signal.SIGINT, signal.SIGTERM]
    # Under nohup the end of the terminal is to be lived through.
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
