"""Asks a child whether it is ready, over HTTP, until it is."""

import asyncio

import httpx

from ridgeline_cli.up.plan import ChildSpec

_PAUSE_S = 0.1
_TIMEOUT_S = 5.0


class ReadyProbe:
    """Polls each child's `ready_url`. One HTTP client for all; close it at the end."""

    def __init__(self) -> None:
        # Loopback only: a proxy from the environment would never reach it.
        self._client = httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False)

    async def __call__(self, spec: ChildSpec) -> None:
        """Returns once the child answers 200. Runs until then: the caller bounds it."""
        while True:
            if await self._answers(spec.ready_url):
                return
            await asyncio.sleep(_PAUSE_S)

    async def close(self) -> None:
        await self._client.aclose()

    async def _answers(self, url: str) -> bool:
        try:
            return (await self._client.get(url)).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False
