"""What exactly this worker serves: the variant, and the tokenizer files that a gateway needs for it."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from ridgeline_contracts.errors import NotFound
from ridgeline_contracts.model_folder import (
    CHAT_TEMPLATE_FILE,
    CONFIG_FILE,
    GENERATION_CONFIG_FILE,
    TOKENIZER_CONFIG_FILE,
    TOKENIZER_FILE,
    ModelFolder,
)
from ridgeline_contracts.proto import worker_pb2 as pb

_OFFERED = (TOKENIZER_FILE, TOKENIZER_CONFIG_FILE, GENERATION_CONFIG_FILE, CONFIG_FILE)
PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """Bytes by sha256, and sha256 by name. All small enough to be held in memory."""

    sha256_by_name: Mapping[str, str]
    bytes_by_sha256: Mapping[str, bytes]

    def pieces(self, sha256: str) -> list[bytes]:
        """A file's bytes in order, at most 1 MiB each. Raises NotFound for a hash that is not offered."""
        content = self.bytes_by_sha256.get(sha256)
        if content is None:
            raise NotFound(
                f"no tokenizer file with sha256 {sha256!r}: ask for one that the worker's hello lists"
            )
        return [content[start : start + PIECE_BYTES] for start in range(0, max(1, len(content)), PIECE_BYTES)]


@dataclass(frozen=True, slots=True)
class Served:
    """One variant and its files."""

    variant: pb.Variant
    files: TokenizerFiles


def read_tokenizer_files(folder: ModelFolder) -> TokenizerFiles:
    """Reads what the folder has of tokenizer.json, its config, the generation config and config.json.

    The chat template is offered as `chat_template.jinja` also where it came out of tokenizer_config.json.
    """
    contents = {
        name: (folder.path / name).read_bytes() for name in _OFFERED if (folder.path / name).is_file()
    }
    if folder.chat_template is not None:
        contents[CHAT_TEMPLATE_FILE] = folder.chat_template.encode()
    named = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    return TokenizerFiles(named, {named[name]: content for name, content in contents.items()})


def served_from(folder: ModelFolder, *, model_name: str | None, price_version: str) -> Served:
    """`model_name` None takes the folder's own name."""
    return Served(
        variant=pb.Variant(
            model=model_name or folder.name,
            weights_revision=folder.weights_revision,
            tokenizer_hash=folder.tokenizer_hash,
            template_hash=folder.chat_template_sha256 or "",
            price_version=price_version,
        ),
        files=read_tokenizer_files(folder),
    )
