"""The error tree: stable codes, statuses by family, and the way back from the wire."""

import pytest
from ridgeline_contracts import errors
from ridgeline_contracts.errors import (
    CallerError,
    Cancelled,
    InvariantError,
    PeerError,
    RidgelineError,
    error_from_code,
)

ALL = [
    found for found in vars(errors).values() if isinstance(found, type) and issubclass(found, RidgelineError)
]


@pytest.mark.parametrize(
    ("name", "base", "code", "status"),
    [
        pytest.param("InvalidRequest", CallerError, "invalid_request", 400, id="InvalidRequest"),
        pytest.param("Unsupported", CallerError, "unsupported", 400, id="Unsupported"),
        pytest.param("NotAuthenticated", CallerError, "not_authenticated", 401, id="NotAuthenticated"),
        pytest.param("NotPermitted", CallerError, "not_permitted", 403, id="NotPermitted"),
        pytest.param("NotFound", CallerError, "not_found", 404, id="NotFound"),
        pytest.param("Conflict", CallerError, "conflict", 409, id="Conflict"),
        pytest.param("RateLimited", CallerError, "rate_limited", 429, id="RateLimited"),
        pytest.param("SettingsError", CallerError, "settings", 400, id="SettingsError"),
        pytest.param("Overloaded", PeerError, "overloaded", 503, id="Overloaded"),
        pytest.param("WorkerLost", PeerError, "worker_lost", 502, id="WorkerLost"),
        pytest.param("OutOfMemory", PeerError, "out_of_memory", 503, id="OutOfMemory"),
        pytest.param("DeviceFault", PeerError, "device_fault", 502, id="DeviceFault"),
        pytest.param("DeadlineExceeded", PeerError, "deadline_exceeded", 504, id="DeadlineExceeded"),
        pytest.param("Cancelled", RidgelineError, "cancelled", 499, id="Cancelled"),
        pytest.param("InvariantError", RidgelineError, "invariant", 500, id="InvariantError"),
    ],
)
def test_codes_and_statuses_are_stable(name: str, base: type[RidgelineError], code: str, status: int) -> None:
    found = getattr(errors, name)
    assert issubclass(found, base)
    assert (found.code, found.http_status) == (code, status)


def test_no_two_errors_share_a_code() -> None:
    assert len({found.code for found in ALL}) == len(ALL)


@pytest.mark.parametrize("found", ALL, ids=lambda found: found.__name__)
def test_an_error_comes_back_from_its_code(found: type[RidgelineError]) -> None:
    error = error_from_code(found.code, "why", retry_after_ms=250)
    assert type(error) is found
    assert (str(error), error.message, error.retry_after_ms) == ("why", "why", 250)


def test_an_unknown_code_of_a_newer_peer_is_an_internal_error() -> None:
    error = error_from_code("not-yet-invented", "why")
    assert type(error) is RidgelineError
    assert error.http_status == 500


def test_an_error_names_the_field_at_fault() -> None:
    assert CallerError("bad top_p", param="top_p").param == "top_p"
    assert Cancelled("gone").param is None
    assert not issubclass(InvariantError, CallerError)
