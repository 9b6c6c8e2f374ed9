"""Addressed random numbers: the published function, reproducible in signed arithmetic."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ridgeline_engine.random_bits import (
    DRAW_ACCEPT,
    DRAW_TOKEN,
    KEY_STEPS,
    MULTIPLIERS,
    ROUNDS,
    WORD_MASK,
    philox_block,
    random_words,
    request_seed,
    uniforms,
)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        pytest.param((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8), id="all-zero"),
        pytest.param(
            (WORD_MASK,) * 4,
            (WORD_MASK,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
            id="all-ones",
        ),
        pytest.param(
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
            id="digits-of-pi",
        ),
    ],
)
def test_philox_gives_the_published_words(
    counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    words = philox_block(
        tuple(np.asarray(word, dtype=np.uint64) for word in counter),
        tuple(np.asarray(word, dtype=np.uint64) for word in key),
    )
    assert tuple(int(word) for word in words) == expected


def _signed_word(seed: int, choice: int, position: int, draw: int) -> int:
    """The same in wrapping signed 64-bit arithmetic, as a tensor library without uint64 does it."""
    c0, c1, c2, c3 = (np.array([value], dtype=np.int64) for value in (choice, position, draw, 0))
    k0, k1 = seed & WORD_MASK, seed >> 32
    for _ in range(ROUNDS):
        p0, p1 = c0 * np.int64(MULTIPLIERS[0]), c2 * np.int64(MULTIPLIERS[1])
        c0, c1, c2, c3 = (
            ((p1 >> 32) & WORD_MASK) ^ c1 ^ k0,
            p1 & WORD_MASK,
            ((p0 >> 32) & WORD_MASK) ^ c3 ^ k1,
            p0 & WORD_MASK,
        )
        k0, k1 = (k0 + KEY_STEPS[0]) & WORD_MASK, (k1 + KEY_STEPS[1]) & WORD_MASK
    return int(c0[0])


@given(st.integers(0, 2**64 - 1), st.integers(0, 127), st.integers(0, 2**31), st.sampled_from([0, 1, 2]))
def test_signed_arithmetic_gives_the_same_words(seed: int, choice: int, position: int, draw: int) -> None:
    assert int(random_words(seed, choice, position, draw=draw)) == _signed_word(seed, choice, position, draw)


def test_addresses_broadcast_and_are_all_different() -> None:
    words = random_words(
        np.array([1, 2**64 - 1], dtype=np.uint64)[:, None, None], np.arange(4)[:, None], np.arange(50)
    )
    assert words.shape == (2, 4, 50)
    assert len(np.unique(words)) == words.size
    assert int(words[1, 3, 49]) == int(random_words(2**64 - 1, 3, 49))


def test_each_draw_at_a_position_has_its_own_number() -> None:
    assert int(random_words(7, 0, 5, draw=DRAW_TOKEN)) != int(random_words(7, 0, 5, draw=DRAW_ACCEPT))


def test_uniforms_are_exact_in_float32_and_spread_evenly() -> None:
    found = uniforms(3, 0, np.arange(20_000))
    assert ((found >= 0) & (found < 1)).all()
    assert (found.astype(np.float32).astype(np.float64) == found).all()
    assert abs(found.mean() - 0.5) < 0.01
    assert np.histogram(found, bins=10, range=(0, 1))[0].min() > 1_800


def test_a_request_without_a_seed_keeps_its_own_across_attempts() -> None:
    assert request_seed("req-1") == request_seed("req-1")
    assert request_seed("req-1") != request_seed("req-2")
    assert 0 <= request_seed("req-1") < 2**64
