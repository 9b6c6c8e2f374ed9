"""The router's state on a virtual clock: reservations, leases, restarts, losses, history, changes."""

import itertools
from dataclasses import replace

import pytest
from ridgeline_contracts.clock import VirtualClock
from ridgeline_contracts.errors import SettingsError
from ridgeline_contracts.ids import Incarnation, ModelName, RequestId, ReservationId, WorkerId
from ridgeline_contracts.step import StepCoefficients
from ridgeline_router.decision import DEFAULT_POLICY
from ridgeline_router.discovery import WorkerAddress, static_discovery
from ridgeline_router.facts import Placed, RouteQuery, Variant, WorkerFacts, WorkerLoad, WorkerState
from ridgeline_router.history import DecisionHistory
from ridgeline_router.metrics import RouterMetrics
from ridgeline_router.registry import WorkerRegistry
from ridgeline_router.reservations import SETTLE_MS, ReservationBook
from ridgeline_router.routing import Routing

STEP = StepCoefficients(10.0, 0.5, 0.0, 0.1, 0.0)
A, B = WorkerId("a"), WorkerId("b")


class Scene:
    """Two ready workers and a router that knows them."""

    def __init__(self, *, lease_ms: float = 10_000) -> None:
        self.clock = VirtualClock(now_ms=1000)
        numbers = itertools.count()
        self.book = ReservationBook(new_id=lambda: ReservationId(f"x{next(numbers)}"), lease_ms=lease_ms)
        self.routing = Routing(
            registry=WorkerRegistry(),
            book=self.book,
            history=DecisionHistory(most_requests=3),
            metrics=RouterMetrics(),
            policy=DEFAULT_POLICY,
            clock=self.clock,
        )
        self.routing.registry.discovered([WorkerAddress(A, "a:1"), WorkerAddress(B, "b:1")])
        for worker in (A, B):
            self.report(worker)

    def report(self, worker: WorkerId, **fields) -> None:
        load = WorkerLoad(running=fields.pop("running", 0), step_model=STEP)
        facts = WorkerFacts(
            worker,
            f"{worker}:1",
            load=load,
            reported_at_ms=self.clock.monotonic_ms(),
            **{
                "state": WorkerState.READY,
                "incarnation": Incarnation("i1"),
                "variants": (Variant(ModelName("chat")),),
                **fields,
            },
        )
        self.routing.worker_reported(facts)

    def place(self, name: str = "r", **fields) -> Placed:
        query = RouteQuery(RequestId(name), 0, ModelName("chat"), expected_output_tokens=50, **fields)
        outcome = self.routing.route(query)
        assert isinstance(outcome, Placed)
        return outcome


def test_requests_that_come_together_are_spread_by_reservations_alone() -> None:
    scene = Scene()
    placed = [scene.place().worker.worker_id for _ in range(8)]
    assert placed == [A, B] * 4


def test_a_release_gives_the_place_back_and_may_be_repeated() -> None:
    scene = Scene()
    first = scene.place()
    for _ in range(2):
        scene.routing.release(first.reservation_id, "finished")
    scene.routing.release(ReservationId("never-made"), "finished")
    assert scene.place().worker.worker_id == A
    assert len(scene.book) == 1


def test_a_gateway_that_is_gone_holds_its_reservations_no_longer_than_the_lease() -> None:
    scene = Scene(lease_ms=5000)
    assert scene.place().worker.worker_id == A
    scene.clock.advance(4999)
    assert scene.place().worker.worker_id == B
    scene.clock.advance(1)
    scene.place()
    assert len(scene.book) == 2


def test_a_deadline_shortens_the_lease() -> None:
    scene = Scene(lease_ms=1_000_000)
    scene.place(remaining_ms=2000)
    scene.clock.advance(32_000)
    scene.place()
    assert len(scene.book) == 1


def test_a_reservation_that_a_report_has_seen_is_not_counted_on_top_of_it() -> None:
    scene = Scene()
    scene.place()
    unseen = scene.book.by_worker({A: scene.clock.monotonic_ms()})[A]
    assert (unseen.open_requests, unseen.unseen_requests) == (1, 1)
    scene.clock.advance(SETTLE_MS)
    scene.report(A, running=1)
    seen = scene.book.by_worker({A: scene.clock.monotonic_ms()})[A]
    assert (seen.open_requests, seen.unseen_requests) == (1, 0)


def test_the_reservations_of_a_workers_earlier_life_are_dropped() -> None:
    scene = Scene()
    scene.place()
    scene.report(A, incarnation=Incarnation("i2"))
    assert len(scene.book) == 0
    assert scene.place().worker.incarnation == "i2"


def test_a_lost_worker_gets_nothing_until_it_reports_again() -> None:
    scene = Scene()
    scene.routing.worker_lost(A, "a:1", "connection refused")
    assert [scene.place().worker.worker_id for _ in range(2)] == [B, B]
    scene.report(A)
    assert scene.place().worker.worker_id == A


def test_a_worker_that_was_never_heard_of_is_starting_not_lost() -> None:
    registry = WorkerRegistry()
    registry.discovered([WorkerAddress(A, "a:1")])
    assert not registry.lost(A, "a:1")
    assert registry.all()[0].state is WorkerState.STARTING


def test_only_the_most_recent_requests_are_explained_with_all_their_attempts() -> None:
    scene = Scene()
    for name in ("r1", "r2", "r2", "r3", "r4"):
        scene.place(name)
    assert scene.routing.explain(RequestId("r1")) == ()
    assert len(scene.routing.explain(RequestId("r2"))) == 2
    ((attempt, outcome),) = scene.routing.explain(RequestId("r4"))
    assert attempt == 0
    assert [each.worker_id for each in outcome.candidates] == [A, B]


async def test_gateways_hear_of_states_and_lives_but_not_of_load() -> None:
    scene = Scene()
    registry = scene.routing.registry
    changes = registry.changes()
    first = await anext(changes)
    assert [each.state for each in first] == [WorkerState.READY] * 2
    scene.report(A, running=7)
    scene.report(B, state=WorkerState.DRAINING)
    second = await anext(changes)
    assert [each.state for each in second] == [WorkerState.READY, WorkerState.DRAINING]
    scene.report(A, incarnation=Incarnation("i9"))
    assert (await anext(changes))[0].incarnation == "i9"
    await changes.aclose()


def test_a_discovery_that_drops_or_moves_a_worker_makes_the_router_forget_it() -> None:
    scene = Scene()
    scene.routing.registry.discovered([WorkerAddress(A, "a:2")])
    (only,) = scene.routing.registry.all()
    assert (only.address, only.state) == ("a:2", WorkerState.STARTING)
    stale = replace(only, address="a:1", state=WorkerState.READY)
    scene.routing.registry.reported(stale)
    assert scene.routing.registry.all() == (only,)


@pytest.mark.parametrize("text", ["", "a", "a=", "a=b", "=b:1", "a=b:x", "a=b:0", "a=b:70000"])
def test_a_worker_flag_of_another_form_is_refused(text) -> None:
    with pytest.raises(SettingsError, match="ID=HOST:PORT"):
        static_discovery([text])


def test_a_worker_id_can_be_given_once() -> None:
    with pytest.raises(SettingsError, match="a twice"):
        static_discovery(["a=h:1", "a=h:2"])
