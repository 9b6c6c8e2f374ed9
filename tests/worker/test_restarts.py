"""What follows a core's death, as a table on a virtual clock."""

import pytest
from ridgeline_contracts.exits import GPU_FAULT, GPU_FAULT_WINDOW_S, USAGE
from ridgeline_worker.restarts import Death, DeathCause, GiveUp, StartAgain, after_death, still_relevant
from ridgeline_worker.supervisor import is_hung

FAULT, CRASH, HUNG = DeathCause.DEVICE_FAULT, DeathCause.CRASHED, DeathCause.HUNG
REFUSED, FAILED = DeathCause.START_REFUSED, DeathCause.START_FAILED
WINDOW_MS = GPU_FAULT_WINDOW_S * 1000


def _deaths(*told: tuple[DeathCause, float]) -> tuple[Death, ...]:
    return tuple(Death(cause, at_ms) for cause, at_ms in told)


@pytest.mark.parametrize(
    ("deaths", "has_served", "exit_code"),
    [
        pytest.param(_deaths((FAULT, 0)), True, None, id="one-device-fault-is-forgiven"),
        pytest.param(
            _deaths((FAULT, 0), (FAULT, WINDOW_MS - 1)), True, GPU_FAULT, id="two-within-the-window"
        ),
        pytest.param(_deaths((FAULT, 0), (FAULT, WINDOW_MS)), True, None, id="two-further-apart"),
        pytest.param(_deaths((FAULT, 0), (CRASH, 5), (FAULT, 10)), True, GPU_FAULT, id="a-crash-between"),
        pytest.param(_deaths((CRASH, 0), (CRASH, 5)), True, None, id="crashes-are-no-device-faults"),
        pytest.param(_deaths((HUNG, 0), (HUNG, 5)), True, None, id="hangs-are-none-either"),
        pytest.param(_deaths((FAULT, 0), (FAULT, 5)), False, GPU_FAULT, id="device-faults-at-the-start"),
        pytest.param(_deaths((REFUSED, 0)), False, USAGE, id="a-first-start-that-is-refused"),
        pytest.param(_deaths((CRASH, 0), (REFUSED, 5)), True, None, id="a-restart-that-is-refused"),
        pytest.param(_deaths((FAILED, 0)), False, 1, id="a-first-start-that-fails"),
        pytest.param(_deaths((CRASH, 0), *[(FAILED, 5)] * 4), True, None, id="four-restarts-that-fail"),
        pytest.param(_deaths((CRASH, 0), *[(FAILED, 5)] * 5), True, 1, id="five-restarts-that-fail"),
    ],
)
def test_a_death_leads_to_another_start_or_to_an_exit_code(deaths, has_served, exit_code) -> None:
    verdict = after_death(deaths, has_served=has_served)
    if exit_code is None:
        assert isinstance(verdict, StartAgain)
    else:
        assert isinstance(verdict, GiveUp)
        assert verdict.exit_code == exit_code


def test_pauses_grow_with_recent_deaths_up_to_half_a_minute() -> None:
    pauses = [after_death(_deaths(*[(CRASH, 0.0)] * count), has_served=True) for count in range(1, 12)]
    lengths = [pause.pause_ms for pause in pauses if isinstance(pause, StartAgain)]
    assert lengths[:4] == [250, 500, 1000, 2000]
    assert lengths[-1] == 30_000
    assert lengths == sorted(lengths)


def test_deaths_long_ago_do_not_lengthen_the_pause() -> None:
    old = [(CRASH, float(at_ms)) for at_ms in range(5)]
    assert after_death(_deaths(*old, (CRASH, 200_000.0)), has_served=True) == StartAgain(250)


def test_only_deaths_within_the_window_are_remembered() -> None:
    deaths = _deaths((FAULT, 0), (CRASH, 1), (FAULT, WINDOW_MS))
    assert still_relevant(deaths, WINDOW_MS) == deaths[1:]


@pytest.mark.parametrize(
    ("silent_ms", "hung"),
    [pytest.param(1000, False, id="at-the-limit"), pytest.param(1001, True, id="beyond")],
)
def test_a_core_is_hung_when_it_was_silent_for_longer_than_the_limit(silent_ms, hung) -> None:
    assert is_hung(5000 + silent_ms, last_heard_ms=5000, limit_ms=1000) is hung
