"""Block hashes: one value for one prefix, pinned, since three components must agree on it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ridgeline_contracts.blockhash import (
    HashScope,
    MediaAt,
    block_hashes,
    extend_hashes,
    granule_hash,
    root_hash,
)
from ridgeline_contracts.ids import BlockHash

SCOPE = HashScope(b"salt", "weights", "adapter")
TOKENS = tuple(range(100))
texts = st.lists(st.integers(0, 2**32 - 1), max_size=120).map(tuple)


def test_the_hash_is_pinned() -> None:
    assert root_hash(SCOPE).hex() == "524f294f267019477137ddac43fc143a"
    assert [found.hex() for found in block_hashes(SCOPE, TOKENS[:32])] == [
        "14e78734204b3b8e2b6ad7bc85ce73fe",
        "af4114ca429918ff9b2843355b22b9a9",
    ]


@given(texts, texts)
def test_equal_prefixes_have_equal_hashes_and_others_do_not(
    one: tuple[int, ...], other: tuple[int, ...]
) -> None:
    ours, theirs = block_hashes(SCOPE, one), block_hashes(SCOPE, other)
    for index, (mine, yours) in enumerate(zip(ours, theirs, strict=False)):
        end = (index + 1) * 16
        assert (mine == yours) == (one[:end] == other[:end])


@pytest.mark.parametrize("multiple", [1, 2, 4])
def test_larger_blocks_use_every_kth_hash(multiple: int) -> None:
    granules = block_hashes(SCOPE, TOKENS)
    assert block_hashes(SCOPE, TOKENS, block_tokens=16 * multiple) == granules[multiple - 1 :: multiple]


@given(texts, st.sampled_from([16, 32, 48]), st.integers(0, 3))
def test_extending_gives_the_hashes_of_the_whole(tokens: tuple[int, ...], block: int, known: int) -> None:
    whole = block_hashes(SCOPE, tokens, block_tokens=block)
    known = min(known, len(whole))
    parent = whole[known - 1] if known else root_hash(SCOPE)
    assert extend_hashes(parent, tokens[known * block :], block_tokens=block) == whole[known:]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(HashScope(b"Salt", "weights", "adapter"), id="salt"),
        pytest.param(HashScope(b"salt", "Weights", "adapter"), id="weights"),
        pytest.param(HashScope(b"salt", "weights", ""), id="adapter"),
        pytest.param(HashScope(b"saltw", "eights", "adapter"), id="moved-boundary"),
    ],
)
def test_scopes_have_unrelated_hashes(other: HashScope) -> None:
    assert set(block_hashes(SCOPE, TOKENS)).isdisjoint(block_hashes(other, TOKENS))


def test_media_changes_the_hashes_from_its_granule_on() -> None:
    plain = block_hashes(SCOPE, TOKENS)
    picture = block_hashes(SCOPE, TOKENS, media=[MediaAt(20, b"image-1")])
    another = block_hashes(SCOPE, TOKENS, media=[MediaAt(20, b"image-2")])
    moved = block_hashes(SCOPE, TOKENS, media=[MediaAt(21, b"image-1")])
    assert plain[0] == picture[0] == another[0] == moved[0]
    for index in range(1, len(plain)):
        assert len({plain[index], picture[index], another[index], moved[index]}) == 4
    assert block_hashes(SCOPE, TOKENS, media=[MediaAt(20, b"image-1")], block_tokens=32) == picture[1::2]


@pytest.mark.parametrize("block_tokens", [0, -16, 8, 24])
def test_blocks_that_are_no_multiple_of_the_granule_are_refused(block_tokens: int) -> None:
    with pytest.raises(ValueError, match=f"block_tokens={block_tokens}"):
        block_hashes(SCOPE, TOKENS, block_tokens=block_tokens)
    with pytest.raises(ValueError, match=f"block_tokens={block_tokens}"):
        block_hashes(SCOPE, TOKENS, block_tokens=block_tokens, media=[MediaAt(1, b"x")])


def test_a_granule_is_sixteen_tokens() -> None:
    with pytest.raises(ValueError, match="16 tokens, not 15"):
        granule_hash(BlockHash(b"p" * 16), TOKENS[:15])
    assert len(granule_hash(BlockHash(b"p" * 16), TOKENS[:16])) == 16
