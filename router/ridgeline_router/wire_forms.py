"""Between the router's facts and the contract's messages. Pure."""

from ridgeline_contracts.ids import BlockHash, Incarnation, ModelName, RequestId, TenantId, WorkerId
from ridgeline_contracts.proto import router_pb2 as pb
from ridgeline_contracts.proto import worker_pb2
from ridgeline_contracts.wire import step_model_from_wire

from ridgeline_router.discovery import WorkerAddress
from ridgeline_router.facts import (
    Candidate,
    Estimate,
    Placed,
    Refused,
    RouteQuery,
    Variant,
    WorkerFacts,
    WorkerLoad,
    WorkerState,
)

_STATES = {
    WorkerState.STARTING: pb.WORKER_STATE_STARTING,
    WorkerState.READY: pb.WORKER_STATE_READY,
    WorkerState.DRAINING: pb.WORKER_STATE_DRAINING,
    WorkerState.LOST: pb.WORKER_STATE_LOST,
}


def variant_from_wire(message: worker_pb2.Variant) -> Variant:
    return Variant(
        ModelName(message.model),
        message.weights_revision,
        message.tokenizer_hash,
        message.template_hash,
        message.price_version,
    )


def facts_from_report(where: WorkerAddress, report: worker_pb2.LoadReport, *, now_ms: float) -> WorkerFacts:
    """The worker's id is the discovery's: the report's own may differ only by a wrong flag."""
    return WorkerFacts(
        worker_id=where.worker_id,
        address=where.address,
        state=_state(report),
        incarnation=Incarnation(report.worker_incarnation),
        core_incarnation=Incarnation(report.core_incarnation),
        pool=report.pool,
        role=report.role,
        variants=tuple(variant_from_wire(each) for each in report.variants),
        tokenizer_files=tuple(sorted(report.tokenizer_files.items())),
        load=WorkerLoad(
            running=report.running,
            waiting=sum(each.waiting for each in report.classes),
            waiting_tokens=sum(each.waiting_tokens for each in report.classes),
            used_blocks=max(0, report.total_blocks - report.free_blocks),
            total_blocks=report.total_blocks,
            step_model=step_model_from_wire(report.step_model) if report.HasField("step_model") else None,
        ),
        reported_at_ms=now_ms,
    )


def _state(report: worker_pb2.LoadReport) -> WorkerState:
    if report.draining:
        return WorkerState.DRAINING
    return WorkerState.READY if report.ready else WorkerState.STARTING


def query_from_wire(request: pb.RouteRequest) -> RouteQuery:
    has_variant = request.WhichOneof("target") == "variant"
    variant = variant_from_wire(request.variant) if has_variant else None
    return RouteQuery(
        request_id=RequestId(request.request_id),
        attempt=request.attempt,
        model=ModelName(request.model) if variant is None else variant.model,
        variant=variant,
        tenant=TenantId(request.tenant),
        block_hashes=tuple(BlockHash(each) for each in request.block_hashes),
        prompt_tokens=request.prompt_tokens,
        expected_output_tokens=request.expected_output_tokens,
        remaining_ms=request.remaining_ms if request.HasField("remaining_ms") else None,
        pool=request.pins.pool,
        pinned=frozenset(WorkerId(each) for each in request.pins.worker_ids),
        excluded=frozenset(WorkerId(each) for each in request.pins.excluded_worker_ids),
    )


def reply_to_wire(outcome: Placed | Refused) -> pb.RouteReply:
    if isinstance(outcome, Refused):
        refusal = pb.Refusal(code=outcome.code, message=outcome.message)
        if outcome.retry_after_ms is not None:
            refusal.retry_after_ms = outcome.retry_after_ms
        return pb.RouteReply(refusal=refusal)
    worker = outcome.worker
    return pb.RouteReply(
        placement=pb.Placement(
            decode=pb.WorkerRef(worker_id=worker.worker_id, worker_incarnation=worker.incarnation),
            reason=outcome.reason,
            estimates=_estimate_to_wire(outcome.estimate),
            reservation_id=outcome.reservation_id or "",
        )
    )


def decision_to_wire(attempt: int, outcome: Placed | Refused) -> pb.Decision:
    return pb.Decision(
        attempt=attempt,
        reply=reply_to_wire(outcome),
        candidates=[_candidate_to_wire(each) for each in outcome.candidates],
    )


def workers_to_wire(workers: tuple[WorkerFacts, ...]) -> pb.WorkerSet:
    return pb.WorkerSet(workers=[_worker_to_wire(each) for each in workers])


def _worker_to_wire(facts: WorkerFacts) -> pb.WorkerInfo:
    return pb.WorkerInfo(
        worker_id=facts.worker_id,
        worker_incarnation=facts.incarnation,
        address=facts.address,
        pool=facts.pool,
        role=facts.role,
        state=_STATES[facts.state],
        variants=[worker_pb2.Variant(**each._asdict()) for each in facts.variants],
        tokenizer_files=dict(facts.tokenizer_files),
    )


def _candidate_to_wire(candidate: Candidate) -> pb.Candidate:
    message = pb.Candidate(
        worker_id=candidate.worker_id, eligible=candidate.eligible, reason=candidate.reason
    )
    if candidate.estimate is not None:
        message.estimates.CopyFrom(_estimate_to_wire(candidate.estimate))
    return message


def _estimate_to_wire(estimate: Estimate) -> pb.Estimates:
    return pb.Estimates(
        cached_tokens=estimate.cached_tokens,
        queue_ms=estimate.queue_ms,
        prefill_ms=estimate.prefill_ms,
        ttft_ms=estimate.ttft_ms,
        total_ms=estimate.total_ms,
    )
