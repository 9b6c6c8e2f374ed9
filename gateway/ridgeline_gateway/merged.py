"""Several generations of one request as one stream of batches."""

import asyncio

from ridgeline_gateway.generation import Batch, Generation

_QUEUED_BATCHES = 64


class Merged:
    """Bounded: a slow reader slows all of them."""

    def __init__(self, generations: list[Generation], choices_each: int) -> None:
        self._queue: asyncio.Queue[Batch | BaseException | None] = asyncio.Queue(_QUEUED_BATCHES)
        self._tasks = [
            asyncio.create_task(self._pump(generation, index * choices_each))
            for index, generation in enumerate(generations)
        ]
        self._running = len(self._tasks)

    async def next_batch(self) -> Batch | None:
        while self._running:
            found = await self._queue.get()
            if found is None:
                self._running -= 1
            elif isinstance(found, BaseException):
                raise found
            else:
                return found
        return None

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _pump(self, generation: Generation, first_choice: int) -> None:
        try:
            while (batch := await generation.next_batch()) is not None:
                await self._queue.put([(first_choice + choice, delta) for choice, delta in batch])
        except Exception as error:  # noqa: BLE001  # handed to the reader, which raises it
            await self._queue.put(error)
        else:
            await self._queue.put(None)
