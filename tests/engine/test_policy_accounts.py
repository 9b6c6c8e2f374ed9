"""Tenants' counters: who has had least, and what idleness is worth."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ridgeline_contracts.errors import InvariantError
from ridgeline_contracts.ids import TenantId
from ridgeline_engine.policy.accounts import TenantAccounts

A, B, C = TenantId("a"), TenantId("b"), TenantId("c")


def test_a_heavier_tenant_is_charged_less_for_the_same() -> None:
    accounts = TenantAccounts()
    light, heavy = accounts.enter(A, 1.0), accounts.enter(B, 4.0)
    light.charge(8.0)
    heavy.charge(8.0)
    assert (light.served_ms, heavy.served_ms) == (8.0, 2.0)


def test_a_tenant_has_one_account_and_its_newest_weight_counts() -> None:
    accounts = TenantAccounts()
    first = accounts.enter(A, 1.0)
    assert accounts.enter(A, 2.0) is first
    assert (first.sequences, first.weight) == (2, 2.0)


def test_a_new_account_is_its_tenants_with_its_weight() -> None:
    account = TenantAccounts().enter(A, 2.5)
    assert (account.tenant, account.weight, account.served_ms, account.sequences) == (A, 2.5, 0.0, 1)


def test_one_that_comes_is_lifted_to_the_least_of_the_active() -> None:
    accounts = TenantAccounts()
    one, other = accounts.enter(A, 1.0), accounts.enter(B, 1.0)
    one.charge(30.0)
    other.charge(50.0)
    assert accounts.enter(C, 1.0).served_ms == 30.0


def test_idle_time_is_no_credit() -> None:
    accounts = TenantAccounts()
    idle, busy = accounts.enter(A, 1.0), accounts.enter(B, 1.0)
    idle.charge(5.0)
    accounts.leave(idle)
    busy.charge(1_000.0)
    assert accounts.enter(A, 1.0).served_ms == 1_000.0


def test_what_a_tenant_had_too_much_is_not_forgotten_while_it_is_away() -> None:
    accounts = TenantAccounts()
    greedy, other = accounts.enter(A, 1.0), accounts.enter(B, 1.0)
    greedy.charge(100.0)
    accounts.leave(greedy)
    other.charge(40.0)
    assert accounts.enter(A, 1.0).served_ms == 100.0


def test_after_a_pause_of_all_a_newcomer_starts_level_with_the_last_to_leave() -> None:
    accounts = TenantAccounts()
    last = accounts.enter(A, 1.0)
    last.charge(70.0)
    accounts.leave(last)
    assert accounts.enter(B, 1.0).served_ms == 70.0
    assert accounts.enter(A, 1.0).served_ms == 70.0


def test_accounts_of_idle_tenants_do_not_pile_up() -> None:
    accounts = TenantAccounts()
    steady = accounts.enter(A, 1.0)
    for index in range(1_000):
        steady.charge(3.0)
        guest = accounts.enter(TenantId(f"guest{index}"), 1.0)
        guest.charge(1.0)
        accounts.leave(guest)
    assert len(accounts) <= 3


def test_a_tenant_cannot_leave_more_often_than_it_came() -> None:
    accounts = TenantAccounts()
    account = accounts.enter(A, 1.0)
    accounts.leave(account)
    with pytest.raises(InvariantError, match="left more often"):
        accounts.leave(account)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([A, B, C]), st.sampled_from(["enter", "leave", "charge"]), st.floats(0.1, 50.0)
        ),
        max_size=60,
    )
)
def test_counters_never_fall_and_an_arrival_is_never_below_all_who_are_active(
    changes: list[tuple[TenantId, str, float]],
) -> None:
    accounts = TenantAccounts()
    seen: dict[TenantId, float] = {}
    for tenant, change, amount in changes:
        active = {each.tenant: each for each in accounts.active()}
        if change == "enter":
            others = [each.served_ms for each in active.values()]
            account = accounts.enter(tenant, 1.0)
            assert account.served_ms >= min(others, default=0.0)
        elif tenant in active:
            account = active[tenant]
            if change == "charge":
                account.charge(amount)
            else:
                accounts.leave(account)
        else:
            continue
        assert account.served_ms >= seen.get(tenant, 0.0)
        seen[tenant] = account.served_ms
