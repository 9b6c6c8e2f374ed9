"""Text models by tokenizer hash, each made once."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from ridgeline_contracts.errors import PeerError, SettingsError

from ridgeline_gateway.text_model import TextModel
from ridgeline_gateway.tokenizer_files import TokenizerFileCache
from ridgeline_gateway.worker_link import WorkerLink


class TextModels:
    """Makes a TextModel on first use, off the event loop. Requests that come meanwhile wait for the same one."""

    def __init__(
        self,
        files: TokenizerFileCache,
        *,
        random_bytes: Callable[[int], bytes],
        strftime_now: Callable[[str], str],
    ) -> None:
        self._files = files
        self._random_bytes = random_bytes
        self._strftime_now = strftime_now
        self._made: dict[str, TextModel] = {}
        self._making: dict[str, asyncio.Task[TextModel]] = {}

    @property
    def loaded(self) -> int:
        return len(self._made)

    async def get(
        self, tokenizer_hash: str, offered: Mapping[str, str], links: Sequence[WorkerLink]
    ) -> TextModel:
        """Raises PeerError when its files cannot be had or used."""
        made = self._made.get(tokenizer_hash)
        if made is not None:
            return made
        task = self._making.get(tokenizer_hash)
        if task is None:
            task = asyncio.create_task(self._make(tokenizer_hash, offered, links))
            self._making[tokenizer_hash] = task
            task.add_done_callback(lambda _: self._making.pop(tokenizer_hash, None))
        # Shielded: one client that goes away must not fail the others that wait.
        return await asyncio.shield(task)

    async def _make(
        self, tokenizer_hash: str, offered: Mapping[str, str], links: Sequence[WorkerLink]
    ) -> TextModel:
        try:
            files = await self._files.files(tokenizer_hash, offered, links)
            made = await asyncio.to_thread(
                TextModel, files, random_bytes=self._random_bytes, strftime_now=self._strftime_now
            )
        except SettingsError as error:
            raise PeerError(f"this model's tokenizer cannot be used: {error.message}") from error
        self._made[tokenizer_hash] = made
        return made
