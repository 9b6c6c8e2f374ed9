"""Keeps control tokens in a user's text plain text.

A template writes control tokens as text (`<|im_end|>`) and so can a user; after rendering the two look alike.
So an invisible mark is put inside every control token that stands in a message before the template sees it.
Nearly always there is none, and the rendered prompt goes to the tokenizer as it is, in one piece: ids are
those of any other library. Otherwise each control token that is not broken by a mark is the template's own:
it gets a prefix that no user can know, the marks are taken out, and a second tokenizer, which knows control
tokens by their prefixed names only, encodes the whole. So text around it merges as it would have, and only
what the template wrote becomes a control token.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tokenizers import Tokenizer

_MARKS = range(0x10FFFD, 0x10FF00, -1)
_PREFIX_LETTERS = 10
_PRIVATE_USE_FIRST, _PRIVATE_USE_SIZE = 0xF0000, 0xFFFE


def choose_mark(texts: Sequence[str]) -> str:
    """A private-use character that stands in none of `texts`."""
    return next(chr(code) for code in _MARKS if not any(chr(code) in text for text in texts))


class ControlPatterns:
    """Finds control tokens, and ends of a text that could become one together with the text beside it."""

    def __init__(self, names: Iterable[str]) -> None:
        # Longest first, so that a token wins over one that it contains.
        self._names = tuple(sorted({name for name in names if len(name) > 1}, key=len, reverse=True))
        self._whole = re.compile("|".join(map(re.escape, self._names)) or "(?!)")
        beginnings = {name[:length] for name in self._names for length in range(1, len(name))}
        ends = {name[length:] for name in self._names for length in range(1, len(name))}
        self._beginnings = frozenset(beginnings)
        self._ends = frozenset(ends)
        self._longest = max(map(len, self._names), default=0)

    def mark(self, text: str, mark: str) -> str:
        """`text` with `mark` inside every control token, and at its edges where one could form across them."""
        marked = self._whole.sub(lambda found: found[0][:1] + mark + found[0][1:], text)
        # A template may trim: the edge that counts is that of the trimmed text.
        bare = marked.rstrip()
        if self._touches(bare, self._beginnings, at_end=True):
            marked = bare + mark + marked[len(bare) :]
        bare = marked.lstrip()
        if self._touches(bare, self._ends, at_end=False):
            marked = marked[: len(marked) - len(bare)] + mark + bare
        return marked

    def counts(self, text: str) -> Counter[str]:
        """How often each control token stands whole in `text`."""
        return Counter(found[0] for found in self._whole.finditer(text))

    def unbroken(self, text: str, rename: Callable[[str], str]) -> str:
        """`text` with every control token that stands in it whole renamed."""
        return self._whole.sub(lambda found: rename(found[0]), text)

    def _touches(self, text: str, parts: frozenset[str], *, at_end: bool) -> bool:
        longest = min(self._longest - 1, len(text))
        pieces = (text[-length:] if at_end else text[:length] for length in range(1, longest + 1))
        return any(piece in parts for piece in pieces)


class GuardedTokenizer:
    """A tokenizer that knows control tokens by prefixed names only."""

    def __init__(
        self, tokenizer_json: bytes, names: Iterable[str], random_bytes: Callable[[int], bytes]
    ) -> None:
        self._prefix = _secret_prefix(random_bytes)
        guarded = set(names)
        parsed = json.loads(tokenizer_json)
        real = {entry["content"]: int(entry["id"]) for entry in parsed.get("added_tokens", ())}
        self._tokenizer = load_tokenizer(json.dumps(_renamed(parsed, guarded, self._prefix)).encode())
        self._real_ids = {}
        for name in guarded:
            token = self._tokenizer.token_to_id(self._prefix + name)
            if token is not None:
                self._real_ids[token] = real[name]

    def rename(self, name: str) -> str:
        """What stands for control token `name` in a text for `encode`."""
        return self._prefix + name

    def encode(self, text: str) -> list[int]:
        """Ids in the real vocabulary. Only renamed control tokens become control tokens."""
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        return [self._real_ids.get(token, token) for token in ids]


def load_tokenizer(tokenizer_json: bytes) -> Tokenizer:
    """A tokenizer that neither pads nor truncates."""
    tokenizer = Tokenizer.from_buffer(tokenizer_json)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _secret_prefix(random_bytes: Callable[[int], bytes]) -> str:
    # Private-use letters survive every normaliser, and 10 of them cannot be guessed (160 bits).
    drawn = (int.from_bytes(random_bytes(4), "big") % _PRIVATE_USE_SIZE for _ in range(_PREFIX_LETTERS))
    return "".join(chr(_PRIVATE_USE_FIRST + letter) for letter in drawn)


def _renamed(parsed: dict[str, Any], names: set[str], prefix: str) -> dict[str, Any]:
    for entry in parsed.get("added_tokens", ()):
        if entry["content"] in names:
            entry["content"] = prefix + entry["content"]
            # Matched as it is written, whatever the tokenizer does to text.
            entry["normalized"] = False
    model = parsed["model"]
    vocabulary = model.get("vocab")
    # The model's own vocabulary may list the token too, and some models match it there whole.
    if isinstance(vocabulary, dict):
        model["vocab"] = {
            prefix + name if name in names else name: token for name, token in vocabulary.items()
        }
    elif isinstance(vocabulary, list):
        model["vocab"] = [[prefix + name if name in names else name, score] for name, score in vocabulary]
    if model.get("unk_token") in names:
        model["unk_token"] = prefix + model["unk_token"]
    return parsed
