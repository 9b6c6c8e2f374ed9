"""The pages of docs/plan: each topic's question, formula, worked example and limits, from the topic itself.

`make pages` writes them; a test holds them fresh, so that an example always shows what the command prints.
"""

import io
import sys
from collections.abc import Mapping
from textwrap import dedent

from rich.console import Console
from ridgeline_roofline.plan.inputs import read_inputs
from ridgeline_roofline.plan.registry import all_topics
from ridgeline_roofline.plan.topic import Topic

from ridgeline_cli.plan.rendering import inputs_line, print_figures

_PAGE_WIDTH = 118
_INDEX = """# Plans

`ridgeline plan TOPIC` answers a question of capacity, speed or cost from one model of an engine step, and shows the
working. `ridgeline plan` lists the topics, `ridgeline plan catalogue` every figure that they start from. Inputs are
flags with units (`--context 8k --link 400Gb/s`) or a YAML file (`--file`); `--json` prints SI base units.

How the step model is built, and what it leaves out: [step-model.md](step-model.md). Measured against predicted on a
machine: [../calibration.md](../calibration.md). These pages are made by `make pages` from the topics themselves.

| topic | the question it answers |
|---|---|
"""


def pages() -> Mapping[str, str]:
    """Text by file name, the index included."""
    topics = all_topics()
    index = _INDEX + "".join(f"| [{topic.name}]({topic.name}.md) | {topic.question} |\n" for topic in topics)
    return {"README.md": index} | {f"{topic.name}.md": page(topic) for topic in topics}


def page(topic: Topic) -> str:
    """One topic with its defaults as the worked example."""
    inputs = read_inputs({}, defaults=topic.defaults, extras=topic.extras)
    plan = topic.answer(inputs)
    formula = (sys.modules[topic.answer.__module__].__doc__ or "").strip()
    summary, _, detail = formula.partition("\n\n")
    parts = [f"# {topic.name}", topic.question, f"## The formula\n\n{summary}"]
    if detail:
        parts.append(f"```\n{dedent(detail).rstrip()}\n```")
    parts.append(f"Source: {topic.source}.")
    parts.append(
        f"## A worked example\n\n`ridgeline plan {topic.name}` with {inputs_line(topic, inputs.shown(topic.uses))}:"
    )
    written = io.StringIO()
    print_figures(Console(file=written, width=_PAGE_WIDTH, highlight=False), plan)
    parts.append(
        "```\n" + "\n".join(line.rstrip() for line in written.getvalue().strip("\n").splitlines()) + "\n```"
    )
    if topic.extras:
        own = "".join(f"| `{extra.name}` | `{extra.default}` | {extra.help} |\n" for extra in topic.extras)
        parts.append(
            "Inputs of its own, by `--set NAME=VALUE`:\n\n"
            f"| name | default | what it is |\n|---|---|---|\n{own}".rstrip()
        )
    parts.append("## Where it breaks\n\n" + "\n".join(f"- {line}." for line in plan.breaks_when))
    return "\n\n".join(parts) + "\n"
