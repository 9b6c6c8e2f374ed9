"""The error tree. Every message says what was wrong, which value, and the fix.

RidgelineError
|-- CallerError              the caller's to mend (4xx; exit code 2)
|   |-- InvalidRequest       400  a bad field or value
|   |-- Unsupported          400  what this pool's executor lacks
|   |-- NotAuthenticated     401
|   |-- NotPermitted         403
|   |-- NotFound             404  unknown model, tenant, file
|   |-- Conflict             409
|   |-- RateLimited          429  carries retry_after_ms
|   `-- SettingsError        a setting or flag that stops a start
|-- PeerError                a part of the platform is not there now (502/503); carries retry_after_ms
|   |-- Overloaded           would miss its deadline, queue full, draining
|   |-- WorkerLost           the worker went away with the request
|   |-- OutOfMemory          no room for this request on the worker
|   |-- DeviceFault          the accelerator failed
|   `-- DeadlineExceeded     504
|-- Cancelled                the client went away or asked for it
`-- InvariantError           a bug in Ridgeline: crash loudly
"""

from typing import ClassVar


class RidgelineError(Exception):
    """Base of all errors that Ridgeline raises on purpose. `code` is stable and travels on the wire."""

    code: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, *, param: str | None = None, retry_after_ms: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        """The request field or setting that is at fault, where there is one."""
        self.retry_after_ms = retry_after_ms


class CallerError(RidgelineError):
    code = "caller_error"
    http_status = 400


class InvalidRequest(CallerError):
    code = "invalid_request"


class Unsupported(CallerError):
    code = "unsupported"


class NotAuthenticated(CallerError):
    code = "not_authenticated"
    http_status = 401


class NotPermitted(CallerError):
    code = "not_permitted"
    http_status = 403


class NotFound(CallerError):
    code = "not_found"
    http_status = 404


class Conflict(CallerError):
    code = "conflict"
    http_status = 409


class RateLimited(CallerError):
    code = "rate_limited"
    http_status = 429


class SettingsError(CallerError):
    code = "settings"


class PeerError(RidgelineError):
    code = "unavailable"
    http_status = 503


class Overloaded(PeerError):
    code = "overloaded"


class WorkerLost(PeerError):
    code = "worker_lost"
    http_status = 502


class OutOfMemory(PeerError):
    code = "out_of_memory"


class DeviceFault(PeerError):
    code = "device_fault"
    http_status = 502


class DeadlineExceeded(PeerError):
    code = "deadline_exceeded"
    http_status = 504


class Cancelled(RidgelineError):
    code = "cancelled"
    http_status = 499


class InvariantError(RidgelineError):
    code = "invariant"


def _all_classes(base: type[RidgelineError]) -> list[type[RidgelineError]]:
    return [base, *(found for sub in base.__subclasses__() for found in _all_classes(sub))]


def error_from_code(code: str, message: str, *, retry_after_ms: int | None = None) -> RidgelineError:
    """Builds the error that a peer named by its wire `code`; an unknown code becomes a RidgelineError."""
    by_code = {found.code: found for found in _all_classes(RidgelineError)}
    return by_code.get(code, RidgelineError)(message, retry_after_ms=retry_after_ms)
