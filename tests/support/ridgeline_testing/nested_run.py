"""Runs one test inside a test, and says how it ended."""

from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import Phase, settings

_ROOT = Path(__file__).parents[3]
_QUIET = (
    "-p",
    "no:cacheprovider",
    "-p",
    "no:faulthandler",
    "-p",
    "no:logging",
    "--tb=line",
    "-q",
    "-o",
    "timeout=0",
)


class Outcomes:
    """A plugin that keeps how each test ended, by node id."""

    def __init__(self) -> None:
        self.by_test: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.by_test[report.nodeid] = report.outcome


def outcome_of(node_id: str) -> str:
    """`passed`, `failed`, or `skipped` of exactly one test. Raises LookupError where there is not exactly one."""
    seen, said = Outcomes(), StringIO()
    with _without_shrinking(), redirect_stdout(said), redirect_stderr(said):
        pytest.main([*_QUIET, "--rootdir", str(_ROOT), str(_ROOT / node_id)], plugins=[seen])
    if len(seen.by_test) != 1:
        raise LookupError(f"{node_id} names {len(seen.by_test)} tests, not one:\n{said.getvalue()[-1_000:]}")
    return next(iter(seen.by_test.values()))


@contextmanager
def _without_shrinking() -> Iterator[None]:
    """A state machine that fails need not say how little it takes to fail it."""
    before = settings.get_current_profile_name()
    settings.register_profile(
        "planted", phases=(Phase.explicit, Phase.generate), database=None, derandomize=True
    )
    settings.load_profile("planted")
    try:
        yield
    finally:
        settings.load_profile(before)
