"""Whether a request would come too late, and when to come again. Pure."""

from collections.abc import Callable

from ridgeline_contracts.errors import DeadlineExceeded, InvalidRequest, Overloaded
from ridgeline_contracts.proto import router_pb2

DEADLINE_HEADER = "x-ridgeline-deadline-ms"
NO_RETRY_ABOVE_MS = 60_000
"""Some clients sleep for however long they are told: above this they are told not to try again."""
_LEAST_RETRY_MS = 250
_JITTER_RATIO = 0.25
_RANDOM_SPAN = 2**16
_LATEST_MS = 2**31


def too_late(
    estimates: router_pb2.Estimates,
    *,
    waited_ms: float,
    target_ms: int,
    random_bytes: Callable[[int], bytes],
) -> Overloaded | None:
    """The refusal of a request whose first token would come later than its target; None where it is in time.

    Retry-After is the time in which the queue drains as far as the target wants it, plus up to a quarter, drawn at
    random, so that those who are refused together do not come back together.
    """
    expected_ms = waited_ms + estimates.ttft_ms
    if expected_ms <= target_ms:
        return None
    drains_ms = min(estimates.queue_ms, expected_ms - target_ms)
    draw = int.from_bytes(random_bytes(2), "big") / _RANDOM_SPAN
    retry_ms = round(max(_LEAST_RETRY_MS, drains_ms) * (1 + _JITTER_RATIO * draw))
    return Overloaded(
        f"the first token would come after {expected_ms:.0f} ms, the target is {target_ms} ms: retry in {retry_ms} ms",
        retry_after_ms=retry_ms,
    )


def stated_deadline_ms(text: str | None, *, most_ms: int) -> int:
    """From the header that a client may send: how long it waits. Raises InvalidRequest for what is no such time."""
    if text is None:
        return most_ms
    if not (text.isascii() and text.isdigit() and 0 < int(text) < _LATEST_MS):
        raise InvalidRequest(
            f"{DEADLINE_HEADER}: {text[:32]!r} is no time: give whole milliseconds from 1",
            param=DEADLINE_HEADER,
        )
    return min(most_ms, int(text))


def passed_while_waiting(remaining_ms: float) -> DeadlineExceeded | None:
    """The refusal of a request that nobody waits for any more: it is not prefilled."""
    if remaining_ms > 0:
        return None
    return DeadlineExceeded("the request's deadline passed before it could begin")
