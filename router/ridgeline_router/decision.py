"""Where a request runs: facts in, decision out. Pure.

1. Who may: ready, serves the variant, within the pins. Workers that already failed the request are left
   out as long as there is another.
2. Who is best: the policy's score, the least one wins; equal scores go to the lowest worker id.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ridgeline_contracts.errors import NotFound, PeerError
from ridgeline_contracts.ids import WorkerId
from ridgeline_contracts.step import StepCoefficients

from ridgeline_router.estimates import estimate, pool_step_model
from ridgeline_router.facts import (
    Candidate,
    Estimate,
    Placed,
    Refused,
    Reserved,
    RouteQuery,
    WorkerFacts,
    WorkerState,
)

RETRY_AFTER_MS = 1000
DECODING_ROLES = ("", "unified", "decode")


@dataclass(frozen=True, slots=True)
class RouteFacts:
    """All that a decision follows from."""

    query: RouteQuery
    workers: tuple[WorkerFacts, ...]
    """All that exist, in any state."""
    reserved: Mapping[WorkerId, Reserved]
    policy: str


@dataclass(frozen=True, slots=True)
class Scored:
    worker: WorkerFacts
    estimate: Estimate
    score: float


Policy: TypeAlias = Callable[[RouteQuery, WorkerFacts, Reserved, StepCoefficients], tuple[Estimate, float]]


def least_predicted_load(
    query: RouteQuery, worker: WorkerFacts, reserved: Reserved, model: StepCoefficients
) -> tuple[Estimate, float]:
    """The time at which the request would be done, its own work included."""
    found = estimate(query, worker, reserved, model)
    return found, found.total_ms


POLICIES: Mapping[str, Policy] = {"least_predicted_load": least_predicted_load}
"""A policy gives a worker's estimate and its score; the least score wins."""
DEFAULT_POLICY = "least_predicted_load"


def choose(facts: RouteFacts) -> Placed | Refused:
    """Places the request on one worker, or says why that cannot be."""
    query = facts.query
    verdicts = {worker.worker_id: ineligible_because(query, worker) for worker in facts.workers}
    allowed = [worker for worker in facts.workers if verdicts[worker.worker_id] is None]
    fresh = [worker for worker in allowed if worker.worker_id not in query.excluded]
    scored = _scored(facts, fresh or allowed)
    if not scored:
        return _refused(query, facts.workers, _unscored(facts.workers, verdicts))
    best = min(scored, key=lambda each: (each.score, each.worker.worker_id))
    reason = f"{facts.policy}: {best.estimate.total_ms:.0f} ms predicted, least of {len(scored)}"
    if not fresh:
        reason += "; it failed this request before, but there is no other"
    return Placed(best.worker, reason, best.estimate, _candidates(facts, verdicts, scored))


def ineligible_because(query: RouteQuery, worker: WorkerFacts) -> str | None:
    """Why a worker cannot have the request at all; None when it can."""
    if worker.state is not WorkerState.READY:
        return f"is {worker.state.value}"
    if not worker.serves(query):
        return "serves another model or revision"
    if worker.role not in DECODING_ROLES:
        return f"has the role {worker.role}"
    if query.pool and worker.pool != query.pool:
        return f"is in pool {worker.pool!r}, the request is pinned to {query.pool!r}"
    if query.pinned and worker.worker_id not in query.pinned:
        return "is not among the pinned workers"
    return None


def _scored(facts: RouteFacts, workers: Sequence[WorkerFacts]) -> list[Scored]:
    policy = POLICIES[facts.policy]
    pools = {worker.pool for worker in workers}
    models = {pool: pool_step_model(each for each in workers if each.pool == pool) for pool in pools}
    return [
        Scored(worker, *policy(facts.query, worker, _reserved(facts, worker), models[worker.pool]))
        for worker in workers
    ]


def _reserved(facts: RouteFacts, worker: WorkerFacts) -> Reserved:
    return facts.reserved.get(worker.worker_id) or Reserved()


def _candidates(
    facts: RouteFacts, verdicts: Mapping[WorkerId, str | None], scored: Sequence[Scored]
) -> tuple[Candidate, ...]:
    by_id = {each.worker.worker_id: each for each in scored}
    found = []
    for worker in facts.workers:
        score = by_id.get(worker.worker_id)
        if score is not None:
            found.append(Candidate(worker.worker_id, True, f"score {score.score:.1f}", score.estimate))
        else:
            why = verdicts[worker.worker_id] or "failed this request before"
            found.append(Candidate(worker.worker_id, False, why))
    return tuple(found)


def _unscored(
    workers: Sequence[WorkerFacts], verdicts: Mapping[WorkerId, str | None]
) -> tuple[Candidate, ...]:
    return tuple(Candidate(each.worker_id, False, verdicts[each.worker_id] or "") for each in workers)


def _refused(query: RouteQuery, workers: Sequence[WorkerFacts], candidates: tuple[Candidate, ...]) -> Refused:
    """A model that nobody has is the caller's error, but only once every worker has said what it serves."""
    known = any(variant.model == query.model for worker in workers for variant in worker.variants)
    silent = any(not worker.variants for worker in workers)
    if workers and not known and not silent:
        return Refused(NotFound.code, f"no worker serves the model {query.model!r}", None, candidates)
    # Who asks may be a tenant, so the message counts; `candidates` name the workers, for Explain.
    states = [worker.state for worker in workers]
    counted = ", ".join(f"{states.count(state)} {state.value}" for state in WorkerState if state in states)
    message = f"no worker can take a request for {query.model!r} now ({counted or 'there are none'})"
    return Refused(PeerError.code, message, RETRY_AFTER_MS, candidates)
