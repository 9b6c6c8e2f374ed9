"""What is counted of a step: its parts, its sums, and whose time is whose."""

from typing import Any

import pytest
from ridgeline_contracts.step import StepCoefficients, StepShape
from ridgeline_engine.drafting import OpenLaunch
from ridgeline_engine.ledger import StepLedger
from ridgeline_engine.pipeline import Completion
from ridgeline_engine.policy.preemption_log import PreemptionCause, PreemptionLog
from ridgeline_engine.request import FinishReason
from ridgeline_engine.seam import Generation, LaunchId, RowPlan, SlotId, StepPlan, StepResult
from ridgeline_roofline.decisions.decision import Decision
from ridgeline_roofline.decisions.preemption import PreemptionKind
from ridgeline_testing.sequences import sequence

GUESS = StepCoefficients(1.0, 0.0, 0.0, 0.0, 0.0)
SHAPE = StepShape(decode_rows=2, context_tokens=40, prefill_tokens=7, prefill_context_tokens=24)


def _completion(*, started_ms: float, completed_ms: float, host_ms: float = 0.5) -> Completion:
    rows = tuple(RowPlan(SlotId(slot), Generation(1), (1,), 0, 1, 0) for slot in range(3))
    opened = OpenLaunch(
        plan=StepPlan(LaunchId(1), rows),
        sequences=(),
        shape=SHAPE,
        cached_tokens=16,
        predicted_ms=9.0,
        started_ms=started_ms,
        host_ms=host_ms,
    )
    return Completion(opened, StepResult(LaunchId(1), (), device_ms=4.0), completed_ms)


def _metrics(ledger: StepLedger) -> Any:
    log = PreemptionLog()
    for _ in range(3):
        log.add(sequence(), PreemptionCause.POOL, Decision(PreemptionKind.RECOMPUTE, "so"), now_ms=1.0)
    return ledger.metrics(log, waiting=2, running=1)


def test_a_steps_time_is_the_devices_and_the_hosts() -> None:
    ledger = StepLedger(GUESS)
    ledger.record(_completion(started_ms=10.0, completed_ms=15.0), now_ms=15.75)
    last = _metrics(ledger).last_step
    # 0.5 ms to plan, 0.75 ms to commit.
    assert (last.step_ms, last.device_ms, last.host_ms) == (5.75, 4.0, 1.25)
    assert (last.batch, last.cached_tokens, last.predicted_ms, last.shape) == (3, 16, 9.0, SHAPE)


def test_a_step_that_waited_for_another_begins_at_its_end() -> None:
    ledger = StepLedger(GUESS)
    ledger.record(_completion(started_ms=10.0, completed_ms=15.0), now_ms=16.0)
    ledger.record(_completion(started_ms=12.0, completed_ms=20.0), now_ms=21.0)
    ledger.record(_completion(started_ms=30.0, completed_ms=34.0), now_ms=35.0)
    metrics = _metrics(ledger)
    assert metrics.last_step.step_ms == 5.0
    assert metrics.step_ms == 6.0 + 5.0 + 5.0


def test_sums_are_over_all_steps() -> None:
    ledger = StepLedger(GUESS)
    assert ledger.host_step_ms == 0.0
    for start in (0.0, 10.0):
        ledger.record(_completion(started_ms=start, completed_ms=start + 5.0), now_ms=start + 6.0)
    ledger.count_finish(FinishReason.STOP)
    ledger.count_finish(FinishReason.STOP)
    ledger.count_finish(FinishReason.ERROR)
    found = _metrics(ledger)
    assert (found.steps, found.decode_tokens, found.prefill_tokens, found.cached_tokens) == (2, 4, 14, 32)
    assert (found.step_ms, found.host_ms, found.predicted_ms) == (12.0, 3.0, 18.0)
    assert ledger.host_step_ms == 1.5
    assert found.finished == {"stop": 2, "length": 0, "cancelled": 0, "error": 1}
    assert (found.preemptions, found.waiting, found.running) == (3, 2, 1)


def test_the_guess_stands_until_steps_were_measured() -> None:
    ledger = StepLedger(GUESS)
    assert ledger.coefficients == GUESS
    for start in range(64):
        ledger.record(
            _completion(started_ms=10.0 * start, completed_ms=10.0 * start + 5.0), now_ms=10.0 * start + 6.0
        )
    assert ledger.coefficients.predict_ms(SHAPE) == pytest.approx(6.0, rel=0.05)
