"""What a router measures, for Prometheus."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ridgeline_router.facts import Placed, Refused

_DECISION_BUCKETS_S = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05)


class RouterMetrics:
    """One router's metrics in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._decisions = Counter(
            "ridgeline_router_decisions",
            "Decisions by outcome: placed, or the code of the refusal.",
            ["outcome"],
            registry=self.registry,
        )
        self._placed = Counter(
            "ridgeline_router_placements",
            "Requests placed, by worker.",
            ["worker_id"],
            registry=self.registry,
        )
        self._duration = Histogram(
            "ridgeline_router_decision",
            "Time of a decision.",
            unit="seconds",
            buckets=_DECISION_BUCKETS_S,
            registry=self.registry,
        )
        self._reservations = Gauge(
            "ridgeline_router_reservations", "Reservations that are open.", registry=self.registry
        )
        self._released = Counter(
            "ridgeline_router_releases",
            "Reservations ended, by outcome.",
            ["outcome"],
            registry=self.registry,
        )
        self._workers = Gauge(
            "ridgeline_router_workers", "Workers by state.", ["state"], registry=self.registry
        )

    def decided(self, outcome: Placed | Refused, *, took_ms: float, open_reservations: int) -> None:
        self._duration.observe(took_ms / 1000)
        self._reservations.set(open_reservations)
        if isinstance(outcome, Placed):
            self._decisions.labels("placed").inc()
            self._placed.labels(outcome.worker.worker_id).inc()
        else:
            self._decisions.labels(outcome.code).inc()

    def released(self, outcome: str, *, open_reservations: int) -> None:
        self._released.labels(outcome).inc()
        self._reservations.set(open_reservations)

    def expired(self, count: int) -> None:
        self._released.labels("expired").inc(count)

    def workers(self, by_state: Mapping[str, int]) -> None:
        for state, count in by_state.items():
            self._workers.labels(state).set(count)
