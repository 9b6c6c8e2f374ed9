"""One choice's text over byte-fallback tokenisers, with stop strings and any frames: never a character too many."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ridgeline_contracts.sampling import TokenLogprob
from ridgeline_gateway.choice_stream import ChoiceStream, Phase, TextRules
from ridgeline_gateway.deltas import ContentDelta, Delta, Ending
from ridgeline_gateway.token_table import token_table
from tokenizers import Tokenizer, decoders, models

_TEXTS = ("👩‍👩‍👧", "é", "e\u0301", "日本語", "🎉", "ß", "\u0301", "a", "b", " ", "  a")


def byte_fallback(*, strip: bool) -> Tokenizer:
    """Pieces with a mark for spaces, and a token for each byte."""
    pieces = ["▁", "a", "b", "▁a", "é", "日", "ab", "a日"]
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    vocabulary = {name: index for index, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>"))
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)
    tokenizer.add_special_tokens(["<s>"])
    return tokenizer


FAMILIES = {"fallback": byte_fallback(strip=False), "fallback-strip": byte_fallback(strip=True)}
TABLES = {name: token_table(tokenizer.to_str().encode()) for name, tokenizer in FAMILIES.items()}
_IDS = st.lists(
    st.one_of(
        st.integers(0, 265).map(lambda token: [token]),
        st.sampled_from(_TEXTS).map(lambda text: [byte + 1 for byte in text.encode()]),
    ),
    max_size=10,
).map(lambda pieces: [token for piece in pieces for token in piece])
_STOP_TEXTS = ("ab", "a", "b", "日", "日本", "🎉", "é", " a", "\ufffd", "👩‍👩", "a日", "ba")
_STOPS = st.lists(st.sampled_from(_STOP_TEXTS), max_size=4)
_SIZES = st.lists(st.integers(1, 4), max_size=30)


def reference_cut(text: str, stops: list[str]) -> int | None:
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return end - len(max(complete, key=len))
    return None


def text_of(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta))


@pytest.mark.parametrize("family", list(FAMILIES))
@settings(deadline=None, max_examples=300)
@given(ids=_IDS, stops=_STOPS, sizes=_SIZES)
def test_what_is_sent_is_always_a_beginning_of_the_whole_and_in_the_end_all_of_it(
    family: str, ids: list[int], stops: list[str], sizes: list[int]
) -> None:
    whole = str(FAMILIES[family].decode(ids, skip_special_tokens=True))
    wanted = whole[: reference_cut(whole, stops)]
    stream = ChoiceStream(TABLES[family], [], TextRules(tuple(stops), logprobs=True))
    sent, found, start = "", 0, 0
    for size in [*sizes, len(ids)]:
        frame = ids[start : start + size]
        start += size
        deltas = stream.feed(frame, [TokenLogprob(token, -1.0) for token in frame])
        sent += text_of(deltas)
        found += sum(len(delta.details) for delta in deltas if isinstance(delta, ContentDelta))
        assert wanted.startswith(sent)
        if stream.phase is Phase.STOPPED:
            break
    deltas = stream.end(Ending.LENGTH)
    sent += text_of(deltas)
    found += sum(len(delta.details) for delta in deltas if isinstance(delta, ContentDelta))
    assert sent == wanted
    # Tokens that show nothing behind the last character (special ones, a stripped space) have none.
    assert found <= stream.tokens
