"""Random numbers by address: (seed, choice, output position, draw) -> one 32-bit word. There is no stream to
keep.

The function is Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011):

    key     = (seed & 0xFFFFFFFF, seed >> 32)
    counter = (choice, output position, draw, 0)
    word    = the first of the block's four
    uniform = (word >> 8) * 2^-24                in [0, 1), exact in float32 and in float64

All arithmetic is on 32-bit values held in 64-bit lanes. In a language with only signed 64-bit integers a
product wraps to a negative number; `(product >> 32) & 0xFFFFFFFF` and `product & 0xFFFFFFFF` are right all
the same.
"""

from hashlib import blake2b
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Words: TypeAlias = npt.NDArray[np.uint64]
"""32-bit values in 64-bit lanes."""

ROUNDS: Final = 10
MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS: Final = (0x9E3779B9, 0xBB67AE85)
WORD_MASK: Final = 0xFFFFFFFF

DRAW_TOKEN: Final = 0
"""Chooses the token at a position."""
DRAW_ACCEPT: Final = 1
"""Accepts or rejects a draft token at a position."""
DRAW_RESIDUAL: Final = 2
"""Chooses the token that replaces a rejected draft."""


def request_seed(request_id: str) -> int:
    """64 bits for a request that named no seed. Equal for each attempt, so that a retry goes on with the same
    text."""
    return int.from_bytes(blake2b(request_id.encode(), digest_size=8).digest(), "little")


def philox_block(counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]) -> tuple[Words, ...]:
    """Four output words for each counter and key. All arrays broadcast; nothing is mutated."""
    mask, half = np.uint64(WORD_MASK), np.uint64(32)
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        p0, p1 = c0 * np.uint64(MULTIPLIERS[0]), c2 * np.uint64(MULTIPLIERS[1])
        c0, c1, c2, c3 = (p1 >> half) ^ c1 ^ k0, p1 & mask, (p0 >> half) ^ c3 ^ k1, p0 & mask
        k0, k1 = (k0 + np.uint64(KEY_STEPS[0])) & mask, (k1 + np.uint64(KEY_STEPS[1])) & mask
    return c0, c1, c2, c3


def random_words(
    seed: npt.ArrayLike,
    choice: npt.ArrayLike,
    output_position: npt.ArrayLike,
    *,
    draw: npt.ArrayLike = DRAW_TOKEN,
) -> Words:
    """One 32-bit word for each address; the arguments broadcast.

    `seed` is unsigned 64-bit, the others are unsigned 32-bit. Raises OverflowError for a negative Python int.
    """
    key = np.asarray(seed, dtype=np.uint64)
    c0, c1, c2, k0 = np.broadcast_arrays(
        np.asarray(choice, dtype=np.uint64),
        np.asarray(output_position, dtype=np.uint64),
        np.asarray(draw, dtype=np.uint64),
        key & np.uint64(WORD_MASK),
    )
    return philox_block((c0, c1, c2, np.zeros_like(c0)), (k0, key >> np.uint64(32)))[0]


def uniforms(
    seed: npt.ArrayLike,
    choice: npt.ArrayLike,
    output_position: npt.ArrayLike,
    *,
    draw: npt.ArrayLike = DRAW_TOKEN,
) -> npt.NDArray[np.float64]:
    """`random_words` as multiples of 2^-24 in [0, 1)."""
    return (random_words(seed, choice, output_position, draw=draw) >> np.uint64(8)).astype(
        np.float64
    ) * 2.0**-24
