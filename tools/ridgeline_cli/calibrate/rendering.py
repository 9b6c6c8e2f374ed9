"""A calibration for people (tables) and for programs (one object)."""

from typing import Any

from rich.console import Console
from rich.table import Table
from ridgeline_roofline.calibration.judge import (
    MEDIAN_LIMIT_RATIO,
    WORST_LIMIT_RATIO,
    CellResult,
    Errors,
    breaks,
    judged_errors,
    linear_errors,
)
from ridgeline_roofline.calibration.record import Calibration
from ridgeline_roofline.units import Unit, show

_BUSY_LOAD = 0.5


def print_calibration(found: Calibration, console: Console, *, path: str) -> None:
    """Rates, prices, every cell with its error, the verdict, and where the model breaks."""
    conditions, rates = found.conditions, found.rates
    console.print(
        f"{conditions.machine}, {conditions.threads} threads, {conditions.model} in {conditions.dtype}, "
        f"torch {conditions.torch}"
    )
    console.print(
        f"memory: {show(rates.copy_bytes_per_s, Unit.BYTES_PER_S)} copied, "
        f"{show(rates.read_bytes_per_s, Unit.BYTES_PER_S)} read"
    )
    console.print(_rates_table(found))
    console.print(_prices_table(found))
    console.print(_cells_table(found))
    console.print(verdict(found))
    for result in breaks(found.results):
        console.print(
            f"breaks at {result.cell}: {result.error_ratio:+.0%} ({result.measured_ms:.1f} ms measured)"
        )
    if conditions.load_average > _BUSY_LOAD:
        console.print(
            f"the machine was at work (load {conditions.load_average:.1f}) as this began: "
            "run it again when it is quiet"
        )
    console.print(f"stored in {path}")


def verdict(found: Calibration) -> str:
    """Of the judged cells: the model's errors against their limits, and the linear form's errors."""
    errors, linear = judged_errors(found.results), linear_errors(found.results)
    says = "holds" if errors.holds else "does not hold"
    return (
        f"{says}: over {errors.cells} cells left out of the fit, median error {errors.median_ratio:.1%} "
        f"(limit {MEDIAN_LIMIT_RATIO:.0%}), worst {errors.worst_ratio:.1%} (limit {WORST_LIMIT_RATIO:.0%}); "
        f"by the five linear coefficients {linear.median_ratio:.1%} and {linear.worst_ratio:.1%}"
    )


def calibration_json(found: Calibration, *, path: str) -> dict[str, Any]:
    """Milliseconds, ratios, and SI units in names."""
    return {
        "stored": path,
        "holds": judged_errors(found.results).holds,
        "judged": _errors_json(judged_errors(found.results)),
        "judged_linear": _errors_json(linear_errors(found.results)),
        "load_average": found.conditions.load_average,
        "copy_bytes_per_s": found.rates.copy_bytes_per_s,
        "read_bytes_per_s": found.rates.read_bytes_per_s,
        "prices_ms": dict(found.model.prices),
        "cells": [_cell_json(result) for result in found.results],
    }


def _errors_json(errors: Errors) -> dict[str, float]:
    return {"cells": errors.cells, "median_ratio": errors.median_ratio, "worst_ratio": errors.worst_ratio}


def _cell_json(result: CellResult) -> dict[str, Any]:
    cell = result.cell
    return {
        "batch": cell.batch,
        "context_tokens": cell.context_tokens,
        "chunk_tokens": cell.chunk_tokens,
        "judged": cell.is_judged,
        "measured_ms": result.measured_ms,
        "predicted_ms": result.predicted_ms,
        "error_ratio": result.error_ratio,
    }


def _rates_table(found: Calibration) -> Table:
    table = Table("rows", "product in fp32", "product in bf16", "all linear layers", title="Matrix products")
    linear = dict(zip(found.model.linear.rows, found.model.linear.durations_ms, strict=True))
    for rows, took_ms in linear.items():
        by_dtype = {rate.dtype: rate.flops_per_s for rate in found.rates.matmuls if rate.rows == rows}
        products = [
            show(by_dtype[dtype], Unit.FLOP_PER_S) if dtype in by_dtype else "" for dtype in ("fp32", "bf16")
        ]
        table.add_row(str(rows), *products, f"{took_ms:.2f} ms")
    return table


def _prices_table(found: Calibration) -> Table:
    table = Table("term", "price", title="What a step is made of")
    for name, price in found.model.prices.items():
        table.add_row(name, f"{price:.4g}" if name == "linear" else f"{price * 1e3:.4g} us")
    return table


def _cells_table(found: Calibration) -> Table:
    table = Table("batch", "context", "chunk", "", "measured", "predicted", "error", title="Steps")
    for result in found.results:
        cell = result.cell
        table.add_row(
            str(cell.batch),
            str(cell.context_tokens),
            str(cell.chunk_tokens),
            "judged" if cell.is_judged else "fitted",
            f"{result.measured_ms:.2f} ms",
            f"{result.predicted_ms:.2f} ms",
            f"{result.error_ratio:+.1%}",
        )
    return table
