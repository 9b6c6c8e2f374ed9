"""Latency and bandwidth of collectives: alpha-beta models (Thakur, Rabenseifner, Gropp, 2005).

`n` ranks, a message of S bytes a rank, B bytes/s one way, alpha s a message:

    ring all-reduce      2 (n-1) alpha + 2 (n-1)/n S/B     each rank talks to its neighbour only
    one-shot all-reduce  alpha + (n-1) S/B                 every rank reads every other's whole message
    two-shot all-reduce  2 alpha + 2 (n-1)/n S/B           reduce-scatter, then all-gather, all at once
    hierarchical         reduce-scatter inside each of the n/d domains of d ranks, an all-reduce of S/d across
                         them over the wide link, all-gather inside
    all-to-all           alpha + (n-1)/n S/B               S: what a rank sends to all, its own share included
    send                 alpha + S/B
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ridgeline_roofline.catalogue.links import Link


class CollectiveKind(StrEnum):
    ALL_REDUCE = "all-reduce"
    ALL_TO_ALL = "all-to-all"
    SEND = "send"


@dataclass(frozen=True, slots=True)
class CollectiveTime:
    """Of one collective: `latency_s` is fixed, `transfer_s` grows with the message."""

    algorithm: str
    latency_s: float
    transfer_s: float

    @property
    def seconds(self) -> float:
        return self.latency_s + self.transfer_s


def ring_all_reduce(size_bytes: float, ranks: int, link: Link) -> CollectiveTime:
    steps = 2 * (ranks - 1)
    return CollectiveTime("ring", steps * link.latency_s, steps / ranks * size_bytes / link.bytes_per_s)


def one_shot_all_reduce(size_bytes: float, ranks: int, link: Link) -> CollectiveTime:
    return CollectiveTime("one-shot", link.latency_s, (ranks - 1) * size_bytes / link.bytes_per_s)


def two_shot_all_reduce(size_bytes: float, ranks: int, link: Link) -> CollectiveTime:
    moved = 2 * (ranks - 1) / ranks * size_bytes
    return CollectiveTime("two-shot", 2 * link.latency_s, moved / link.bytes_per_s)


ALL_REDUCES: Final[Mapping[str, Callable[[float, int, Link], CollectiveTime]]] = {
    "one-shot": one_shot_all_reduce,
    "two-shot": two_shot_all_reduce,
    "ring": ring_all_reduce,
}


def all_reduce(size_bytes: float, ranks: int, link: Link) -> CollectiveTime:
    """The fastest of the three; nothing for one rank."""
    if ranks == 1:
        return CollectiveTime("none", 0.0, 0.0)
    return min(
        (form(size_bytes, ranks, link) for form in ALL_REDUCES.values()), key=lambda found: found.seconds
    )


def hierarchical_all_reduce(
    size_bytes: float, ranks: int, *, inside: int, fast: Link, wide: Link
) -> CollectiveTime:
    """Over several domains of `inside` ranks each; every rank has its own wide link."""
    within = two_shot_all_reduce(size_bytes, inside, fast)
    across = all_reduce(size_bytes / inside, -(-ranks // inside), wide)
    return CollectiveTime(
        "hierarchical", within.latency_s + across.latency_s, within.transfer_s + across.transfer_s
    )


def all_to_all(size_bytes: float, ranks: int, link: Link) -> CollectiveTime:
    """`size_bytes`: what one rank sends to all, its own share included."""
    if ranks == 1:
        return CollectiveTime("none", 0.0, 0.0)
    return CollectiveTime("direct", link.latency_s, (ranks - 1) / ranks * size_bytes / link.bytes_per_s)


def send(size_bytes: float, link: Link) -> CollectiveTime:
    return CollectiveTime("send", link.latency_s, size_bytes / link.bytes_per_s)


def one_shot_crossover_bytes(ranks: int, link: Link) -> float:
    """The message size from which two-shot beats one-shot: alpha B / ((n-1) (1 - 2/n)). Infinite for 2 ranks."""
    extra = (ranks - 1) * (1 - 2 / ranks)
    return float("inf") if extra == 0 else link.latency_s * link.bytes_per_s / extra
