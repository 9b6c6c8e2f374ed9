"""What this router has sent where: reservations that gateways release, or that their lease ends."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ridgeline_contracts.ids import Incarnation, ReservationId, WorkerId

from ridgeline_router.facts import Reserved, RouteQuery, WorkerFacts

SETTLE_MS = 250.0
"""A report that comes within this after a placement may have been written before the request arrived."""
DEFAULT_LEASE_MS = 900_000.0
_LEASE_SLACK_MS = 30_000.0


@dataclass(frozen=True, slots=True)
class _Reservation:
    worker_id: WorkerId
    incarnation: Incarnation
    prompt_tokens: int
    made_at_ms: float
    ends_at_ms: float


class ReservationBook:
    """Times are the caller's monotonic milliseconds."""

    def __init__(self, *, new_id: Callable[[], ReservationId], lease_ms: float = DEFAULT_LEASE_MS) -> None:
        self._new_id = new_id
        self._lease_ms = lease_ms
        self._open: dict[ReservationId, _Reservation] = {}

    def __len__(self) -> int:
        return len(self._open)

    def reserve(self, query: RouteQuery, worker: WorkerFacts, *, now_ms: float) -> ReservationId:
        """Counts a request against a worker until its release, or until its lease is over."""
        lease_ms = self._lease_ms
        if query.remaining_ms is not None:
            lease_ms = min(lease_ms, query.remaining_ms + _LEASE_SLACK_MS)
        reservation_id = self._new_id()
        self._open[reservation_id] = _Reservation(
            worker.worker_id, worker.incarnation, query.prompt_tokens, now_ms, now_ms + lease_ms
        )
        return reservation_id

    def release(self, reservation_id: ReservationId) -> bool:
        """Whether it was open; to repeat it, or to release what expired, changes nothing."""
        return self._open.pop(reservation_id, None) is not None

    def expire(self, now_ms: float) -> int:
        """Drops those whose lease is over: their gateway is gone. Returns how many."""
        over = [key for key, each in self._open.items() if each.ends_at_ms <= now_ms]
        for key in over:
            del self._open[key]
        return len(over)

    def forget(self, worker_id: WorkerId, *, all_but: Incarnation) -> int:
        """Drops those of a worker's earlier lives, whose requests ended with them. Returns how many."""
        over = [
            key
            for key, each in self._open.items()
            if each.worker_id == worker_id and each.incarnation != all_but
        ]
        for key in over:
            del self._open[key]
        return len(over)

    def by_worker(self, reported_at_ms: Mapping[WorkerId, float]) -> dict[WorkerId, Reserved]:
        """Sums by worker; `reported_at_ms` tells when each was last heard."""
        sums: dict[WorkerId, list[int]] = {}
        for each in self._open.values():
            total = sums.setdefault(each.worker_id, [0, 0, 0])
            total[0] += 1
            if each.made_at_ms + SETTLE_MS > reported_at_ms.get(each.worker_id, 0.0):
                total[1] += 1
                total[2] += each.prompt_tokens
        return {worker_id: Reserved(*total) for worker_id, total in sums.items()}
