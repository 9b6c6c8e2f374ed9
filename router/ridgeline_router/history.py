"""Why the most recent requests went where they went."""

from collections import OrderedDict

from ridgeline_contracts.ids import RequestId

from ridgeline_router.facts import Placed, Refused, RouteQuery

_MOST_ATTEMPTS = 8


class DecisionHistory:
    """Keeps the decisions of the last `most_requests` requests, of each its last eight."""

    def __init__(self, *, most_requests: int) -> None:
        self._most_requests = most_requests
        self._decisions: OrderedDict[RequestId, list[tuple[int, Placed | Refused]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._decisions)

    def add(self, query: RouteQuery, outcome: Placed | Refused) -> None:
        decisions = self._decisions.setdefault(query.request_id, [])
        self._decisions.move_to_end(query.request_id)
        decisions.append((query.attempt, outcome))
        del decisions[:-_MOST_ATTEMPTS]
        if len(self._decisions) > self._most_requests:
            self._decisions.popitem(last=False)

    def of(self, request_id: RequestId) -> tuple[tuple[int, Placed | Refused], ...]:
        """(attempt, outcome), oldest first; empty for a request that is not known or forgotten."""
        return tuple(self._decisions.get(request_id, ()))
