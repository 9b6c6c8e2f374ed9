"""Stop strings: which one wins, where the text is cut, and that no character is held longer than it must be."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ridgeline_contracts.errors import InvariantError
from ridgeline_gateway.stop_strings import Released, StopMatcher

unhurried = settings(deadline=None, max_examples=150)

_LETTERS = "ab"
_STOPS = st.lists(st.text(_LETTERS, min_size=1, max_size=4), min_size=1, max_size=3)


def cut_of(text: str, stops: list[str]) -> tuple[int, str] | None:
    """Where a reader of the whole text cuts it, and by which stop string."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            winner = max(complete, key=len)
            return end - len(winner), winner
    return None


def longest_safe_prefix(text: str, stops: list[str]) -> int:
    """Characters that no continuation cuts away, by trying all continuations."""
    longest = max(map(len, stops))
    safe = len(text)
    for count in range(longest):
        for continuation in product(_LETTERS, repeat=count):
            cut = cut_of(text + "".join(continuation), stops)
            safe = safe if cut is None else min(safe, cut[0])
    return safe


@unhurried
@given(text=st.text(_LETTERS, max_size=10), stops=_STOPS, pieces=st.lists(st.integers(1, 3), max_size=10))
def test_after_each_piece_exactly_the_longest_safe_prefix_is_released(
    text: str, stops: list[str], pieces: list[int]
) -> None:
    matcher, sent, fed = StopMatcher(stops), "", 0
    for size in [*pieces, len(text)]:
        released = matcher.feed(text[fed : fed + size])
        fed = min(len(text), fed + size)
        sent += released.text
        cut = cut_of(text[:fed], stops)
        if cut is not None:
            assert (sent, released.stop) == (text[: cut[0]], cut[1])
            return
        assert released.stop is None
        assert sent == text[: longest_safe_prefix(text[:fed], stops)]
    assert sent + matcher.flush() == text


@pytest.mark.parametrize(
    ("stops", "text", "expected"),
    [
        pytest.param(
            ["abc", "b"], "abc", Released("a", "b"), id="first-completion-wins-over-earlier-beginning"
        ),
        pytest.param(["bc", "abc"], "xabc", Released("x", "abc"), id="ties-go-to-the-earliest-beginning"),
        pytest.param(["abcd", "c"], "ab", Released("ab"), id="a-string-that-cannot-win-holds-nothing"),
        pytest.param(["aab"], "aaab", Released("a", "aab"), id="a-failed-beginning-may-start-later"),
        pytest.param([], "abc", Released("abc"), id="no-stop-strings"),
        pytest.param(["日本"], "x日", Released("x"), id="half-of-two-characters-is-held"),
    ],
)
def test_known_cases(stops: list[str], text: str, expected: Released) -> None:
    assert StopMatcher(stops).feed(text) == expected


def test_feeding_after_a_stop_is_refused_and_changes_nothing() -> None:
    matcher = StopMatcher(["a"])
    matcher.feed("a")
    with pytest.raises(InvariantError):
        matcher.feed("b")
    assert matcher.held == ""
