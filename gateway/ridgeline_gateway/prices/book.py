"""The price versions that this gateway knows, read anew every second."""

from ridgeline_contracts.clock import Clock
from ridgeline_contracts.errors import PeerError
from ridgeline_contracts.ids import ModelName

from ridgeline_gateway.prices.price import Price, unit_price
from ridgeline_gateway.tenants import TenantStore


class PriceBook:
    """A version that was frozen on another gateway holds here after at most `cache_ms`."""

    def __init__(self, store: TenantStore, *, clock: Clock, cache_ms: int) -> None:
        self._store = store
        self._clock = clock
        self._cache_ms = cache_ms
        self._read_ms: float | None = None
        self._newest: dict[ModelName, Price] = {}

    async def current(self, model: ModelName) -> Price:
        """The newest version of `model`; while the store cannot be reached, the newest that is known."""
        now_ms = self._clock.monotonic_ms()
        if self._read_ms is None or now_ms - self._read_ms >= self._cache_ms:
            try:
                found = await self._store.prices()
            except PeerError:
                if self._read_ms is None:
                    raise
            else:
                # Versions are never removed: a store that lacks one has lost it.
                self._newest |= {price.model: price for price in found}
                self._read_ms = now_ms
        return self._newest.get(model) or unit_price(model)

    def forget(self) -> None:
        """To be called after a change by this process."""
        self._read_ms = None
