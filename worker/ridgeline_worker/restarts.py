"""What follows a core's death: another start after a pause, or the end of the worker. Pure."""

from dataclasses import dataclass
from enum import StrEnum

from ridgeline_contracts.exits import GPU_FAULT, GPU_FAULT_WINDOW_S, USAGE

EXIT_CORE_UNSTARTABLE = 1
_FIRST_PAUSE_MS = 250.0
_LONGEST_PAUSE_MS = 30_000.0
_CALM_MS = 120_000.0
"""Deaths older than this no longer lengthen the pause."""
_FAILED_STARTS = 5


class DeathCause(StrEnum):
    DEVICE_FAULT = "device_fault"
    CRASHED = "crashed"
    """An exception, a signal, the out-of-memory killer."""
    HUNG = "hung"
    """Killed by the watchdog."""
    START_REFUSED = "start_refused"
    """The caller can mend it: a bad folder, too little memory."""
    START_FAILED = "start_failed"


@dataclass(frozen=True, slots=True)
class Death:
    cause: DeathCause
    at_ms: float
    """Monotonic."""


@dataclass(frozen=True, slots=True)
class StartAgain:
    pause_ms: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    exit_code: int
    reason: str


def after_death(deaths: tuple[Death, ...], *, has_served: bool) -> StartAgain | GiveUp:
    """Decides after the last of `deaths` (oldest first, at least one).
    `has_served`: a core was ready before."""
    last = deaths[-1]
    if last.cause is DeathCause.START_REFUSED and not has_served:
        return GiveUp(USAGE, "the engine cannot be started so")
    if last.cause is DeathCause.DEVICE_FAULT and _device_faults(deaths, last.at_ms) >= 2:
        return GiveUp(GPU_FAULT, f"two device faults within {GPU_FAULT_WINDOW_S} s")
    failed_starts = _trailing_failed_starts(deaths)
    if failed_starts and (not has_served or failed_starts >= _FAILED_STARTS):
        return GiveUp(EXIT_CORE_UNSTARTABLE, f"the core failed to start ({failed_starts} in a row)")
    recent = sum(1 for death in deaths if last.at_ms - death.at_ms < _CALM_MS)
    return StartAgain(min(_LONGEST_PAUSE_MS, _FIRST_PAUSE_MS * 2.0 ** (recent - 1)))


def still_relevant(deaths: tuple[Death, ...], now_ms: float) -> tuple[Death, ...]:
    """Those that a later decision may still look at; the rest can be forgotten."""
    return tuple(death for death in deaths if now_ms - death.at_ms < GPU_FAULT_WINDOW_S * 1000)


def _device_faults(deaths: tuple[Death, ...], now_ms: float) -> int:
    relevant = still_relevant(deaths, now_ms)
    return sum(1 for death in relevant if death.cause is DeathCause.DEVICE_FAULT)


def _trailing_failed_starts(deaths: tuple[Death, ...]) -> int:
    count = 0
    for death in reversed(deaths):
        if death.cause not in (DeathCause.START_FAILED, DeathCause.START_REFUSED):
            break
        count += 1
    return count
