"""All settings of a gateway process: read once by `__main__`, frozen, in small groups."""

from dataclasses import dataclass, field
from pathlib import Path

from ridgeline_contracts.errors import SettingsError
from ridgeline_contracts.ids import GatewayId, Incarnation


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this process is towards workers and routers."""

    gateway_id: GatewayId
    incarnation: Incarnation
    product_version: str


@dataclass(frozen=True, slots=True)
class ListenSettings:
    host: str = "127.0.0.1"
    port: int = 8000
    admin_host: str = "127.0.0.1"
    admin_port: int = 8001


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Where tenants, quota, the ledger and tokenizer files are kept."""

    data_dir: Path
    redis_url: str | None = field(default=None, repr=False)
    """Of the store that several gateways share; None: SQLite files in `data_dir`. It may hold a password."""

    @property
    def tenants_file(self) -> Path:
        return self.data_dir / "tenants.sqlite3"

    @property
    def quota_file(self) -> Path:
        return self.data_dir / "quota.sqlite3"

    @property
    def backlog_file(self) -> Path:
        return self.data_dir / "unsettled.jsonl"

    @property
    def tokenizers_dir(self) -> Path:
        return self.data_dir / "tokenizers"


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """What one request may ask for."""

    max_body_bytes: int = 4 * 1024 * 1024
    max_stop_strings: int = 16
    max_stop_characters: int = 1024
    max_choices: int = 128
    """Choices of one request, over all its prompts."""
    default_output_tokens: int = 2048
    """Reserved and generated at most when a chat request states no max_tokens."""
    max_pending_rows: int = 8192
    """Rows of one request that its reader has not taken; more than that and it is cancelled."""
    encode_in_thread_characters: int = 4096
    """Prompts from this length on are tokenised off the event loop."""


@dataclass(frozen=True, slots=True)
class TimingSettings:
    """Milliseconds."""

    request_deadline_ms: int = 600_000
    ttft_target_ms: int | None = None
    """Interactive requests that would wait longer for their first token are refused with 503; None: all wait."""
    status_wait_ms: int = 15_000
    """How long a streamed reply's status waits for the first token; then keep-alive comments, as far apart.
    """
    write_stall_ms: int = 20_000
    """A stream whose client takes nothing for so long, with its buffers full, is cut."""
    connect_wait_ms: int = 5_000
    """How long a placed request waits for the session with its worker."""
    retry_wait_ms: int = 30_000
    """How long a request that lost its worker waits for one to come back."""
    retry_poll_ms: int = 200
    settle_wait_ms: int = 5_000
    """How long a cancelled request waits for the terminal rows that say what it used."""
    route_timeout_ms: int = 5_000
    reconnect_first_ms: int = 50
    reconnect_last_ms: int = 2_000
    keepalive_ms: int = 20_000
    key_cache_ms: int = 1_000
    """How long a key may still work on this process after another one revoked it."""
    key_stale_ms: int = 60_000
    """How long a key that worked goes on working while the shared store cannot be reached, where its tenant
    wants that."""
    drain_delay_ms: int = 0
    drain_limit_ms: int = 30_000


@dataclass(frozen=True, slots=True)
class Secrets:
    """`pepper` hashes tenants' keys and salts their caches; `admin_key` opens the admin port."""

    pepper: bytes = field(repr=False)
    admin_key: str = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.pepper) < 16:
            raise SettingsError(f"the pepper has {len(self.pepper)} bytes; give a file with at least 16")
        if len(self.admin_key) < 16:
            raise SettingsError(
                f"the admin key has {len(self.admin_key)} characters; give one of at least 16"
            )


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    identity: Identity
    router_address: str
    store: StoreSettings
    secrets: Secrets
    listen: ListenSettings = field(default_factory=ListenSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    timing: TimingSettings = field(default_factory=TimingSettings)
