"""The pure part of a calibration, on made-up measurements whose truth is known."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ridgeline_cli.calibrate.session import fitted
from ridgeline_cli.calibrate.stored import calibration_file, save, stored_gpu
from ridgeline_contracts.errors import InvariantError, SettingsError
from ridgeline_roofline.calibration.features import CalibratedModel, RowCurve, cell_amounts
from ridgeline_roofline.calibration.fit import fit_prices, predict
from ridgeline_roofline.calibration.grid import FULL_AXES, QUICK_AXES, Cell, grid_for
from ridgeline_roofline.calibration.judge import breaks, judged_errors, linear_errors
from ridgeline_roofline.calibration.record import (
    Calibration,
    Conditions,
    MachineRates,
    MatmulRate,
    read_calibration,
)
from ridgeline_roofline.calibration.store import stored_calibration
from ridgeline_roofline.catalogue.figure import Evidence
from ridgeline_roofline.catalogue.formats import Dtype

# Flat while weights come from memory, a slope once arithmetic is the limit: 15 ms, or 3.2 ms a row.
LINEAR = RowCurve((1, 4, 8, 64, 256, 1024), (15.0, 15.0, 25.6, 204.8, 819.2, 3276.8))
TRUTH = CalibratedModel(
    {
        "step": 2.0,
        "row": 0.1,
        "token": 0.05,
        "linear": 1.02,
        "decode pair": 0.0027,
        "prefill pair": 0.0013,
        "chunk context": 0.0005,
    },
    LINEAR,
)
CONDITIONS = Conditions(
    machine="Made Up CPU @ 2 GHz",
    cores=2,
    threads=2,
    memory_bytes=24 * 10**9,
    dtype="bf16",
    model="smollm2-135m-instruct",
    weights_revision="w1",
    ridgeline="0.1",
    torch="2.13",
    measured_at_ms=1000.0,
    repeats=3,
    load_average=0.1,
)
RATES = MachineRates(
    20e9, 24e9, (MatmulRate("fp32", 1, 576, 3072, 5e9), MatmulRate("fp32", 256, 576, 3072, 80e9))
)
CELLS = grid_for(FULL_AXES, kv_tokens=205_000, max_context_tokens=8192, block_tokens=16).cells


def _measured(
    *, noise: float = 0.0, cells: tuple[Cell, ...] = CELLS, law: object = TRUTH
) -> dict[Cell, list[float]]:
    """Three repeats: others on the machine only ever add to a time."""
    assert isinstance(law, CalibratedModel)
    chosen = random.Random(1)
    return {
        cell: [law.predict_ms(cell) * (1 + abs(chosen.gauss(0, noise))) for _ in range(3)] for cell in cells
    }


def test_a_grid_is_a_checkerboard_of_all_combinations_that_fit() -> None:
    # 6 batches x 6 contexts x 5 chunks. Neighbours along any axis differ in colour.
    assert len(CELLS) == 180
    assert sum(cell.is_judged for cell in CELLS) == 90
    colours = {(cell.batch, cell.context_tokens, cell.chunk_tokens): cell.is_judged for cell in CELLS}
    assert colours[1, 16, 0] is False
    assert colours[2, 16, 0] is colours[1, 64, 0] is colours[1, 16, 16] is True


def test_the_deepest_contexts_at_the_largest_batches_are_given_up_first() -> None:
    grid = grid_for(FULL_AXES, kv_tokens=100_000, max_context_tokens=8192, block_tokens=16)
    assert {(cell.batch, cell.context_tokens) for cell in grid.omitted} == {
        (16, 6144),
        (32, 6144),
        (32, 3072),
    }
    assert grid.kv_tokens <= 100_000
    for cell in grid.cells:
        assert min(grid.slot_tokens[: cell.batch]) > cell.context_tokens
        assert grid.slot_tokens[-1] >= cell.context_tokens + cell.chunk_tokens


@given(st.integers(2_000, 300_000), st.sampled_from((1024, 2048, 8192)), st.sampled_from((1, 16, 64)))
@settings(deadline=None)
def test_a_grid_never_needs_more_than_it_was_given(kv: int, context: int, block: int) -> None:
    grid = grid_for(QUICK_AXES, kv_tokens=kv, max_context_tokens=context, block_tokens=block)
    assert grid.kv_tokens <= kv
    assert all(tokens % block == 0 for tokens in grid.slot_tokens)
    assert all(cell.context_tokens + max(1, cell.chunk_tokens) <= context for cell in grid.cells)


def test_a_memory_that_holds_no_grid_is_refused() -> None:
    # A chunk's slot of 16 + 1,024 tokens, and 32 slots of 17 rounded up to 32.
    with pytest.raises(SettingsError, match=r"kv_tokens=100 in .* hold 0 cells .* at least 2064 tokens"):
        grid_for(FULL_AXES, kv_tokens=100, max_context_tokens=8192, block_tokens=16)


def test_prices_are_found_again_and_never_negative() -> None:
    rows = [{"one": 1.0, "n": float(n), "square": float(n * n)} for n in range(1, 20)]
    exact = fit_prices(rows, [3.0 + 2.0 * row["n"] for row in rows])
    assert exact == pytest.approx({"one": 3.0, "n": 2.0, "square": 0.0}, abs=1e-6)
    falling = fit_prices(rows, [100.0 - row["n"] for row in rows])
    assert min(falling.values()) >= 0.0
    assert predict(rows[0], falling) > 0


@given(st.lists(st.floats(0.0, 10.0), min_size=3, max_size=3), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=40)
def test_no_other_prices_are_nearer(truth: list[float], chosen: random.Random) -> None:
    names = ("a", "b", "c")
    rows = [{name: chosen.uniform(0.1, 5.0) for name in names} for _ in range(12)]
    took = [
        0.5 + predict(row, dict(zip(names, truth, strict=True))) * chosen.uniform(0.7, 1.3) for row in rows
    ]
    found = fit_prices(rows, took)

    def off(prices: dict[str, float]) -> float:
        return sum((predict(row, prices) / ms - 1) ** 2 for row, ms in zip(rows, took, strict=True))

    for name in names:
        for moved in (0.9, 1.1):
            assert off(found) <= off({**found, name: found[name] * moved}) + 1e-9
        assert off(found) <= off({**found, name: found[name] + 0.05}) + 1e-9


def test_a_fit_without_measurements_is_a_bug() -> None:
    with pytest.raises(InvariantError, match="0 rows"):
        fit_prices([], [])


def test_a_curve_is_straight_between_and_flat_before_its_points() -> None:
    assert LINEAR.at_ms(0.5) == 15.0
    assert LINEAR.at_ms(6) == pytest.approx(20.3)
    assert LINEAR.at_ms(2048) == pytest.approx(2 * 3276.8)
    with pytest.raises(InvariantError, match="ascending"):
        RowCurve((4, 1), (1.0, 2.0))


def test_noise_is_seen_through_and_the_judged_cells_are_predicted() -> None:
    errors = judged_errors(fitted(CONDITIONS, RATES, LINEAR, _measured(noise=0.05)).results)
    assert errors.holds
    assert errors.cells == 90
    assert errors.median_ratio < 0.03


def test_parts_of_a_prediction_add_up() -> None:
    cell = Cell(8, 1024, 64, is_judged=True)
    parts = TRUTH.parts_ms(cell)
    assert sum(parts.values()) == pytest.approx(TRUTH.predict_ms(cell))
    # 8 rows of 1,024 tokens; 64 x 1,024 and 64 x 64 / 2 pairs.
    assert parts["decode pair"] == pytest.approx(8 * 1024 * 0.0027)
    assert parts["prefill pair"] == pytest.approx((65_536 + 2_048) * 0.0013)


def test_work_that_the_model_has_no_term_for_is_caught_by_the_judge() -> None:
    # Beyond a cache's size attention takes three times as long: a step that no term of the model has.
    taken = {
        cell: [ms * (3.0 if cell.shape.context_tokens > 40_000 else 1.0) for ms in found]
        for cell, found in _measured().items()
    }
    found = fitted(CONDITIONS, RATES, LINEAR, taken)
    assert not judged_errors(found.results).holds
    named = breaks(found.results)
    assert named
    assert abs(named[0].error_ratio) == max(abs(result.error_ratio) for result in found.results)


def test_cells_of_the_fit_do_not_count_for_the_verdict() -> None:
    found = fitted(CONDITIONS, RATES, LINEAR, _measured())
    spoilt = [
        result if result.cell.is_judged else replace(result, predicted_ms=result.measured_ms * 9)
        for result in found.results
    ]
    assert judged_errors(spoilt) == judged_errors(found.results)


def test_the_linear_form_has_errors_of_its_own() -> None:
    # It cannot bend where memory gives way to arithmetic, so it is worse here, and says so.
    found = fitted(CONDITIONS, RATES, LINEAR, _measured())
    assert linear_errors(found.results).worst_ratio > judged_errors(found.results).worst_ratio
    assert found.wire.per_prefill_token_ms == pytest.approx(3.2, rel=0.1)
    cell = found.results[0].cell
    assert found.results[0].linear_ms == found.wire.predict_ms(cell.shape)


def _calibration() -> Calibration:
    small = grid_for(QUICK_AXES, kv_tokens=50_000, max_context_tokens=8192, block_tokens=16).cells
    return fitted(CONDITIONS, RATES, LINEAR, _measured(noise=0.02, cells=small))


def test_a_record_comes_back_as_it_was() -> None:
    kept = _calibration()
    assert read_calibration(kept.to_json(), source="x") == kept


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("{", id="no-json"),
        pytest.param("[]", id="no-object"),
        pytest.param('{"schema": 0}', id="another-schema"),
        pytest.param('{"schema": 1, "conditions": {}}', id="incomplete"),
    ],
)
def test_what_is_no_record_is_refused_by_its_name(text: str) -> None:
    with pytest.raises(SettingsError, match=r"kept\.json .*run ridgeline calibrate again"):
        read_calibration(text, source="kept.json")


def test_this_machine_is_a_gpu_with_measured_figures(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="run ridgeline calibrate first"):
        stored_gpu(tmp_path)
    older, newer = _calibration(), _calibration()
    newer = replace(newer, conditions=replace(CONDITIONS, dtype="fp32", measured_at_ms=2000.0))
    for each in (newer, older):
        save(each, calibration_file(tmp_path, each.conditions))
    names = sorted(path.name for path in (tmp_path / "calibration").iterdir())
    assert names == [f"made-up-cpu-2-ghz-{dtype}-smollm2-135m-instruct.json" for dtype in ("bf16", "fp32")]
    assert stored_calibration(tmp_path) == newer
    assert stored_calibration(tmp_path, wanted=lambda found: found.dtype == "bf16") == older
    gpu = stored_gpu(tmp_path)
    assert gpu.bandwidth.evidence is Evidence.MEASURED
    assert (gpu.gpu_id, gpu.bandwidth_bytes_per_s, gpu.memory_bytes) == ("this", 24e9, 24e9)
    # BF16 was not measured here: the next wider arithmetic stands for it.
    assert gpu.flops_per_s(Dtype.BF16) == 80e9


@pytest.mark.parametrize(
    ("change", "fits"),
    [
        pytest.param({}, True, id="the-same"),
        pytest.param({"threads": 4}, False, id="other-threads"),
        pytest.param({"weights_revision": "w2"}, False, id="other-weights"),
        pytest.param({"dtype": "fp32"}, False, id="other-dtype"),
        pytest.param({"machine": "Other"}, False, id="other-machine"),
    ],
)
def test_a_record_holds_under_its_conditions_alone(change: dict[str, object], fits: bool) -> None:
    asked = {"machine": CONDITIONS.machine, "threads": 2, "dtype": "bf16", "weights_revision": "w1"} | change
    assert CONDITIONS.matches(**asked) is fits  # type: ignore[arg-type]


def test_amounts_count_what_a_step_runs() -> None:
    amounts = cell_amounts(Cell(4, 100, 16, is_judged=False), LINEAR)
    assert (amounts["row"], amounts["token"]) == (5.0, 20.0)
    assert (amounts["decode pair"], amounts["prefill pair"]) == (400.0, 16 * 100 + 128)
    assert cell_amounts(Cell(4, 100, 0, is_judged=False), LINEAR)["chunk context"] == 0.0
