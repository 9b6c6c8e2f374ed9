"""Waiting times and Little's law. Arrivals are Poisson; `scv` is variance / mean^2 of the service time.

M/G/1 mean wait   rho s (1 + scv) / (2 (1 - rho))                          Pollaczek and Khinchine
M/M/c delay       Erlang's C: the chance that an arrival waits
M/G/c mean wait   C s / (c (1 - rho)) x (1 + scv) / 2                      Allen and Cunneen's approximation
p-th wait         an arrival waits with probability P, then about exponentially: mean / P x ln(P / (1 - p))
"""

from collections.abc import Callable
from math import exp, lgamma, log
from typing import Final

_SMALLEST_BATCH: Final = 1e-4
_LARGEST_BATCH: Final = 1e5
_GRID_RATIO: Final = 1.25


def erlang_c(servers: int, utilisation: float) -> float:
    """Probability that an arrival finds all servers busy. `utilisation` in [0, 1)."""
    if utilisation <= 0:
        return 0.0
    load = utilisation * servers
    # Terms load^k / k! by their logarithms: they overflow for a few hundred servers.
    logs = [k * log(load) - lgamma(k + 1) for k in range(servers + 1)]
    top = max(logs)
    below = sum(exp(each - top) for each in logs[:servers])
    full = exp(logs[servers] - top) / (1 - utilisation)
    return full / (below + full)


def mean_wait_s(service_s: float, scv: float, utilisation: float, *, servers: int = 1) -> float:
    """Of an arrival, in an M/G/c queue; infinite from a utilisation of 1 on."""
    if utilisation >= 1:
        return float("inf")
    delayed = erlang_c(servers, utilisation)
    return delayed * service_s / (servers * (1 - utilisation)) * (1 + scv) / 2


def wait_quantile_s(
    service_s: float, scv: float, utilisation: float, *, quantile: float, servers: int = 1
) -> float:
    """The wait that a share `quantile` of arrivals stays below."""
    if utilisation >= 1:
        return float("inf")
    delayed = erlang_c(servers, utilisation)
    if delayed <= 1 - quantile:
        return 0.0
    return mean_wait_s(service_s, scv, utilisation, servers=servers) / delayed * log(delayed / (1 - quantile))


def utilisation_ceiling(
    service_s: float, scv: float, *, target_s: float, quantile: float = 0.99, servers: int = 1
) -> float:
    """The largest utilisation whose wait at `quantile` stays within `target_s`."""
    return largest(
        lambda rho: wait_quantile_s(service_s, scv, rho, quantile=quantile, servers=servers) <= target_s,
        0.0,
        1.0,
    )


def largest(holds: Callable[[float], bool], low: float, high: float, *, rounds: int = 60) -> float:
    """By bisection: the largest value in [low, high] that holds, for what stops holding once. `low` is taken to."""
    if holds(high):
        return high
    for _ in range(rounds):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def residents(rate_per_s: float, step_s: Callable[[float], float], output_tokens: float) -> float:
    """Sequences that decode at once, by Little's law: the smallest B = rate x output x step(B).

    A batch of B carries B / (output x step(B)) requests/s: the first on a geometric grid that carries the rate,
    then by bisection. Infinite where none does: steps grow faster than the batch drains.
    """

    def carries(batch: float) -> bool:
        return batch >= rate_per_s * output_tokens * step_s(batch)

    batch = _SMALLEST_BATCH
    while not carries(batch):
        batch *= _GRID_RATIO
        if batch > _LARGEST_BATCH:
            return float("inf")
    return largest(lambda each: not carries(each), batch / _GRID_RATIO, batch)
