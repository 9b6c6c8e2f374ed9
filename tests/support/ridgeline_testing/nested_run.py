"""Runs named tests inside a test, each inside a context of its own, and says how each ended."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import Phase, settings

_ROOT = Path(__file__).parents[3]
_QUIET = ("-p", "no:cacheprovider", "-p", "no:faulthandler", "-p", "no:logging", "-p", "no:xdist")
_OPTIONS = ("--tb=line", "-q", "-o", "timeout=0", "--rootdir", str(_ROOT))
Name = TypeVar("Name")


class Rounds:
    """A plugin in the place of pytest's own loop: a test runs once for each context that names it."""

    def __init__(self, wanted: Mapping[Name, tuple[str, AbstractContextManager[None]]]) -> None:
        self._wanted = wanted
        self._seen: list[str] = []
        self.outcomes: dict[Name, str] = {}
        """`failed`, `passed` or `skipped`; or why there is none."""

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        for name, (node_id, context) in self._wanted.items():
            item = items.get(node_id)
            self.outcomes[name] = f"there is no test {node_id}" if item is None else self._run(item, context)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self._seen.append(report.outcome)

    def _run(self, item: pytest.Item, context: AbstractContextManager[None]) -> str:
        self._seen.clear()
        # As plugins that run a test again do: its fixtures are made anew.
        if isinstance(item, pytest.Function):
            item._initrequest()
        try:
            with context:
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        except Exception as error:  # noqa: BLE001 - told as the outcome
            return f"{type(error).__name__}: {error}"
        return "failed" if "failed" in self._seen else self._seen[0]


def outcomes_of(wanted: Mapping[Name, tuple[str, AbstractContextManager[None]]]) -> dict[Name, str]:
    """By name: how the test of that node id ended inside the context. One session collects them all."""
    rounds, said = Rounds(wanted), StringIO()
    files = sorted({node_id.partition("::")[0] for node_id, _ in wanted.values()})
    with _without_shrinking(), redirect_stdout(said), redirect_stderr(said):
        code = pytest.main([*_QUIET, *_OPTIONS, *(str(_ROOT / file) for file in files)], plugins=[rounds])
    if len(rounds.outcomes) != len(wanted):
        raise RuntimeError(f"the inner session ended with {code!r}:\n{said.getvalue()[-2_000:]}")
    return rounds.outcomes


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
