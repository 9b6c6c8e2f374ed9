"""Which modules are mutated, and by which tests each is held."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Group:
    """Paths below `ridgeline_engine/` (globs), and test modules of tests/engine."""

    name: str
    modules: tuple[str, ...]
    tests: tuple[str, ...]
    without: str = ""
    """Part of the names of tests that are too slow to be run for each mutant that survives."""


_ENGINE = ("test_engine", "test_async", "test_scheduler")

GROUPS: tuple[Group, ...] = (
    Group(
        "pool and prefix cache",
        (
            "block_group.py",
            "block_pool.py",
            "cached_block.py",
            "prefix_cache.py",
            "prefix_reach.py",
            "kv_events.py",
        ),
        ("test_block_pool", "test_prefix_cache", "test_kv_events", "test_kv_rooms"),
    ),
    Group(
        "KV tables",
        ("kv_index.py", "kv_search.py", "kv_tables.py", "host_pool.py", "pending_prefix.py"),
        ("test_kv_rooms", "test_engine_prefix_hits", "test_choices", "test_policy_preemption"),
    ),
    Group("rows", ("commit.py", "slots.py"), ("test_commit", "test_slots")),
    Group(
        "scheduler",
        ("scheduler.py", "step_planner.py", "drafting.py", "queues.py"),
        (
            "test_queues",
            *_ENGINE,
            "test_policy_limits",
            "test_policy_preemption",
            "test_choices",
            "test_steady",
        ),
    ),
    Group(
        "policies",
        (
            "policy/accounts.py",
            "policy/census.py",
            "policy/output_lengths.py",
            "policy/overrides.py",
            "policy/preemption_log.py",
            "policy/ranks.py",
            "policy/thresholds.py",
            "policy/waiting.py",
        ),
        (
            "test_policy_accounts",
            "test_census",
            "test_preemption_log",
            "test_thresholds",
            "test_policy_waiting",
            "test_ranks",
        ),
        without="any_history",
    ),
    Group(
        "preemption",
        ("policy/room.py", "policy/victims.py"),
        ("test_policy_preemption", "test_policy_limits", "test_scheduler", "test_async"),
    ),
)


def group_named(name: str) -> Group:
    """Raises SystemExit that lists the names there are."""
    for group in GROUPS:
        if group.name == name:
            return group
    raise SystemExit(f"no group {name!r}: there are {', '.join(repr(each.name) for each in GROUPS)}")
