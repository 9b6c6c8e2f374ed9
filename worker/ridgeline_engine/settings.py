"""How an engine is set up. Read once at the start, never changed."""

from dataclasses import dataclass, field
from enum import StrEnum

from ridgeline_contracts.errors import SettingsError
from ridgeline_contracts.step import StepCoefficients

from ridgeline_engine.policy.overrides import PolicyOverrides

DEFAULT_COEFFICIENTS = StepCoefficients(
    base_ms=10.0,
    per_row_ms=0.2,
    per_context_token_ms=1e-4,
    per_prefill_token_ms=0.05,
    per_prefill_context_ms=1e-6,
)
"""A guess until steps were measured; a worker replaces it by the roofline's prediction."""


class AsyncScheduling(StrEnum):
    """Whether a step is planned and launched while the one before runs."""

    AUTO = "auto"
    """Where hiding the host's time saves more than rows behind an unseen end waste."""
    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Facts of the model that the executor does not publish, and the engine's knobs."""

    eos_token_ids: tuple[int, ...]
    """All end-of-sequence ids of the model's generation config."""
    weights_revision: str = ""
    """Part of the block hashes: KV of other weights is never hit."""
    max_batch: int | None = None
    """Sequences that run at once; None: what the executor can hold."""
    max_step_tokens: int = 2048
    """Tokens of one step, decode and prefill together."""
    min_chunk_tokens: int = 256
    """Prefill gets at least this many tokens a step, whatever the target: else long prompts would starve."""
    tpot_target_ms: float | None = 30.0
    """While sequences decode, prefill chunks are cut so that a step stays below this; None: never cut."""
    max_waiting: int = 4096
    """Sequences that may wait; one more is refused as Overloaded."""
    ttft_target_ms: float | None = None
    """Interactive requests that would wait longer for their first token are refused; None: none is."""
    policy: str = "fair"
    preemption: str = "auto"
    """When blocks run out: recompute, swap or wait; auto asks which costs least."""
    host_copy_bytes_per_ms: float | None = None
    """KV between device and host, as measured at the start; None: swap is not considered by auto."""
    async_scheduling: AsyncScheduling = AsyncScheduling.AUTO
    host_share_ratio: float = 0.0
    """Part of the device's rate that the host takes away while it works: 0 for a GPU of its own."""
    overrides: PolicyOverrides = field(default=PolicyOverrides())
    prefix_cache: bool = True
    kv_event_buffer: int = 8192
    """Events kept for a reader that fell behind; one that asks for older ones gets a snapshot."""
    coefficients: StepCoefficients = field(default=DEFAULT_COEFFICIENTS)

    def __post_init__(self) -> None:
        for name in ("max_step_tokens", "min_chunk_tokens", "max_waiting", "kv_event_buffer"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name}={getattr(self, name)}: give at least 1", param=name)
        if self.max_batch is not None and self.max_batch < 1:
            raise SettingsError(f"max_batch={self.max_batch}: give at least 1", param="max_batch")
        if not 0.0 <= self.host_share_ratio <= 1.0:
            raise SettingsError(
                f"host_share_ratio={self.host_share_ratio}: give 0 to 1", param="host_share_ratio"
            )
        for name in ("tpot_target_ms", "ttft_target_ms", "host_copy_bytes_per_ms"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise SettingsError(f"{name}={value}: give more than 0", param=name)
