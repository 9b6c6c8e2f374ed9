"""Tokenizer files by hash: from the disk, or from a worker that offers them."""

import asyncio
import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ridgeline_contracts.errors import PeerError, SettingsError
from ridgeline_contracts.model_folder import (
    CHAT_TEMPLATE_FILE,
    TOKENIZER_CONFIG_FILE,
    TOKENIZER_FILE,
    read_chat_template,
    sha256_of_file,
    tokenizer_hash,
)

from ridgeline_gateway.text_model import TextFiles
from ridgeline_gateway.worker_link import WorkerLink

_log = logging.getLogger(__name__)
_WANTED = (TOKENIZER_FILE, TOKENIZER_CONFIG_FILE, CHAT_TEMPLATE_FILE)


class TokenizerFileCache:
    """A folder with one folder a tokenizer hash, in it the files by name. Every file is verified when it is read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def files(
        self, wanted_hash: str, offered: Mapping[str, str], links: Sequence[WorkerLink]
    ) -> TextFiles:
        """The text files of a variant. `offered` maps file names to sha256.

        Raises PeerError when a file is neither here nor to be had, or when the files do not give
        `wanted_hash`.
        """
        if TOKENIZER_FILE not in offered:
            raise PeerError(
                f"the workers of tokenizer {wanted_hash} offer no {TOKENIZER_FILE}", retry_after_ms=1000
            )
        folder = self._folder / wanted_hash
        for name in _WANTED:
            if name in offered:
                await self._ensure(folder / name, offered[name], links)
        return await asyncio.to_thread(
            _read, folder, wanted_hash, [name for name in _WANTED if name in offered]
        )

    async def _ensure(self, path: Path, sha256: str, links: Sequence[WorkerLink]) -> None:
        if await asyncio.to_thread(_is_whole, path, sha256):
            return
        content = await _fetch(sha256, links)
        await asyncio.to_thread(_write, path, content)
        _log.info("tokenizer.fetched name=%s sha256=%s bytes=%d", path.name, sha256, len(content))


async def _fetch(sha256: str, links: Sequence[WorkerLink]) -> bytes:
    last: PeerError | None = None
    for link in links:
        try:
            return await link.file(sha256)
        except PeerError as error:
            last = error
    raise PeerError(f"no worker gave tokenizer file {sha256}: retry soon", retry_after_ms=1000) from last


def _is_whole(path: Path, sha256: str) -> bool:
    return path.is_file() and sha256_of_file(path) == sha256


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Renamed into place, so that a crash leaves no half file and two gateways may share the folder.
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(content)
    partial.replace(path)


def _read(folder: Path, wanted_hash: str, names: Sequence[str]) -> TextFiles:
    config: dict[str, Any] = {}
    if TOKENIZER_CONFIG_FILE in names:
        config = json.loads((folder / TOKENIZER_CONFIG_FILE).read_bytes())
    if CHAT_TEMPLATE_FILE in names:
        template: str | None = (folder / CHAT_TEMPLATE_FILE).read_text(encoding="utf-8")
    else:
        template = read_chat_template(folder, config)
    tokenizer_json = (folder / TOKENIZER_FILE).read_bytes()
    found = tokenizer_hash(tokenizer_json, template)
    if found != wanted_hash:
        raise SettingsError(f"the offered tokenizer files hash to {found}, the variant says {wanted_hash}")
    return TextFiles(tokenizer_json, config, template)
