"""What must hold of every step, whatever the model, the GPU, the layout and the batch."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from ridgeline_contracts.errors import SettingsError
from ridgeline_contracts.step import StepShape
from ridgeline_roofline.catalogue.figure import Figure
from ridgeline_roofline.catalogue.formats import Dtype, Formats, arithmetic_of
from ridgeline_roofline.catalogue.gpus import GPU_IDS, Gpu, gpu_named
from ridgeline_roofline.catalogue.links import link_named
from ridgeline_roofline.catalogue.models import MODEL_IDS, model_named
from ridgeline_roofline.step.batch import StepBatch
from ridgeline_roofline.step.layout import Layout, check_layout
from ridgeline_roofline.step.timing import Efficiency, RooflineStepModel, fabric_of

_PUBLISHED = {
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.3-70b": 70_553_706_496,
    "deepseek-v3": 671_026_419_200,
    "gpt-oss-120b": 116_829_156_672,
    "qwen3-32b": 32_762_123_264,
    "qwen3-235b-a22b": 235_093_634_560,
    "mixtral-8x7b": 46_702_792_704,
    "smollm2-135m": 134_515_008,
    "nemotron-h-8b": 8_100_852_736,
}
"""Parameters of the published checkpoints, to the last one."""

MODELS = st.sampled_from(MODEL_IDS)
GPUS = st.sampled_from(GPU_IDS)
WEIGHTS = st.sampled_from([Dtype.BF16, Dtype.FP8, Dtype.INT4])
BATCHES = st.builds(
    StepBatch,
    decode_rows=st.integers(0, 300).map(float),
    context_tokens=st.integers(0, 40_000).map(float),
    prefill_tokens=st.integers(0, 5000).map(float),
    prefill_pairs=st.integers(0, 10**7).map(float),
)


@st.composite
def steps(draw: st.DrawFn) -> tuple[RooflineStepModel, StepBatch]:
    model, gpu, weights = model_named(draw(MODELS)), gpu_named(draw(GPUS)), draw(WEIGHTS)
    layout = draw(st.sampled_from([Layout(), Layout(tp=2), Layout(tp=8), Layout(pp=2), Layout(ep=4, dp=4)]))
    try:
        check_layout(model, layout)
    except SettingsError:
        assume(False)
    batch = draw(BATCHES)
    assume(batch.tokens > 0)
    formats = Formats(weights, Dtype.BF16, arithmetic_of(weights))
    return RooflineStepModel(model, gpu, layout, formats, fabric_of(gpu, link_named("ib-ndr"))), batch


@pytest.mark.parametrize("model_id", MODEL_IDS)
def test_parameters_are_those_of_the_published_checkpoint(model_id: str) -> None:
    assert model_named(model_id).parameters == _PUBLISHED[model_id]


@given(steps())
def test_a_step_is_never_below_either_floor(made: tuple[RooflineStepModel, StepBatch]) -> None:
    model, batch = made
    step = model.step(batch)
    memory_s = (step.total("weight_bytes") + step.total("kv_bytes")) / model.gpu.bandwidth_bytes_per_s
    fastest = max(model.gpu.flops_per_s(dtype) for dtype in model.gpu.flops)
    assert step.seconds >= memory_s * (1 - 1e-12)
    assert step.seconds >= step.total("flops") / fastest * (1 - 1e-12)


@given(steps())
def test_the_split_adds_up_and_is_never_negative(made: tuple[RooflineStepModel, StepBatch]) -> None:
    model, batch = made
    step = model.step(batch)
    assert set(step.split) == {"weights", "kv", "activations", "compute", "collectives", "host"}
    assert min(step.split.values()) >= 0
    assert step.seconds == pytest.approx(sum(step.split.values()))
    assert step.seconds == pytest.approx(sum(each.seconds for each in step.ops))


@given(steps(), st.sampled_from(["decode_rows", "context_tokens", "prefill_tokens", "prefill_pairs"]))
def test_more_work_never_takes_less_time(made: tuple[RooflineStepModel, StepBatch], name: str) -> None:
    model, batch = made
    more = replace(batch, **{name: getattr(batch, name) + 64.0})
    if name == "prefill_tokens" and batch.prefill_tokens:
        # The same mean context for a longer chunk: pairs grow with it.
        more = replace(more, prefill_pairs=batch.prefill_pairs * more.prefill_tokens / batch.prefill_tokens)
    assert model.step_s(more) >= model.step_s(batch) * (1 - 1e-12)


def _faster(gpu: Gpu, *, bandwidth: float = 1.0, flops: float = 1.0) -> Gpu:
    def scaled(figure: Figure, factor: float) -> Figure:
        return replace(figure, value=figure.value * factor)

    peaks = {dtype: scaled(figure, flops) for dtype, figure in gpu.flops.items()}
    return replace(gpu, bandwidth=scaled(gpu.bandwidth, bandwidth), flops=peaks)


@given(steps(), st.floats(1.0, 4.0), st.floats(1.0, 4.0))
def test_a_faster_gpu_is_never_slower_and_gains_at_most_its_factor(
    made: tuple[RooflineStepModel, StepBatch], bandwidth: float, flops: float
) -> None:
    model, batch = made
    quick = replace(model, gpu=_faster(model.gpu, bandwidth=bandwidth, flops=flops))
    slow_s, quick_s = model.step_s(batch), quick.step_s(batch)
    assert quick_s <= slow_s * (1 + 1e-12)
    assert quick_s >= slow_s / max(bandwidth, flops) * (1 - 1e-12)


@given(MODELS, GPUS, st.sampled_from([1, 2, 4]), BATCHES)
def test_doubling_the_ranks_never_doubles_the_speed(
    model_id: str, gpu_id: str, tp: int, batch: StepBatch
) -> None:
    assume(batch.tokens > 0)
    spec, gpu = model_named(model_id), gpu_named(gpu_id)
    for ranks in (tp, 2 * tp):
        try:
            check_layout(spec, Layout(tp=ranks))
        except SettingsError:
            assume(False)
    fabric = fabric_of(gpu, link_named("ib-ndr"))
    one, two = (
        RooflineStepModel(spec, gpu, Layout(tp=n), Formats(), fabric).step_s(batch) for n in (tp, 2 * tp)
    )
    assert two > one / 2


@given(steps())
def test_fewer_weight_bytes_never_slow_a_step_down(made: tuple[RooflineStepModel, StepBatch]) -> None:
    model, batch = made
    formats = Formats(Dtype.INT4, model.formats.kv, model.formats.activations)
    assert replace(model, formats=formats).step_s(batch) <= model.step_s(batch) * (1 + 1e-12)


@given(steps(), st.floats(0.1, 1.0))
def test_efficiency_only_adds_time(made: tuple[RooflineStepModel, StepBatch], share: float) -> None:
    model, batch = made
    real = replace(model, efficiency=Efficiency(share, share, share, share, launch_s=1e-6, host_s=1e-4))
    assert real.step_s(batch) > model.step_s(batch)
    even = replace(model, efficiency=Efficiency(share, share, 1.0, share))
    assert even.step_s(batch) <= model.step_s(batch) / share * (1 + 1e-9)


@given(steps())
def test_the_contracts_shape_gives_the_same_milliseconds(made: tuple[RooflineStepModel, StepBatch]) -> None:
    model, batch = made
    shape = StepShape(
        decode_rows=int(batch.decode_rows),
        context_tokens=int(batch.decode_rows * batch.context_tokens),
        prefill_tokens=int(batch.prefill_tokens),
        prefill_context_tokens=int(batch.prefill_pairs),
    )
    assert model.predict_ms(shape) == pytest.approx(model.step_s(batch) * 1e3)
