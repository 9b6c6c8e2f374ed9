"""Plans in tests: a topic by name, with a few inputs changed."""

from ridgeline_roofline.plan.answer import Plan
from ridgeline_roofline.plan.inputs import read_inputs
from ridgeline_roofline.plan.registry import topic_named


def ask(name: str, **given: str | list[str]) -> Plan:
    """The plan of a topic; inputs as on the command line (a topic's own among them)."""
    topic = topic_named(name)
    return topic.answer(read_inputs(given, defaults=topic.defaults, extras=topic.extras))
