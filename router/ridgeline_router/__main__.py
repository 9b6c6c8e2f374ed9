"""`python -m ridgeline_router`. Everything that it takes from its surroundings it takes here."""

import asyncio
import sys
import uuid

from ridgeline_contracts.clock import SystemClock
from ridgeline_contracts.errors import RidgelineError
from ridgeline_contracts.exits import USAGE
from ridgeline_contracts.ids import ReservationId
from ridgeline_process.log_lines import log_to_stderr

from ridgeline_router.application import RouterApplication, stop_on_signals
from ridgeline_router.discovery import StaticDiscovery
from ridgeline_router.settings import RouterSettings, parse_flags


def _new_reservation_id() -> ReservationId:
    return ReservationId(uuid.uuid4().hex)


async def _run(settings: RouterSettings, discovery: StaticDiscovery) -> int:
    application = RouterApplication(
        settings, discovery, clock=SystemClock(), new_reservation_id=_new_reservation_id
    )
    with stop_on_signals(application):
        return await application.run()


def main(arguments: list[str]) -> int:
    """One clear line and exit code 2 for what the caller can mend."""
    try:
        settings, discovery = parse_flags(arguments)
        log_to_stderr(settings.log_level)
        return asyncio.run(_run(settings, discovery))
    except RidgelineError as error:
        print(f"ridgeline_router: {error.message}", file=sys.stderr)
        return USAGE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
