"""From an Authorization header to a tenant."""

from ridgeline_contracts.clock import Clock
from ridgeline_contracts.errors import NotAuthenticated, PeerError
from ridgeline_contracts.ids import KeyId
from ridgeline_contracts.keys import key_matches, parse_key

from ridgeline_gateway.tenants import KeyOwner, StoreLoss, Tenant, TenantStore

_MOST_CACHED = 10_000
_REFUSED = "the API key is not valid: it is unknown, expired or revoked"


class Authenticator:
    """Checks keys. A key that another process revokes stops working here after at most `cache_ms`.

    While the store cannot be reached, a key that worked within the last `stale_ms` goes on working where its tenant
    says that a lost store shall not stop it (`on_store_loss`).
    """

    def __init__(
        self, store: TenantStore, *, pepper: bytes, clock: Clock, cache_ms: int, stale_ms: int
    ) -> None:
        self._store = store
        self._pepper = pepper
        self._clock = clock
        self._cache_ms = cache_ms
        self._stale_ms = stale_ms
        self._known: dict[KeyId, tuple[float, KeyOwner]] = {}

    async def tenant(self, authorization: str | None) -> Tenant:
        """Raises NotAuthenticated; the message never holds what was sent."""
        if authorization is None:
            raise NotAuthenticated("no API key: send the header Authorization: Bearer rl-<id>-<secret>")
        scheme, _, text = authorization.partition(" ")
        if scheme.lower() != "bearer":
            raise NotAuthenticated("the Authorization header is not of the form: Bearer rl-<id>-<secret>")
        key = parse_key(text.strip())
        owner = await self._owner(key.key_id)
        if owner is None or not key_matches(key, self._pepper, owner.key.key_hash):
            raise NotAuthenticated(_REFUSED)
        if not owner.key.works_at(self._clock.wall_ms()):
            raise NotAuthenticated(_REFUSED)
        return owner.tenant

    def forget(self) -> None:
        """To be called after a change of tenants or keys by this process."""
        self._known.clear()

    async def _owner(self, key_id: KeyId) -> KeyOwner | None:
        now_ms = self._clock.monotonic_ms()
        cached = self._known.get(key_id)
        if cached is not None and now_ms - cached[0] < self._cache_ms:
            return cached[1]
        try:
            owner = await self._store.owner_of(key_id)
        except PeerError:
            if cached is None or not self._outlives_a_loss(cached, now_ms):
                raise
            return cached[1]
        if owner is None:
            # Not remembered, so that a new key works at once and made-up ids cannot fill the memory.
            self._known.pop(key_id, None)
            return None
        if len(self._known) >= _MOST_CACHED:
            self._known.clear()
        self._known[key_id] = (now_ms, owner)
        return owner

    def _outlives_a_loss(self, cached: tuple[float, KeyOwner], now_ms: float) -> bool:
        read_ms, owner = cached
        return owner.tenant.on_store_loss is StoreLoss.OPEN and now_ms - read_ms < self._stale_ms
