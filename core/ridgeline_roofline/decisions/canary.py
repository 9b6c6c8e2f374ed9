"""Canaries: how many requests a verdict needs, and when it may be given early.

two proportions (Fleiss, Levin, Paik, 2003): n a side =
    (z_a sqrt(2 p q) + z_b sqrt(p1 q1 + p2 q2))^2 / (p2 - p1)^2,   p the mean of both rates
two means: n a side = 2 ((z_a + z_b) sd / difference)^2
sequential probability ratio test (Wald, 1945): stop as regressed above ln((1 - beta) / alpha), as sound below
    ln(beta / (1 - alpha)); each request adds ln of its likelihood ratio
"""

from dataclasses import dataclass
from math import ceil, log, sqrt
from statistics import NormalDist

from ridgeline_contracts.errors import SettingsError

from ridgeline_roofline.decisions.decision import Decision


@dataclass(frozen=True, slots=True)
class CanaryFacts:
    """What must be caught, and how often the verdict may be wrong."""

    base_rate: float
    """Share of requests that fail (or miss the target) today."""
    regressed_rate: float
    """The share from which the candidate must not be promoted."""
    false_alarm: float = 0.05
    """Chance that a sound candidate is aborted (alpha)."""
    miss: float = 0.05
    """Chance that a regressed one is promoted (beta)."""


@dataclass(frozen=True, slots=True)
class SequentialBounds:
    """Of the sum over the candidate's requests of `fail_step` or `pass_step`."""

    abort_above: float
    promote_below: float
    fail_step: float
    pass_step: float


def canary_requests(facts: CanaryFacts) -> Decision[int]:
    """Requests on each side for a test at the end. Raises SettingsError for rates that are no regression."""
    _check(facts)
    low, high = facts.base_rate, facts.regressed_rate
    mean = (low + high) / 2
    z_alarm, z_miss = (NormalDist().inv_cdf(1 - error) for error in (facts.false_alarm, facts.miss))
    spread = z_alarm * sqrt(2 * mean * (1 - mean)) + z_miss * sqrt(low * (1 - low) + high * (1 - high))
    value = ceil((spread / (high - low)) ** 2)
    return Decision(
        value,
        f"({z_alarm:.3f} sqrt(2 x {mean:.4g} x {1 - mean:.4g}) + {z_miss:.3f} sqrt({low:.4g} x {1 - low:.4g} + "
        f"{high:.4g} x {1 - high:.4g}))^2 / {high - low:.4g}^2 = {value} requests a side, to tell {low:.3%} from "
        f"{high:.3%} with {facts.false_alarm:.1%} false alarms and {facts.miss:.1%} misses",
    )


def latency_requests(
    *, sd: float, difference: float, false_alarm: float = 0.05, miss: float = 0.05
) -> Decision[int]:
    """Requests on each side to see a shift of a mean; `sd` and `difference` in the same unit."""
    z_alarm, z_miss = (NormalDist().inv_cdf(1 - error) for error in (false_alarm, miss))
    value = ceil(2 * ((z_alarm + z_miss) * sd / difference) ** 2)
    return Decision(
        value, f"2 (({z_alarm:.3f} + {z_miss:.3f}) x {sd:.4g} / {difference:.4g})^2 = {value} requests a side"
    )


def sequential_bounds(facts: CanaryFacts) -> Decision[SequentialBounds]:
    """Wald's bounds on the log likelihood ratio of regressed against sound."""
    _check(facts)
    value = SequentialBounds(
        abort_above=log((1 - facts.miss) / facts.false_alarm),
        promote_below=log(facts.miss / (1 - facts.false_alarm)),
        fail_step=log(facts.regressed_rate / facts.base_rate),
        pass_step=log((1 - facts.regressed_rate) / (1 - facts.base_rate)),
    )
    return Decision(
        value,
        f"abort above ln((1 - {facts.miss:g}) / {facts.false_alarm:g}) = {value.abort_above:.3f}, promote below "
        f"ln({facts.miss:g} / (1 - {facts.false_alarm:g})) = {value.promote_below:.3f}; a failure adds "
        f"{value.fail_step:.4f}, a success {value.pass_step:.6f}",
    )


def expected_requests(facts: CanaryFacts, *, true_rate: float) -> float:
    """About how many requests the sequential test takes, by Wald's identity (overshoot left out)."""
    bounds = sequential_bounds(facts).value
    drift = true_rate * bounds.fail_step + (1 - true_rate) * bounds.pass_step
    aborted = 1 - facts.miss if drift > 0 else facts.false_alarm
    end = aborted * bounds.abort_above + (1 - aborted) * bounds.promote_below
    return end / drift


def _check(facts: CanaryFacts) -> None:
    if not 0 < facts.base_rate < facts.regressed_rate < 1:
        raise SettingsError(
            f"base rate {facts.base_rate:g} and regressed rate {facts.regressed_rate:g}: give 0 < base < regressed < 1",
            param="regressed",
        )
    for name, error in (("false_alarm", facts.false_alarm), ("miss", facts.miss)):
        if not 0 < error < 0.5:
            raise SettingsError(f"{name}={error:g}: give more than 0 and less than 0.5", param=name)
