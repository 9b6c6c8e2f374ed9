"""Whether this gateway should get requests. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Health:
    """What readiness follows from."""

    router_reachable: bool
    ready_workers: int
    """As the router tells."""
    connected_workers: int
    """With a session of this gateway's own."""
    loaded_tokenizers: int
    """Without one the first request would wait for it."""
    draining: bool

    @property
    def problem(self) -> str | None:
        """Why this gateway is not ready; None when it is."""
        if self.draining:
            return "draining"
        if not self.router_reachable:
            return "the router is not reachable"
        if not self.ready_workers:
            return "no worker is ready"
        if not self.connected_workers:
            return "no session with a worker"
        if not self.loaded_tokenizers:
            return "no served model's tokenizer is loaded"
        return None
