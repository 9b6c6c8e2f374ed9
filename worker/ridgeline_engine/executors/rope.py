"""Rotary position embedding: its parameters and its inverse frequencies. Torch-free."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from ridgeline_contracts.errors import Unsupported

from ridgeline_engine.executors.config_fields import ConfigFields


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotation of (first half, second half) pairs of a head by position times theta ** (-2i / head_dim)."""

    theta: float
    kind: str = "default"
    """default, linear or llama3."""
    factor: float = 1.0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 1.0
    original_context_tokens: int = 0


def read_rope(config: ConfigFields) -> Rope:
    """From `rope_parameters`, or the older `rope_theta` and `rope_scaling`. Raises Unsupported for other
    kinds."""
    scaling = config.group("rope_parameters") or config.group("rope_scaling")
    theta = config.positive("rope_theta", default=10_000.0)
    if scaling is None:
        return Rope(theta=theta)
    theta = scaling.positive("rope_theta", default=theta)
    kind = scaling.word("rope_type", "type", default="default")
    if kind not in _SCALERS:
        raise Unsupported(
            f"rope scaling {kind!r} is not known: {', '.join(_SCALERS)} are", param="rope_scaling"
        )
    if kind == "default":
        return Rope(theta=theta)
    factor = scaling.positive("factor")
    if kind == "linear":
        return Rope(theta=theta, kind=kind, factor=factor)
    return Rope(
        theta=theta,
        kind=kind,
        factor=factor,
        low_frequency_factor=scaling.positive("low_freq_factor"),
        high_frequency_factor=scaling.positive("high_freq_factor"),
        original_context_tokens=scaling.count("original_max_position_embeddings"),
    )


def cos_sin_table(rope: Rope, *, head_dim: int, context_tokens: int) -> npt.NDArray[np.float32]:
    """[context_tokens, head_dim]: cosines of the head_dim / 2 angles, then their sines.

    Angles are products of fp32 numbers, as in the reference implementation, so that long positions agree with
    it.
    """
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    plain = (1.0 / np.power(np.float32(rope.theta), exponents)).astype(np.float32)
    frequencies = _SCALERS[rope.kind](plain, rope).astype(np.float32)
    angles = np.arange(context_tokens, dtype=np.float32)[:, None] * frequencies[None, :]
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1, dtype=np.float32)


def _unscaled(frequencies: npt.NDArray[np.float32], _rope: Rope) -> npt.NDArray[np.float32]:
    return frequencies


def _linear(frequencies: npt.NDArray[np.float32], rope: Rope) -> npt.NDArray[np.float32]:
    return frequencies / np.float32(rope.factor)


def _llama3(frequencies: npt.NDArray[np.float32], rope: Rope) -> npt.NDArray[np.float32]:
    """Keeps high frequencies, divides low ones by the factor, blends those between."""
    turns = rope.original_context_tokens * frequencies / (2 * math.pi)
    span = rope.high_frequency_factor - rope.low_frequency_factor
    kept: npt.NDArray[np.float32] = np.clip((turns - rope.low_frequency_factor) / span, 0.0, 1.0)
    return kept * frequencies + (np.float32(1.0) - kept) * frequencies / np.float32(rope.factor)


_SCALERS: Mapping[str, Callable[[npt.NDArray[np.float32], Rope], npt.NDArray[np.float32]]] = {
    "default": _unscaled,
    "linear": _linear,
    "llama3": _llama3,
}
