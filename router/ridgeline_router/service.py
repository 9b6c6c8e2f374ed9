"""The Router contract over gRPC."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import grpc
from ridgeline_contracts.ids import RequestId, ReservationId
from ridgeline_contracts.proto import router_pb2 as pb
from ridgeline_contracts.proto import router_pb2_grpc

from ridgeline_router.routing import Routing
from ridgeline_router.wire_forms import decision_to_wire, query_from_wire, reply_to_wire, workers_to_wire

_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
_OUTCOMES = {
    pb.OUTCOME_FINISHED: "finished",
    pb.OUTCOME_CANCELLED: "cancelled",
    pb.OUTCOME_FAILED: "failed",
    pb.OUTCOME_WORKER_LOST: "worker_lost",
}


class RouterService(router_pb2_grpc.RouterServicer):
    def __init__(self, routing: Routing) -> None:
        self._routing = routing

    async def Route(self, request: pb.RouteRequest, context: _Context) -> pb.RouteReply:
        return reply_to_wire(self._routing.route(query_from_wire(request)))

    async def Release(self, request: pb.ReleaseRequest, context: _Context) -> pb.ReleaseReply:
        outcome = _OUTCOMES.get(request.outcome, "unspecified")
        self._routing.release(ReservationId(request.reservation_id), outcome)
        return pb.ReleaseReply()

    async def Explain(self, request: pb.ExplainRequest, context: _Context) -> pb.ExplainReply:
        decisions = self._routing.explain(RequestId(request.request_id))
        return pb.ExplainReply(
            decisions=[decision_to_wire(attempt, outcome) for attempt, outcome in decisions]
        )

    async def Workers(self, request: pb.WorkersRequest, context: _Context) -> AsyncIterator[pb.WorkerSet]:
        async with contextlib.aclosing(self._routing.registry.changes()) as changes:
            async for workers in changes:
                yield workers_to_wire(workers)
