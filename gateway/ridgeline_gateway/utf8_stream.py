"""UTF-8 that arrives in pieces. Pure.

Python's incremental decoder with one correction: it holds the beginning of an encoded surrogate (ED A0 to ED BF),
which no byte can complete, as if it could.
"""

import codecs

_REPLACEMENT = "\ufffd"
_SURROGATE_LEAD, _SURROGATE_FROM = 0xED, 0xA0


class Utf8Stream:
    """Gives each character as soon as no later byte can change it; invalid bytes become U+FFFD, one a maximal part.

    The whole equals `bytes.decode(errors="replace")` of all bytes, which is what the tokenizers library gives.
    """

    __slots__ = ("_decoder",)

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def is_open(self) -> bool:
        """A character has begun and is not complete."""
        return bool(self._decoder.getstate()[0])

    def feed(self, data: bytes) -> str:
        text = self._decoder.decode(data)
        if is_hopeless(self._decoder.getstate()[0]):
            self._decoder.reset()
            text += _REPLACEMENT * 2
        return text

    def flush(self) -> str:
        """What an open character becomes when no byte follows."""
        return self._decoder.decode(b"", True)


def is_hopeless(open_bytes: bytes) -> bool:
    """Whether the bytes that Python holds back are the beginning of a surrogate."""
    return len(open_bytes) == 2 and open_bytes[0] == _SURROGATE_LEAD and open_bytes[1] >= _SURROGATE_FROM
