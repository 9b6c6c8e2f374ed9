"""The scenarios' figures as Markdown."""

from collections.abc import Iterable, Mapping


def table(title: str, figures: Mapping[str, Mapping[str, float]]) -> str:
    """One row a policy, one column a figure."""
    names = list(next(iter(figures.values())))
    rows = [[policy, *(_number(found[name]) for name in names)] for policy, found in figures.items()]
    return "\n".join(
        [f"**{title}**", "", _row(["policy", *names]), _row(["---"] * (1 + len(names))), *map(_row, rows)]
    )


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.2f}"
