"""The roofline as the linear coefficients of a load report."""

import pytest
from ridgeline_contracts.step import StepModel, StepShape
from ridgeline_roofline.catalogue.formats import Formats
from ridgeline_roofline.catalogue.gpus import gpu_named
from ridgeline_roofline.catalogue.host_cpu import modest_cpu
from ridgeline_roofline.catalogue.links import fast_link, link_named
from ridgeline_roofline.catalogue.models import model_named
from ridgeline_roofline.step.layout import Layout
from ridgeline_roofline.step.linear_form import linearised
from ridgeline_roofline.step.timing import Efficiency, Fabric, RooflineStepModel, fabric_of

GPU = gpu_named("h100-sxm")
MODEL = RooflineStepModel(
    model_named("llama-3.1-8b"),
    GPU,
    Layout(),
    Formats(),
    fabric_of(GPU, link_named("ib-ndr")),
    Efficiency(host_s=0.5e-3),
)


def test_one_decode_row_takes_the_time_to_read_the_weights() -> None:
    # 7.50 G parameters (no input embedding) of 2 bytes at 3.35 TB/s, and half a millisecond.
    assert MODEL.predict_ms(StepShape(1, 1)) == pytest.approx(7.505e9 * 2 / 3.35e12 * 1e3 + 0.5, rel=1e-3)


def test_context_costs_its_bytes() -> None:
    more = MODEL.predict_ms(StepShape(64, 200_000)) - MODEL.predict_ms(StepShape(64, 100_000))
    assert more == pytest.approx(100_000 * 131_072 / 3.35e12 * 1e3, rel=1e-3)


def test_a_step_without_tokens_is_the_hosts_part() -> None:
    assert MODEL.predict_ms(StepShape()) == pytest.approx(0.5)


def test_linear_coefficients_agree_at_a_typical_step_and_are_no_less_than_zero() -> None:
    model: StepModel = linearised(MODEL, decode_rows=32, context_tokens=32_000, chunk_tokens=512)
    for shape in (StepShape(32, 32_000), StepShape(32, 32_000, 512), StepShape(1, 1)):
        assert model.predict_ms(shape) == pytest.approx(MODEL.predict_ms(shape), rel=0.01)
    found = linearised(MODEL, decode_rows=1, context_tokens=1, chunk_tokens=1)
    assert min(found.base_ms, found.per_row_ms, found.per_context_token_ms) >= 0


def test_a_modest_cpu_is_a_device_like_others() -> None:
    # SmolLM2 in BF16: 134.5e6 x 2 bytes over 16 GB/s on two threads.
    cpu = modest_cpu(2)
    fabric = Fabric(fast_link(cpu), fast_link(cpu), domain_gpus=1)
    model = RooflineStepModel(model_named("smollm2-135m"), cpu, Layout(), Formats(), fabric)
    assert model.predict_ms(StepShape(1, 1)) == pytest.approx(134.48e6 * 2 / 16e9 * 1e3, rel=0.01)
