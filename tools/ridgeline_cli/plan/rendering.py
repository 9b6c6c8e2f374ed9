"""A plan for people: tables with the working, and a curve on a terminal."""

import json
import sys
from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text
from ridgeline_roofline.plan.answer import Curve, Plan, Table, Value
from ridgeline_roofline.plan.inputs import FLAGS
from ridgeline_roofline.plan.topic import Topic
from ridgeline_roofline.units import Unit, show

_UNITS = {flag.name: flag.unit for flag in FLAGS}
_PLOT_WIDTH, _PLOT_HEIGHT = 78, 18
_PIPE_WIDTH = 140


def console() -> Console:
    """Stdout; as wide as its terminal, else wide enough that lines stay whole."""
    return Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False)


def print_topics(topics: Sequence[Topic], *, as_json: bool) -> None:
    """Every topic with its question."""
    if as_json:
        listed = [
            {"topic": topic.name, "question": topic.question, "uses": list(topic.uses)} for topic in topics
        ]
        sys.stdout.write(json.dumps(listed, indent=2) + "\n")
        return
    table = RichTable("topic", "the question it answers", box=box.SIMPLE_HEAD)
    for topic in topics:
        table.add_row(topic.name, topic.question)
    table.add_row("catalogue", "Which GPUs, links, formats and models are known, with which figures?")
    out = console()
    out.print(table)
    out.print("Next: ridgeline plan decode-floor --model llama-3.3-70b --gpu b200 --tp 8 --context 8k")


def print_plan(topic: Topic, inputs: Mapping[str, Value], plan: Plan, *, plot: bool) -> None:
    out = console()
    out.print(Text(topic.question, style="bold"))
    out.print(Text(inputs_line(topic, inputs), style="dim"))
    print_figures(out, plan)
    if plot and plan.curve is not None:
        out.print(Text.from_ansi(_curve(plan.curve)))
    out.print("This breaks when")
    for line in plan.breaks_when:
        out.print(Text(f"- {line}"))
    if topic.extras:
        own = ", ".join(f"{extra.name} ({extra.help})" for extra in topic.extras)
        out.print(Text(f"Own inputs, by --set NAME=VALUE: {own}", style="dim"))
    out.print(Text(f"Source: {topic.source}", style="dim"))


def inputs_line(topic: Topic, inputs: Mapping[str, Value]) -> str:
    """All inputs with their units, as a reader would write them."""
    units = _UNITS | {extra.name: extra.unit for extra in topic.extras}
    return ", ".join(f"{name} {_shown(value, units[name])}" for name, value in inputs.items())


def print_figures(out: Console, plan: Plan) -> None:
    """Answers with their working, and the tables."""
    out.print(_answers(plan))
    for table in plan.tables:
        out.print(_table(table))


def _answers(plan: Plan) -> RichTable:
    table = RichTable("answer", "value", "working", box=box.SIMPLE_HEAD)
    table.columns[1].justify = "right"
    table.columns[1].no_wrap = True
    for answer in plan.answers:
        table.add_row(Text(answer.name), _shown(answer.value, answer.unit), Text(answer.working))
    return table


def _table(found: Table) -> RichTable:
    table = RichTable(title=Text(found.title), title_justify="left", box=box.SIMPLE_HEAD)
    for heading, unit in zip(found.headings, found.units, strict=True):
        table.add_column(Text(heading), justify="left" if unit is Unit.TEXT else "right")
    for row in found.rows:
        table.add_row(*(_shown(value, unit) for value, unit in zip(row, found.units, strict=True)))
    return table


def _shown(value: Value, unit: Unit) -> Text:
    return Text(show(value, unit))


def _curve(curve: Curve) -> str:
    # Here and not above: only a plan with a curve on a terminal needs it.
    import plotext

    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plotsize(_PLOT_WIDTH, _PLOT_HEIGHT)
    if curve.x_logarithmic:
        plotext.xscale("log")
    for name, values in curve.series.items():
        plotext.plot(list(curve.x), list(values), label=name, marker="braille")
    plotext.title(curve.title)
    plotext.xlabel(curve.x_label)
    plotext.ylabel(curve.y_label)
    return str(plotext.build())
