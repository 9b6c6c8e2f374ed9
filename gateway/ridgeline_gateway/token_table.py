"""What each token id means as bytes, read from a tokenizer.json. Pure.

Two families cover the models that are served:

- byte-level: a token is a string over 256 stand-in letters, one a byte (GPT-2's map);
- pieces with byte fallback: a token is text in which U+2581 stands for a space, or `<0xE2>`, one raw byte.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from ridgeline_contracts.errors import SettingsError

_RAW_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class AddedToken:
    token: int
    content: str
    special: bool


@dataclass(frozen=True, slots=True)
class TokenTable:
    """Bytes by token id. Special tokens show nothing in a text; ids beyond the vocabulary show nothing either."""

    shown: Mapping[int, bytes]
    """Bytes of the tokens that show."""
    names: Mapping[int, str]
    """The tokenizer's own name of every token."""
    raw_bytes: frozenset[int] = frozenset()
    """Byte-fallback tokens: a run of them is a text only if the whole run is valid UTF-8."""
    byte_runs: bool = False
    """True for the second family."""
    strip_leading_spaces: int = 0
    """Spaces that the decoder takes from the very beginning of a text."""

    def describe(self, token: int) -> tuple[str, bytes]:
        """A token alone, for logprobs: text (U+FFFD for partial characters) and bytes. Special tokens by name."""
        data = self.shown.get(token)
        if data is None:
            data = self.names.get(token, "").encode()
        return data.decode(errors="replace"), data


@cache
def byte_letters() -> Mapping[str, int]:
    """GPT-2's stand-in letters: printable Latin-1 stands for itself, the other bytes are U+0100 and on, in order."""
    itself = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in itself]
    letters = {chr(byte): byte for byte in itself}
    letters.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return letters


def added_tokens(tokenizer: Mapping[str, Any]) -> tuple[AddedToken, ...]:
    """The added tokens of a parsed tokenizer.json."""
    return tuple(
        AddedToken(int(entry["id"]), str(entry["content"]), bool(entry["special"]))
        for entry in tokenizer.get("added_tokens", ())
    )


def token_table(tokenizer_json: bytes) -> TokenTable:
    """Reads the table. Raises SettingsError, naming it, for a decoder of neither family."""
    tokenizer = json.loads(tokenizer_json)
    added = added_tokens(tokenizer)
    names = _vocabulary(tokenizer.get("model") or {})
    names.update({entry.token: entry.content for entry in added})
    special = {entry.token for entry in added if entry.special}
    visible = {token: name for token, name in names.items() if token not in special}
    decoder = _flat_decoder(tokenizer.get("decoder"))
    kinds = [step["type"] for step in decoder]
    if "ByteLevel" in kinds and set(kinds) <= {"ByteLevel", "Fuse"}:
        return TokenTable({token: _byte_level(name) for token, name in visible.items()}, names)
    if kinds and set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip"}:
        return _piece_table(visible, names, decoder)
    raise SettingsError(
        f"tokenizer.json has the decoder {kinds or None}: ByteLevel, or Replace with ByteFallback, Fuse and Strip, "
        "are supported"
    )


def _vocabulary(model: Mapping[str, Any]) -> dict[int, str]:
    vocabulary = model.get("vocab") or {}
    if isinstance(vocabulary, list):
        return {index: entry[0] for index, entry in enumerate(vocabulary)}
    return {int(token): name for name, token in vocabulary.items()}


def _flat_decoder(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if decoder is None:
        return []
    return list(decoder["decoders"]) if decoder["type"] == "Sequence" else [decoder]


def _byte_level(name: str) -> bytes:
    letters = byte_letters()
    # An added token may hold a character that is no stand-in letter: the library then takes the whole name as text.
    if all(character in letters for character in name):
        return bytes(letters[character] for character in name)
    return name.encode()


def _piece_table(
    visible: Mapping[int, str], names: Mapping[int, str], decoder: list[Mapping[str, Any]]
) -> TokenTable:
    falls_back = any(step["type"] == "ByteFallback" for step in decoder)
    shown, raw = {}, set()
    for token, name in visible.items():
        byte = _RAW_BYTE.fullmatch(name) if falls_back else None
        if byte is not None:
            shown[token] = bytes([int(byte[1], 16)])
            raw.add(token)
        else:
            shown[token] = _replaced(name, decoder).encode()
    return TokenTable(shown, names, frozenset(raw), byte_runs=True, strip_leading_spaces=_strip(decoder))


def _replaced(name: str, decoder: list[Mapping[str, Any]]) -> str:
    for step in decoder:
        if step["type"] == "Replace":
            pattern = step["pattern"].get("String")
            if pattern is None:
                raise SettingsError(
                    f"tokenizer.json's decoder replaces by {step['pattern']}: only strings are supported"
                )
            name = name.replace(pattern, step["content"])
    return name


def _strip(decoder: list[Mapping[str, Any]]) -> int:
    steps = [step for step in decoder if step["type"] == "Strip"]
    if any(step["content"] != " " or step["stop"] for step in steps):
        raise SettingsError(f"tokenizer.json's decoder strips {steps}: only leading spaces are supported")
    return sum(int(step["start"]) for step in steps)
