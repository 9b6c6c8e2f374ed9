"""The log of preemptions: counted by cause and kind, the newest kept with their numbers."""

import pytest
from ridgeline_contracts.errors import SettingsError
from ridgeline_engine.policy.output_lengths import OutputLengths
from ridgeline_engine.policy.overrides import PolicyOverrides
from ridgeline_engine.policy.preemption_log import PreemptionCause, PreemptionLog, PreemptionRecord
from ridgeline_roofline.decisions.decision import Decision
from ridgeline_roofline.decisions.preemption import PreemptionKind
from ridgeline_testing.sequences import sequence

POOL, SHARE = PreemptionCause.POOL, PreemptionCause.BATCH_SHARE


def test_each_is_counted_and_pauses_are_no_preemptions() -> None:
    log, one = PreemptionLog(), sequence()
    for cause, kind in (
        (POOL, PreemptionKind.RECOMPUTE),
        (POOL, PreemptionKind.RECOMPUTE),
        (SHARE, PreemptionKind.SWAP),
        (POOL, PreemptionKind.WAIT),
    ):
        log.add(one, cause, Decision(kind, "so"), now_ms=1.0)
    assert log.counts == {
        (POOL, PreemptionKind.RECOMPUTE): 2,
        (SHARE, PreemptionKind.SWAP): 1,
        (POOL, PreemptionKind.WAIT): 1,
    }
    assert log.preempted == 3


def test_a_record_holds_who_when_why_and_by_which_numbers() -> None:
    log, one = PreemptionLog(), sequence("victim")
    log.add(one, SHARE, Decision(PreemptionKind.SWAP, "copies take 3 ms"), now_ms=7.5)
    assert log.trace == (
        PreemptionRecord(7.5, one.request.key, 0, SHARE, PreemptionKind.SWAP, "copies take 3 ms"),
    )


def test_the_newest_256_are_kept_and_all_are_counted() -> None:
    log, one = PreemptionLog(), sequence()
    for number in range(300):
        log.add(one, POOL, Decision(PreemptionKind.RECOMPUTE, str(number)), now_ms=float(number))
    assert [each.derivation for each in log.trace] == [str(number) for number in range(44, 300)]
    assert log.preempted == 300


def test_the_mean_output_is_known_once_something_ended() -> None:
    lengths = OutputLengths()
    assert lengths.mean_tokens is None
    lengths.add(10)
    lengths.add(25)
    assert (lengths.mean_tokens, lengths.outputs, lengths.tokens) == (17.5, 2, 35)


@pytest.mark.parametrize(
    ("name", "value", "least"),
    [
        ("batch_cap", 0, "more than 0"),
        ("gap_bound_ms", -0.5, "more than 0"),
        ("overtaking_ratio", -0.1, "0 or more"),
        ("batch_kv_tokens", -1, "0 or more"),
    ],
)
def test_an_override_that_means_nothing_is_refused_by_name(name: str, value: float, least: str) -> None:
    with pytest.raises(SettingsError, match=f"^{name}={value}: give {least}$") as refused:
        PolicyOverrides(**{name: value})
    assert refused.value.param == name


def test_small_and_unset_overrides_are_taken() -> None:
    assert PolicyOverrides(batch_cap=1, gap_bound_ms=0.5, output_weight=0.1, backlog_tokens=1)
    assert PolicyOverrides(batch_kv_tokens=0, overtaking_ratio=0.0).batch_cap is None


@pytest.mark.parametrize(
    ("seen", "output", "limit", "rest"),
    [
        pytest.param([], 5, 100, 95, id="nothing-seen-the-limit"),
        pytest.param([40, 60], 20, 1_000, 30, id="below-the-mean-what-it-leaves"),
        pytest.param([40, 60], 80, 1_000, 50, id="past-the-mean-the-mean-again"),
        pytest.param([40, 60], 80, 90, 10, id="never-past-the-limit"),
        pytest.param([40, 60], 90, 90, 1, id="at-least-one"),
        pytest.param([0, 0], 3, 90, 1, id="outputs-of-nothing"),
    ],
)
def test_the_expected_rest_of_an_output(seen: list[int], output: int, limit: int, rest: int) -> None:
    lengths = OutputLengths()
    for each in seen:
        lengths.add(each)
    assert lengths.remaining_tokens(output, limit) == rest
