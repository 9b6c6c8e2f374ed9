"""Our floor beside another estimator's figures: it must lie below all of them, and rank the GPUs alike."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ridgeline_roofline.catalogue.formats import Formats
from ridgeline_roofline.catalogue.gpus import gpu_named
from ridgeline_roofline.catalogue.links import link_named
from ridgeline_roofline.catalogue.models import model_named
from ridgeline_roofline.serving import Workload, served
from ridgeline_roofline.step.batch import decode_batch, prompt_batch
from ridgeline_roofline.step.layout import Layout
from ridgeline_roofline.step.timing import RooflineStepModel, StepTime, fabric_of

_GPUS = {"h100_sxm": "h100-sxm", "b200_sxm": "b200"}
_MODEL = "qwen3-32b"


@dataclass(frozen=True, slots=True)
class Cell:
    """One estimate and our floor for it, in ms; `split` is our floor by part, in ms."""

    system: str
    tp: int
    phase: str
    batch: int
    tokens: int
    floor_ms: float
    estimate_ms: float
    split_ms: Mapping[str, float]

    @property
    def ratio(self) -> float:
        """Floor / estimate: the efficiency that the estimate sees, below 1 where ours is a floor."""
        return self.floor_ms / self.estimate_ms


@dataclass(frozen=True, slots=True)
class Ratios:
    """B200 over H100 in tokens/s a GPU at the targets."""

    ours: float
    theirs: float

    @property
    def apart(self) -> float:
        return self.ours / self.theirs - 1


def _model(system: str, tp: int) -> RooflineStepModel:
    gpu = gpu_named(_GPUS[system])
    return RooflineStepModel(
        model_named(_MODEL), gpu, Layout(tp=tp), Formats(), fabric_of(gpu, link_named("ib-ndr"))
    )


def _floor(row: Mapping[str, Any]) -> StepTime:
    model = _model(row["system"], row["tp"])
    if row["phase"] == "decode":
        return model.step(decode_batch(row["batch"], row["tokens"]))
    return model.step(prompt_batch(row["tokens"]))


def cells(found: Mapping[str, Any]) -> tuple[Cell, ...]:
    """Of the driver's JSON: one cell a row."""
    made = []
    for row in found["rows"]:
        step = _floor(row)
        split = {name: seconds * 1e3 for name, seconds in step.split.items()}
        place = (row["system"], row["tp"], row["phase"], row["batch"], row["tokens"])
        made.append(Cell(*place, step.seconds * 1e3, row["ms"], split))
    return tuple(made)


def ratios(found: Mapping[str, Any], *, ranks: Sequence[int] = (1, 2, 4)) -> Ratios:
    """Best tokens/s a GPU over the ranks on each side, as B200 / H100."""
    target = found["target"]
    work = Workload(target["isl"], target["osl"], target["ttft"] / 1e3, target["tpot"] / 1e3)
    ours = {
        system: max(served(_model(system, tp), work).requests_per_s * target["osl"] / tp for tp in ranks)
        for system in _GPUS
    }
    theirs = {row["system"]: row["tokens_per_s_gpu"] for row in found["best"]}
    return Ratios(ours["b200_sxm"] / ours["h100_sxm"], theirs["b200_sxm"] / theirs["h100_sxm"])
