"""Queues, money, fleets and targets. Every expected figure is worked out by hand in its comment."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ridgeline_contracts.errors import SettingsError
from ridgeline_contracts.step import StepCoefficients
from ridgeline_roofline.decisions.canary import (
    CanaryFacts,
    canary_requests,
    expected_requests,
    sequential_bounds,
)
from ridgeline_roofline.decisions.draft_length import DraftFacts, draft_length, expected_tokens
from ridgeline_roofline.decisions.failover import FailoverFacts, failover_fleet, failover_routes
from ridgeline_roofline.decisions.pool_ratio import PoolFacts, pool_sizes
from ridgeline_roofline.decisions.price import PriceFacts, price_per_token
from ridgeline_roofline.decisions.resource_weights import MICRO, WeightFacts, resource_weights
from ridgeline_roofline.decisions.spill import SpillFacts, spill_saving_ms
from ridgeline_roofline.queueing import erlang_c, mean_wait_s, residents, utilisation_ceiling, wait_quantile_s
from ridgeline_testing.plans import ask

# 10 ms a step, 0.1 ms a row, 10 us a thousand tokens of context, 50 us a prompt token, 1 ns a (query, key) pair.
MODEL = StepCoefficients(10.0, 0.1, 1e-5, 0.05, 1e-6)


def test_littles_law_closes() -> None:
    # B = rate x output x (10 ms + 0.1 ms B): 10/s x 100 x 0.01 = 10 = B (1 - 0.1) -> 11.11.
    assert residents(10.0, lambda rows: 0.010 + 0.0001 * rows, 100.0) == pytest.approx(11.11, rel=1e-3)
    # At 101/s each sequence takes longer than it brings: no fixed point.
    assert residents(101.0, lambda rows: 0.010 + 0.0001 * rows, 100.0) == float("inf")


def test_resident_sequences_are_a_fixed_point_of_the_plan() -> None:
    plan = ask("residency", rate="3/s")
    assert plan.value("resident sequences") == pytest.approx(
        3 * plan.value("time a sequence decodes"), rel=1e-6
    )
    with pytest.raises(SettingsError, match="give at most"):
        ask("residency", rate="50/s")


def test_queueing_formulas_by_hand() -> None:
    # Erlang C of one server is its utilisation; of 2 at 50%: 0.5 / (1 + 1 + 0.5 x 2) = 1/3.
    assert erlang_c(1, 0.7) == pytest.approx(0.7)
    assert erlang_c(2, 0.5) == pytest.approx(1 / 3)
    # M/D/1 at 50%: 0.5 x s / (2 x 0.5) = s/2; M/M/1: s.
    assert mean_wait_s(1.0, 0.0, 0.5) == pytest.approx(0.5)
    assert mean_wait_s(1.0, 1.0, 0.5) == pytest.approx(1.0)
    # M/M/1's p99: s / (1 - rho) x ln(rho / 0.01) = 2 x ln 50.
    assert wait_quantile_s(1.0, 1.0, 0.5, quantile=0.99) == pytest.approx(2 * 3.912, rel=1e-3)


@given(st.floats(0.1, 3.0), st.integers(1, 64), st.floats(0.5, 20.0))
def test_the_ceiling_just_meets_its_target(scv: float, servers: int, target_s: float) -> None:
    ceiling = utilisation_ceiling(1.0, scv, target_s=target_s, servers=servers)
    assert 0 < ceiling < 1
    assert wait_quantile_s(1.0, scv, ceiling, quantile=0.99, servers=servers) <= target_s * (1 + 1e-6)
    assert (
        wait_quantile_s(1.0, scv, min(0.999999, ceiling * 1.01), quantile=0.99, servers=servers)
        > target_s * 0.999
    )


def test_one_queue_for_many_may_be_busier() -> None:
    plan = ask("utilisation", servers="8")
    assert plan.value("ceiling, pool of 8") > plan.value("ceiling, one replica")
    assert len(plan.tables[0].rows) == 4


def test_targets_become_a_chunk_a_rate_and_a_backlog() -> None:
    plan = ask("slo", batch="64", tpot="30ms", ttft="1s", ahead="0")
    rate = plan.value("prefill rate")
    assert rate == pytest.approx(plan.value("chunk") / 30e-3, rel=0.01)
    # (1 s - 4,000 / rate) x rate = rate - 4,000.
    assert plan.value("backlog that the target absorbs") == pytest.approx(rate - 4000, abs=1)
    assert plan.word("verdict") == "admit"
    over = ask("slo", batch="64", tpot="30ms", ttft="1s", ahead=str(int(rate)))
    assert over.word("verdict") == "refuse"
    assert over.value("retry after") == pytest.approx(4000 / rate, rel=1e-3)


def test_a_batch_that_misses_its_target_alone_is_refused() -> None:
    with pytest.raises(SettingsError, match="smaller batch, a longer target"):
        ask("slo", batch="4k", tpot="10ms")


def test_a_service_from_arrivals_to_dollars() -> None:
    plan = ask("service", rate="20/s", prompt="4k", output="500", cached="30%", peak="2", utilisation="80%")
    assert plan.value("prompt tokens a second") == 80_000
    assert plan.value("of them computed") == pytest.approx(56_000)
    assert plan.value("output tokens a second") == 10_000
    # Replicas: 40/s / (unit x 80%), rounded up; 8 GPUs each at 2.50 USD/h.
    unit = plan.value("one replica serves")
    assert plan.value("replicas") == -(-40 // (unit * 0.8))
    assert plan.value("cost an hour") == pytest.approx(plan.value("GPUs") * 2.5)


def test_weights_are_shares_of_measured_time() -> None:
    # 1,000 prompt tokens: 10 + 50 + 1e-6 x 500,000 = 60.5 ms -> 0.0605 each. 32 rows at 1,000: 10 + 3.2 + 0.32 = 13.52
    # -> 0.4225. A cached half adds 500 x 500 pairs = 0.25 ms over 500 tokens: 0.0005.
    found = resource_weights(MODEL, WeightFacts(batch=32, context_tokens=1000, prompt_tokens=1000)).value
    assert found.prompt_micro == MICRO
    assert found.output_micro == pytest.approx(MICRO * 0.4225 / 0.0605, rel=1e-5)
    assert found.cached_micro == pytest.approx(MICRO * 0.0005 / 0.0605, rel=1e-4)


def test_a_price_is_gpu_time_over_what_is_sold() -> None:
    # 0.0605 ms x 0.01 USD/s / 50% = 1.21e-6 USD a prompt token.
    facts = PriceFacts(WeightFacts(32, 1000, 1000), usd_per_s=0.01, utilisation=0.5)
    found = price_per_token(MODEL, facts).value
    assert found.prompt_usd == pytest.approx(1.21e-6)
    assert found.output_usd / found.prompt_usd == pytest.approx(0.4225 / 0.0605, rel=1e-4)


def test_half_the_utilisation_doubles_a_price_and_moves_it_most() -> None:
    plan = ask("price")
    moves = {str(row[0]): float(row[1]) for row in plan.tables[0].rows}
    assert moves["half the utilisation"] == pytest.approx(1.0)
    assert plan.word("moves it most") == max(moves, key=lambda name: abs(moves[name]))


def test_one_unit_over_two_generations() -> None:
    plan = ask("fleet", gpu=["h100-sxm", "b200"], rate="40/s", first="32", utilisation="80%")
    one, two = plan.value("unit of h100-sxm"), plan.value("unit of b200")
    # Between what B200 has more of in compute (2.27) and bandwidth (2.39), less what latency keeps.
    assert 1.8 < two / one < 2.6
    assert plan.value("carried by the first") == pytest.approx(4 * one * 0.8)
    added = plan.value("replicas of the second to add")
    assert plan.value("quota to grant") == pytest.approx((4 * one + added * two) * 0.8)
    assert plan.value("quota to grant") >= 40
    assert added == -(-(40 - 4 * one * 0.8) // (two * 0.8))


def test_the_smallest_fleet_that_survives_any_region() -> None:
    # 3 equal regions of 10 units, 1 unit a replica: 30 must be left without one: 15 each, 45 = 30 x 3/2.
    found = failover_fleet(FailoverFacts((10, 10, 10), unit_per_replica=1.0, utilisation=1.0)).value
    assert found.replicas == (15, 15, 15)
    assert found.lost_carried_ratio == pytest.approx(1.0)


def test_a_fleet_of_three_regions_at_the_goodput_of_its_replicas() -> None:
    # 60 requests/s over u x 80% must be left when the largest region is lost; half of the load alone needs
    # ceil(30 / 0.8 u) there. Costs: the replicas beyond ceil(60 x share / 0.8 u) a region, 8 GPUs each, 2.50 USD.
    plan, unit = ask("failover", tp="8", rate="60"), ask("goodput", tp="8").value("goodput")
    assert plan.value("unit of a replica") == pytest.approx(unit)
    own = [-(-60 * share // (0.8 * unit)) for share in (0.5, 0.3, 0.2)]
    assert plan.value("replicas without failover") == sum(own)
    left = -(-60 // (0.8 * unit))
    assert plan.value("replicas") == left + max(own[0], -(-left // 2))
    assert plan.value("cost of surviving an hour") == pytest.approx(
        (plan.value("replicas") - sum(own)) * 8 * 2.5
    )


def test_a_lost_region_goes_to_those_that_can_spare() -> None:
    # Others have 20 - 10 = 10 and 10 - 8 = 2 units to spare: 6 units split 5 to 1.
    facts = FailoverFacts((10, 8, 6), unit_per_replica=2.0, utilisation=0.5)
    assert failover_routes(facts, (20, 10, 9), lost=2) == pytest.approx((5.0, 1.0, 0.0))


@given(st.lists(st.floats(0.5, 200), min_size=2, max_size=5))
def test_no_loss_of_a_region_is_too_much_and_one_replica_less_would_be(loads: list[float]) -> None:
    found = failover_fleet(FailoverFacts(loads, unit_per_replica=2.0, utilisation=0.8)).value
    needed = -(-sum(loads) // 1.6)
    assert sum(found.replicas) - max(found.replicas) >= needed
    assert found.lost_carried_ratio >= 1 - 1e-9
    facts = FailoverFacts(loads, unit_per_replica=2.0, utilisation=0.8)
    for lost, load in enumerate(loads):
        taken = failover_routes(facts, found.replicas, lost=lost)
        assert sum(taken) == pytest.approx(load)
        for own, more, replicas in zip(loads, taken, found.replicas, strict=True):
            assert own + more <= replicas * 1.6 * (1 + 1e-9)
    assert sum(found.replicas) - max(found.replicas) == needed or max(found.replicas) == -(-max(loads) // 1.6)


def test_a_canary_is_as_large_as_its_regression_demands() -> None:
    # p = 0.015: 1.645 sqrt(2 x 0.015 x 0.985) = 0.28277; 1.645 sqrt(0.0099 + 0.0196) = 0.28253; squared: 3,196.
    assert canary_requests(CanaryFacts(0.01, 0.02)).value == 3196
    plan = ask("canary", rate="20/s", share="5%")
    assert plan.value("time of the canary") == pytest.approx(3196 / 1.0)
    # Means: 2 (3.29 x 0.6 / 0.05)^2 = 3,117.
    assert plan.value("requests a side, latency") == 3117


@given(st.floats(0.001, 0.2), st.floats(1.1, 4.0))
def test_a_smaller_regression_needs_more_requests(base: float, factor: float) -> None:
    near = canary_requests(CanaryFacts(base, base * factor)).value
    assert near >= canary_requests(CanaryFacts(base, base * factor * 1.1)).value


def test_walds_bounds() -> None:
    # ln(0.95 / 0.05) = 2.944; a failure adds ln 2, a success ln(0.98 / 0.99).
    found = sequential_bounds(CanaryFacts(0.01, 0.02)).value
    assert (found.abort_above, found.promote_below) == (
        pytest.approx(2.944, abs=1e-3),
        pytest.approx(-2.944, abs=1e-3),
    )
    assert found.fail_step == pytest.approx(0.6931, abs=1e-4)
    assert found.pass_step == pytest.approx(-0.010152, abs=1e-6)
    # Early on average: far fewer than the 3,196 of the fixed size.
    assert expected_requests(CanaryFacts(0.01, 0.02), true_rate=0.02) < 1000


@pytest.mark.parametrize(
    ("base", "regressed"), [pytest.param(0.02, 0.01, id="backwards"), pytest.param(0.0, 0.1, id="no-base")]
)
def test_rates_that_are_no_regression_are_refused(base: float, regressed: float) -> None:
    with pytest.raises(SettingsError, match="base < regressed"):
        canary_requests(CanaryFacts(base, regressed))


def test_pools_follow_the_load() -> None:
    # 10/s x 4,000 / 20,000 / 0.7 = 2.86 -> 3; 10/s x 500 / 1,500 / 0.7 = 4.76 -> 5.
    found = pool_sizes(PoolFacts(10, 4000, 500, prefill_tokens_per_s=20_000, decode_tokens_per_s=1500)).value
    assert (found.prefill, found.decode) == (3, 5)


def test_a_request_leaves_its_cache_when_the_queue_outweighs_the_hit() -> None:
    # A hit of 4,000 of 5,000 tokens saves 4,000 x 0.05 + pairs: cold 10 + 250 + 12.5; warm 10 + 50 + 4.5 = 208 ms.
    stay = spill_saving_ms(MODEL, SpillFacts(5000, 4000, 0, queue_ms=200, other_queue_ms=0))
    leave = spill_saving_ms(MODEL, SpillFacts(5000, 4000, 0, queue_ms=220, other_queue_ms=0))
    assert stay.value == pytest.approx(-8, abs=0.1)
    assert leave.value == pytest.approx(12, abs=0.1)
    assert "208.00 ms" in stay.derivation


def test_drafts_pay_while_the_step_is_bound_by_memory() -> None:
    # 1 + 0.8 + 0.64 + 0.512 = 2.952 tokens for three drafts.
    assert expected_tokens(0.8, 3) == pytest.approx(2.952)
    few = draft_length(MODEL, DraftFacts(rows=1, context_tokens=1000, acceptance=0.8, draft_ms=0.0)).value
    many = draft_length(
        MODEL, DraftFacts(rows=400, context_tokens=400_000, acceptance=0.8, draft_ms=0.0)
    ).value
    assert few > many
    # A draft that costs a step of its own, and is rarely right, is switched off.
    assert draft_length(MODEL, DraftFacts(8, 8000, acceptance=0.2, draft_ms=10.0)).value == 0


def test_long_prompts_need_a_warm_share() -> None:
    with pytest.raises(SettingsError, match="no KV of 1000250 tokens fits"):
        ask("long-context", prompt="1M", tp="4", ttft="900s")
    plan = ask("long-context", prompt="64k", ttft="2s", rate="2/s")
    assert 0 < plan.value("warm share needed") < 1
    assert plan.value("prefill of the rest") == pytest.approx(2.0, rel=1e-3)
    # 2/s x 2 s / 70% = 5.71 -> 6 prefill replicas of 8.
    assert plan.value("prefill GPUs") == 48
    assert ask("long-context", prompt="64k", ttft="60s").value("warm share needed") == 0


def test_voice_leaves_the_model_what_the_others_do_not_take() -> None:
    # 300 - 20 - 80 - 40 - 30 - 60.
    assert ask("voice").value("left for the LLM") == pytest.approx(70e-3)
    assert ask("voice", gpu="b200").word("verdict") == "fits"
    assert ask("voice", recognition="100ms", gpu="b200").word("verdict") == "does not fit"


def test_bulk_work_is_gpu_hours_and_the_first_cut_saves_most() -> None:
    plan = ask("bulk")
    rows = plan.tables[0].rows
    assert plan.word("cut first") == rows[0][0]
    assert [float(row[1]) for row in rows] == sorted(float(row[1]) for row in rows)
    # Twice the documents are twice the hours.
    assert ask("bulk", documents="2M").value("GPU-hours a pass") == pytest.approx(
        2 * plan.value("GPU-hours a pass")
    )


def test_continuous_batching_gains_nothing_from_equal_outputs() -> None:
    assert ask("batch-idle", cv="0%").value("gain of continuous batching") == pytest.approx(1)
    assert ask("batch-idle", cv="100%").value("gain of continuous batching") > 2


def test_models_of_the_long_tail_are_tiered_by_load() -> None:
    assert ask("long-tail", rate="1/h").word("tier") == "asleep in host memory"
    assert ask("long-tail", rate="1/s").word("tier") == "dedicated"
    # 16.06 GB over 64 GB/s + 0.3 s.
    assert ask("long-tail").value("wake from host memory") == pytest.approx(0.551, abs=1e-3)


def test_a_claim_is_held_against_the_ceiling() -> None:
    # One sequence of 70B on 8 H100 makes at most 1 / 5.56 ms = 180 tokens/s.
    plan = ask("claim", claimed="500tok/s", batch="1", tp="8", context="1k")
    assert plan.value("ceiling") == pytest.approx(179.9, abs=0.5)
    assert plan.word("verdict") == "not possible as stated"
    conditions = {str(row[0]): str(row[2]) for row in plan.tables[0].rows}
    # Three sequences: 3 / (5.56 ms + 2 x 12 us of KV) = 537 tokens/s; two would make 359.
    assert conditions["batch"] == "3 sequences"
    assert ask("claim", claimed="100tok/s").word("verdict") == "possible"


def test_mbu_with_both_operands() -> None:
    # (17.375 GB + 16 x 4,000 x 40,960 B) / 12 ms / 3.35 TB/s = 19.997e9 / 12e-3 / 3.35e12 = 49.7%.
    plan = ask("mbu", batch="16", context="4k", step="12ms", tp="8")
    assert plan.value("MBU") == pytest.approx(0.4975, abs=2e-4)
    wrong = [float(row[2]) for row in plan.tables[0].rows]
    assert len(wrong) == 6
    # For a dense model "all experts" is no mistake; the other five differ.
    assert sum(abs(ratio - plan.value("MBU")) > 1e-3 for ratio in wrong) == 5


def test_energy_falls_with_the_batch_and_power_stays_within_its_limit() -> None:
    rows = ask("energy").tables[0].rows
    joules, watts = [float(row[3]) for row in rows], [float(row[2]) for row in rows]
    # All that arithmetic and bandwidth can draw together is more than the limit: it caps.
    capped = ask("energy", batch="256", tp="1", weights="fp8", context="100", memory="100%", compute="100%")
    assert capped.value("busy") > 1
    assert capped.value("power of a GPU") == 700
    assert joules == sorted(joules, reverse=True)
    assert all(84 <= watt <= 700 for watt in watts)
    plan = ask("energy", batch="32")
    # 8 GPUs x power x step / 32.
    expected = 8 * plan.value("power of a GPU") * plan.value("step") / 32
    assert plan.value("GPU energy a token") == pytest.approx(expected)
