"""Coefficients fitted from measured steps: right where there is data, the guess where there is none."""

import numpy as np
import pytest
from ridgeline_contracts.step import StepCoefficients, StepShape
from ridgeline_engine.step_fit import StepFit

GUESS = StepCoefficients(10.0, 0.2, 1e-4, 0.05, 1e-6)
TRUTH = StepCoefficients(3.0, 0.4, 2e-3, 0.11, 5e-6)


def _shapes(count: int, *, prefill: bool = True) -> list[StepShape]:
    random = np.random.default_rng(1)
    shapes = []
    for _ in range(count):
        rows = int(random.integers(0, 32))
        chunk = int(random.integers(0, 512)) if prefill else 0
        shapes.append(
            StepShape(rows, rows * int(random.integers(1, 900)), chunk, chunk * int(random.integers(1, 500)))
        )
    return shapes


def test_the_fit_finds_the_truth_in_noisy_steps() -> None:
    fit, random = StepFit(GUESS), np.random.default_rng(2)
    for shape in _shapes(512):
        fit.observe(shape, TRUTH.predict_ms(shape) * float(random.normal(1.0, 0.03)))
    for shape in _shapes(50):
        assert fit.coefficients.predict_ms(shape) == pytest.approx(TRUTH.predict_ms(shape), rel=0.05)


def test_a_few_steps_already_correct_a_wrong_guess() -> None:
    fit = StepFit(GUESS)
    for shape in _shapes(16):
        fit.observe(shape, TRUTH.predict_ms(shape))
    for shape in _shapes(16):
        assert fit.coefficients.predict_ms(shape) == pytest.approx(TRUTH.predict_ms(shape), rel=0.35)


def test_what_never_occurred_keeps_its_guess() -> None:
    fit = StepFit(GUESS)
    for shape in _shapes(128, prefill=False):
        fit.observe(shape, TRUTH.predict_ms(shape))
    assert fit.coefficients.per_prefill_token_ms == pytest.approx(GUESS.per_prefill_token_ms)
    assert fit.coefficients.per_row_ms != GUESS.per_row_ms


def test_no_coefficient_is_ever_negative() -> None:
    fit, random = StepFit(GUESS), np.random.default_rng(3)
    for shape in _shapes(256):
        # Durations that fall as the work grows: the best unbounded fit would have negative slopes.
        fit.observe(shape, max(0.1, 50.0 - 0.05 * shape.prefill_tokens - shape.decode_rows + random.normal()))
    found = fit.coefficients
    assert min(found.base_ms, found.per_row_ms, found.per_context_token_ms) >= 0.0
    assert min(found.per_prefill_token_ms, found.per_prefill_context_ms) >= 0.0


def test_old_steps_leave_the_window() -> None:
    fit = StepFit(GUESS)
    for shape in _shapes(512):
        fit.observe(shape, 5 * TRUTH.predict_ms(shape))
    for shape in _shapes(1024):
        fit.observe(shape, TRUTH.predict_ms(shape))
    shape = StepShape(16, 4_000, 128, 10_000)
    assert fit.coefficients.predict_ms(shape) == pytest.approx(TRUTH.predict_ms(shape), rel=0.05)


def test_until_enough_was_measured_the_guess_stands() -> None:
    fit = StepFit(GUESS)
    for shape in _shapes(15):
        fit.observe(shape, 100.0)
    assert fit.coefficients == GUESS
