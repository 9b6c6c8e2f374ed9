"""How a model is laid over GPUs, and which layouts cannot work.

tp  ranks that share every matrix (columns, then rows: two all-reduces a layer)
pp  stages that share the layers
dp  replicas of attention, each with its own sequences; with ep their experts are common
ep  ranks that the experts are divided over; 1: experts are split like other matrices
"""

from dataclasses import dataclass

from ridgeline_contracts.errors import SettingsError

from ridgeline_roofline.catalogue.mixers import Attention, LatentAttention, Mixer, Recurrent
from ridgeline_roofline.catalogue.model_spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Layout:
    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1

    @property
    def gpus(self) -> int:
        return self.tp * self.pp * self.dp

    @property
    def expert_shards(self) -> int:
        """Into how many equal parts a layer's experts are divided."""
        return self.tp * self.dp if self.ep > 1 else self.tp

    def __str__(self) -> str:
        parts = [
            f"{name.upper()}{n}"
            for name, n in zip(("tp", "pp", "ep", "dp"), self._numbers, strict=True)
            if n > 1
        ]
        return " x ".join(parts) or "one GPU"

    @property
    def _numbers(self) -> tuple[int, int, int, int]:
        return self.tp, self.pp, self.ep, self.dp


def check_layout(model: ModelSpec, layout: Layout) -> None:
    """Raises SettingsError naming the number that does not divide, and those that would."""
    for name, value in (("tp", layout.tp), ("pp", layout.pp), ("ep", layout.ep), ("dp", layout.dp)):
        if value < 1:
            raise SettingsError(f"{name}={value}: give at least 1", param=name)
    for heads, what in _split_counts(model):
        if heads % layout.tp:
            fits = " ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
            raise SettingsError(
                f"tp={layout.tp} does not divide the {heads} {what} of {model.model_id}: give one of {fits}",
                param="tp",
            )
    if layout.pp > model.layers:
        raise SettingsError(
            f"pp={layout.pp} stages for {model.layers} layers of {model.model_id}: give at most {model.layers}",
            param="pp",
        )
    _check_experts(model, layout)


def _check_experts(model: ModelSpec, layout: Layout) -> None:
    if layout.ep == 1:
        return
    experts = [moe.experts for _, moe in model.moe_layers()]
    if not experts:
        raise SettingsError(
            f"ep={layout.ep}: {model.model_id} has no experts to divide, give ep=1", param="ep"
        )
    ranks = layout.tp * layout.dp
    fits = [n for n in range(1, ranks + 1) if ranks % n == 0 and all(count % n == 0 for count in experts)]
    if layout.ep not in fits:
        raise SettingsError(
            f"ep={layout.ep} must divide tp x dp = {ranks} and the {experts[0]} experts of {model.model_id}: "
            f"give one of {' '.join(map(str, fits))}",
            param="ep",
        )


def _split_counts(model: ModelSpec) -> list[tuple[int, str]]:
    found: dict[tuple[int, str], None] = {}
    for _, mixer in model.mixers():
        what = "recurrent heads" if isinstance(mixer, Recurrent) else "query heads"
        found[mixer.heads, what] = None
    return list(found)


def kv_share(mixer: Mixer, tp: int) -> float:
    """Share of a mixer's KV that one TP rank holds: 1 / tp until the KV heads run out, then copies."""
    return 1.0 / min(tp, mixer.split_heads)


def kv_copies(model: ModelSpec, layout: Layout) -> float:
    """How often each KV byte is held over the TP ranks: 1.0 where nothing is copied."""
    worst = [
        kv_share(mixer, layout.tp) * layout.tp
        for _, mixer in model.mixers()
        if isinstance(mixer, Attention | LatentAttention)
    ]
    return max(worst, default=1.0)
