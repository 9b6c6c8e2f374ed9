"""The one definition of a block's hash, shared by gateway (asks), router (indexes) and engine (caches).

A prompt is cut into granules of 16 tokens. Granule i's hash covers everything before it:

    root   = H(MAGIC | len(salt) salt | len(weights) weights | len(adapter) adapter)
    hash_i = H(hash_{i-1} | 16 tokens as little-endian uint32 | for each media item that begins here:
               offset uint32, len(hash) uint32, hash)

H is BLAKE2b with a 16-byte digest; lengths are little-endian uint32, so no two inputs share an encoding. An engine
whose blocks hold k granules uses every k-th hash. Salt differs by tenant (or trust group), so equal prompts of two
tenants have unrelated hashes; a match must still be verified against the tokens before KV is shared.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from ridgeline_contracts.ids import BlockHash

GRANULE_TOKENS = 16
DIGEST_BYTES = 16
ALGORITHM = "blake2b-16/ridgeline-block-1"
_MAGIC = ALGORITHM.encode()
_PACK_GRANULE = struct.Struct(f"<{GRANULE_TOKENS}I").pack


@dataclass(frozen=True, slots=True)
class HashScope:
    """What must be equal, besides tokens, for KV to be shared."""

    salt: bytes
    weights_revision: str
    adapter_revision: str = ""


@dataclass(frozen=True, slots=True)
class MediaAt:
    """A media item (image, audio) whose first placeholder token stands at `offset_tokens` of the prompt."""

    offset_tokens: int
    content_hash: bytes


def _sized(field: bytes) -> bytes:
    return struct.pack("<I", len(field)) + field


def _digest(*parts: bytes) -> BlockHash:
    return BlockHash(blake2b(b"".join(parts), digest_size=DIGEST_BYTES).digest())


def root_hash(scope: HashScope) -> BlockHash:
    """The parent of a prompt's first granule."""
    return _digest(
        _MAGIC,
        _sized(scope.salt),
        _sized(scope.weights_revision.encode()),
        _sized(scope.adapter_revision.encode()),
    )


def granule_hash(parent: BlockHash, tokens: Sequence[int], media: Iterable[MediaAt] = ()) -> BlockHash:
    """The hash of one granule. Raises ValueError unless `tokens` holds exactly 16 ids."""
    if len(tokens) != GRANULE_TOKENS:
        raise ValueError(f"a granule holds {GRANULE_TOKENS} tokens, not {len(tokens)}")
    told = [struct.pack("<I", item.offset_tokens) + _sized(item.content_hash) for item in media]
    return _digest(parent, _PACK_GRANULE(*tokens), *told)


def extend_hashes(parent: BlockHash, tokens: Sequence[int], *, block_tokens: int) -> list[BlockHash]:
    """Hashes of the whole blocks in `tokens` (text only), which follow `parent`; the unfilled tail has none.

    Raises ValueError unless block_tokens is a positive multiple of 16.
    """
    if block_tokens <= 0 or block_tokens % GRANULE_TOKENS:
        raise ValueError(f"block_tokens={block_tokens} is not a positive multiple of {GRANULE_TOKENS}")
    hashes: list[BlockHash] = []
    for start in range(0, len(tokens) - len(tokens) % block_tokens, GRANULE_TOKENS):
        parent = granule_hash(parent, tokens[start : start + GRANULE_TOKENS])
        if (start + GRANULE_TOKENS) % block_tokens == 0:
            hashes.append(parent)
    return hashes


def block_hashes(
    scope: HashScope,
    tokens: Sequence[int],
    *,
    block_tokens: int = GRANULE_TOKENS,
    media: Sequence[MediaAt] = (),
) -> list[BlockHash]:
    """Hashes of a prompt's whole blocks, oldest first. Raises ValueError as `extend_hashes` does."""
    if not media:
        return extend_hashes(root_hash(scope), tokens, block_tokens=block_tokens)
    if block_tokens <= 0 or block_tokens % GRANULE_TOKENS:
        raise ValueError(f"block_tokens={block_tokens} is not a positive multiple of {GRANULE_TOKENS}")
    parent, hashes = root_hash(scope), []
    for start in range(0, len(tokens) - len(tokens) % block_tokens, GRANULE_TOKENS):
        end = start + GRANULE_TOKENS
        here = [item for item in media if start <= item.offset_tokens < end]
        parent = granule_hash(parent, tokens[start:end], here)
        if end % block_tokens == 0:
            hashes.append(parent)
    return hashes
