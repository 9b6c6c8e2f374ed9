"""Thresholds that are normally derived from the step model, set by hand."""

from dataclasses import dataclass, fields

from ridgeline_contracts.errors import SettingsError


@dataclass(frozen=True, slots=True)
class PolicyOverrides:
    """None: the derived value. `Engine.derivations()` prints both."""

    batch_cap: int | None = None
    """Interactive sequences that run at once."""
    batch_kv_tokens: int | None = None
    """KV positions that the batch class may hold while interactive sequences run."""
    gap_bound_ms: float | None = None
    """Longest step that a prefill may cause while others decode."""
    overtaking_ratio: float | None = None
    """For how many times its own prefill a prompt may be overtaken by shorter ones that come later."""
    output_weight: float | None = None
    """Prompt tokens that an output token counts as in a tenant's share."""
    backlog_tokens: int | None = None
    """Prompt tokens that may wait under a TTFT target."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None and not (value >= 0 if each.name in _MAY_BE_ZERO else value > 0):
                least = "0 or more" if each.name in _MAY_BE_ZERO else "more than 0"
                raise SettingsError(f"{each.name}={value}: give {least}", param=each.name)


_MAY_BE_ZERO = frozenset({"batch_kv_tokens", "overtaking_ratio"})
