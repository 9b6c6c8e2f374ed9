"""Time: the machine's clock never goes back, the virtual one moves only when told."""

import pytest
from ridgeline_contracts.clock import Clock, SystemClock, VirtualClock


def test_a_virtual_clock_stands_still_until_it_is_advanced() -> None:
    clock = VirtualClock(now_ms=5.0, epoch_ms=1_000.0)
    assert (clock.monotonic_ms(), clock.wall_ms()) == (5.0, 1_005.0)
    clock.advance(2.5)
    assert (clock.monotonic_ms(), clock.wall_ms()) == (7.5, 1_007.5)


def test_a_virtual_clock_does_not_go_back() -> None:
    clock = VirtualClock()
    with pytest.raises(ValueError, match="cannot go back"):
        clock.advance(-1.0)
    assert clock.monotonic_ms() == 0.0


def test_the_systems_clock_counts_milliseconds_and_is_monotonic() -> None:
    clock: Clock = SystemClock()
    readings = [clock.monotonic_ms() for _ in range(100)]
    assert readings == sorted(readings)
    # Between 2020 and 2100, in milliseconds.
    assert 1.577e12 < clock.wall_ms() < 4.103e12
