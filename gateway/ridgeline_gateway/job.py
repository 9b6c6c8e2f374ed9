"""What is to be generated from one prompt, and how it is asked of router and worker. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline_contracts.errors import (
    CallerError,
    DeviceFault,
    Overloaded,
    RidgelineError,
    WorkerLost,
    error_from_code,
)
from ridgeline_contracts.ids import BlockHash, RequestId, WorkerId
from ridgeline_contracts.proto import router_pb2, worker_pb2
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_contracts.wire import sampling_to_wire

from ridgeline_gateway.choice_stream import TextRules
from ridgeline_gateway.tenants import Tenant, TenantClass
from ridgeline_gateway.token_table import TokenTable

_RETRY_MS = 1000
_CLASSES = {
    TenantClass.INTERACTIVE: worker_pb2.PRIORITY_CLASS_INTERACTIVE,
    TenantClass.BATCH: worker_pb2.PRIORITY_CLASS_BATCH,
}


@dataclass(frozen=True, slots=True)
class Job:
    """One prompt, its choices and for whom. Immutable over all attempts."""

    request_id: RequestId
    tenant: Tenant
    cache_salt: bytes
    variant: worker_pb2.Variant
    table: TokenTable
    prompt: tuple[int, ...]
    block_hashes: tuple[BlockHash, ...]
    choices: int
    sampling: SamplingParams
    rules: TextRules
    deadline_ms: float
    """On the gateway's monotonic clock."""
    ttft_target_ms: int | None = None
    """From the arrival; a request that would miss it is refused at once. None: it waits."""


def route_request(
    job: Job, *, attempt: int, remaining_ms: float, excluded: Sequence[WorkerId]
) -> router_pb2.RouteRequest:
    """The question where an attempt should run."""
    return router_pb2.RouteRequest(
        request_id=job.request_id,
        attempt=attempt,
        variant=job.variant,
        tenant=job.tenant.tenant_id,
        priority_class=_CLASSES[job.tenant.tenant_class],
        block_hashes=job.block_hashes,
        prompt_tokens=len(job.prompt),
        expected_output_tokens=job.sampling.max_tokens * job.choices,
        remaining_ms=int(max(0.0, remaining_ms)),
        pins=router_pb2.Pins(excluded_worker_ids=excluded),
    )


def submission(job: Job, *, attempt: int, remaining_ms: float, reservation_id: str) -> worker_pb2.Submit:
    """The command that starts an attempt on a worker."""
    return worker_pb2.Submit(
        request_id=job.request_id,
        attempt=attempt,
        n=job.choices,
        prompt=[worker_pb2.PromptSegment(tokens=worker_pb2.Tokens(ids=job.prompt))],
        variant=job.variant,
        cache_salt=job.cache_salt,
        tenant=job.tenant.tenant_id,
        weight=job.tenant.weight,
        priority_class=_CLASSES[job.tenant.tenant_class],
        remaining_ms=int(max(0.0, remaining_ms)),
        sampling=sampling_to_wire(job.sampling),
        kind=worker_pb2.KIND_GENERATE,
        reservation_id=reservation_id,
    )


def worker_error(finish: worker_pb2.Finish) -> RidgelineError:
    """What a terminal row of reason error says."""
    wait_ms = finish.retry_after_ms if finish.HasField("retry_after_ms") else None
    error = error_from_code(finish.error_code, finish.error_message, retry_after_ms=wait_ms)
    if isinstance(error, CallerError) and error.http_status not in (400, 429):
        # A worker that knows another variant, say: the client can do nothing about that.
        return Overloaded(error.message, retry_after_ms=wait_ms or _RETRY_MS)
    return error


def router_outcome(error: RidgelineError | None, *, ended: bool) -> router_pb2.Outcome.ValueType:
    """How an attempt ended, as the router counts it. No error and not ended: it was cancelled."""
    if ended:
        return router_pb2.OUTCOME_FINISHED
    if error is None:
        return router_pb2.OUTCOME_CANCELLED
    if isinstance(error, (WorkerLost, DeviceFault)):
        return router_pb2.OUTCOME_WORKER_LOST
    return router_pb2.OUTCOME_FAILED
