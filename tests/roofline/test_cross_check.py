"""Our floor against estimates of aiconfigurator, which interpolates measured kernels: kept as data."""

import json
from pathlib import Path
from typing import Any

import pytest
from ridgeline_roofline.catalogue.formats import Formats
from ridgeline_roofline.catalogue.gpus import gpu_named
from ridgeline_roofline.catalogue.links import link_named
from ridgeline_roofline.catalogue.models import model_named
from ridgeline_roofline.serving import REFERENCE_WORKLOAD, served
from ridgeline_roofline.step.batch import decode_batch, prompt_batch
from ridgeline_roofline.step.layout import Layout
from ridgeline_roofline.step.timing import RooflineStepModel, fabric_of

KEPT: dict[str, Any] = json.loads(
    (Path(__file__).parent / "data" / "aiconfigurator_0_12.json").read_text(encoding="utf-8")
)
GPU_OF = {"h100_sxm": "h100-sxm", "b200_sxm": "b200"}


def _model(system: str, tp: int) -> RooflineStepModel:
    gpu = gpu_named(GPU_OF[system])
    return RooflineStepModel(
        model_named("qwen3-32b"), gpu, Layout(tp=tp), Formats(), fabric_of(gpu, link_named("ib-ndr"))
    )


def _name(point: dict[str, Any]) -> str:
    return f"{point['phase']}-{point['system']}-tp{point['tp']}-batch{point['batch']}-{point['tokens']}"


def test_both_phases_systems_and_several_layouts_are_kept() -> None:
    seen = {(point["phase"], point["system"], point["tp"]) for point in KEPT["estimates"]}
    assert {(phase, system) for phase, system, _ in seen} == {
        (phase, system) for phase in ("decode", "prefill") for system in GPU_OF
    }
    assert {tp for _, _, tp in seen} == {1, 2, 4}


@pytest.mark.parametrize("point", [pytest.param(each, id=_name(each)) for each in KEPT["estimates"]])
def test_no_estimate_of_measured_kernels_is_below_our_floor(point: dict[str, Any]) -> None:
    model, tokens = _model(point["system"], point["tp"]), point["tokens"]
    batch = decode_batch(point["batch"], tokens) if point["phase"] == "decode" else prompt_batch(tokens)
    floor = model.step_s(batch)
    assert floor <= point["seconds"]
    # And it is a floor of the same thing: a good engine stays within a small factor of it.
    assert point["seconds"] < 4 * floor


def test_a_b200_is_worth_as_many_h100_as_measured_kernels_say() -> None:
    # Qwen3 32B in BF16, 4,000 tokens in, 500 out, TTFT 1 s, TPOT 30 ms; best layout of 8 GPUs, tokens/s a GPU.
    def best(system: str) -> float:
        layouts = [_model(system, tp) for tp in (1, 2, 4, 8)]
        return max(served(each, REFERENCE_WORKLOAD).requests_per_s / each.layout.gpus for each in layouts)

    theirs = KEPT["tokens_per_s_a_gpu"]["b200_sxm"] / KEPT["tokens_per_s_a_gpu"]["h100_sxm"]
    assert best("b200_sxm") / best("h100_sxm") == pytest.approx(theirs, rel=0.35)
