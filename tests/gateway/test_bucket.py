"""The token bucket's bound, its refunds, and the truth of its waiting times."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ridgeline_contracts.errors import InvariantError, SettingsError
from ridgeline_contracts.ids import ReservationId
from ridgeline_gateway.bucket import BucketLimits, Rejected, Reserved, TokenBucket

unhurried = settings(deadline=None, max_examples=150)


@dataclass
class _Admitted:
    at_us: int
    reserved: int
    charged: int | None = None


_STEPS = st.lists(
    st.tuples(st.sampled_from(["reserve", "settle", "wait"]), st.integers(0, 120), st.integers(0, 3_000_000)),
    max_size=40,
)


@unhurried
@given(rate=st.integers(1, 60), burst=st.integers(1, 100), steps=_STEPS)
def test_over_any_interval_at_most_burst_plus_rate_times_time_is_charged(
    rate: int, burst: int, steps: list[tuple[str, int, int]]
) -> None:
    bucket, now_us = TokenBucket(BucketLimits(rate, burst), now_us=0), 0
    admitted: dict[ReservationId, _Admitted] = {}
    for index, (step, amount, elapsed_us) in enumerate(steps):
        open_ids = [name for name, entry in admitted.items() if entry.charged is None]
        if step == "wait":
            now_us += elapsed_us
        elif step == "reserve":
            name = ReservationId(str(index))
            if isinstance(bucket.reserve(name, amount, now_us=now_us), Reserved):
                admitted[name] = _Admitted(now_us, amount)
        elif open_ids:
            entry = admitted[open_ids[elapsed_us % len(open_ids)]]
            entry.charged = min(entry.reserved, amount)
            bucket.settle(open_ids[elapsed_us % len(open_ids)], entry.charged, now_us=now_us)
        bucket.check()
    for name, entry in admitted.items():
        if entry.charged is None:
            entry.charged = entry.reserved
            bucket.settle(name, entry.charged, now_us=now_us)
    assert bucket.reserved_micro == 0
    times = sorted({entry.at_us for entry in admitted.values()})
    for begin in times:
        for end in times:
            charged = sum(entry.charged or 0 for entry in admitted.values() if begin <= entry.at_us <= end)
            if begin <= end:
                assert charged * 1_000_000 <= burst * 1_000_000 + rate * (end - begin)


@unhurried
@given(
    rate=st.integers(1, 10**9),
    burst=st.integers(2, 10**9),
    data=st.data(),
)
def test_the_stated_wait_is_enough_and_not_a_microsecond_too_long(
    rate: int, burst: int, data: st.DataObject
) -> None:
    bucket = TokenBucket(BucketLimits(rate, burst), now_us=0)
    taken = data.draw(st.integers(1, burst))
    bucket.reserve(ReservationId("first"), taken, now_us=0)
    wanted = data.draw(st.integers(burst - taken + 1, burst))
    rejected = bucket.reserve(ReservationId("second"), wanted, now_us=0)
    assert isinstance(rejected, Rejected)
    assert rejected.retry_after_us is not None
    early = bucket.reserve(ReservationId("early"), wanted, now_us=rejected.retry_after_us - 1)
    assert isinstance(early, Rejected)
    assert isinstance(bucket.reserve(ReservationId("then"), wanted, now_us=rejected.retry_after_us), Reserved)


def test_an_unused_reservation_comes_back_whole_while_the_bucket_was_not_full() -> None:
    bucket = TokenBucket(BucketLimits(10, 100), now_us=0)
    bucket.reserve(ReservationId("a"), 80, now_us=0)
    assert bucket.settle(ReservationId("a"), 30, now_us=1_000_000).refunded_micro == 50
    assert bucket.level_micro(1_000_000) == 80


def test_what_refill_has_overtaken_is_not_given_twice() -> None:
    bucket = TokenBucket(BucketLimits(10, 100), now_us=0)
    bucket.reserve(ReservationId("a"), 80, now_us=0)
    # After 6 s the bucket holds 80 again; had nothing been reserved it would be full: 20 are left to give back.
    assert bucket.settle(ReservationId("a"), 0, now_us=6_000_000).refunded_micro == 20
    assert bucket.level_micro(6_000_000) == 100


def test_a_reservation_that_refill_has_overtaken_whole_gives_nothing_back() -> None:
    bucket = TokenBucket(BucketLimits(10, 100), now_us=0)
    bucket.reserve(ReservationId("old"), 100, now_us=0)
    bucket.reserve(ReservationId("new"), 100, now_us=10_000_000)
    # Otherwise a third one could follow at once: 200 in no time, with a burst of 100.
    assert bucket.settle(ReservationId("old"), 0, now_us=10_000_000).refunded_micro == 0
    assert bucket.settle(ReservationId("new"), 0, now_us=10_000_000).refunded_micro == 100


def test_a_long_request_does_not_slow_the_refill() -> None:
    bucket = TokenBucket(BucketLimits(10, 100), now_us=0)
    bucket.reserve(ReservationId("long"), 100, now_us=0)
    assert bucket.level_micro(10_000_000) == 100


def test_what_can_never_fit_is_told_apart_from_what_does_not_fit_now() -> None:
    bucket = TokenBucket(BucketLimits(10, 100), now_us=0)
    assert bucket.reserve(ReservationId("a"), 101, now_us=0) == Rejected(100, None)
    bucket.reserve(ReservationId("b"), 100, now_us=0)
    assert bucket.reserve(ReservationId("c"), 5, now_us=0) == Rejected(0, 500_000)


def test_smaller_limits_take_what_lies_above_them() -> None:
    bucket = TokenBucket(BucketLimits(10, 100), now_us=0)
    bucket.reserve(ReservationId("a"), 30, now_us=0)
    bucket.change_limits(BucketLimits(10, 50), now_us=0)
    bucket.check()
    assert bucket.level_micro(0) == 50
    assert bucket.settle(ReservationId("a"), 0, now_us=0).refunded_micro == 0


@pytest.mark.parametrize(
    ("name", "charged"),
    [
        pytest.param("unknown", 0, id="unknown-reservation"),
        pytest.param("known", 11, id="more-than-reserved"),
        pytest.param("known", -1, id="negative"),
    ],
)
def test_a_settlement_that_cannot_be_right_is_refused(name: str, charged: int) -> None:
    bucket = TokenBucket(BucketLimits(10, 100), now_us=0)
    bucket.reserve(ReservationId("known"), 10, now_us=0)
    with pytest.raises(InvariantError):
        bucket.settle(ReservationId(name), charged, now_us=0)
    assert bucket.reserved_micro == 10


@pytest.mark.parametrize("limits", [(0, 1), (1, 0), (1, 2**53), (-1, 5)])
def test_limits_out_of_range_are_refused(limits: tuple[int, int]) -> None:
    with pytest.raises(SettingsError):
        BucketLimits(*limits)
