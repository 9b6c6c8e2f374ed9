"""What happened in a core becomes counters: each thing once, and a new core begins at 0 again."""

from ridgeline_contracts.step import StepCoefficients
from ridgeline_engine.request import PriorityClass
from ridgeline_engine.snapshots import ClassLoad, EngineCounts, LoadSnapshot
from ridgeline_worker.messages import StepDone
from ridgeline_worker.metrics import WorkerMetrics


def _value(metrics: WorkerMetrics, name: str, **labels: str) -> float:
    found = metrics.registry.get_sample_value(f"ridgeline_worker_{name}", labels)
    return 0.0 if found is None else found


def _counted(preempted: int, paused: int, **others: int) -> StepDone:
    kinds = (("pool", "recompute", preempted), ("pool", "wait", paused))
    return StepDone(rows=(), counts=EngineCounts(kinds, **others))


def test_preemptions_are_counted_once_by_cause_and_kind() -> None:
    metrics = WorkerMetrics()
    metrics.step_done(_counted(2, 1))
    metrics.step_done(StepDone(rows=()))
    metrics.step_done(_counted(5, 1))
    assert _value(metrics, "preemptions_total", cause="pool", kind="recompute") == 5
    assert _value(metrics, "preemptions_total", cause="pool", kind="wait") == 1


def test_wasted_rows_and_faults_are_counted() -> None:
    metrics = WorkerMetrics()
    metrics.step_done(_counted(0, 0, wasted_rows=3, row_faults=1))
    metrics.step_done(_counted(0, 0, wasted_rows=4, row_faults=1, host_faults=2))
    assert _value(metrics, "wasted_rows_total") == 4
    assert _value(metrics, "choices_faulted_total", where="device") == 1
    assert _value(metrics, "choices_faulted_total", where="host") == 2


def test_a_new_core_adds_to_what_the_old_one_counted() -> None:
    metrics = WorkerMetrics()
    metrics.step_done(_counted(2, 0))
    metrics.core_lost("device_fault", requests=0)
    metrics.core_ready(None)
    metrics.step_done(_counted(3, 0))
    assert _value(metrics, "preemptions_total", cause="pool", kind="recompute") == 5


def test_blocks_are_told_by_state_and_add_up() -> None:
    metrics = WorkerMetrics()
    load = LoadSnapshot(
        classes=(ClassLoad(PriorityClass.INTERACTIVE, 0, 0),),
        running=1,
        free_blocks=40,
        cached_blocks=30,
        total_blocks=100,
        step_model=StepCoefficients(1.0, 0.0, 0.0, 0.0, 0.0),
        draining=False,
        quarantined_blocks=7,
        stranded_bytes=4096,
        host_blocks=20,
        host_used_blocks=5,
    )
    metrics.core_ready(load)
    wanted = {"total": 100, "used": 53, "cached": 30, "quarantined": 7, "host": 20, "host_used": 5}
    assert {state: _value(metrics, "kv_blocks", state=state) for state in wanted} == wanted
    assert _value(metrics, "kv_stranded_bytes") == 4096
