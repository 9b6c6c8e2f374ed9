"""Which forms a weight is held in."""

import json
from pathlib import Path

import pytest
import torch
from ridgeline_contracts.clock import SystemClock, VirtualClock
from ridgeline_kernels.cpu.choice import COLD_ROWS, ChoiceFile, choose_forms, measure
from ridgeline_kernels.cpu.chooser import LinearChooser
from ridgeline_kernels.cpu.linear import ROW_BUCKETS
from torch import Tensor


def times(*milliseconds: float) -> dict[int, float]:
    return dict(zip(ROW_BUCKETS, milliseconds, strict=True))


@pytest.mark.parametrize(
    ("timings", "chosen"),
    [
        pytest.param({"a": times(1, 1, 1, 1, 1)}, "aaaaa", id="the-only-form"),
        pytest.param(
            {"a": times(1, 1, 1, 1, 1), "b": times(2, 2, 2, 2, 2)}, "aaaaa", id="one-best-everywhere"
        ),
        pytest.param(
            {"a": times(1, 1, 1, 4, 4), "b": times(2, 2, 1, 1, 1)}, "aaabb", id="two-where-it-pays-well"
        ),
        pytest.param(
            {"a": times(1, 1, 1, 1, 1.2), "b": times(2, 2, 2, 2, 1)}, "aaaaa", id="no-second-copy-for-little"
        ),
        pytest.param(
            {"a": times(1, 9, 9, 9, 9), "b": times(9, 1, 9, 9, 9), "c": times(9, 9, 1, 1, 1)},
            "aaccc",
            id="never-three-copies",
        ),
    ],
)
def test_one_form_is_kept_unless_two_are_clearly_faster(
    timings: dict[str, dict[int, float]], chosen: str
) -> None:
    assert "".join(choose_forms(timings)[rows] for rows in ROW_BUCKETS) == chosen


class FakeForm:
    """Takes as many milliseconds as it is told to, on a virtual clock."""

    name = "fake"
    weight_bytes = 0

    def __init__(self, clock: VirtualClock, took_ms: list[float]) -> None:
        self._clock, self._took_ms = clock, took_ms

    def apply(self, x: Tensor, out: Tensor) -> None:
        self._clock.advance(self._took_ms.pop(0) if self._took_ms else 5.0)

    def weight_rows(self, ids: Tensor) -> Tensor:
        return torch.zeros(len(ids), 1)


def test_the_best_repeat_counts_and_the_warm_up_does_not() -> None:
    clock = VirtualClock()
    form = FakeForm(clock, [1.0, 4.0, 2.0, 3.0])
    timings = measure({"fake": lambda: form}, in_features=8, out_features=4, clock=clock)
    assert timings == {"fake": {1: 2.0, 4: 5.0, 8: 5.0, 32: 5.0, 128: 5.0}}
    assert ROW_BUCKETS[0] <= COLD_ROWS


def test_choices_are_kept_per_identity_and_survive_damage(tmp_path: Path) -> None:
    choice = dict.fromkeys(ROW_BUCKETS, "native")
    kept = ChoiceFile(tmp_path, "cpu a")
    assert kept.get("4x8") is None
    kept.put("4x8", choice)
    kept.put("8x8", choice | {1: "onednn"})
    assert ChoiceFile(tmp_path, "cpu a").get("4x8") == choice
    assert ChoiceFile(tmp_path, "cpu a").get("8x8") == choice | {1: "onednn"}
    assert ChoiceFile(tmp_path, "cpu b").get("4x8") is None
    next(tmp_path.iterdir()).write_text("{half")
    assert kept.get("4x8") is None
    kept.put("4x8", choice)
    assert kept.get("4x8") == choice


def test_a_form_that_this_machine_refuses_is_left_out() -> None:
    def refused() -> FakeForm:
        raise RuntimeError("needs another instruction set")

    clock = VirtualClock()
    timings = measure(
        {"refused": refused, "fake": lambda: FakeForm(clock, [])}, in_features=8, out_features=4, clock=clock
    )
    assert set(timings) == {"fake"}


def test_bf16_forms_are_measured_once_per_shape_where_torch_has_bf16_in_hardware(
    tmp_path: Path,
) -> None:
    chooser = LinearChooser(tmp_path, None, 2, clock=SystemClock(), bf16_products=True)
    weight, x = torch.randn(40, 32).bfloat16(), torch.randn(3, 32)
    first = chooser.pack(weight, None, form="auto")
    assert set(first.form_names) <= {"onednn", "torch"}
    wanted = x.bfloat16().float() @ weight.float().T
    torch.testing.assert_close(first(x), wanted, rtol=2e-2, atol=5e-2)
    (kept,) = tmp_path.glob("linear-forms-*.json")
    assert set(json.loads(kept.read_text())) == {"40x32"}
    kept.write_text(json.dumps({"40x32": dict.fromkeys(map(str, ROW_BUCKETS), "torch")}))
    assert set(chooser.pack(weight, None, form="auto").form_names) == {"torch"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_bf16_in_hardware_nothing_is_measured(tmp_path: Path, dtype: torch.dtype) -> None:
    chooser = LinearChooser(tmp_path, None, 2, clock=VirtualClock(), bf16_products=False)
    packed = chooser.pack(torch.randn(40, 32).to(dtype), None, form="auto")
    assert set(packed.form_names) == {"torch-fp32"}
    assert packed.weight_bytes == 40 * 32 * 4
    assert list(tmp_path.iterdir()) == []
