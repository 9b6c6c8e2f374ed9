"""What holds for every topic, whichever there are: sums, units, words, speed of thought."""

import math

import pytest
from ridgeline_contracts.errors import RidgelineError, SettingsError
from ridgeline_roofline.plan.answer import Plan, plan_json
from ridgeline_roofline.plan.bounds import AT_LEAST_ONE, CHANCE, COUNTED, PART, SHARE, Bounds
from ridgeline_roofline.plan.inputs import FLAG_NAMES, Extra, read_inputs
from ridgeline_roofline.plan.registry import TOPIC_NAMES, topic_named
from ridgeline_roofline.plan.topic import Topic
from ridgeline_roofline.units import Unit

_VARIANTS = (
    pytest.param({}, id="defaults"),
    pytest.param({"gpu": ["b200", "h100-sxm"]}, id="b200-first"),
    pytest.param({"model": "deepseek-v3", "gpu": "h200", "tp": "8"}, id="deepseek"),
    pytest.param({"model": "gpt-oss-120b", "tp": "1", "gpu": "b200", "batch": "200"}, id="gpt-oss"),
    pytest.param(
        {"model": "llama-3.1-8b", "tp": "1", "weights": "fp8", "kv": "fp8", "batch": "1"}, id="8b-fp8"
    ),
    pytest.param({"model": "nemotron-h-8b", "tp": "1", "prompt": "1k", "output": "4k"}, id="recurrent"),
)


def _plan(topic: Topic, given: dict[str, str | list[str]]) -> Plan | None:
    """None where the topic refuses these inputs with an error of ours."""
    try:
        return topic.answer(read_inputs(given, defaults=topic.defaults, extras=topic.extras))
    except RidgelineError:
        return None


@pytest.mark.parametrize("name", TOPIC_NAMES)
def test_a_bare_topic_answers(name: str) -> None:
    assert _plan(topic_named(name), {}) is not None


@pytest.mark.parametrize("given", _VARIANTS)
@pytest.mark.parametrize("name", TOPIC_NAMES)
def test_totals_are_the_sums_of_their_shown_parts(name: str, given: dict[str, str | list[str]]) -> None:
    plan = _plan(topic_named(name), given)
    for total in plan.totals if plan else ():
        parts = [plan.value(part) for part in total.parts]
        assert plan.value(total.name) == pytest.approx(math.fsum(parts), rel=1e-9, abs=1e-15)
        assert len(parts) >= 2


@pytest.mark.parametrize("given", _VARIANTS)
@pytest.mark.parametrize("name", TOPIC_NAMES)
def test_answers_are_finite_named_once_and_show_their_working(
    name: str, given: dict[str, str | list[str]]
) -> None:
    plan = _plan(topic_named(name), given)
    if plan is None:
        return
    names = [answer.name for answer in plan.answers]
    assert len(set(names)) == len(names)
    for answer in plan.answers:
        assert (answer.unit is Unit.TEXT) == isinstance(answer.value, str), answer.name
        assert isinstance(answer.value, str) or not math.isnan(answer.value), answer.name
        assert answer.working.strip(), answer.name
    assert plan.breaks_when
    for table in plan.tables:
        assert all(len(row) == len(table.headings) == len(table.units) for row in table.rows)
    if plan.curve is not None:
        assert all(len(values) == len(plan.curve.x) for values in plan.curve.series.values())


@pytest.mark.parametrize("name", TOPIC_NAMES)
def test_a_topic_names_real_flags_and_its_question_is_one(name: str) -> None:
    topic = topic_named(name)
    assert topic.name == name
    assert topic.question.endswith("?")
    assert set(topic.uses) <= set(FLAG_NAMES)
    assert set(topic.defaults) <= set(FLAG_NAMES)


@pytest.mark.parametrize("name", TOPIC_NAMES)
def test_the_json_form_has_four_keys_and_one_entry_an_answer(name: str) -> None:
    topic = topic_named(name)
    inputs = read_inputs({}, defaults=topic.defaults, extras=topic.extras)
    plan = topic.answer(inputs)
    found = plan_json(name, inputs.shown(topic.uses), plan)
    assert list(found) == ["topic", "inputs", "answers", "breaks_when"]
    assert [set(answer) for answer in found["answers"]] == [{"name", "value", "unit", "working"}] * len(
        plan.answers
    )


_SUFFIXES = {
    Unit.SECONDS: "s",
    Unit.BYTES: "B",
    Unit.BYTES_PER_S: "B/s",
    Unit.TOKENS_PER_S: "tok/s",
    Unit.USD: "USD",
}
_OWN_INPUTS = [
    pytest.param(name, extra, id=f"{name}-{extra.name}")
    for name in TOPIC_NAMES
    for extra in topic_named(name).extras
]


@pytest.mark.parametrize(("name", "extra"), _OWN_INPUTS)
def test_an_own_input_is_answered_or_refused_by_name_and_never_divides_by_zero(
    name: str, extra: Extra
) -> None:
    topic, suffix = topic_named(name), _SUFFIXES.get(extra.unit, "")
    with pytest.raises(SettingsError, match=f"{extra.name}='-1{suffix}': give"):
        read_inputs({extra.name: f"-1{suffix}"}, defaults=topic.defaults, extras=topic.extras)
    for number in ("0", "0.5", "2", "1000"):
        _plan(topic, {extra.name: f"{number}{suffix}"})


@pytest.mark.parametrize(
    ("bounds", "value", "said"),
    [
        pytest.param(PART, "0", "more than 0 and at most 1", id="none-of-what-divides"),
        pytest.param(SHARE, "120%", "0 or more and at most 1", id="more-than-all"),
        pytest.param(CHANCE, "100%", "more than 0 and less than 1", id="certain"),
        pytest.param(COUNTED, "1.5", "a whole number, 1 or more and at most 4096", id="half-a-server"),
        pytest.param(AT_LEAST_ONE, "0.5", "1 or more", id="a-peak-below-the-mean"),
    ],
)
def test_a_value_out_of_bounds_is_refused_with_what_works(bounds: Bounds, value: str, said: str) -> None:
    extras = (Extra("own", Unit.RATIO, "1", "an input", bounds),)
    with pytest.raises(SettingsError, match=f"own='{value}': give {said}"):
        read_inputs({"own": value}, defaults={}, extras=extras)
