"""Quantities with units: what is understood, what is refused, and how values are shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ridgeline_contracts.errors import SettingsError
from ridgeline_roofline.units import Unit, parse_count, parse_quantity, show


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        pytest.param("8k", Unit.TOKENS, 8000, id="decimal-prefix"),
        pytest.param("8Ki", Unit.TOKENS, 8192, id="binary-prefix"),
        pytest.param("8192 tokens", Unit.TOKENS, 8192, id="noun"),
        pytest.param("320GB", Unit.BYTES, 320e9, id="gigabytes"),
        pytest.param("40 GiB", Unit.BYTES, 40 * 2**30, id="gibibytes"),
        pytest.param("400Gb/s", Unit.BYTES_PER_S, 50e9, id="bits-are-an-eighth"),
        pytest.param("50GB/s", Unit.BYTES_PER_S, 50e9, id="bytes-a-second"),
        pytest.param("30ms", Unit.SECONDS, 0.03, id="milliseconds"),
        pytest.param("2.5USD/h", Unit.USD_PER_S, 2.5 / 3600, id="dollars-an-hour"),
        pytest.param("40%", Unit.RATIO, 0.4, id="percent"),
        pytest.param("3000/min", Unit.REQUESTS_PER_S, 50, id="a-minute"),
        pytest.param("12", Unit.REQUESTS_PER_S, 12, id="a-bare-rate-is-a-second"),
        pytest.param("1e3", Unit.COUNT, 1000, id="exponent"),
    ],
)
def test_what_people_write_becomes_si(text: str, unit: Unit, value: float) -> None:
    assert parse_quantity(text, unit, name="x") == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        pytest.param("30GB", Unit.SECONDS, id="bytes-are-no-time"),
        pytest.param("30ms", Unit.BYTES, id="time-is-no-size"),
        pytest.param("320", Unit.BYTES, id="a-size-needs-its-unit"),
        pytest.param("30", Unit.SECONDS, id="a-time-needs-its-unit"),
        pytest.param("400Gb", Unit.BYTES_PER_S, id="an-amount-is-no-rate"),
        pytest.param("400GB/s", Unit.BYTES, id="a-rate-is-no-amount"),
        pytest.param("30mS", Unit.SECONDS, id="case-matters"),
        pytest.param("many", Unit.TOKENS, id="no-number"),
        pytest.param("", Unit.TOKENS, id="empty"),
        pytest.param("nan", Unit.RATIO, id="nan"),
    ],
)
def test_a_wrong_unit_is_refused_with_an_example(text: str, unit: Unit) -> None:
    with pytest.raises(SettingsError, match=r"give for example") as refused:
        parse_quantity(text, unit, name="the-flag")
    assert "the-flag" in str(refused.value)
    assert repr(text) in str(refused.value)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "0.2k2"])
def test_a_count_is_whole_and_positive(text: str) -> None:
    with pytest.raises(SettingsError, match="batch"):
        parse_count(text, Unit.SEQUENCES, name="batch")


@given(st.floats(min_value=1e-3, max_value=1e6), st.sampled_from(["ms", "us", "s", "min", "h"]))
def test_a_unit_scales_its_number(number: float, suffix: str) -> None:
    one = parse_quantity(f"1{suffix}", Unit.SECONDS, name="x")
    assert parse_quantity(f"{number!r}{suffix}", Unit.SECONDS, name="x") == pytest.approx(number * one)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.005187, Unit.SECONDS, "5.187 ms"),
        (17.375e9, Unit.BYTES, "17.38 GB"),
        (8000, Unit.TOKENS, "8,000 tokens"),
        (2.5 / 3600, Unit.USD_PER_S, "2.5 USD/h"),
        (1.5e-6, Unit.USD_PER_TOKEN, "1.5 USD/Mtoken"),
        (0.0, Unit.SECONDS, "0 s"),
        (90.0, Unit.SECONDS, "90 s"),
        ("tp8", Unit.TEXT, "tp8"),
    ],
)
def test_values_are_shown_with_few_digits(value: float | str, unit: Unit, text: str) -> None:
    assert show(value, unit) == text
