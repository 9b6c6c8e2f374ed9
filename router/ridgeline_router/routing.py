"""The router's state and what it answers.
No socket is touched here; all calls come on the event loop's thread."""

import logging
from dataclasses import replace

from ridgeline_contracts.clock import Clock
from ridgeline_contracts.ids import RequestId, ReservationId, WorkerId

from ridgeline_router.decision import RouteFacts, choose
from ridgeline_router.facts import Placed, Refused, RouteQuery, WorkerFacts, WorkerState
from ridgeline_router.history import DecisionHistory
from ridgeline_router.metrics import RouterMetrics
from ridgeline_router.registry import WorkerRegistry
from ridgeline_router.reservations import ReservationBook

_log = logging.getLogger(__name__)


class Routing:
    def __init__(
        self,
        *,
        registry: WorkerRegistry,
        book: ReservationBook,
        history: DecisionHistory,
        metrics: RouterMetrics,
        policy: str,
        clock: Clock,
    ) -> None:
        self.registry = registry
        self._book = book
        self._history = history
        self._metrics = metrics
        self._policy = policy
        self._clock = clock

    def route(self, query: RouteQuery) -> Placed | Refused:
        """Decides, and reserves where it places."""
        started_ms = self._clock.monotonic_ms()
        self._expire(started_ms)
        workers = self.registry.all()
        reported = {each.worker_id: each.reported_at_ms or 0.0 for each in workers}
        outcome = choose(RouteFacts(query, workers, self._book.by_worker(reported), self._policy))
        if isinstance(outcome, Placed):
            reservation_id = self._book.reserve(query, outcome.worker, now_ms=started_ms)
            outcome = replace(outcome, reservation_id=reservation_id)
        self._history.add(query, outcome)
        self._metrics.decided(
            outcome, took_ms=self._clock.monotonic_ms() - started_ms, open_reservations=len(self._book)
        )
        return outcome

    def release(self, reservation_id: ReservationId, outcome: str) -> None:
        if self._book.release(reservation_id):
            self._metrics.released(outcome, open_reservations=len(self._book))

    def explain(self, request_id: RequestId) -> tuple[tuple[int, Placed | Refused], ...]:
        return self._history.of(request_id)

    def worker_reported(self, facts: WorkerFacts) -> None:
        before = self.registry.get(facts.worker_id)
        if before is not None and before.incarnation not in ("", facts.incarnation):
            dropped = self._book.forget(facts.worker_id, all_but=facts.incarnation)
            _log.warning("worker.restarted worker_id=%s reservations_dropped=%d", facts.worker_id, dropped)
        if before is None or before.state is not facts.state:
            _log.info("worker.state worker_id=%s state=%s", facts.worker_id, facts.state.value)
        self.registry.reported(facts)
        self._count_states()

    def worker_lost(self, worker_id: WorkerId, address: str, reason: str) -> None:
        if self.registry.lost(worker_id, address):
            _log.warning("worker.state worker_id=%s state=lost reason=%r", worker_id, reason)
            self._count_states()

    def _expire(self, now_ms: float) -> None:
        expired = self._book.expire(now_ms)
        if expired:
            _log.warning("reservations.expired count=%d", expired)
            self._metrics.expired(expired)

    def _count_states(self) -> None:
        states = [each.state for each in self.registry.all()]
        self._metrics.workers({state.value: states.count(state) for state in WorkerState})
