"""What each decision is asked, from settings and census, and what an override puts in its place."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
from ridgeline_contracts.step import StepCoefficients, StepShape
from ridgeline_engine.policy import thresholds as module
from ridgeline_engine.policy.census import Census, ClassCensus
from ridgeline_engine.policy.output_lengths import OutputLengths
from ridgeline_engine.policy.overrides import PolicyOverrides
from ridgeline_engine.policy.thresholds import Thresholds
from ridgeline_engine.request import PriorityClass
from ridgeline_engine.settings import AsyncScheduling, EngineSettings
from ridgeline_roofline.decisions.backlog import Backlog, BacklogFacts
from ridgeline_roofline.decisions.batch_cap import BatchCapFacts
from ridgeline_roofline.decisions.chunk_budget import ChunkFacts
from ridgeline_roofline.decisions.decision import Decision
from ridgeline_roofline.decisions.fair_share import FairShareFacts
from ridgeline_roofline.decisions.kv_share import KVShareFacts
from ridgeline_roofline.decisions.open_launches import OpenLaunchFacts
from ridgeline_roofline.decisions.prefill_order import PrefillOrderFacts

MODEL = StepCoefficients(1.0, 0.5, 0.001, 0.0625, 0.0)
SETTINGS = EngineSettings(
    eos_token_ids=(), max_step_tokens=64, min_chunk_tokens=8, tpot_target_ms=20.0, ttft_target_ms=900.0
)
INTERACTIVE, BATCH = PriorityClass.INTERACTIVE, PriorityClass.BATCH
DECODED: Any = object()


@dataclass(slots=True)
class FakePrefill:
    """As much of a sequence as a threshold looks at."""

    planned_tokens: int


def _census(
    *, interactive: int = 3, decoding: int = 2, batch: int = 4, prefills: tuple[int, ...] = ()
) -> Census:
    """Interactive rows of 100 known tokens, batch rows of 50."""
    found = Census(
        ClassCensus(interactive, [DECODED] * decoding, decoding * 100, interactive * 100),
        ClassCensus(batch, [DECODED] * batch, batch * 50, batch * 50),
    )
    found.prefills.extend(FakePrefill(each) for each in prefills)  # type: ignore[misc]
    return found


def _thresholds(**changes: Any) -> Thresholds:
    return Thresholds(replace(SETTINGS, **changes), slots=16, pool_tokens=4_000, longest_tokens=2_000)


def _overriding(**values: Any) -> Thresholds:
    return _thresholds(overrides=PolicyOverrides(**values))


class Asked:
    """Stands in for a decision: keeps the facts it was asked with, and gives what it was told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, answer: Any) -> None:
        self.facts: list[Any] = []
        self._answer = Decision(answer, "derived so")
        monkeypatch.setattr(module, name, self)

    def __call__(self, model: Any, facts: Any) -> Any:
        assert model is MODEL
        self.facts.append(facts)
        return self._answer


@pytest.mark.parametrize(
    ("priority", "decoding", "target_ms", "floor"),
    [
        pytest.param(INTERACTIVE, 2, 20.0, 8, id="interactive-beside-interactive"),
        pytest.param(INTERACTIVE, 1, 20.0, 8, id="interactive-beside-one"),
        pytest.param(INTERACTIVE, 0, None, 8, id="interactive-beside-none"),
        pytest.param(BATCH, 2, 20.0, 0, id="batch-beside-interactive-has-no-floor"),
        pytest.param(BATCH, 0, None, 8, id="batch-beside-none"),
    ],
)
def test_a_chunk_is_asked_with_the_step_so_far(
    monkeypatch: pytest.MonkeyPatch,
    priority: PriorityClass,
    decoding: int,
    target_ms: float | None,
    floor: int,
) -> None:
    asked = Asked(monkeypatch, "chunk_budget_tokens", 5)
    planned = StepShape(7, 700, 11, 99)
    census = _census(decoding=decoding)
    found = _overriding(gap_bound_ms=33.0).chunk(MODEL, census, planned, priority, depth=40)
    assert found.value == 5
    assert asked.facts == [
        ChunkFacts(
            decode_rows=7,
            context_tokens=700,
            max_step_tokens=64,
            min_chunk_tokens=floor,
            tpot_target_ms=target_ms,
            chunk_context_tokens=40,
            gap_bound_ms=33.0,
            planned_tokens=11,
            planned_context_tokens=99,
        )
    ]


@pytest.mark.parametrize(
    ("planned", "batch", "changes", "rows"),
    [
        pytest.param(StepShape(3, 0, 50), 20, {"tpot_target_ms": None}, 11, id="what-the-step-has-left"),
        pytest.param(StepShape(3, 0, 50), 4, {"tpot_target_ms": None}, 4, id="all-that-run"),
        pytest.param(StepShape(3, 0, 61), 4, {"tpot_target_ms": None}, 0, id="a-full-step"),
        pytest.param(StepShape(3, 0, 90), 4, {"tpot_target_ms": None}, 0, id="a-step-that-is-over-full"),
        # 1 + 0.5 x (2 + r) + 0.001 x (200 + 50 r) within 4 ms: r = 3.
        pytest.param(StepShape(2, 200), 20, {"tpot_target_ms": 4.0}, 3, id="what-the-target-allows"),
        pytest.param(
            StepShape(2, 200),
            20,
            {"tpot_target_ms": 4.0, "overrides": PolicyOverrides(batch_kv_tokens=9)},
            20,
            id="a-share-that-is-set-takes-rows-as-they-come",
        ),
    ],
)
def test_batch_rows_beside_what_is_planned(
    planned: StepShape, batch: int, changes: dict[str, Any], rows: int
) -> None:
    assert _thresholds(**changes).batch_rows(MODEL, _census(batch=batch), planned) == rows


def test_batch_rows_have_no_target_where_nothing_interactive_decodes() -> None:
    thresholds = _thresholds(tpot_target_ms=2.0)
    assert thresholds.batch_rows(MODEL, _census(decoding=0, batch=20), StepShape()) == 20


def test_cap_and_costs_are_asked_at_whole_granules_and_kept_until_these_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cap, costs = Asked(monkeypatch, "batch_cap", 6), Asked(monkeypatch, "token_costs", "costs")
    thresholds = _overriding(output_weight=2.5)
    census = _census()
    assert thresholds.batch_cap(MODEL, census).value == 6
    assert thresholds.token_costs(MODEL, census).value == "costs"
    # 100 tokens are 7 granules of 16.
    assert cap.facts == [BatchCapFacts(112, 4_000, 16, 20.0)]
    assert costs.facts == [FairShareFacts(6, 112, 2.5)]
    census.interactive.context_tokens = 3 * 112
    thresholds.token_costs(MODEL, census)
    assert len(cap.facts) == 1
    census.interactive.context_tokens = 3 * 113
    thresholds.token_costs(MODEL, census)
    assert [each.mean_context_tokens for each in cap.facts] == [112, 128]


def test_a_batch_cap_that_is_set_is_shown_beside_the_derived_one(monkeypatch: pytest.MonkeyPatch) -> None:
    Asked(monkeypatch, "batch_cap", 6)
    found = _overriding(batch_cap=3).batch_cap(MODEL, _census())
    assert (found.value, found.derivation) == (3, "batch_cap = 3, as set; derived derived so")


def test_another_model_is_asked_anew() -> None:
    thresholds, census = _thresholds(), _census()
    first = thresholds.batch_cap(MODEL, census)
    assert thresholds.batch_cap(MODEL, census) is first
    assert thresholds.batch_cap(replace(MODEL, per_row_ms=9.0), census).value < first.value


def test_an_empty_engine_counts_one_granule_and_batch_rows_count_where_no_others_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cap = Asked(monkeypatch, "batch_cap", 6)
    _thresholds().batch_cap(MODEL, _census(interactive=0, decoding=0, batch=0))
    _thresholds().batch_cap(MODEL, _census(interactive=0, decoding=0, batch=2))
    assert [each.mean_context_tokens for each in cap.facts] == [16, 64]


@pytest.mark.parametrize(
    ("census", "mean", "more", "facts"),
    [
        pytest.param(_census(), 0, 0, KVShareFacts(3, 300, 50, 4_000, 20.0), id="as-things-stand"),
        pytest.param(_census(), 7, 2, KVShareFacts(5, 500, 50, 4_000, 20.0), id="room-for-two-more"),
        pytest.param(_census(batch=0), 7, 0, KVShareFacts(3, 300, 7, 4_000, 20.0), id="the-first-batch-row"),
        pytest.param(
            _census(interactive=0, decoding=0),
            7,
            2,
            KVShareFacts(0, 0, 50, 4_000, 20.0),
            id="nobody-to-leave-it-to",
        ),
    ],
)
def test_the_batch_share_is_asked_with_both_classes(
    monkeypatch: pytest.MonkeyPatch, census: Census, mean: int, more: int, facts: KVShareFacts
) -> None:
    asked = Asked(monkeypatch, "batch_kv_tokens", 77)
    assert _thresholds().batch_kv(MODEL, census, mean=mean, more=more).value == 77
    assert asked.facts == [facts]


def test_without_a_mean_or_more_the_share_is_that_of_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch, "batch_kv_tokens", 77)
    _thresholds().batch_kv(MODEL, _census(batch=0))
    assert asked.facts == [KVShareFacts(3, 300, 0, 4_000, 20.0)]


def test_a_share_that_is_set_is_shown_beside_the_derived_one(monkeypatch: pytest.MonkeyPatch) -> None:
    Asked(monkeypatch, "batch_kv_tokens", 77)
    found = _overriding(batch_kv_tokens=5).batch_kv(MODEL, _census())
    assert found.derivation == "batch_kv_tokens = 5, as set; derived derived so"


def test_a_share_that_is_set_holds_beside_interactive_rows_alone() -> None:
    thresholds = _overriding(batch_kv_tokens=5)
    assert thresholds.batch_kv(MODEL, _census()).value == 5
    assert thresholds.batch_kv(MODEL, _census(interactive=0, decoding=0)).value == 4_000


def test_overtaking_is_asked_with_the_longest_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch, "overtaking_ratio", 0.5)
    assert _thresholds().overtaking(MODEL).value == 0.5
    assert asked.facts == [PrefillOrderFacts(2_000, 900.0)]
    found = _overriding(overtaking_ratio=3.0).overtaking(MODEL)
    assert (found.value, found.derivation) == (3.0, "overtaking_ratio = 3.0, as set; derived derived so")


@pytest.mark.parametrize(
    ("prefills", "depth"),
    [pytest.param((), 0, id="none-runs"), pytest.param((31, 8), 31, id="the-first-that-runs")],
)
def test_the_backlog_is_asked_at_the_present_load(
    monkeypatch: pytest.MonkeyPatch, prefills: tuple[int, ...], depth: int
) -> None:
    asked = Asked(monkeypatch, "backlog_tokens", Backlog(500, 2.0))
    found = _overriding(gap_bound_ms=33.0).backlog(MODEL, _census(prefills=prefills))
    assert found is not None
    assert found.value == Backlog(500, 2.0)
    chunk = ChunkFacts(
        decode_rows=2,
        context_tokens=200,
        max_step_tokens=64,
        min_chunk_tokens=8,
        tpot_target_ms=20.0,
        chunk_context_tokens=depth,
        gap_bound_ms=33.0,
    )
    assert asked.facts == [BacklogFacts(chunk, 900.0)]


def test_a_backlog_that_is_set_keeps_the_derived_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    Asked(monkeypatch, "backlog_tokens", Backlog(500, 2.0))
    found = _overriding(backlog_tokens=40).backlog(MODEL, _census())
    assert found is not None
    assert found.value == Backlog(40, 2.0)
    assert found.derivation == "backlog_tokens = 40, as set; derived derived so"


def test_without_a_ttft_target_there_is_no_backlog() -> None:
    assert _thresholds(ttft_target_ms=None).backlog(MODEL, _census()) is None


@pytest.mark.parametrize(
    ("overlap", "launches"),
    [
        pytest.param(AsyncScheduling.AUTO, 7, id="auto-takes-the-derived"),
        pytest.param(AsyncScheduling.ON, 2, id="on"),
        pytest.param(AsyncScheduling.OFF, 1, id="off"),
    ],
)
def test_open_launches_are_asked_with_all_that_runs(
    monkeypatch: pytest.MonkeyPatch, overlap: AsyncScheduling, launches: int
) -> None:
    asked = Asked(monkeypatch, "open_launches", 7)
    lengths = OutputLengths()
    lengths.add(30)
    thresholds = _thresholds(async_scheduling=overlap, host_share_ratio=0.25)
    found = thresholds.open_launches(MODEL, _census(), host_ms=1.5, lengths=lengths)
    assert found.value == launches
    set_by_hand = f"open launches = {launches}, as set; derived derived so"
    assert found.derivation == ("derived so" if overlap is AsyncScheduling.AUTO else set_by_hand)
    # 3 x 100 and 4 x 50 tokens in 7 rows.
    assert asked.facts == [OpenLaunchFacts(7, 500 // 7, 1.5, 30, 0.25)]


def test_an_empty_engine_is_asked_about_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch, "open_launches", 1)
    empty = _census(interactive=0, decoding=0, batch=0)
    _thresholds().open_launches(MODEL, empty, host_ms=0.0, lengths=OutputLengths())
    assert (asked.facts[0].rows, asked.facts[0].context_tokens) == (0, 0)


@pytest.mark.parametrize(
    ("tokens", "most", "steps"),
    [
        # The cap is asked at whole granules: 4,000 / 128 = 31 rows, at 144 tokens 27, at 160 tokens 25.
        pytest.param(113, 40, 40, id="as-far-as-asked"),
        pytest.param(113, 64, 48, id="up-to-the-granule-at-which-it-sinks"),
        pytest.param(129, 64, 32, id="from-within-the-last-granule-but-one"),
        pytest.param(161, 10, 0, id="it-is-below-already"),
        pytest.param(113, 0, 0, id="no-step-is-asked"),
    ],
)
def test_for_how_many_steps_the_cap_stays_above_what_runs(tokens: int, most: int, steps: int) -> None:
    thresholds = Thresholds(
        replace(SETTINGS, tpot_target_ms=None), slots=64, pool_tokens=4_000, longest_tokens=2_000
    )
    rows = 25
    census = Census(ClassCensus(rows, [DECODED] * rows, rows * tokens, rows * tokens))
    assert thresholds.steps_below_cap(MODEL, census, most=most) == steps


def test_one_row_may_be_one_too_many() -> None:
    thresholds = Thresholds(SETTINGS, slots=64, pool_tokens=4_000, longest_tokens=2_000)
    asked: list[int] = []

    def batch_cap(model: Any, census: Census) -> Decision[int]:
        asked.append(census.interactive.mean_context_tokens)
        return Decision(0, "none")

    thresholds.batch_cap = batch_cap  # type: ignore[method-assign]
    census = Census(ClassCensus(1, [DECODED], 20, 20))
    assert thresholds.steps_below_cap(MODEL, census, most=9) == 0
    assert asked == [20]


def test_the_cap_is_asked_once_a_granule() -> None:
    thresholds = Thresholds(SETTINGS, slots=64, pool_tokens=4_000, longest_tokens=2_000)
    asked: list[tuple[int, int]] = []

    def batch_cap(model: Any, census: Census) -> Decision[int]:
        asked.append((census.interactive.rows, census.interactive.context_tokens))
        return Decision(2, "two")

    thresholds.batch_cap = batch_cap  # type: ignore[method-assign]
    census = Census(ClassCensus(2, [DECODED] * 2, 40, 40))
    assert thresholds.steps_below_cap(MODEL, census, most=40) == 40
    # A mean of 20 tokens now, of 33 and of 49 at the first steps of the next granules.
    assert asked == [(2, 40), (2, 66), (2, 98)]


def test_without_interactive_rows_no_cap_is_in_the_way() -> None:
    assert _thresholds().steps_below_cap(MODEL, _census(interactive=0, decoding=0), most=9) == 9
