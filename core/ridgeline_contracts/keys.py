"""API keys: `rl-<id>-<secret>`. The id is public (it finds the tenant), the secret is kept only as an HMAC.

Gateway and operator both hash, so the format and the hash stand here.
"""

import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from ridgeline_contracts.errors import NotAuthenticated
from ridgeline_contracts.ids import KeyId

_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_ID_CHARACTERS = 12
_SECRET_CHARACTERS = 43
"""43 characters of base 62 hold 256 bits."""
_PATTERN = re.compile(rf"rl-([0-9a-z]{{{_ID_CHARACTERS}}})-([0-9A-Za-z]{{{_SECRET_CHARACTERS}}})")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key in the clear. Its repr hides the secret, so that a log line cannot leak it."""

    key_id: KeyId
    secret: str = field(repr=False)

    def reveal(self) -> str:
        """The text that the tenant is shown once."""
        return f"rl-{self.key_id}-{self.secret}"


def _draw(characters: int, alphabet: str, random_bytes: Callable[[int], bytes]) -> str:
    # 32 spare bits a call keep the modulo's bias below 2^-32.
    number = int.from_bytes(random_bytes(characters + 4), "big")
    drawn = []
    for _ in range(characters):
        number, digit = divmod(number, len(alphabet))
        drawn.append(alphabet[digit])
    return "".join(drawn)


def generate_key(random_bytes: Callable[[int], bytes]) -> ApiKey:
    """A new key. `random_bytes` must be cryptographically strong (`secrets.token_bytes`)."""
    key_id = KeyId(_draw(_ID_CHARACTERS, _ALPHABET[:36], random_bytes))
    return ApiKey(key_id, _draw(_SECRET_CHARACTERS, _ALPHABET, random_bytes))


def parse_key(text: str) -> ApiKey:
    """Reads `rl-<id>-<secret>`. Raises NotAuthenticated, without echoing what was sent."""
    found = _PATTERN.fullmatch(text)
    if found is None:
        raise NotAuthenticated(
            "the API key is not of the form rl-<id>-<secret>: check for a cut or padded copy"
        )
    return ApiKey(KeyId(found[1]), found[2])


def hash_key(key: ApiKey, pepper: bytes) -> bytes:
    """32 bytes of HMAC-SHA256 under the installation's `pepper` (at least 16 bytes, else ValueError)."""
    if len(pepper) < 16:
        raise ValueError(f"the key pepper has {len(pepper)} bytes; give at least 16")
    return hmac.new(pepper, key.reveal().encode(), hashlib.sha256).digest()


def key_matches(key: ApiKey, pepper: bytes, stored_hash: bytes) -> bool:
    """Compares in constant time."""
    return hmac.compare_digest(hash_key(key, pepper), stored_hash)
