"""Text from token ids, one token at a time. Pure.

At the end the text equals what the tokenizers library decodes from all ids at once (special tokens skipped),
and at every moment what has been given out is as long as it can be without a later token being able to change
it.

A prompt given as ids may end inside a character. The bytes of that character are then completed by the
output: the whole character belongs to the output. If the output does not complete it, its replacement mark is
the prompt's and is not shown again.
"""

import codecs
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ridgeline_contracts.errors import InvariantError

from ridgeline_gateway.token_table import TokenTable
from ridgeline_gateway.utf8_stream import Utf8Stream, is_hopeless

_REPLACEMENT = "\ufffd"
_LONGEST_PARTIAL_BYTES = 3


class Span(NamedTuple):
    """Which characters of the output a token's bytes lie in. Empty (begin == end) for a token that shows nothing."""

    begin: int
    end: int


class Detokenizer(Protocol):
    """One choice's text."""

    def feed(self, token: int) -> str:
        """The text that this token settles; often empty in the middle of a character."""
        ...

    def flush(self) -> str:
        """What was still open, once no token can follow: incomplete bytes become U+FFFD. Call it once, last."""
        ...

    def take_spans(self) -> list[Span]:
        """Spans settled since the last call, one a token in order. All are settled after `flush`."""
        ...


def detokenizer(table: TokenTable, prompt: Sequence[int], *, spans: bool = False) -> Detokenizer:
    """A detokenizer for the output that follows `prompt`. `spans` costs a little more a token."""
    dangling = _dangling(table, prompt)
    if not table.byte_runs:
        return _ByteLevel(table, dangling, spans)
    shows_nothing = not any(token in table.shown for token in prompt)
    return _ByteRuns(table, dangling, table.strip_leading_spaces if shows_nothing else 0)


def _dangling(table: TokenTable, prompt: Sequence[int]) -> bytes:
    """The bytes of a character that the prompt begins and does not end."""
    tail = b""
    for token in reversed(prompt):
        data = table.shown.get(token)
        if data is None:
            continue
        if table.byte_runs and token not in table.raw_bytes:
            break
        tail = data + tail
        if len(tail) >= _LONGEST_PARTIAL_BYTES:
            break
    for start in range(max(0, len(tail) - _LONGEST_PARTIAL_BYTES), len(tail)):
        if tail[start] >= 0xC0 and Utf8Stream().feed(tail[start:]) == "":
            return tail[start:]
    return b""


class _ByteLevel:
    """Bytes simply join; invalid ones become one U+FFFD a maximal part, in Python as in the library."""

    __slots__ = ("_characters", "_dropping", "_settled", "_table", "_undecided", "_utf8", "_with_spans")

    def __init__(self, table: TokenTable, dangling: bytes, spans: bool) -> None:
        self._table = table
        self._utf8 = Utf8Stream()
        self._utf8.feed(dangling)
        self._dropping = bool(dangling)
        self._with_spans = spans
        self._characters = 0
        self._settled: list[Span] = []
        self._undecided: list[Span] = []

    def feed(self, token: int) -> str:
        data = self._table.shown.get(token, b"")
        text = self._spanned(data) if self._with_spans else self._utf8.feed(data)
        return self._shown(text)

    def flush(self) -> str:
        text = self._shown(self._utf8.flush())
        self._settled += self._undecided
        self._undecided = []
        return text

    def take_spans(self) -> list[Span]:
        taken, self._settled = self._settled, []
        return taken

    def _spanned(self, data: bytes) -> str:
        # The character that holds the first byte is known only after that byte: it may end or break an open one.
        first = self._utf8.feed(data[:1])
        begin = self._characters + len(first) + self._utf8.is_open - bool(data)
        text = first + self._utf8.feed(data[1:])
        span = Span(begin, self._characters + len(text) + self._utf8.is_open)
        (self._undecided if self._dropping else self._settled).append(span)
        return text

    def _shown(self, text: str) -> str:
        if self._dropping and text:
            self._dropping = False
            drop = text[0] == _REPLACEMENT
            text = text[drop:]
            self._settled += [
                Span(max(0, span.begin - drop), max(0, span.end - drop)) for span in self._undecided
            ]
            self._undecided = []
        self._characters += len(text)
        return text


class _ByteRuns:
    """Raw-byte tokens in a row make text only together: one invalid byte turns every byte of the run to U+FFFD.

    So a run is held until a piece ends it, or until it can no longer become valid.
    """

    __slots__ = (
        "_broken",
        "_characters",
        "_inherited",
        "_run",
        "_run_tokens",
        "_settled",
        "_strip",
        "_table",
    )

    def __init__(self, table: TokenTable, dangling: bytes, strip_spaces: int) -> None:
        self._table = table
        self._strip = strip_spaces
        self._run = bytearray(dangling)
        self._inherited = len(dangling)
        self._run_tokens: list[int] = []
        """How many bytes (1 or 0) each token since the run's beginning added to it."""
        self._broken = False
        self._characters = 0
        self._settled: list[Span] = []

    def feed(self, token: int) -> str:
        data = self._table.shown.get(token)
        if data is None:
            self._run_tokens.append(0)
            return self._settle(final=False)
        if token in self._table.raw_bytes:
            self._run += data
            self._run_tokens.append(1)
            return self._settle(final=False)
        before = self._settle(final=True)
        text = self._stripped(data.decode())
        self._settled.append(Span(self._characters, self._characters + len(text)))
        self._characters += len(text)
        return before + text

    def flush(self) -> str:
        return self._settle(final=True)

    def take_spans(self) -> list[Span]:
        taken, self._settled = self._settled, []
        return taken

    def _settle(self, *, final: bool) -> str:
        """Decides the run if it can be decided. Mutates all of the run's state."""
        decoder = codecs.getincrementaldecoder("utf-8")("strict")
        try:
            text = decoder.decode(bytes(self._run), final)
            self._broken = self._broken or is_hopeless(decoder.getstate()[0])
        except UnicodeDecodeError:
            self._broken = True
        if not self._broken and not final and self._run:
            return ""
        text = self._settle_broken() if self._broken else self._settle_valid(text)
        if final:
            self._broken = False
        self._run.clear()
        self._run_tokens.clear()
        self._inherited = 0
        return text

    def _settle_broken(self) -> str:
        for added in self._run_tokens:
            self._settled.append(Span(self._characters, self._characters + added))
            self._characters += added
        shown = sum(self._run_tokens)
        self._strip = 0 if self._run else self._strip
        if shown + self._inherited != len(self._run):
            raise InvariantError(
                f"a run of {len(self._run)} bytes was made by {shown} + {self._inherited} bytes"
            )
        return _REPLACEMENT * shown

    def _settle_valid(self, text: str) -> str:
        shown = self._stripped(text)
        stripped = len(text) - len(shown)
        owners = [index for index, letter in enumerate(text) for _ in letter.encode()]
        position = self._inherited
        for added in self._run_tokens:
            begin = owners[position] if position < len(owners) else len(text)
            end = begin + 1 if added else begin
            begin, end = max(0, begin - stripped), max(0, end - stripped)
            self._settled.append(Span(self._characters + begin, self._characters + end))
            position += added
        self._characters += len(shown)
        return shown

    def _stripped(self, text: str) -> str:
        if self._strip and text:
            kept = text
            while self._strip and kept.startswith(" "):
                kept, self._strip = kept[1:], self._strip - 1
            self._strip = 0 if kept else self._strip
            return kept
        return text
