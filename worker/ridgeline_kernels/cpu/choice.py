"""Which forms to hold a weight in: measured once per shape and machine, decided purely, kept in a file."""

import hashlib
import itertools
import json
import logging
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from ridgeline_contracts.clock import Clock
from torch import Tensor

from ridgeline_kernels.cpu.forms import LinearForm
from ridgeline_kernels.cpu.linear import ROW_BUCKETS

Timings = Mapping[str, Mapping[int, float]]
"""Milliseconds by form and number of rows."""

SECOND_COPY_GAIN = 0.12
"""A second copy of the weight must make the mean over the buckets at least this much faster."""
REPEATS = 5
COLD_BYTES = 64 * 2**20
"""Read between the repeats of small products: in a real step the weight comes from memory, not from the cache."""
COLD_ROWS = 8

_log = logging.getLogger(__name__)


def choose_forms(timings: Timings) -> dict[int, str]:
    """The form of each bucket: one form alone, unless two together are clearly faster."""

    def cost(names: tuple[str, ...]) -> float:
        best = [min(timings[name][rows] for name in timings) for rows in ROW_BUCKETS]
        taken = [min(timings[name][rows] for name in names) for rows in ROW_BUCKETS]
        return sum(t / b for t, b in zip(taken, best, strict=True)) / len(ROW_BUCKETS)

    kept = min(((name,) for name in timings), key=cost)
    pairs = list(itertools.combinations(timings, 2))
    if pairs and cost(min(pairs, key=cost)) * (1 + SECOND_COPY_GAIN) < cost(kept):
        kept = min(pairs, key=cost)  # type: ignore[assignment]
    return {rows: min(kept, key=lambda name: timings[name][rows]) for rows in ROW_BUCKETS}


def measure(
    forms: Mapping[str, Callable[[], LinearForm]], *, in_features: int, out_features: int, clock: Clock
) -> dict[str, dict[int, float]]:
    """Best of a few repeats for each form (made, measured and dropped) and number of rows; a second or so.

    A form that the library refuses on this machine is left out.
    """
    cold = torch.zeros(COLD_BYTES // 4)
    timings: dict[str, dict[int, float]] = {}
    for name, make in forms.items():
        try:
            form = make()
            timings[name] = {
                rows: _time(form, rows, in_features, out_features, cold, clock) for rows in ROW_BUCKETS
            }
        except RuntimeError as error:  # what torch raises for an instruction set that it lacks
            _log.info("linear form %s does not work here: %s", name, error)
    return timings


def _time(
    form: LinearForm, rows: int, in_features: int, out_features: int, cold: Tensor, clock: Clock
) -> float:
    x, out = torch.ones(rows, in_features), torch.empty(rows, out_features)
    form.apply(x, out)
    best = float("inf")
    for _ in range(REPEATS):
        if rows <= COLD_ROWS:
            cold.sum()
        begin = clock.monotonic_ms()
        form.apply(x, out)
        best = min(best, clock.monotonic_ms() - begin)
    return best


class ChoiceFile:
    """Choices kept in a JSON file in the cache folder, named after what they depend on."""

    def __init__(self, cache_dir: Path, identity: str) -> None:
        """`identity` is CPU, library, torch and threads: another identity is another file."""
        self._path = cache_dir / f"linear-forms-{hashlib.sha256(identity.encode()).hexdigest()[:20]}.json"

    def get(self, shape: str) -> dict[int, str] | None:
        """The choice for `shape`, or None. An unreadable file counts as empty: it is measured again."""
        found = self._read().get(shape)
        return None if found is None else {int(rows): name for rows, name in found.items()}

    def put(self, shape: str, choice: Mapping[int, str]) -> None:
        """Adds a choice; a file half written by a killed process is never left behind."""
        everything = self._read() | {shape: {str(rows): name for rows, name in choice.items()}}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".forms-", dir=self._path.parent) as folder:
            written = Path(folder, self._path.name)
            written.write_text(json.dumps(everything, indent=1, sort_keys=True))
            written.replace(self._path)

    def _read(self) -> dict[str, dict[str, str]]:
        try:
            found = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}
