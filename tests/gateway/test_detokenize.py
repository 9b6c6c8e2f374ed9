"""Incremental text equals what the tokenizers library decodes from all ids, and nothing is given out too early."""

from collections.abc import Iterator
from itertools import product, takewhile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ridgeline_contracts.errors import SettingsError
from ridgeline_gateway.detokenize import detokenizer
from ridgeline_gateway.token_table import TokenTable, byte_letters, token_table
from ridgeline_gateway.utf8_stream import Utf8Stream
from tokenizers import AddedToken, Tokenizer, decoders, models

unhurried = settings(deadline=None, max_examples=100)

_MARK = "\ufffd"


def byte_level() -> Tokenizer:
    """A token for each byte, some of several bytes (whole and broken characters), a special and an added one."""
    letters = {byte: letter for letter, byte in byte_letters().items()}
    names = [letters[byte] for byte in range(256)]
    for data in (b"hello", "é".encode(), "日".encode()[:2], "a🎉".encode()[:4], "🎉".encode()[2:], b" the"):
        names.append("".join(letters[byte] for byte in data))
    tokenizer = Tokenizer(models.BPE({name: index for index, name in enumerate(names)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.add_tokens([AddedToken("<think>", special=False), AddedToken("two words é", special=False)])
    return tokenizer


def byte_fallback(*, strip: bool) -> Tokenizer:
    """Pieces with a mark for spaces, and a token for each byte."""
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁hello", "a", "é", "▁▁"]
    vocabulary = {name: index for index, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>"))
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)
    tokenizer.add_special_tokens(["<s>"])
    return tokenizer


TOKENIZERS = {
    "byte-level": byte_level(),
    "byte-fallback": byte_fallback(strip=False),
    "byte-fallback-strip": byte_fallback(strip=True),
}
TABLES = {name: token_table(tokenizer.to_str().encode()) for name, tokenizer in TOKENIZERS.items()}
each_family = pytest.mark.parametrize("family", list(TOKENIZERS))
_TRICKY = st.sampled_from([0xED, 0xA0, 0xE0, 0xF0, 0xF4, 0x80, 0x90, 0xBF, 0xC2, 0xEF, 0xBB, 0xBD])
_IDS = st.lists(st.one_of(st.integers(0, 270), _TRICKY, _TRICKY.map(lambda byte: byte + 1)), max_size=12)


def decode(family: str, ids: list[int]) -> str:
    return str(TOKENIZERS[family].decode(ids, skip_special_tokens=True))


def continuations(family: str) -> Iterator[list[int]]:
    """Enough to tell whether a text can still change: continuation bytes of each kind, text, nothing."""
    table = TABLES[family]
    by_bytes = {data: token for token, data in table.shown.items() if len(data) == 1}
    pieces = table.raw_bytes
    yield []
    yield [next(token for token, data in table.shown.items() if data == b"a" and token not in pieces)]
    for first in (0x80, 0x90, 0xA0, 0xC3):
        for more in range(3):
            yield [by_bytes[bytes([byte])] for byte in (first, *[0x80] * more)]


def test_the_byte_letters_are_those_of_the_library() -> None:
    from tokenizers.pre_tokenizers import ByteLevel

    assert set(byte_letters()) == set(ByteLevel.alphabet())


@each_family
@unhurried
@given(ids=_IDS)
def test_the_whole_text_equals_the_librarys(family: str, ids: list[int]) -> None:
    stream = detokenizer(TABLES[family], [])
    text = "".join(stream.feed(token) for token in ids) + stream.flush()
    assert text == decode(family, ids)


@each_family
@unhurried
@given(ids=_IDS)
def test_after_each_token_all_is_given_out_that_no_continuation_changes(family: str, ids: list[int]) -> None:
    stream, sent = detokenizer(TABLES[family], []), ""
    for count, token in enumerate(ids, 1):
        sent += stream.feed(token)
        possible = [decode(family, ids[:count] + more) for more in continuations(family)]
        settled = takewhile(lambda letters: len(set(letters)) == 1, zip(*possible, strict=False))
        assert sent == "".join(letters[0] for letters in settled)


def test_every_beginning_of_a_character_is_held_exactly_while_it_can_be_completed() -> None:
    completions = [bytes(more) for more in product((0x80, 0x90, 0xA0), (0x80,), (0x80,))]
    completions += [more[:count] for more in completions for count in (1, 2)]
    first, second = range(0xC0, 0x100), [0x41, *range(0x80, 0xC0)]
    parts = [
        *product(first),
        *product(first, second),
        *product((0xE0, 0xED, 0xEF, 0xF0, 0xF4), second, (0x80, 0xBF)),
    ]
    for part in map(bytes, parts):
        can_end = any(len(text) == 1 for more in completions if (text := decoded(part + more)) is not None)
        assert (Utf8Stream().feed(part) == "") is can_end, part.hex()


def decoded(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


@unhurried
@given(prompt=_IDS, ids=_IDS)
def test_a_character_that_the_prompt_begins_is_completed_by_the_output(
    prompt: list[int], ids: list[int]
) -> None:
    """Byte-level: the output is what the whole decodes to, beyond what the prompt alone showed for good."""
    shown, whole = decode("byte-level", prompt), decode("byte-level", prompt + ids)
    if not whole.startswith(shown):
        # Only an open character at the end of the prompt can change.
        shown = shown[:-1]
    stream = detokenizer(TABLES["byte-level"], prompt)
    assert "".join(stream.feed(token) for token in ids) + stream.flush() == whole[len(shown) :]


_EMOJI = "🎉".encode()


@pytest.mark.parametrize(
    ("family", "prompt", "output", "text"),
    [
        pytest.param("byte-level", _EMOJI[:2], _EMOJI[2:] + b"!", "🎉!", id="completed"),
        pytest.param("byte-level", _EMOJI[:2], b"!", "!", id="dropped-with-the-prompts-own-mark"),
        pytest.param("byte-level", _EMOJI, _EMOJI, "🎉", id="a-whole-character-is-the-prompts"),
        pytest.param("byte-level", b"\xe2\x82", "€".encode(), "€", id="begun-anew"),
        pytest.param("byte-fallback", _EMOJI[:2], _EMOJI[2:], "🎉", id="completed-by-raw-bytes"),
        pytest.param("byte-fallback", _EMOJI[:2], b"!", _MARK, id="a-run-that-broke-shows-the-outputs-marks"),
        pytest.param(
            "byte-fallback", _EMOJI, _EMOJI, "🎉", id="a-whole-character-of-raw-bytes-is-the-prompts"
        ),
        pytest.param(
            "byte-fallback", b"\xe2\x82", "€".encode(), _MARK * 3, id="one-broken-run-is-no-text-at-all"
        ),
    ],
)
def test_prompts_that_end_inside_a_character(family: str, prompt: bytes, output: bytes, text: str) -> None:
    first = 0 if family == "byte-level" else 1
    stream = detokenizer(TABLES[family], [byte + first for byte in prompt])
    assert "".join(stream.feed(byte + first) for byte in output) + stream.flush() == text


def test_a_leading_space_is_stripped_only_where_the_text_begins() -> None:
    table = TABLES["byte-fallback-strip"]
    hello = TOKENIZERS["byte-fallback-strip"].token_to_id("▁hello")
    special = TOKENIZERS["byte-fallback-strip"].token_to_id("<s>")
    assert detokenizer(table, [special]).feed(hello) == "hello"
    assert detokenizer(table, [special, hello]).feed(hello) == " hello"


@each_family
@unhurried
@given(ids=_IDS, prompt=st.lists(st.integers(128, 256), max_size=3))
def test_every_token_gets_one_span_and_spans_cover_the_text_in_order(
    family: str, ids: list[int], prompt: list[int]
) -> None:
    stream = detokenizer(TABLES[family], prompt, spans=True)
    plain = detokenizer(TABLES[family], prompt)
    text = "".join(stream.feed(token) for token in ids) + stream.flush()
    assert text == "".join(plain.feed(token) for token in ids) + plain.flush()
    spans = stream.take_spans()
    assert len(spans) == len(ids)
    reached = 0
    for span in spans:
        assert span.begin <= span.end
        # Neighbours may share the character that both have bytes of; none is left out.
        assert reached - 1 <= span.begin <= reached
        reached = max(reached, span.end)
    assert reached == len(text)


@unhurried
@given(text=st.text(max_size=8))
def test_spans_of_whole_text_are_the_characters_that_hold_the_bytes(text: str) -> None:
    table = TABLES["byte-level"]
    stream = detokenizer(table, [], spans=True)
    data = text.encode()
    assert "".join(stream.feed(byte) for byte in data) == text
    owners = [index for index, letter in enumerate(text) for _ in letter.encode()]
    assert stream.take_spans() == [(owner, owner + 1) for owner in owners]


def test_an_unknown_decoder_is_refused_by_name() -> None:
    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(SettingsError, match="WordPiece"):
        token_table(tokenizer.to_str().encode())


def test_a_special_token_is_described_by_name_but_shows_nothing() -> None:
    table: TokenTable = TABLES["byte-level"]
    special = TOKENIZERS["byte-level"].token_to_id("<|end|>")
    assert table.describe(special) == ("<|end|>", b"<|end|>")
    assert detokenizer(table, []).feed(special) == ""
