"""Layouts, collectives, transfers. Every expected figure is worked out by hand in its comment."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ridgeline_contracts.errors import SettingsError
from ridgeline_roofline.catalogue.gpus import gpu_named
from ridgeline_roofline.catalogue.links import fast_link, link_named
from ridgeline_roofline.decisions.expert_placement import PlacementFacts, expert_placement, in_order_ratio
from ridgeline_roofline.plan.topics.ep import expected_nodes, zipf_loads
from ridgeline_roofline.step.collectives import (
    hierarchical_all_reduce,
    one_shot_all_reduce,
    one_shot_crossover_bytes,
    ring_all_reduce,
    two_shot_all_reduce,
)
from ridgeline_testing.plans import ask

_NVLINK = fast_link(gpu_named("h100-sxm"))


def test_tp_has_two_all_reduces_a_layer_and_never_doubles_its_speed() -> None:
    plan = ask("tp", tp="8", batch="32")
    assert plan.value("all-reduces a step") == 160
    # 32 rows x 8,192 x 2 = 512 KiB: two-shot, 4 us fixed and 2 x 7/8 x 524,288 / 450 GB/s = 2.039 us, 160 times.
    assert plan.value("all-reduces, fixed") == pytest.approx(160 * 4e-6)
    assert plan.value("all-reduces, moving") == pytest.approx(160 * 2.039e-6, rel=1e-3)
    steps = {int(row[0]): float(row[1]) for row in plan.tables[0].rows}
    assert all(steps[2 * n] > steps[n] / 2 for n in steps if 2 * n in steps)


def test_small_batches_want_many_ranks_and_throughput_wants_few() -> None:
    winners = ask("tp").tables[1].rows
    assert all(int(fast) >= int(cheap) for _, fast, cheap in winners)


def test_405b_makes_252_all_reduces_a_token_whatever_the_stages() -> None:
    # 126 layers x 2.
    assert ask("layout", tp="8").value("all-reduces a token") == 252
    assert ask("layout", tp="4", pp="2").value("all-reduces a token") == 252


def test_405b_on_eight_h100_forces_fp8() -> None:
    # BF16: 405.9e9 x 2 = 811.7 GB against 8 x 85.52 = 684.2 GB. FP8: 405.9 GB.
    plan = ask("layout", tp="8", gpus="8", weights="bf16")
    assert plan.value("weights") == pytest.approx(811.7e9, rel=1e-3)
    assert plan.value("memory") == pytest.approx(8 * 81_559 * 2**20)
    assert plan.word("precision that fits") == "fp8"
    # Two nodes hold BF16.
    rows = {str(row[0]): str(row[2]) for row in plan.tables[0].rows}
    assert "bf16" in rows["TP16"].split()
    assert "bf16" not in rows["TP8"].split()


def test_tp_past_the_kv_heads_copies_kv() -> None:
    # 8 KV heads over 16 ranks: every head is held twice; each GPU holds 1/8 of the KV instead of 1/16.
    plan = ask("layout", model="llama-3.1-405b", tp="16", gpus="16", batch="16", context="4k")
    assert plan.value("KV copies") == 2
    # 516,096 bytes a token x 4,000 x 16 / 8 = 4.129 GB, half of it copies.
    assert plan.value("KV a GPU") == pytest.approx(4.129e9, rel=1e-3)
    assert plan.value("KV copied") == pytest.approx(4.129e9 / 2, rel=1e-3)


def test_mla_is_copied_to_every_rank_and_dp_attention_is_the_cure() -> None:
    copied = ask("layout", model="deepseek-v3", tp="8", gpus="8", gpu="h200", batch="64", context="4k")
    assert copied.value("KV copies") == 8
    # 576 x 2 x 61 = 70,272 bytes a token, all of it on every GPU: x 64 x 4,000 = 17.99 GB; DP: an eighth.
    assert copied.value("KV a GPU") == pytest.approx(70_272 * 256_000)
    spread = ask(
        "layout", model="deepseek-v3", tp="1", dp="8", ep="8", gpus="8", gpu="h200", batch="64", context="4k"
    )
    assert spread.value("KV a GPU") == pytest.approx(70_272 * 256_000 / 8)
    assert spread.value("KV copies") == 1


def test_a_domain_of_72_keeps_inside_what_leaves_a_domain_of_8() -> None:
    given = {"model": "deepseek-v3", "tp": "1", "dp": "64", "ep": "64", "gpus": "64"}
    assert ask("layout", gpu="h100-sxm", **given).word("leaves the fast domain") == "yes"
    inside = ask("layout", gpu="gb200", **given)
    assert inside.word("leaves the fast domain") == "no"
    assert inside.value("blast radius") == 64


@pytest.mark.parametrize(
    ("given", "said"),
    [
        pytest.param({"tp": "3"}, "does not divide the 64 query heads", id="tp"),
        pytest.param({"pp": "81", "tp": "1"}, "at most 80", id="pp"),
        pytest.param({"model": "deepseek-v3", "tp": "8", "ep": "3"}, "give one of 1 2 4 8", id="ep"),
    ],
)
def test_an_impossible_layout_is_refused_with_what_works(given: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        ask("decode-floor", **given)


def test_all_reduce_forms_by_hand() -> None:
    # 8 ranks, 1 MB, 450 GB/s: ring 14 x 2 us + 1.75 x 2.222 us; one-shot 2 us + 7 x 2.222 us; two-shot 4 us + 1.75.
    one = 1e6 / 450e9
    assert ring_all_reduce(1e6, 8, _NVLINK).seconds == pytest.approx(28e-6 + 1.75 * one)
    assert one_shot_all_reduce(1e6, 8, _NVLINK).seconds == pytest.approx(2e-6 + 7 * one)
    assert two_shot_all_reduce(1e6, 8, _NVLINK).seconds == pytest.approx(4e-6 + 1.75 * one)


def test_the_all_reduce_of_a_batch_of_32() -> None:
    # 32 rows x 8,192 x 2 bytes = 524,288 bytes = 1.1651 us at 450 GB/s. Two-shot 4 us + 1.75 x that = 6.039 us;
    # one-shot 2 us + 7 x that = 10.156 us. Equal where 2 us = (7 - 1.75) B / 450 GB/s: 171,429 bytes, 10.46 rows.
    plan = ask("collectives", tp="8", batch="32")
    assert plan.value("message") == 524_288
    assert plan.value("two-shot") == pytest.approx(6.039e-6, rel=1e-3)
    assert plan.value("one-shot") == pytest.approx(10.156e-6, rel=1e-3)
    assert plan.word("best") == "two-shot"
    assert plan.value("two-shot wins from") == pytest.approx(171_429, rel=1e-4)
    assert plan.value("rows where it wins") == pytest.approx(171_429 / 16_384, rel=1e-4)


@given(st.integers(3, 64))
def test_one_shot_and_two_shot_cost_the_same_at_the_crossover(ranks: int) -> None:
    size = one_shot_crossover_bytes(ranks, _NVLINK)
    one, two = one_shot_all_reduce(size, ranks, _NVLINK), two_shot_all_reduce(size, ranks, _NVLINK)
    assert one.seconds == pytest.approx(two.seconds)


def test_two_levels_send_an_eighth_over_the_wide_link() -> None:
    # 16 ranks in two domains: inside as two-shot over 8, across an all-reduce of S/8 over 2 ranks (one-shot).
    wide = link_named("ib-ndr")
    found = hierarchical_all_reduce(8e6, 16, inside=8, fast=_NVLINK, wide=wide)
    assert found.seconds == pytest.approx(4e-6 + 1.75 * 8e6 / 450e9 + 3e-6 + 1e6 / 50e9)


def test_pipeline_stages_do_not_make_a_token_faster() -> None:
    one, two = ask("pp", tp="8", pp="1", micro="1"), ask("pp", tp="8", pp="2", micro="1")
    assert two.value("a token's latency") >= one.value("a token's latency") * 0.999
    # (2 - 1) / (4 + 2 - 1).
    assert ask("pp", tp="8", pp="2", micro="4").value("bubble") == pytest.approx(0.2)


def test_tp_across_nodes_loses_to_pp_once_an_all_reduce_is_slow() -> None:
    fast, slow = ask("pp", link="ib-ndr"), ask("pp", link="eth-25")
    assert fast.word("faster token") == "TP16"
    assert slow.word("faster token") == "PP2"
    assert slow.value("an all-reduce there") > slow.value("PP wins from an all-reduce of")


def test_all_to_all_bytes_of_deepseek() -> None:
    # 58 MoE layers x 7,168 x (1 byte out + 2 back) = 1.2472 MB for each expert copy; 8 experts.
    plan = ask("ep", ep="32", dp="32", tp="1")
    assert plan.value("bytes a token") == pytest.approx(8 * 58 * 7168 * 3)
    # 4 nodes of 8 experts' ranks: C(192, 8) / C(256, 8) of the tokens miss a given node.
    assert expected_nodes(4, 256, 8) == pytest.approx(4 * (1 - 0.0965), rel=5e-3)
    # Inside one node nothing goes over the NIC.
    assert ask("ep", ep="8", dp="8", tp="1", gpu="h200").value("over the NIC") == 0


def test_fewer_nodes_a_token_means_fewer_bytes_over_the_nic() -> None:
    two, four = ask("ep", nodes="2"), ask("ep", nodes="4")
    assert two.value("over the NIC") < four.value("over the NIC")
    # Two copies, of which 1 in 4 is for the own node.
    assert two.value("over the NIC") == pytest.approx(2 * 0.75 * 58 * 7168 * 3)


def test_placement_and_copies_recover_an_imbalance_and_drift_undoes_it() -> None:
    loads = zipf_loads(64, 0.8)
    even, plain = in_order_ratio(zipf_loads(64, 0.0), 8), in_order_ratio(loads, 8)
    placed, copied = (
        expert_placement(PlacementFacts(loads, 8, spare)).value.busiest_ratio for spare in (0, 8)
    )
    assert even == pytest.approx(1)
    assert plain > placed > copied >= 1
    plan = ask("ep")
    assert plan.value("busiest over mean, after drift") > plan.value("busiest over mean, placed")


def test_two_half_batches_lose_when_small_and_win_when_large() -> None:
    plan = ask("ep")
    gains = {int(row[0]): float(row[3]) for row in plan.tables[0].rows}
    least = plan.value("two half batches win from")
    assert gains[16] < 1
    assert gains[4096] > 1
    assert 16 < least <= 4096


def test_mla_absorbed_against_expanded() -> None:
    plan = ask("mla")
    # 2 x 128 x (2 x 512 + 64); 2 x 512 x 128 x 256; 2 x 128 x (128 + 64 + 128).
    assert plan.value("absorbed, a cached token") == 278_528
    assert plan.value("rebuild a cached token") == 33_554_432
    assert plan.value("attend a cached token") == 81_920
    # 33,554,432 / (278,528 - 81,920) = 170.7 query tokens.
    assert plan.value("expanded pays from") == pytest.approx(170.7, abs=0.05)
    assert ask("mla", query_tokens="512").word("better here") == "expanded"


def test_transfer_bandwidth_hardly_depends_on_the_prompt() -> None:
    short, long = ask("transfer", prompt="2k"), ask("transfer", prompt="8k")
    # 327,680 bytes a token against a prefill rate that falls a little as attention grows.
    assert short.value("bandwidth to keep up") == pytest.approx(long.value("bandwidth to keep up"), rel=0.25)
    assert long.value("KV bytes of the prompt") == 8000 * 327_680
    # Pulled layer by layer only the last of 80 layers is left to wait for.
    assert long.value("delay, layer by layer") == pytest.approx(long.value("delay, all at the end") / 80)


def test_fewer_receiving_nics_saturate_first() -> None:
    plan = ask("transfer", receivers="2")
    assert plan.word("saturates first") == "the receiving side"
    assert plan.value("bandwidth there is") == pytest.approx(2 * 50e9 * 0.85)
