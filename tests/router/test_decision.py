"""Where a request goes: the decision alone, no sockets."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ridgeline_contracts.ids import ModelName, RequestId, WorkerId
from ridgeline_contracts.step import StepCoefficients
from ridgeline_router.decision import DEFAULT_POLICY, POLICIES, RouteFacts, choose
from ridgeline_router.facts import (
    Placed,
    Refused,
    Reserved,
    RouteQuery,
    Variant,
    WorkerFacts,
    WorkerLoad,
    WorkerState,
)

CHAT = Variant(ModelName("chat"), "v1")
CODE = Variant(ModelName("code"), "v1")
STEP = StepCoefficients(10.0, 0.5, 0.0, 0.1, 0.0)
SLOW = StepCoefficients(40.0, 0.5, 0.0, 0.4, 0.0)


def _worker(name: str, **fields) -> WorkerFacts:
    load = fields.pop("load", WorkerLoad(step_model=STEP))
    given_fields = {
        "state": WorkerState.READY,
        "pool": "default",
        "role": "unified",
        "variants": (CHAT,),
    } | fields
    return WorkerFacts(WorkerId(name), f"{name}:1", load=load, reported_at_ms=0.0, **given_fields)


def _query(**fields) -> RouteQuery:
    return RouteQuery(RequestId("r"), 0, fields.pop("model", ModelName("chat")), **fields)


def _choose(query: RouteQuery, *workers: WorkerFacts, reserved: dict[str, Reserved] | None = None):
    by_id = {WorkerId(name): each for name, each in (reserved or {}).items()}
    return choose(RouteFacts(query, workers, by_id, DEFAULT_POLICY))


@pytest.mark.parametrize(
    ("query", "workers", "chosen"),
    [
        pytest.param(_query(), [_worker("b"), _worker("a")], "a", id="equal-workers-the-lowest-id"),
        pytest.param(
            _query(expected_output_tokens=10),
            [_worker("a", load=WorkerLoad(running=5, step_model=STEP)), _worker("b")],
            "b",
            id="fewer-running",
        ),
        pytest.param(
            _query(expected_output_tokens=10),
            [_worker("a", load=WorkerLoad(waiting=2, waiting_tokens=900, step_model=STEP)), _worker("b")],
            "b",
            id="fewer-prompt-tokens-before-it",
        ),
        pytest.param(
            _query(expected_output_tokens=100),
            [
                _worker("a", pool="old", load=WorkerLoad(step_model=SLOW)),
                _worker("b", pool="new", load=WorkerLoad(running=4, step_model=STEP)),
            ],
            "b",
            id="a-busier-worker-of-a-faster-pool",
        ),
        pytest.param(
            _query(excluded=frozenset({WorkerId("a")})),
            [_worker("a"), _worker("b")],
            "b",
            id="not-one-that-failed",
        ),
        pytest.param(
            _query(excluded=frozenset({WorkerId("a")})),
            [_worker("a")],
            "a",
            id="one-that-failed-if-there-is-no-other",
        ),
        pytest.param(
            _query(excluded=frozenset({WorkerId("a")})),
            [_worker("a"), _worker("b", state=WorkerState.STARTING)],
            "a",
            id="one-that-failed-if-the-other-is-not-ready",
        ),
        pytest.param(
            _query(pinned=frozenset({WorkerId("b")})),
            [_worker("a"), _worker("b")],
            "b",
            id="pinned-to-a-worker",
        ),
        pytest.param(
            _query(pool="canary"), [_worker("a"), _worker("b", pool="canary")], "b", id="pinned-to-a-pool"
        ),
        pytest.param(
            _query(), [_worker("a", role="prefill"), _worker("b", role="decode")], "b", id="a-decoding-role"
        ),
        pytest.param(
            _query(model=ModelName("code")),
            [_worker("a"), _worker("b", variants=(CODE,))],
            "b",
            id="by-model",
        ),
        pytest.param(
            _query(variant=CHAT._replace(weights_revision="v2")),
            [_worker("a"), _worker("b", variants=(CHAT._replace(weights_revision="v2"),))],
            "b",
            id="by-exact-variant",
        ),
    ],
)
def test_a_request_goes_to_the_worker_that_would_end_it_first(query, workers, chosen) -> None:
    outcome = _choose(query, *workers)
    assert isinstance(outcome, Placed)
    assert outcome.worker.worker_id == chosen


@pytest.mark.parametrize(
    ("query", "workers", "code"),
    [
        pytest.param(_query(model=ModelName("none")), [_worker("a")], "not_found", id="unknown-model"),
        pytest.param(
            _query(model=ModelName("none")),
            [_worker("a"), _worker("b", variants=(), state=WorkerState.STARTING)],
            "unavailable",
            id="unknown-while-a-worker-has-not-told",
        ),
        pytest.param(_query(), [], "unavailable", id="no-workers"),
        pytest.param(_query(), [_worker("a", state=WorkerState.STARTING)], "unavailable", id="starting"),
        pytest.param(_query(), [_worker("a", state=WorkerState.LOST)], "unavailable", id="lost"),
        pytest.param(_query(), [_worker("a", state=WorkerState.DRAINING)], "unavailable", id="draining"),
        pytest.param(
            _query(variant=CHAT._replace(weights_revision="v9")),
            [_worker("a")],
            "unavailable",
            id="another-revision",
        ),
        pytest.param(_query(pool="canary"), [_worker("a")], "unavailable", id="pin-without-a-worker"),
    ],
)
def test_a_request_that_nobody_can_take_is_refused_by_cause(query, workers, code) -> None:
    outcome = _choose(query, *workers)
    assert isinstance(outcome, Refused)
    assert outcome.code == code
    assert (outcome.retry_after_ms is not None) == (code == "unavailable")
    assert [each.eligible for each in outcome.candidates] == [False] * len(workers)


def test_the_refusal_names_no_worker_to_a_tenant_but_the_candidates_do() -> None:
    outcome = _choose(_query(), _worker("secret-host", state=WorkerState.LOST))
    assert isinstance(outcome, Refused)
    assert "secret-host" not in outcome.message
    assert "1 lost" in outcome.message
    assert outcome.candidates[0].reason == "is lost"


def test_reservations_that_no_report_has_seen_count_as_load() -> None:
    reserved = {"a": Reserved(open_requests=1, unseen_requests=1, unseen_prompt_tokens=500)}
    outcome = _choose(_query(expected_output_tokens=5), _worker("a"), _worker("b"), reserved=reserved)
    assert isinstance(outcome, Placed)
    assert outcome.worker.worker_id == "b"


def test_a_worker_that_has_only_guessed_its_speed_is_judged_by_its_pool() -> None:
    guessed = _worker("b", load=WorkerLoad(step_model=SLOW))
    measured = _worker("a", load=WorkerLoad(running=1, step_model=STEP))
    outcome = _choose(_query(expected_output_tokens=50), measured, guessed)
    assert isinstance(outcome, Placed)
    assert outcome.worker.worker_id == "b"


def test_every_candidate_is_told_with_its_estimate_or_its_reason() -> None:
    outcome = _choose(_query(), _worker("a"), _worker("b", variants=(CODE,)), _worker("c"))
    assert isinstance(outcome, Placed)
    told = {each.worker_id: each for each in outcome.candidates}
    assert told["a"].estimate == outcome.estimate
    assert told["b"].reason == "serves another model or revision"
    assert told["c"].eligible


_LOADS = st.builds(
    WorkerLoad,
    running=st.integers(0, 50),
    waiting=st.integers(0, 50),
    waiting_tokens=st.integers(0, 10_000),
    used_blocks=st.integers(0, 100),
    total_blocks=st.just(100),
    step_model=st.sampled_from([STEP, SLOW, None]),
)
_WORKERS = st.lists(
    st.builds(
        lambda number, state, load, variants: _worker(
            f"w{number}", state=state, load=load, variants=variants
        ),
        st.integers(0, 9),
        st.sampled_from(list(WorkerState)),
        _LOADS,
        st.sampled_from([(CHAT,), (CODE,), (CHAT, CODE), ()]),
    ),
    max_size=6,
    unique_by=lambda worker: worker.worker_id,
)


@given(_WORKERS, st.frozensets(st.integers(0, 9).map(lambda number: WorkerId(f"w{number}"))), st.randoms())
@settings(max_examples=100, deadline=None)
def test_a_decision_is_stable_under_order_and_only_ever_names_a_ready_worker_that_serves(
    workers, excluded, random
) -> None:
    query = _query(excluded=excluded, expected_output_tokens=20, prompt_tokens=100)
    outcome = _choose(query, *workers)
    shuffled = list(workers)
    random.shuffle(shuffled)
    again = _choose(query, *shuffled)
    able = [each for each in workers if each.state is WorkerState.READY and CHAT in each.variants]
    if isinstance(outcome, Refused):
        assert not able
        assert isinstance(again, Refused)
        assert again.code == outcome.code
        return
    assert outcome.worker in able
    assert isinstance(again, Placed)
    assert again.worker == outcome.worker
    if any(each.worker_id not in excluded for each in able):
        assert outcome.worker.worker_id not in excluded


@given(_LOADS, st.integers(1, 20))
@settings(max_examples=100, deadline=None)
def test_more_load_never_makes_a_worker_look_better(load, more) -> None:
    worker = _worker("a", load=load)
    query = _query(prompt_tokens=50, expected_output_tokens=20)
    policy = POLICIES[DEFAULT_POLICY]
    _, before = policy(query, worker, Reserved(), STEP)
    busier = replace(worker, load=replace(load, running=load.running + more))
    longer = replace(worker, load=replace(load, waiting_tokens=load.waiting_tokens + more))
    assert policy(query, busier, Reserved(), STEP)[1] >= before
    assert policy(query, longer, Reserved(), STEP)[1] >= before
    assert policy(query, worker, Reserved(more, more, more), STEP)[1] >= before
