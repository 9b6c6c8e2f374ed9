"""`python -m ridgeline_testing.scenarios [NAME ...]`: prints the scenario tables."""

import sys

from ridgeline_testing.scenarios.cases import SCENARIOS
from ridgeline_testing.scenarios.table import table


def main(names: list[str]) -> None:
    unknown = [name for name in names if name not in SCENARIOS]
    if unknown:
        raise SystemExit(f"no scenario {', '.join(unknown)}: there are {', '.join(SCENARIOS)}")
    for name in names or list(SCENARIOS):
        scenario = SCENARIOS[name]()
        figures = {variant: scenario.measure(each) for variant, each in scenario.outcomes().items()}
        print(table(scenario.title, figures), end="\n\n", flush=True)


main(sys.argv[1:])
