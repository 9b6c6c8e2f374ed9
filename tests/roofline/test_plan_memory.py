"""Memory, KV and what is kept where. Every expected figure is worked out by hand in its comment."""

from dataclasses import replace

import pytest
from ridgeline_contracts.errors import SettingsError
from ridgeline_roofline.decisions.kv_tier import (
    KVTier,
    TierFacts,
    break_even_bandwidth,
    effective_bandwidth,
    kv_tier,
)
from ridgeline_roofline.plan.topics.graphs import captured_sizes
from ridgeline_testing.plans import ask


def test_the_ledger_of_70b_on_four_h100() -> None:
    plan = ask("memory", tp="4", context="4k", prompt="8192")
    # 70.55e9 x 2 / 4 = 35.28 GB, the first line.
    assert plan.value("weights") == pytest.approx(35.28e9, rel=1e-3)
    # 2 x 8 x 128 x 80 layers x 2 bytes = 327,680 a token, a quarter of it on each GPU.
    assert plan.value("KV bytes a token") == pytest.approx(327_680 / 4)
    # 8,192 tokens leave 2.68 GB.
    assert plan.value("KV of a prompt") == 8192 * 327_680 == 2_684_354_560
    assert plan.value("total") == pytest.approx(81_559 * 2**20)


def test_lines_say_whether_they_are_measured_and_the_maximum_is_a_ceiling() -> None:
    plan = ask("memory", tp="4")
    lines = {answer.name: answer.working for answer in plan.answers}
    assert lines["weights"].startswith("measured")
    assert all(lines[name].startswith("guessed") for name in ("context", "activation peak", "graphs"))
    assert "sequences, a ceiling" in lines


def test_the_smallest_change_that_fits_is_the_mildest() -> None:
    fits = ask("memory", tp="4", batch="32", context="4k")
    assert fits.word("smallest change for the batch") == "nothing"
    # 123 sequences of 4,000 tokens fit; 200 do with half the KV bytes. On two GPUs about 7, and 15 with it.
    assert ask("memory", tp="4", batch="200", context="4k").word("smallest change for the batch") == "kv=fp8"
    assert (
        ask("memory", tp="2", batch="20", context="4k").word("smallest change for the batch") == "weights=fp8"
    )
    assert "smaller batch" in ask("memory", tp="4", batch="100k", context="4k").word(
        "smallest change for the batch"
    )


def test_tp_past_the_kv_heads_does_not_shrink_a_gpus_kv() -> None:
    eight, sixteen = (ask("memory", tp=tp, context="4k").value("KV bytes a token") for tp in ("8", "16"))
    assert eight == sixteen == 327_680 / 8


def test_a_block_wastes_less_than_itself() -> None:
    plan = ask("blocks", batch="32", prompt="1k", output="200")
    assert plan.value("most that a sequence wastes") == plan.value("block") - 1
    # 16-token blocks: 7.5 tokens x 32 x 327,680 bytes.
    wasted = {int(row[0]): float(row[1]) for row in plan.tables[0].rows}
    assert wasted[16] == pytest.approx(7.5 * 32 * 327_680)
    assert wasted[1] == 0
    # One token of a head is 2 x 128 x 2 = 512 bytes: 8 of them are a burst of 4 kB.
    assert plan.value("block") == 8


def test_windows_save_by_the_share_of_their_layers() -> None:
    plan = ask("hybrid-window", model="gpt-oss-120b", context="32k")
    # A layer keeps 2 x 8 x 64 x 2 = 2,048 bytes a token: 18 x 32,000 full, 18 x 128 windowed.
    assert plan.value("KV of full layers") == 18 * 32_000 * 2048
    assert plan.value("KV of window layers") == 18 * 128 * 2048
    assert plan.value("saved by freeing") == pytest.approx(0.5 * (1 - 128 / 32_000))


def test_a_recurrent_model_keeps_states_instead_of_kv() -> None:
    plan = ask("hybrid-window", model="nemotron-h-8b", context="8k", tp="1")
    # A Mamba-2 layer: 128 heads x 64 x 128 + 10,240 channels x 3 = 1,079,296 FP32 values; 24 layers.
    assert plan.value("recurrent state") == 24 * 1_079_296 * 4
    # Four attention layers: 2 x 8 x 128 x 2 = 4,096 bytes a token each.
    assert plan.value("KV of full layers") == 4 * 4096 * 8000
    # One copy every 1,024 tokens; a hit recomputes half of that on average.
    assert plan.value("recomputed at a hit") == 512
    assert plan.value("state checkpoints") == pytest.approx(8000 / 1024 * 24 * 1_079_296 * 4)


def test_capture_policies() -> None:
    assert captured_sizes("none", 64) == ()
    assert captured_sizes("few", 64) == (1, 2, 4, 8, 16, 32, 64)
    assert captured_sizes("all", 24) == (1, 2, 4, 8, 16, 24)


def test_graphs_are_priced_in_pages_and_rounding() -> None:
    plan = ask("graphs", batch="64", graph="40MB", launch="4us")
    # A page: 16 tokens x 327,680 / 8 ranks = 655,360 bytes; 7 graphs x 40 MB = 427.2 pages.
    assert plan.value("memory of a KV page") == 655_360
    assert plan.value("pages that few sizes cost") == pytest.approx(7 * 40e6 / 655_360)
    assert plan.value("gap without graphs") == pytest.approx(721 * 4e-6)
    rows = {str(row[0]): row for row in plan.tables[0].rows}
    assert float(rows["none"][4]) > float(rows["few"][4]) >= float(rows["all"][4])
    # Just above a captured size, a batch is rounded up furthest.
    assert plan.value("worst batch to round up") in (17, 33)


def _facts(**changed: float) -> TierFacts:
    given = {"recompute_s": 0.4, "copy_bytes": 256e3, "reuse_ratio": 0.5, **changed}
    return TierFacts(
        tokens=8000,
        token_bytes=327_680,
        gpu_usd_per_s=0.005,
        tiers=(KVTier("host", 100e9, 5e-6), KVTier("ssd", 7e9, 80e-6, wear_usd_per_byte=1e-13)),
        **given,
    )


def test_small_copies_do_not_reach_the_bandwidth() -> None:
    # 256 kB: 2.56 us at 100 GB/s + 5 us each: 256e3 / 7.56e-6 = 33.9 GB/s.
    assert effective_bandwidth(KVTier("host", 100e9, 5e-6), 256e3) == pytest.approx(33.86e9, rel=1e-3)
    # Eight at once, each with an eighth of the bandwidth: 20.48 us + 5 us: 8 x 256e3 / 25.48e-6 = 80.4 GB/s.
    assert effective_bandwidth(KVTier("host", 100e9, 5e-6, lanes=8), 256e3) == pytest.approx(
        80.38e9, rel=1e-3
    )


def test_the_tier_with_the_largest_saving_is_taken_or_none() -> None:
    assert kv_tier(_facts()).value.name == "host"
    # 2.62 GB from the host take 77 ms: nothing is saved where recomputing takes 50 ms.
    assert kv_tier(_facts(recompute_s=0.05)).value.name == "drop"
    assert kv_tier(_facts(reuse_ratio=0.0)).value.name == "drop"


def test_a_tier_that_wears_is_not_worth_a_prefix_that_is_seldom_asked_for() -> None:
    ssd = KVTier("ssd", 7e9, 80e-6, lanes=64, wear_usd_per_byte=1e-13)
    facts = replace(_facts(reuse_ratio=0.3, recompute_s=0.5), tiers=(ssd,))
    # 2.62 GB take 0.378 s and wear 262 uUSD; 30% x 0.122 s x 0.005 USD/s = 184 uUSD are gained.
    assert kv_tier(facts).value.name == "drop"
    assert kv_tier(replace(facts, tiers=(replace(ssd, wear_usd_per_byte=0.0),))).value.name == "ssd"


def test_break_even_bandwidth() -> None:
    # 8,000 x 327,680 bytes / 0.4 s = 6.554 GB/s; 10,240 copies x 5 us take 51.2 ms of it away.
    assert break_even_bandwidth(_facts()) == pytest.approx(6.5536e9)
    assert break_even_bandwidth(_facts(), latency_s=5e-6) == pytest.approx(2_621_440_000 / (0.4 - 0.0512))
    # Eight copies at once: an eighth of the 51.2 ms.
    assert break_even_bandwidth(_facts(), latency_s=5e-6, lanes=8) == pytest.approx(2_621_440_000 / 0.3936)


def test_an_ssd_wears_out() -> None:
    # 2/s x 2.62144 GB x 70% = 3.67 GB/s = 317.1 TB a day; 15 TB x 1 x 365 x 5 = 27,375 TB: 86.3 days.
    plan = ask("kv-tiers", prompt="8k", rate="2/s", reuse="30%")
    assert plan.value("written to the SSD a day") == pytest.approx(317.1e12, rel=1e-3)
    assert plan.value("life of the SSD") == pytest.approx(86.3 * 86_400, rel=1e-3)


def test_preemption_by_its_cheapest_kind() -> None:
    plan = ask("preemption", context="4k", copy_ratio="60%")
    # 1.311 GB out and in over 8 x 64 GB/s x 60% = 307 GB/s: 8.53 ms.
    assert plan.value("swap") == pytest.approx(8.53e-3, rel=2e-3)
    assert plan.word("choice") == "swap"
    # With all of it in the prefix cache, computing again is nearly free.
    assert ask("preemption", context="4k", kept="100%").word("choice") == "recompute"


def test_adapters_of_8b() -> None:
    # A layer: 2 x (4,096 + 4,096) + 2 x (4,096 + 1,024) + 3 x (4,096 + 14,336) = 81,920; x 32 = 2,621,440; x 16 x 2.
    plan = ask("lora", rank="16", adapters="1000", batch="64")
    assert plan.value("bytes of an adapter") == 16 * 2_621_440 * 2
    # 1,000 (1 - 0.999^64) = 62.03 distinct ones.
    assert plan.value("distinct adapters in the batch") == pytest.approx(62.03, abs=0.01)
    assert plan.value("adapters read") == pytest.approx(62.03 * 83_886_080 / 3.35e12, rel=1e-3)
    # Padding to rank 64 reads three times as much again.
    assert plan.value("padding to the largest rank") == pytest.approx(3 * plan.value("adapters read"))
    with pytest.raises(SettingsError, match="max_rank=8 is less than rank=16"):
        ask("lora", rank="16", max_rank="8")


def test_weights_for_125_replicas() -> None:
    # 500 GB x 125 = 62.5 TB; from 100 GB/s that takes 625 s, in a chain 5 s and 124 chunks of 160 us + 3 us.
    plan = ask("weights-load", size="500GB", replicas="125", store="100GB/s", chunk="64MB")
    assert plan.value("bytes read in all") == 62.5e12
    assert plan.value("store bound") == pytest.approx(625)
    assert plan.value("broadcast between peers") == pytest.approx(5 + 124 * (64e6 / 400e9 + 3e-6))
    assert plan.word("slowest bound") == "store"
    # 40 s of start-up hide behind nothing shorter.
    assert plan.value("ready, start-up hidden") == 40


def test_a_prompt_that_leaves_no_room_is_refused() -> None:
    with pytest.raises(SettingsError, match="larger tp, smaller weights or a shorter prompt"):
        ask("bulk", tp="2", prompt="1M")
