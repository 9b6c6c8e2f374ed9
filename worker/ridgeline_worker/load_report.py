"""The load report: what the router decides by. Pure; `service` streams it."""

from dataclasses import dataclass

from ridgeline_contracts.ids import Incarnation
from ridgeline_contracts.proto import worker_pb2 as pb
from ridgeline_contracts.wire import step_model_to_wire
from ridgeline_engine.request import PriorityClass
from ridgeline_engine.snapshots import LoadSnapshot

from ridgeline_worker.served import Served
from ridgeline_worker.settings import ServingSettings

CLASSES_ON_WIRE = {
    PriorityClass.INTERACTIVE: pb.PRIORITY_CLASS_INTERACTIVE,
    PriorityClass.BATCH: pb.PRIORITY_CLASS_BATCH,
}


@dataclass(frozen=True, slots=True)
class FrontState:
    """The front's part of the report."""

    front_incarnation: Incarnation
    core_incarnation: Incarnation
    ready: bool
    draining: bool


def load_report(
    state: FrontState, load: LoadSnapshot | None, *, served: Served, serving: ServingSettings
) -> pb.LoadReport:
    """`load` None: there is no core, so there are no numbers."""
    report = pb.LoadReport(
        worker_id=serving.worker_id,
        worker_incarnation=state.front_incarnation,
        core_incarnation=state.core_incarnation,
        ready=state.ready,
        draining=state.draining,
        variants=[served.variant],
        role=serving.role,
        tokenizer_files=dict(served.files.sha256_by_name),
        pool=serving.pool,
    )
    if load is not None:
        _add_numbers(report, load)
    return report


def _add_numbers(report: pb.LoadReport, load: LoadSnapshot) -> None:
    report.running = load.running
    report.free_blocks = load.free_blocks
    report.cached_blocks = load.cached_blocks
    report.total_blocks = load.total_blocks
    report.step_model.CopyFrom(step_model_to_wire(load.step_model))
    for each in load.classes:
        report.classes.add(
            priority_class=CLASSES_ON_WIRE[each.priority],
            waiting=each.waiting,
            waiting_tokens=each.waiting_tokens,
        )
