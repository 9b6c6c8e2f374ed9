"""What fits a layout: copies and DP ranks counted once, in every plan alike."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ridgeline_roofline.catalogue.formats import Dtype, Formats
from ridgeline_roofline.catalogue.gpus import gpu_named
from ridgeline_roofline.catalogue.links import link_named
from ridgeline_roofline.catalogue.models import model_named
from ridgeline_roofline.decisions.batch_split import SplitFacts, batch_split
from ridgeline_roofline.decisions.expert_placement import PlacementFacts, expert_placement, in_order_ratio
from ridgeline_roofline.serving import Workload, memory_rows
from ridgeline_roofline.step.layout import Layout
from ridgeline_roofline.step.residence import held_sequences, sequence_bytes, weight_bytes
from ridgeline_roofline.step.timing import RooflineStepModel, fabric_of
from ridgeline_testing.plans import ask

DEEPSEEK = model_named("deepseek-v3")
FP8 = Formats(Dtype.FP8, Dtype.BF16, Dtype.FP8)


def test_weights_of_70b_on_four_ranks() -> None:
    # 70,553,706,496 x 2 / 4.
    found = weight_bytes(model_named("llama-3.3-70b"), Layout(tp=4), Formats())
    assert found == pytest.approx(70_553_706_496 / 2)


def test_dp_attention_repeats_all_but_the_experts() -> None:
    # Experts: 58 layers x 256 x 3 x 7,168 x 2,048 = 653.9e9, an eighth of them a GPU; the other 16.2e9 of the layers'
    # matrices are whole on each, and 0.9e9 twice for the tables in BF16.
    found = weight_bytes(DEEPSEEK, Layout(tp=1, dp=8, ep=8), FP8)
    experts = 58 * 256 * 3 * 7168 * 2048
    rest = DEEPSEEK.layer_matrix_parameters - experts
    tables = DEEPSEEK.parameters - DEEPSEEK.layer_matrix_parameters
    assert found == pytest.approx(experts / 8 + rest + 2 * tables)


def test_a_latent_is_whole_on_every_rank() -> None:
    # 576 x 61 x 2 = 70,272 bytes a token, whatever the ranks.
    assert sequence_bytes(DEEPSEEK, Layout(tp=8), FP8, 1000) == 70_272_000
    # So TP8 holds what one GPU holds, and eight DP ranks eight times that.
    gpu = gpu_named("h200")
    tp = held_sequences(DEEPSEEK, gpu, Layout(tp=8), FP8, 4000, usable=0.9)
    left = gpu.memory_bytes * 0.9 - weight_bytes(DEEPSEEK, Layout(tp=8), FP8)
    assert tp == int(left / (70_272 * 4000))
    dp = held_sequences(DEEPSEEK, gpu, Layout(tp=1, dp=8, ep=8), FP8, 4000, usable=0.9)
    assert dp % 8 == 0
    assert dp > 4 * tp


def test_serving_counts_copies_too() -> None:
    # 16 ranks and 8 KV heads: a GPU holds an eighth of a sequence, not a sixteenth.
    model, gpu = model_named("llama-3.3-70b"), gpu_named("h100-sxm")
    step = RooflineStepModel(model, gpu, Layout(tp=16), Formats(), fabric_of(gpu, link_named("ib-ndr")))
    left = gpu.memory_bytes * 0.9 - 70_553_706_496 * 2 / 16
    assert memory_rows(step, Workload(4000, 500)) == int(left / (4250 * 327_680 / 8))


def test_copies_are_priced_and_a_hand_over_is_timed() -> None:
    plan = ask("layout", tp="16", gpus="16", batch="16", context="4k", prompt="8k")
    copied = plan.value("KV copied")
    assert plan.value("copies, time a step") == pytest.approx(copied / 3.35e12)
    # 2.064 GB of 85.52 on 16 GPUs at 2.50 USD/h.
    assert plan.value("copies, money") == pytest.approx(copied / (81_559 * 2**20) * 16 * 2.5 / 3600)
    # 8,000 x 516,096 bytes over 16 links of 450 GB/s and 2 us, or of 50 GB/s and 3 us.
    size = 8000 * 516_096
    assert plan.value("hand over a prompt's KV inside") == pytest.approx(size / (16 * 450e9) + 2e-6)
    assert plan.value("hand over a prompt's KV beyond") == pytest.approx(size / (16 * 50e9) + 3e-6)


@given(st.lists(st.floats(0.01, 100.0), min_size=8, max_size=8), st.sampled_from([0, 4, 8]))
def test_a_placement_places_every_expert_and_is_never_below_the_mean(loads: list[float], spare: int) -> None:
    found = expert_placement(PlacementFacts(loads, 4, spare)).value
    named = [expert for rank in found.ranks for expert in rank]
    assert set(named) == set(range(8))
    assert len(named) == 8 + spare
    assert max(map(len, found.ranks)) == (8 + spare) // 4
    assert found.busiest_ratio >= 1 - 1e-9


def test_a_placement_by_hand() -> None:
    # Loads 4 3 2 1 on two ranks: in order 7 against 3, by load 4 + 1 and 3 + 2.
    assert in_order_ratio([4, 3, 2, 1], 2) == pytest.approx(1.4)
    found = expert_placement(PlacementFacts([4, 3, 2, 1], 2)).value
    assert found.ranks == ((0, 3), (1, 2))
    assert found.busiest_ratio == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("whole_s", "split"),
    [
        # Halves: 2 x max(6, 4) + 4 / 10 = 12.4 ms.
        pytest.param(14e-3, True, id="messages-are-worth-hiding"),
        pytest.param(12e-3, False, id="weights-read-twice-cost-more"),
    ],
)
def test_a_batch_is_split_where_its_halves_are_faster(whole_s: float, split: bool) -> None:
    found = batch_split(SplitFacts(whole_s, half_work_s=6e-3, half_messages_s=4e-3, layers=10))
    assert found.value is split
    assert "12.400 ms" in found.derivation
