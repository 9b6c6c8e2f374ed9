"""Settings of the torch executor."""

from dataclasses import dataclass
from pathlib import Path

from ridgeline_contracts.errors import SettingsError

from ridgeline_engine.executors.sizes import DtypeSetting, WeightsSetting


@dataclass(frozen=True, slots=True)
class TorchSettings:
    """Raises SettingsError for a number that cannot work."""

    kv_blocks: int
    """Blocks in each KV group."""
    cache_dir: Path
    """Where compiled kernels are kept."""
    dtype: DtypeSetting = "auto"
    """Of weights and KV. auto: the checkpoint's, with float16 taken as bf16. fp32 is the exact mode."""
    weights: WeightsSetting = "auto"
    """Of the matrices. auto: as dtype says. int8 and int4 are rounded while they load, and run on a CPU only."""
    device: str = "auto"
    """auto: CUDA where there is a device, else cpu. Or a torch device name."""
    threads: int = 1
    block_tokens: int = 16
    max_batch: int = 32
    """Slots."""
    max_context_tokens: int | None = None
    """None: the model's own."""
    host_blocks: int = 0
    """Blocks in each KV group that the host's memory holds for sequences that are swapped out."""
    deterministic: bool = False
    """No row's bits depend on the rows beside it or on how its prompt was cut; refuse to start where that cannot
    be."""

    def __post_init__(self) -> None:
        for name in ("kv_blocks", "threads", "block_tokens", "max_batch"):
            value = getattr(self, name)
            if value < 1:
                raise SettingsError(f"{name}={value} is too small: give at least 1", param=name)
        if self.host_blocks < 0:
            raise SettingsError(
                f"host_blocks={self.host_blocks} is too small: give at least 0", param="host_blocks"
            )
        if self.dtype not in ("auto", "bf16", "fp32"):
            raise SettingsError(f"dtype={self.dtype!r} is not known: give auto, bf16 or fp32", param="dtype")
        if self.weights not in ("auto", "int8", "int4"):
            raise SettingsError(
                f"weights={self.weights!r} is not known: give auto, int8 or int4", param="weights"
            )
        if self.max_context_tokens is not None and self.max_context_tokens < 1:
            raise SettingsError(
                f"max_context_tokens={self.max_context_tokens} is too small: give at least 1",
                param="max_context_tokens",
            )
