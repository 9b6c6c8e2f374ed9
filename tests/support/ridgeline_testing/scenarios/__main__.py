"""`python -m ridgeline_testing.scenarios [NAME ...]`: prints the scenario tables."""

import sys
from collections.abc import Callable
from functools import partial

from ridgeline_testing.scenarios import sharing
from ridgeline_testing.scenarios.cases import SCENARIOS
from ridgeline_testing.scenarios.table import table


def _policies(name: str) -> str:
    scenario = SCENARIOS[name]()
    figures = {variant: scenario.measure(each) for variant, each in scenario.outcomes().items()}
    return table(scenario.title, figures)


def _sharing() -> str:
    return table(sharing.TITLE, {name: sharing.measure(asks) for name, asks in sharing.workloads().items()})


def main(names: list[str]) -> None:
    tables: dict[str, Callable[[], str]] = {name: partial(_policies, name) for name in SCENARIOS}
    tables["sharing"] = _sharing
    unknown = [name for name in names if name not in tables]
    if unknown:
        raise SystemExit(f"no scenario {', '.join(unknown)}: there are {', '.join(tables)}")
    for name in names or list(tables):
        print(tables[name](), end="\n\n", flush=True)


main(sys.argv[1:])
