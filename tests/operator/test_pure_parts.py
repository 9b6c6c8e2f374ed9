"""Groups, causes, queue and settings: the operator's decisions without a cluster."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ridgeline_contracts.clock import VirtualClock
from ridgeline_contracts.errors import RidgelineError
from ridgeline_contracts.exits import GPU_FAULT
from ridgeline_operator.conditions import ConditionStatus
from ridgeline_operator.groups import PARTIAL_LIMIT_S, plan_groups
from ridgeline_operator.pool_status import ready_condition
from ridgeline_operator.revisions import accepted_of, newest, revision_body
from ridgeline_operator.settings import read_settings
from ridgeline_operator.work_queue import LONGEST_RETRY_MS, Key, WorkQueue, retry_ms
from ridgeline_testing.pools import CLASSES_HELD, model_spec, pool_facts, pool_spec

START = 1_772_366_400  # 2026-03-01T12:00:00Z
KEY = Key("WorkerPool", "n", "p")


def _pod(
    group: int,
    rank: int,
    *,
    after_s: int = 0,
    node: str | None = "n",
    ready: bool = True,
    template: str = "new",
    leaving: bool = False,
) -> dict[str, Any]:
    minutes, seconds = divmod(after_s, 60)
    metadata: dict[str, Any] = {
        "name": f"p-g{group}-{rank}",
        "creationTimestamp": f"2026-03-01T12:{minutes:02}:{seconds:02}Z",
        "labels": {"ridgeline.dev/group": str(group), "controller-revision-hash": template},
    }
    if leaving:
        metadata["deletionTimestamp"] = "2026-03-01T12:00:00Z"
    status = {"conditions": [{"type": "Ready", "status": str(ready)}]}
    return {"metadata": metadata, "spec": {"nodeName": node} if node else {}, "status": status}


def _set(group: int) -> dict[str, Any]:
    return {"metadata": {"name": f"p-g{group}"}, "status": {"updateRevision": "new"}}


@pytest.mark.parametrize(
    ("pods", "now_s", "recreated", "paused"),
    [
        pytest.param([_pod(0, 0), _pod(0, 1)], 100, set(), set(), id="whole"),
        pytest.param([_pod(0, 0)], 100, set(), set(), id="one-rank-is-not-made-yet"),
        pytest.param([_pod(0, 0), _pod(0, 1, leaving=True)], 100, {"p-g0-0"}, set(), id="a-rank-leaves"),
        pytest.param(
            [_pod(0, 0), _pod(0, 1, after_s=50)], 100, {"p-g0-0", "p-g0-1"}, set(), id="a-rank-came-back-alone"
        ),
        pytest.param(
            [_pod(0, 0, leaving=True), _pod(0, 0, after_s=9), _pod(0, 1, after_s=9)], 100, set(), set(),
            id="the-new-ones-wait-for-the-old",
        ),
        pytest.param(
            [_pod(0, 0, ready=False), _pod(0, 1, node=None, ready=False)], 30, set(), set(), id="partial-for-a-while"
        ),
        pytest.param(
            [_pod(0, 0, ready=False), _pod(0, 1, node=None, ready=False)], 61, set(), {0}, id="partial-for-a-minute"
        ),
        pytest.param(
            [_pod(0, 0, node=None, ready=False), _pod(0, 1, node=None, ready=False)], 900, set(), set(),
            id="none-has-a-node-so-none-is-held",
        ),
        pytest.param(
            [_pod(group, rank, template="old") for group in (0, 1) for rank in (0, 1)],
            100,
            {"p-g0-0", "p-g0-1"},
            set(),
            id="outdated-groups-one-at-a-time",
        ),
        pytest.param(
            [_pod(0, 0, template="old"), _pod(0, 1, template="old"), _pod(1, 0, ready=False), _pod(1, 1)],
            100,
            set(),
            set(),
            id="an-outdated-group-serves-until-the-other-does",
        ),
        pytest.param(
            [_pod(0, 0, template="old", ready=False), _pod(0, 1, template="old"), _pod(1, 0), _pod(1, 1)],
            100,
            {"p-g0-0", "p-g0-1"},
            set(),
            id="what-is-outdated-and-broken-goes-at-once",
        ),
    ],
)  # fmt: skip
def test_groups_are_replaced_whole(pods: Any, now_s: int, recreated: set[str], paused: set[int]) -> None:
    groups = sorted({int(pod["metadata"]["labels"]["ridgeline.dev/group"]) for pod in pods})
    planned = plan_groups([_set(each) for each in groups], pods, nodes=2, paused={}, now_s=START + now_s)
    assert {pod["metadata"]["name"] for pod in planned.recreate} == recreated
    assert planned.pause == paused


def test_a_pause_ends_by_time_and_is_asked_for_again() -> None:
    held = plan_groups([_set(0)], [], nodes=2, paused={0: START + 30.0}, now_s=START)
    assert held.pause == {0}
    assert held.look_again_s == 30.0
    assert (
        plan_groups([_set(0)], [], nodes=2, paused={0: START + 30.0}, now_s=START + 31).pause == frozenset()
    )
    young = [_pod(0, 0), _pod(0, 1, node=None, ready=False)]
    waits = plan_groups([_set(0)], young, nodes=2, paused={}, now_s=START + 10)
    assert waits.look_again_s == PARTIAL_LIMIT_S - 10


def _worker(status: dict[str, Any], **more: Any) -> dict[str, Any]:
    held = {"containerStatuses": [{"image": "i", "restartCount": 3, **status}], **more}
    return {"metadata": {"name": "p-1", "labels": {}}, "spec": {"nodeName": "h100-0"}, "status": held}


_GPU_FAULT = {"lastState": {"terminated": {"exitCode": GPU_FAULT}}, "state": {"running": {}}}
_CRASH = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": {"exitCode": 2}}}
_UNSCHEDULABLE = [
    {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/5 nodes are available.",
    }
]
_QUOTA = [{"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: q"}]


@pytest.mark.parametrize(
    ("pods", "workloads", "reason", "told"),
    [
        pytest.param([_worker(_GPU_FAULT)], [], "GpuFault", "on node h100-0", id="gpu-fault"),
        pytest.param([_worker(_CRASH)], [], "CrashLooping", "3 times, last with exit code 2", id="crash"),
        pytest.param(
            [_worker({"state": {"waiting": {"reason": "ErrImagePull"}}})], [], "ImageUnavailable", "image i", id="image"
        ),
        pytest.param(
            [_worker({}, conditions=_UNSCHEDULABLE)], [], "NoNodeFree", "class h100 (8 GPUs each)", id="no-node"
        ),
        pytest.param([], [{"status": {"conditions": _QUOTA}}], "PodsRefused", "exceeded quota: q", id="quota"),
        pytest.param([], [], "Starting", "no pod exists yet", id="nothing"),
    ],
)  # fmt: skip
def test_a_pool_that_does_not_serve_says_why(pods: Any, workloads: Any, reason: str, told: str) -> None:
    condition = ready_condition(pool_facts(), pods, workloads, generation=4)
    assert (condition.status, condition.reason) == (ConditionStatus.FALSE, reason)
    assert told in condition.message
    assert condition.message.startswith("0 of 2 replicas serve: ")


async def test_a_key_waits_once_is_worked_on_once_and_comes_again_after() -> None:
    queue = WorkQueue(VirtualClock())
    queue.add(KEY)
    queue.add(KEY)
    assert len(queue) == 1
    assert await queue.take() == KEY
    queue.add(KEY)
    again = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    assert not again.done(), "it is worked on"
    queue.done(KEY, failed=False)
    assert await again == KEY


async def test_a_failure_comes_back_within_two_seconds_and_then_later_and_later() -> None:
    clock = VirtualClock()
    queue = WorkQueue(clock)
    queue.add(KEY)
    waits = []
    for _ in range(4):
        assert await queue.take() == KEY
        queue.done(KEY, failed=True)
        due_ms = retry_ms(len(waits) + 1)
        clock.advance(due_ms)
        waits.append(due_ms)
    assert waits[0] < 2000
    assert waits == sorted(waits)
    assert retry_ms(99) == LONGEST_RETRY_MS


def test_the_last_accepted_spec_survives_its_controller_revision() -> None:
    facts = pool_facts(pool_spec(podTemplate={"spec": {"x": [1, {"y": None}]}}))
    accepted = accepted_of(facts.spec, facts.source, "r1", facts.fits)
    name, body = revision_body("p", accepted, [])
    held = [{"metadata": {"name": name}, **body}]
    assert newest(held) == accepted
    assert revision_body("p", accepted, held) == (name, body), "equal contents are one revision"
    other = accepted_of(pool_spec(replicas=9), model_spec().source, "r1", facts.fits)
    other_name, other_body = revision_body("p", other, held)
    assert newest([*held, {"metadata": {"name": other_name}, **other_body}]) == other


@pytest.mark.parametrize(
    ("held", "told"),
    [
        pytest.param([], "holds no mapping", id="no-mapping"),
        pytest.param({"releaseNamespace": "r", "gpuClasses": {}, "a": 1}, "a unknown", id="unknown-key"),
        pytest.param({"releaseNamespace": "r", "gpuClasses": {"x": 1}}, "gpuClasses.x is no mapping", id="class"),
        pytest.param(
            {"releaseNamespace": "r", "gpuClasses": {"x": {"generation": "hopper", "image": "i"}}},
            r"gpuClasses\.x\.catalogueId is missing",
            id="no-catalogue-id",
        ),
        pytest.param(
            {"releaseNamespace": "r", "gpuClasses": {"x": {"generation": "hopper", "image": "i", "catalogueId": "h1"}}},
            r"gpuClasses\.x\.catalogueId: gpu='h1' is not in the catalogue",
            id="unknown-catalogue-id",
        ),
        pytest.param({"gpuClasses": {}}, "settings.releaseNamespace is missing", id="no-namespace"),
    ],
)  # fmt: skip
def test_settings_that_do_not_work_name_themselves(held: Any, told: str) -> None:
    with pytest.raises(RidgelineError, match=told):
        read_settings(held)


@given(st.integers(1, 3600), st.integers(3, 600))
def test_settings_are_converted_once(resync_s: int, lease_s: int) -> None:
    held = {"releaseNamespace": "r", "gpuClasses": CLASSES_HELD}
    read = read_settings({**held, "resyncSeconds": resync_s, "leaseSeconds": lease_s})
    assert (read.resync_ms, read.lease_ms) == (resync_s * 1000, lease_s * 1000)
