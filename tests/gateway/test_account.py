"""The pure account: its bound over any interval, its refunds, and the truth of its waiting times."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ridgeline_contracts.errors import InvariantError, SettingsError
from ridgeline_gateway.quota.account import Account, LeaseId
from ridgeline_gateway.quota.limits import Amounts, BucketLimits, QuotaLimits
from ridgeline_gateway.quota.steps import Status, StepResult

unhurried = settings(deadline=None, max_examples=200)
LEASE_US = 10_000_000
ONE = LeaseId("one")


def limits(rate: int = 10, burst: int = 100, **more: Any) -> QuotaLimits:
    return QuotaLimits(tokens=BucketLimits(rate, burst), **more)


def reserve(account: Account, name: str, tokens: int, given: QuotaLimits, now_us: int = 0) -> StepResult:
    return account.reserve(LeaseId(name), Amounts(tokens), given, lease_us=LEASE_US, now_us=now_us)


def settle(account: Account, name: str, tokens: int, given: QuotaLimits, now_us: int = 0) -> StepResult:
    return account.settle(LeaseId(name), Amounts(tokens), given, now_us=now_us)


@dataclass
class _Open:
    total: int
    grants: list[tuple[int, int]] = field(default_factory=list)


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["reserve", "renew", "settle", "settle", "wait"]),
        st.integers(0, 120),
        st.integers(0, 3_000_000),
    ),
    max_size=60,
)


@unhurried
@given(rate=st.integers(1, 60), burst=st.integers(1, 100), debt=st.integers(0, 40), steps=_STEPS)
def test_over_any_interval_at_most_burst_plus_rate_times_time_plus_debt_is_charged(
    rate: int, burst: int, debt: int, steps: list[tuple[str, int, int]]
) -> None:
    """Nothing runs out here: every live request is renewed in time."""
    account, now_us, given_limits = Account(), 0, limits(rate, burst, debt_cap_micro=debt)
    live: dict[str, _Open] = {}
    charges: list[tuple[int, int]] = []

    def end(name: str, amount: int) -> None:
        entry = live.pop(name)
        charged = min(entry.total, amount)
        result = settle(account, name, charged, given_limits, now_us)
        assert result.charged.tokens_micro == charged
        assert result.refunded.tokens_micro <= entry.total - charged
        again = settle(account, name, charged + 1, given_limits, now_us)
        assert (again.status, again.charged, again.refunded) == (
            Status.SETTLED,
            result.charged,
            result.refunded,
        )
        left = charged
        for at_us, granted in entry.grants:
            charges.append((at_us, min(left, granted)))
            left -= min(left, granted)

    for index, (step, amount, elapsed_us) in enumerate(steps):
        names = sorted(live)
        chosen = names[elapsed_us % len(names)] if names else None
        if step == "wait":
            now_us += elapsed_us
            for name in names:
                kept = Amounts(live[name].total)
                account.renew(LeaseId(name), kept, given_limits, lease_us=LEASE_US, now_us=now_us)
        elif step == "reserve":
            if reserve(account, str(index), amount, given_limits, now_us).status is Status.DONE:
                live[str(index)] = _Open(amount, [(now_us, amount)])
        elif chosen is not None and step == "renew":
            entry = live[chosen]
            wanted = Amounts(entry.total + amount)
            raised = account.renew(LeaseId(chosen), wanted, given_limits, lease_us=LEASE_US, now_us=now_us)
            if raised.status is Status.DONE:
                entry.total += amount
                entry.grants.append((now_us, amount))
        elif chosen is not None:
            end(chosen, amount)
        account.check()
        assert account.buckets[0].level >= -debt
        assert account.buckets[0].held == sum(entry.total for entry in live.values())
    for name in sorted(live):
        end(name, live[name].total)
    account.check()
    assert (account.buckets[0].held, account.leases) == (0, {})
    times = sorted({at_us for at_us, _ in charges})
    for begin in times:
        for until in (time for time in times if time >= begin):
            total = sum(amount for at_us, amount in charges if begin <= at_us <= until)
            assert total * 1_000_000 <= (burst + debt) * 1_000_000 + rate * (until - begin)


@unhurried
@given(rate=st.integers(1, 10**9), burst=st.integers(2, 10**9), data=st.data())
def test_the_stated_wait_is_enough_and_not_a_microsecond_too_long(
    rate: int, burst: int, data: st.DataObject
) -> None:
    account, given_limits = Account(), limits(rate, burst)
    taken = data.draw(st.integers(1, burst))
    account.reserve(ONE, Amounts(taken), given_limits, lease_us=10**18, now_us=0)
    wanted = data.draw(st.integers(burst - taken + 1, burst))
    refused = reserve(account, "second", wanted, given_limits)
    assert refused.status is Status.REFUSED
    bucket = given_limits.tokens
    assert bucket is not None
    wait_us = bucket.wait_us(refused.level.tokens_micro, refused.carry.tokens_micro, until=wanted)
    assert reserve(account, "early", wanted, given_limits, wait_us - 1).status is Status.REFUSED
    assert reserve(account, "then", wanted, given_limits, wait_us).status is Status.DONE


def test_an_unused_reservation_comes_back_whole_while_the_bucket_was_not_full() -> None:
    account = Account()
    reserve(account, "a", 80, limits())
    settled = settle(account, "a", 30, limits(), 1_000_000)
    assert (settled.refunded.tokens_micro, settled.level.tokens_micro) == (50, 80)


def test_what_refill_has_overtaken_is_not_given_twice() -> None:
    account = Account()
    reserve(account, "a", 80, limits())
    # After 6 s the bucket holds 80 again; had nothing been reserved it would be full: 20 are left to give back.
    settled = settle(account, "a", 0, limits(), 6_000_000)
    assert (settled.refunded.tokens_micro, settled.level.tokens_micro) == (20, 100)


def test_a_long_request_does_not_slow_the_refill() -> None:
    account = Account()
    reserve(account, "long", 100, limits())
    assert account.standing(limits(), now_us=9_999_999).level.tokens_micro == 99


def test_what_can_never_fit_is_told_apart_from_what_does_not_fit_now() -> None:
    account = Account()
    assert reserve(account, "a", 101, limits()).status is Status.NEVER
    reserve(account, "b", 100, limits())
    assert reserve(account, "c", 5, limits()).status is Status.REFUSED


def test_both_resources_must_fit_and_neither_is_taken_alone() -> None:
    account = Account()
    both = QuotaLimits(tokens=BucketLimits(10, 100), kv=BucketLimits(1, 50))
    refused = account.reserve(ONE, Amounts(10, 51), both, lease_us=LEASE_US, now_us=0)
    assert (refused.status, refused.level) == (Status.NEVER, Amounts(100, 50))
    taken = account.reserve(ONE, Amounts(10, 40), both, lease_us=LEASE_US, now_us=0)
    assert (taken.status, taken.level) == (Status.DONE, Amounts(90, 10))
    # More KV was held for longer than was thought: the bucket owes it, and the next request waits.
    settled = account.settle(ONE, Amounts(10, 60), both, now_us=0)
    assert settled.level == Amounts(90, -10)
    assert (
        account.reserve(LeaseId("next"), Amounts(0, 1), both, lease_us=LEASE_US, now_us=0).status
        is Status.REFUSED
    )


def test_so_many_requests_at_once_and_no_more() -> None:
    account, two = Account(), QuotaLimits(max_concurrent=2)
    assert [reserve(account, name, 1, two).status for name in "abc"] == [
        Status.DONE,
        Status.DONE,
        Status.CROWDED,
    ]
    settle(account, "a", 1, two)
    assert reserve(account, "c", 1, two).status is Status.DONE


def test_a_running_request_goes_into_debt_up_to_the_cap_and_debt_blocks_admission() -> None:
    account, given_limits = Account(), limits(debt_cap_micro=30)
    reserve(account, "a", 100, given_limits)
    raised = account.renew(LeaseId("a"), Amounts(130), given_limits, lease_us=LEASE_US, now_us=0)
    assert (raised.status, raised.level.tokens_micro) == (Status.DONE, -30)
    beyond = account.renew(LeaseId("a"), Amounts(131), given_limits, lease_us=LEASE_US, now_us=0)
    assert (beyond.status, beyond.reserved.tokens_micro) == (Status.REFUSED, 130)
    settle(account, "a", 130, given_limits)
    assert reserve(account, "b", 1, given_limits, 3_000_000).status is Status.REFUSED
    assert reserve(account, "b", 1, given_limits, 3_100_000).status is Status.DONE


def test_repeating_a_step_changes_nothing() -> None:
    account = Account()
    first = reserve(account, "a", 60, limits())
    assert reserve(account, "a", 60, limits()) == first
    raised = account.renew(LeaseId("a"), Amounts(80), limits(), lease_us=LEASE_US, now_us=0)
    assert account.renew(LeaseId("a"), Amounts(80), limits(), lease_us=LEASE_US, now_us=0) == raised
    settle(account, "a", 50, limits())
    assert reserve(account, "a", 60, limits()).status is Status.SETTLED
    late = account.renew(LeaseId("a"), Amounts(90), limits(), lease_us=LEASE_US, now_us=0)
    assert (late.status, late.level.tokens_micro, account.leases) == (Status.SETTLED, 50, {})


def test_a_lease_that_nobody_renews_gives_back_and_its_late_settlement_still_charges() -> None:
    account = Account()
    reserve(account, "a", 60, limits(rate=1))
    assert account.standing(limits(rate=1), now_us=LEASE_US).held == Amounts()
    settled = settle(account, "a", 25, limits(rate=1), LEASE_US)
    assert (settled.charged.tokens_micro, settled.level.tokens_micro) == (25, 75)
    assert account.settled[LeaseId("a")].late


def test_a_live_request_whose_lease_was_lost_takes_it_again_whatever_the_level() -> None:
    account = Account()
    reserve(account, "other", 90, limits(rate=1))
    account.renew(LeaseId("lost"), Amounts(60), limits(rate=1), lease_us=LEASE_US, now_us=0)
    assert account.buckets[0].level == -50
    account.check()
    assert settle(account, "lost", 10, limits(rate=1)).level.tokens_micro == 0


def test_a_tenant_that_becomes_limited_in_the_middle_settles_as_it_began() -> None:
    account = Account()
    reserve(account, "free", 5, QuotaLimits())
    reserve(account, "limited", 5, limits(burst=10))
    assert settle(account, "free", 2, limits(burst=10)).refunded.tokens_micro == 3
    assert settle(account, "limited", 5, limits(burst=10)).level.tokens_micro == 5
    account.check()


def test_smaller_limits_take_what_lies_above_them() -> None:
    account = Account()
    reserve(account, "a", 30, limits())
    assert account.standing(limits(burst=50), now_us=0).level.tokens_micro == 50
    account.check()
    assert settle(account, "a", 0, limits(burst=50)).refunded.tokens_micro == 0


def test_a_clock_that_goes_back_stands_still() -> None:
    account = Account()
    reserve(account, "a", 100, limits(), now_us=5_000_000)
    assert account.standing(limits(), now_us=1_000_000).level.tokens_micro == 0
    assert account.standing(limits(), now_us=6_000_000).level.tokens_micro == 10


def test_a_negative_charge_is_a_bug() -> None:
    with pytest.raises(InvariantError):
        settle(Account(), "a", -1, limits())


@pytest.mark.parametrize("wrong", [(0, 1), (1, 0), (1, 2**53), (-1, 5)])
def test_limits_out_of_range_are_refused(wrong: tuple[int, int]) -> None:
    with pytest.raises(SettingsError):
        BucketLimits(*wrong)


def test_a_store_that_forgot_its_last_steps_is_told_the_levels_and_counts_nothing_twice() -> None:
    """Two gateways on an account that starts again from nothing: each tells what it saw, then what it did."""
    given_limits = limits(rate=1, burst=100)
    before = Account()
    reserve(before, "a-runs", 30, given_limits)
    reserve(before, "b-settled", 20, given_limits)
    by_a = before.standing(given_limits, now_us=1)
    by_b = settle(before, "b-settled", 5, given_limits, 2)
    assert (by_a.level.tokens_micro, by_b.level.tokens_micro) == (50, 65)
    after = Account()
    # Before anybody has told it anything, a newcomer is admitted as if the bucket were full.
    after.reserve(LeaseId("new"), Amounts(10), given_limits, lease_us=LEASE_US, now_us=3, run="second")
    for seen in (by_b, by_a):
        after.restore(seen.level, seen.now_us, given_limits, now_us=4, run="second")
    after.settle(LeaseId("b-settled"), Amounts(5), given_limits, now_us=5, run="second", recovered=True)
    after.renew(
        LeaseId("a-runs"),
        Amounts(30),
        given_limits,
        lease_us=LEASE_US,
        now_us=5,
        run="second",
        recovered=True,
    )
    after.check()
    standing = after.standing(given_limits, now_us=6, run="second")
    assert (standing.level.tokens_micro, standing.held.tokens_micro) == (55, 40)
    ended = after.settle(LeaseId("a-runs"), Amounts(1), given_limits, now_us=6, run="second")
    assert (ended.refunded.tokens_micro, ended.level.tokens_micro) == (29, 84)
