"""Floors, FLOPs, intensities and batches. Every expected figure is worked out by hand in its comment."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ridgeline_contracts.errors import SettingsError
from ridgeline_roofline.catalogue.gpus import GPU_IDS, gpu_named
from ridgeline_roofline.catalogue.mixers import Attention
from ridgeline_roofline.catalogue.model_spec import MoeMlp
from ridgeline_roofline.plan.topics.attention import intensity
from ridgeline_roofline.plan.topics.batch_knee import line_through
from ridgeline_testing.plans import ask


def test_the_decode_floor_of_70b_on_eight_h100() -> None:
    # 69.5e9 matrix parameters (70.55e9 less the 1.05e9 of the embedding) x 2 bytes / 8 GPUs = 17.375 GB;
    # / 3.35 TB/s = 5.187 ms. KV: 327,680 bytes x 8,000 tokens / 8 = 327.7 MB -> 97.8 us.
    # 160 all-reduces of one row (16 KiB): one-shot, 2 us + 7 x 16,384 / 450 GB/s = 2.255 us -> 360.8 us.
    plan = ask("decode-floor", tp="8", context="8k", batch="1")
    assert plan.value("weights") == pytest.approx(5.187e-3, rel=1e-3)
    assert plan.value("KV reads") == pytest.approx(97.8e-6, rel=1e-3)
    assert plan.value("collectives") == pytest.approx(360.8e-6, rel=1e-3)
    assert plan.value("step") == pytest.approx(5.187e-3 + 97.8e-6 + 360.8e-6, rel=1e-3)


def test_host_and_launch_gaps_are_added_and_named() -> None:
    # 80 layers x (2 norms + 2 + 2 matrices + attention + 2 all-reduces) + the output matrix = 721 launches.
    plan = ask("decode-floor", tp="8", host="1ms", launch="4us")
    assert plan.value("host and launches") == pytest.approx(1e-3 + 721 * 4e-6)


def test_70b_does_arithmetic_with_69_5e9_of_its_parameters() -> None:
    # Published: 70,553,706,496. Embedding 128,256 x 8,192 = 1,050,673,152; norms (2 x 80 + 1) x 8,192 = 1,318,912.
    plan = ask("flops", context="8k")
    assert plan.value("parameters") == 70_553_706_496
    assert plan.value("parameters that do arithmetic") == 70_553_706_496 - 1_050_673_152 - 1_318_912
    # One token of context: 4 x 64 heads x 128 x 80 layers = 2,621,440 FLOPs.
    assert plan.value("attention") == 2_621_440 * 8000
    # Attention is all of the weights' 2 x 69.5017e9 at 139.0034e9 / 2,621,440 = 53,026 tokens; 10% at a tenth.
    assert plan.value("context where attention is 100%") == pytest.approx(53_026, rel=1e-4)
    assert plan.value("context where attention is 10%") == pytest.approx(5_302.6, rel=1e-4)


def test_windows_and_states_bound_attention() -> None:
    # Every other layer of gpt-oss sees 128 tokens: 18 full layers x 4 x 64 x 64 FLOPs a token of context remain,
    # and 18 x 128 x 16,384 are constant.
    plan = ask("flops", model="gpt-oss-120b", context="100k")
    assert plan.value("attention") == 18 * 16_384 * 100_000 + 18 * 16_384 * 128


@pytest.mark.parametrize(
    ("weights", "rows"),
    [
        # 989.4 / 3.35 = 295.3 FLOP a byte; x 2 bytes / 2.
        pytest.param("bf16", 295.3, id="bf16"),
        # Twice the peak, half the bytes.
        pytest.param("fp8", 295.4, id="fp8-is-the-same"),
    ],
)
def test_the_crossover_batch_of_an_h100(weights: str, rows: float) -> None:
    plan = ask("crossover", gpu="h100-sxm", weights=weights)
    assert plan.value("crossover batch") == pytest.approx(rows, rel=1e-3)
    assert plan.value("crossover prompt") == plan.value("crossover batch")
    # 4-bit weights under BF16 arithmetic: a quarter of the bytes.
    assert plan.value("crossover batch, 4-bit weights") == pytest.approx(295.3 / 4, rel=1e-3)


def test_a_moe_crosses_over_later_by_total_over_active() -> None:
    # DeepSeek V3 reads 670.1e9 once all experts are touched and uses 36.6e9 a token: x 18.3.
    dense, moe = ask("crossover", weights="fp8"), ask("crossover", model="deepseek-v3", tp="8", weights="fp8")
    assert moe.value("crossover batch") / dense.value("crossover batch") == pytest.approx(
        670.1 / 36.6, rel=5e-3
    )


def test_ttft_at_a_stated_mfu() -> None:
    # 2,000 tokens of 70B: 2 x 68.45e9 x 2,000 (the output matrix runs for one row) + pairs 2,000^2 / 2 x 2,621,440
    # = 2.738e14 + 5.24e12 = 2.79e14; / 8 GPUs / (989.4e12 x 40%) = 88.2 ms.
    plan = ask("crossover", tp="8", prompt="2k", mfu="40%")
    assert plan.value("TTFT at the stated MFU") == pytest.approx(88.2e-3, rel=2e-3)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        pytest.param("llama-3.3-70b", 8.0, id="gqa-of-8"),  # 2 x 64 / 8 / 2 bytes
        pytest.param("deepseek-v3", 241.8, id="mla"),  # 2 x 128 x (2 x 512 + 64) / (576 x 2)
        pytest.param("mixtral-8x7b", 4.0, id="gqa-of-4"),
    ],
)
def test_intensity_of_decode_attention(model: str, expected: float) -> None:
    plan = ask("attention", model=model, tp="8")
    assert plan.value("intensity") == pytest.approx(expected, abs=0.05)
    # The batch does not move it: rows add bytes and FLOPs alike.
    assert plan.value("intensity at twice the batch") == pytest.approx(plan.value("intensity at this batch"))


@given(st.integers(1, 8), st.sampled_from([1, 2, 4, 8]))
def test_intensity_grows_with_queries_on_one_key(query_tokens: int, group: int) -> None:
    mixer = Attention(hidden=1024, heads=8, kv_heads=8 // group, head_dim=64)
    assert intensity(mixer, 2.0, query_tokens=query_tokens) == pytest.approx(query_tokens * group)


def test_b200_over_h100_in_three_regimes() -> None:
    plan = ask("gpu-compare", gpu=["h100-sxm", "b200"], tp="4", context="4k")
    assert plan.value("compute-bound speed-up") == pytest.approx(2250 / 989.4)
    assert plan.value("bandwidth-bound speed-up") == pytest.approx(8.0 / 3.35)
    # H100: 4 x 85.52 GB x 0.9 - 141.1 GB = 166.8 GB; a sequence of 4,000 tokens keeps 1.311 GB: 127.
    assert plan.value("sequences on the first") == 127
    # B200: 4 x 192.27 GB x 0.9 - 141.1 = 551 GB: 420.
    assert plan.value("sequences on the second") == 420
    assert plan.value("capacity-bound speed-up") > plan.value("bandwidth-bound speed-up")


def test_one_gpu_cannot_be_compared() -> None:
    with pytest.raises(SettingsError, match="give it twice"):
        ask("gpu-compare", gpu=["h100-sxm"])


def test_distinct_experts_of_a_batch() -> None:
    # 256 experts, 8 a token, 64 tokens: 256 (1 - (248/256)^64); ln = 64 x ln(0.96875) = -2.0319 -> 0.1311 missed.
    plan = ask("moe", model="deepseek-v3", gpu="h200", tp="8", batch="64")
    assert plan.value("distinct experts a layer") == pytest.approx(256 * (1 - 0.13109), rel=1e-3)
    # An expert is 3 x 7,168 x 2,048 = 44.04e6 bytes in FP8; 58 layers.
    assert plan.value("experts read") == pytest.approx(222.44 * 44.04e6 * 58, rel=1e-3)


@given(st.integers(1, 500), st.integers(1, 8))
def test_experts_touched_lie_between_one_tokens_and_all(tokens: int, top_k: int) -> None:
    moe = MoeMlp(hidden=8, experts=8, top_k=top_k, expert_ffn=8)
    assert top_k - 1e-9 <= moe.expected_experts(tokens) <= 8
    assert moe.expected_experts(tokens) <= moe.expected_experts(tokens + 1) + 1e-9


def test_a_moe_stops_being_cheaper_than_a_dense_equal() -> None:
    # One token reads 36.6 GB in FP8; a dense model of 100e9 in FP8 reads 100 GB: between 4 and 5 tokens
    # (16.2 GB + 58 layers x 30.5 experts x 44 MB = 94.2 GB at 4, 111.6 at 5).
    plan = ask("moe", model="deepseek-v3", gpu="h200", tp="8", dense="100G")
    assert plan.value("batch where the dense equal reads less") == 5


def test_a_line_through_steps_gives_hyperbola_and_knee() -> None:
    # step = 6 ms + 50 us B: limit 20,000/s, half of it at 120 rows, 80% at 480.
    a, b = line_through({n: 6e-3 + 50e-6 * n for n in (1, 7, 30)})
    assert (a, b) == (pytest.approx(6e-3), pytest.approx(50e-6))
    plan = ask("batch-knee", a="6ms", b="50us", share="80%")
    assert plan.value("limit") == pytest.approx(20_000)
    assert plan.value("half of the limit at") == pytest.approx(120)
    assert plan.value("knee") == pytest.approx(480)
    # Memory holds fewer than 480 here, so that it sets the cap.
    assert plan.value("batch cap") == plan.value("cap by memory") < 480


def test_the_operators_of_a_decode_step_are_ranked_by_intensity() -> None:
    # At 32 rows a BF16 matrix does 2 x 32 / 2 = 32 FLOPs a byte, GQA attention of 8 does 8, norms none.
    rows = ask("batch-knee", batch="32").tables[0].rows
    ranked = {row[0]: float(row[1]) for row in rows}
    assert list(ranked.values()) == sorted(ranked.values())
    assert ranked["MLP"] == pytest.approx(32, rel=0.03)
    assert ranked["attention"] == pytest.approx(8, rel=0.01)


def test_goodput_is_cut_off_at_the_tpot_target() -> None:
    plan = ask("goodput", tpot="30ms")
    rows, within = plan.tables[0].rows, plan.value("batch by TPOT")
    assert all((float(row[3]) > 0) == (float(row[0]) <= within) for row in rows)
    assert plan.value("step in balance") <= 30e-3
    # A looser target allows a larger batch, never a smaller.
    assert ask("goodput", tpot="60ms").value("batch by TPOT") >= within


def test_goodput_prefers_fewer_rows_where_more_only_make_the_step_longer() -> None:
    # 8 prompt tokens ride with every row (4,000 / 500): at 85 rows, 765 tokens, the activations of a launch exceed
    # the L2's 50 MB and the step jumps. The 125 rows that 60 ms allow make fewer requests a second than 64.
    plan = ask("goodput", tpot="60ms")
    by_batch = {int(row[0]): float(row[3]) for row in plan.tables[0].rows}
    assert plan.value("goodput") >= max(by_batch.values())
    assert plan.value("batch for goodput") < plan.value("batch by TPOT")
    # A looser target never costs goodput.
    goodputs = [ask("goodput", tpot=f"{tpot}ms").value("goodput") for tpot in (20, 30, 60, 100)]
    assert goodputs == sorted(goodputs)


def test_long_outputs_make_a_preemption_dearer_and_keep_each_users_speed() -> None:
    # Half-way through 16,000 tokens a sequence holds 1,000 + 8,000; computing them again takes at least
    # 2 x 68.45e9 x 9,000 FLOPs / 8 / 989.4e12 / 70% = 222 ms.
    short, long = ask("goodput", prompt="1k", output="500"), ask("goodput", prompt="1k", output="16k")
    assert long.value("price of a preemption") > 222e-3 > short.value("price of a preemption")
    assert long.value("batch by memory") < short.value("batch by memory")
    assert long.value("step in balance") <= 30e-3


@pytest.mark.parametrize("gpu_id", GPU_IDS)
def test_the_catalogues_devices_are_plausible(gpu_id: str) -> None:
    gpu = gpu_named(gpu_id)
    # Device memory as the driver reports it is below the name on the box, and above 90% of it.
    box = {"h100-sxm": 80, "h100-pcie": 80, "h200": 141, "b200": 180, "gb200": 186}[gpu_id] * 2**30
    assert 0.9 < gpu.memory_bytes / box < 1.08
    assert all(figure.source for figure in gpu.figures().values())


def test_published_figures_of_the_fleets_gpus() -> None:
    h100, h200, b200 = gpu_named("h100-sxm"), gpu_named("h200"), gpu_named("b200")
    assert [gpu.memory_bytes / 2**20 for gpu in (h100, h200, b200)] == [81_559, 143_771, 183_359]
    assert [gpu.bandwidth_bytes_per_s for gpu in (h100, h200, b200)] == [3.35e12, 4.8e12, 8.0e12]
    assert b200.alternatives["bandwidth by bus and clock"].value == 7.67e12
    assert [int(gpu.multiprocessors.value) for gpu in (h100, h200, b200)] == [132, 132, 148]
    assert [gpu.tdp.value for gpu in (h100, b200)] == [700, 1000]
