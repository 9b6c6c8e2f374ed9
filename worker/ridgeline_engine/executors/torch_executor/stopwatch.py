"""Time that the device spends on a step: by events on a GPU, by the clock on a CPU."""

import torch
from ridgeline_contracts.clock import Clock


class Stopwatch:
    """Adds up the spans between `start` and `stop`."""

    def __init__(self, clock: Clock, device: torch.device) -> None:
        self._clock = clock
        self._on_gpu = device.type == "cuda"
        self._started_ms = 0.0
        self._sum_ms = 0.0
        self._events: list[torch.cuda.Event] = []

    def start(self) -> None:
        if self._on_gpu:
            self._record()
        else:
            self._started_ms = self._clock.monotonic_ms()

    def stop(self) -> None:
        if self._on_gpu:
            self._record()
        else:
            self._sum_ms += self._clock.monotonic_ms() - self._started_ms

    def elapsed_ms(self) -> float:
        """Waits, on a GPU, for the last event."""
        if not self._on_gpu:
            return self._sum_ms
        self._events[-1].synchronize()
        pairs = zip(self._events[::2], self._events[1::2], strict=True)
        return sum(float(begin.elapsed_time(end)) for begin, end in pairs)

    def _record(self) -> None:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self._events.append(event)
