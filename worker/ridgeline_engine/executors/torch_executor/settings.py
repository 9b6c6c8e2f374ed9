"""Settings of the torch executor."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from ridgeline_contracts.errors import SettingsError

DtypeSetting: TypeAlias = Literal["auto", "bf16", "fp32"]


@dataclass(frozen=True, slots=True)
class TorchSettings:
    """Raises SettingsError for a number that cannot work."""

    kv_blocks: int
    """Blocks in each KV group."""
    cache_dir: Path
    """Where compiled kernels are kept."""
    dtype: DtypeSetting = "auto"
    """Of weights and KV. auto: the checkpoint's, with float16 taken as bf16. fp32 is the exact mode."""
    device: str = "auto"
    """auto: CUDA where there is a device, else cpu. Or a torch device name."""
    threads: int = 1
    block_tokens: int = 16
    max_batch: int = 32
    """Slots."""
    max_context_tokens: int | None = None
    """None: the model's own."""
    deterministic: bool = False
    """Hold matrices so that no row's result depends on the rows beside it; refuse to start where that cannot
    be."""

    def __post_init__(self) -> None:
        for name in ("kv_blocks", "threads", "block_tokens", "max_batch"):
            value = getattr(self, name)
            if value < 1:
                raise SettingsError(f"{name}={value} is too small: give at least 1", param=name)
        if self.dtype not in ("auto", "bf16", "fp32"):
            raise SettingsError(f"dtype={self.dtype!r} is not known: give auto, bf16 or fp32", param="dtype")
        if self.max_context_tokens is not None and self.max_context_tokens < 1:
            raise SettingsError(
                f"max_context_tokens={self.max_context_tokens} is too small: give at least 1",
                param="max_context_tokens",
            )
