"""One choice's text against a reference that sees all output: any tokens, any stop strings, any frames."""

from itertools import takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ridgeline_contracts.errors import InvariantError
from ridgeline_contracts.sampling import TokenLogprob
from ridgeline_gateway.choice_stream import ChoiceStream, Phase, TextRules
from ridgeline_gateway.deltas import ContentDelta, Delta, Ending, FinishDelta, TokenDetail
from ridgeline_gateway.stop_strings import winning_stops
from ridgeline_gateway.token_table import TokenTable, byte_letters, token_table
from tokenizers import Tokenizer, decoders, models

unhurried = settings(deadline=None, max_examples=150)

_EMOJI = ("👩‍👩‍👧", "é", "日本語", "🎉", "ß", "́", "a", "b")
_MULTI = (b"ab", "日本".encode(), "🎉".encode()[:3], b"b\xe6\x97", "a🎉b".encode())


def _tokenizer() -> Tokenizer:
    letters = {byte: letter for letter, byte in byte_letters().items()}
    names = [letters[byte] for byte in range(256)] + [
        "".join(letters[byte] for byte in data) for data in _MULTI
    ]
    tokenizer = Tokenizer(models.BPE({name: index for index, name in enumerate(names)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    return tokenizer


TOKENIZER = _tokenizer()
TABLE: TokenTable = token_table(TOKENIZER.to_str().encode())
SPECIAL = 256 + len(_MULTI)
_PIECES = st.one_of(
    st.sampled_from(_EMOJI).map(lambda text: list(text.encode())),
    st.integers(0, SPECIAL).map(lambda token: [token]),
)
_TOKENS = st.lists(_PIECES, max_size=8).map(lambda pieces: [token for piece in pieces for token in piece])
_STOPS = st.lists(
    st.one_of(
        st.text("ab日本", min_size=1, max_size=3), st.sampled_from(["🎉", "日本", "👩‍👩", "\ufffd", "a日"])
    ),
    max_size=4,
)
_FRAMES = st.lists(st.integers(1, 5), max_size=30)


def frames_of(tokens: list[int], sizes: list[int]) -> list[list[int]]:
    frames, start = [], 0
    for size in [*sizes, len(tokens)]:
        if start < len(tokens):
            frames.append(tokens[start : start + size])
        start += size
    return frames


def settled_text(tokens: list[int]) -> str:
    """What no later token changes: the library's text without an open character at its end."""
    data = b"".join(TABLE.shown.get(token, b"") for token in tokens)
    # The longest beginning after which decoding could stop: try without the last bytes, shortest cut first.
    whole = data.decode(errors="replace")
    for cut in range(1, 4):
        open_part = data[-cut:]
        if 0 < cut <= len(data) and _is_open(open_part):
            return data[:-cut].decode(errors="replace")
    return whole


def _is_open(part: bytes) -> bool:
    completions = (b"\x80", b"\x80\x80", b"\x80\x80\x80", b"\xa0\x80", b"\x90\x80\x80", b"\xa0", b"\x90\x80")
    return any(_is_one_character(part + more) for more in completions)


def _is_one_character(data: bytes) -> bool:
    try:
        return len(data.decode()) == 1
    except UnicodeDecodeError:
        return False


def reference_cut(text: str, stops: list[str]) -> int | None:
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return end - len(max(complete, key=len))
    return None


def safe_length(text: str, stops: list[str]) -> int:
    """`test_stop_strings` proves this rule against all continuations."""
    candidates = winning_stops(stops)
    ends = (
        count
        for count in range(len(text), 0, -1)
        if any(stop[:-1].startswith(text[-count:]) for stop in candidates)
    )
    return len(text) - next(ends, 0)


def texts(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta))


def details(deltas: list[Delta]) -> list[TokenDetail]:
    return [detail for delta in deltas if isinstance(delta, ContentDelta) for detail in delta.details]


@unhurried
@given(tokens=_TOKENS, stops=_STOPS, sizes=_FRAMES)
def test_after_each_frame_the_longest_safe_prefix_is_sent(
    tokens: list[int], stops: list[str], sizes: list[int]
) -> None:
    stream, sent, fed = ChoiceStream(TABLE, [], TextRules(tuple(stops))), "", 0
    for frame in frames_of(tokens, sizes):
        sent += texts(stream.feed(frame))
        fed += len(frame)
        text = settled_text(tokens[:fed])
        cut = reference_cut(text, stops)
        if cut is not None:
            assert (sent, stream.phase) == (text[:cut], Phase.STOPPED)
            return
        assert sent == text[: safe_length(text, stops)]
    sent += texts(stream.end(Ending.LENGTH))
    whole = str(TOKENIZER.decode(tokens, skip_special_tokens=True))
    assert sent == whole[: reference_cut(whole, stops)]


@unhurried
@given(tokens=_TOKENS, stops=_STOPS, sizes=_FRAMES)
def test_logprobs_cover_the_tokens_that_begin_before_the_cut_and_come_with_their_last_character(
    tokens: list[int], stops: list[str], sizes: list[int]
) -> None:
    stream = ChoiceStream(TABLE, [], TextRules(tuple(stops), logprobs=True))
    plain = ChoiceStream(TABLE, [], TextRules(tuple(stops)))
    sent, found, fed = "", [], 0
    for frame in frames_of(tokens, sizes):
        deltas = stream.feed(
            frame, [TokenLogprob(token, -float(fed + index)) for index, token in enumerate(frame)]
        )
        assert texts(deltas) == texts(plain.feed(frame))
        fed += len(frame)
        sent += texts(deltas)
        found += details(deltas)
        if stream.phase is Phase.OPEN:
            assert len(found) == whole_tokens(tokens[:fed], len(sent))
    deltas = stream.end(Ending.LENGTH)
    sent, found = sent + texts(deltas), found + details(deltas)
    used = tokens[: stream.tokens]
    begins = token_begins(used)
    expected = [token for token, begin in zip(used, begins, strict=True) if begin < len(sent)]
    assert [detail.data for detail in found] == [TABLE.describe(token)[1] for token in expected]
    assert [detail.logprob for detail in found] == [-float(index) for index in range(len(found))]
    assert [detail.begin_characters for detail in found] == begins[: len(found)]


def token_begins(tokens: list[int]) -> list[int]:
    """The character in which each token's first byte lies, from the library's own decoding of longer and longer
    beginnings: a byte that joins the character before it makes the text no longer."""
    begins, data = [], b""
    for token in tokens:
        shown = TABLE.shown.get(token, b"")
        before = len(data.decode(errors="replace"))
        begins.append(len((data + shown[:1]).decode(errors="replace")) - 1 if shown else before)
        data += shown
    return begins


def whole_tokens(tokens: list[int], sent_characters: int) -> int:
    """How many tokens, from the first on, lie whole within the characters that were sent."""
    spans = zip(token_begins(tokens), token_ends(tokens), strict=True)
    return len(list(takewhile(lambda span: span[0] < sent_characters and span[1] <= sent_characters, spans)))


def token_ends(tokens: list[int]) -> list[int]:
    """One past the character in which each token's last byte lies; an open character counts."""
    data = [TABLE.shown.get(token, b"") for token in tokens]
    return [len(b"".join(data[: count + 1]).decode(errors="replace")) for count in range(len(data))]


def test_a_token_that_is_half_held_keeps_its_logprob_back() -> None:
    stream = ChoiceStream(TABLE, [], TextRules(("bc",), logprobs=True))
    token = TOKENIZER.token_to_id("ab")
    assert stream.feed([token], [TokenLogprob(token, -1.0)]) == [ContentDelta("a")]
    (delta,) = stream.feed(list(b"x"), [TokenLogprob(ord("x"), -2.0)])
    assert (texts([delta]), [detail.text for detail in details([delta])]) == ("bx", ["ab", "x"])


def test_a_stop_inside_a_frame_counts_tokens_up_to_the_one_that_completes_it() -> None:
    stream = ChoiceStream(TABLE, [], TextRules(("b",)))
    deltas = stream.feed(list(b"aab"))
    deltas += stream.feed(list(b"aaa"))
    assert deltas == [ContentDelta("aa"), FinishDelta(Ending.STOP, "b")]
    assert stream.tokens == 3
    assert stream.end(Ending.LENGTH) == []


def test_text_held_for_a_stop_that_never_comes_is_released_at_the_end() -> None:
    stream = ChoiceStream(TABLE, [], TextRules(("abc",)))
    assert stream.feed(list(b"ab")) == []
    assert stream.end(Ending.LENGTH) == [ContentDelta("ab"), FinishDelta(Ending.LENGTH)]


def test_a_hidden_end_token_counts_but_does_not_show() -> None:
    stream = ChoiceStream(TABLE, [], TextRules())
    stream.feed(list(b"a"))
    stream.end(Ending.STOP, hidden_tokens=1)
    assert stream.tokens == 2


@pytest.mark.parametrize("call", ["feed", "end"])
def test_a_call_after_the_end_is_refused(call: str) -> None:
    stream = ChoiceStream(TABLE, [], TextRules())
    stream.end(Ending.LENGTH)
    with pytest.raises(InvariantError):
        stream.feed([97]) if call == "feed" else stream.end(Ending.LENGTH)
    assert (stream.phase, stream.tokens) == (Phase.ENDED, 0)


def test_a_row_with_too_few_logprobs_is_refused() -> None:
    stream = ChoiceStream(TABLE, [], TextRules(logprobs=True))
    with pytest.raises(InvariantError):
        stream.feed([97, 98], [TokenLogprob(97, -1.0)])
