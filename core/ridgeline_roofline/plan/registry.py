"""All topics by name. A topic is one module and its line here."""

from importlib import import_module

from ridgeline_contracts.errors import SettingsError

from ridgeline_roofline.plan.topic import Topic

TOPIC_NAMES: tuple[str, ...] = (
    "decode-floor",
    "flops",
    "crossover",
    "attention",
    "gpu-compare",
    "moe",
    "batch-knee",
    "goodput",
    "residency",
    "utilisation",
    "slo",
    "service",
    "price",
    "fleet",
    "failover",
    "canary",
    "memory",
    "tp",
    "collectives",
    "mla",
    "pp",
    "ep",
    "layout",
    "transfer",
    "graphs",
    "hybrid-window",
    "blocks",
    "kv-tiers",
    "preemption",
    "long-context",
    "voice",
    "bulk",
    "batch-idle",
    "lora",
    "long-tail",
    "claim",
    "mbu",
    "energy",
    "weights-load",
)
"""In the order in which `ridgeline plan` lists them; topic `a-b` is module `a_b`."""


def topic_named(name: str) -> Topic:
    """Loads one topic. Raises SettingsError that lists all names."""
    if name not in TOPIC_NAMES:
        raise SettingsError(f"{name!r} is no topic: give one of {' '.join(TOPIC_NAMES)}", param="topic")
    topic = import_module(f"ridgeline_roofline.plan.topics.{name.replace('-', '_')}").TOPIC
    assert isinstance(topic, Topic)
    return topic


def all_topics() -> tuple[Topic, ...]:
    return tuple(topic_named(name) for name in TOPIC_NAMES)
