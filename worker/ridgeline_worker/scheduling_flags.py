"""Flags of the scheduler: targets, policies, and overrides of what is derived from them."""

import argparse
from dataclasses import fields

from ridgeline_contracts.errors import SettingsError
from ridgeline_engine.policy.overrides import PolicyOverrides
from ridgeline_engine.policy.ranks import POLICIES
from ridgeline_engine.policy.victims import PREEMPTIONS
from ridgeline_engine.settings import AsyncScheduling
from ridgeline_roofline.decisions.preemption import PreemptionKind

from ridgeline_worker.settings import SchedulingChoices

_OVERRIDE_HELP = {
    "batch_cap": "interactive sequences that run at once",
    "batch_kv_tokens": "KV positions of the batch class beside interactive sequences",
    "gap_bound_ms": "longest step that a prefill may cause while others decode",
    "overtaking_ratio": "for how many times its own prefill a prompt may be overtaken by shorter ones",
    "output_weight": "prompt tokens that an output token counts as in a tenant's share",
    "backlog_tokens": "prompt tokens that may wait under a TTFT target",
}
_WHOLE = frozenset({"batch_cap", "batch_kv_tokens", "backlog_tokens"})


def add_scheduling_flags(parser: argparse.ArgumentParser) -> None:
    """A group of their own."""
    group = parser.add_argument_group("scheduling", "overrides replace a derived value; the log shows both")
    default = SchedulingChoices()
    group.add_argument("--policy", choices=sorted(POLICIES), default=default.policy)
    group.add_argument("--preemption", choices=PREEMPTIONS, default=default.preemption)
    group.add_argument(
        "--tpot-target-ms",
        type=_target_ms,
        default=default.tpot_target_ms,
        help="steps of interactive requests stay below it; none: steps are as large as they can be",
    )
    group.add_argument(
        "--ttft-target-ms",
        type=_target_ms,
        default=default.ttft_target_ms,
        help="interactive requests that would wait longer are refused; none: nothing is",
    )
    group.add_argument(
        "--async-scheduling",
        choices=[each.value for each in AsyncScheduling],
        default=default.async_scheduling.value,
        help="plan and launch a step while the one before runs; auto: where it saves more than rows behind an "
        "unseen end waste",
    )
    for name, words in _OVERRIDE_HELP.items():
        kind = int if name in _WHOLE else float
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, help=f"{words} (default: derived)")


def scheduling_choices(flags: argparse.Namespace) -> SchedulingChoices:
    """Raises SettingsError, which names the flag."""
    if flags.preemption == PreemptionKind.SWAP and flags.host_kv_memory is None:
        raise SettingsError(
            "preemption='swap': no memory of the host is set aside for KV; give --host-kv-memory with it, or "
            "give auto, recompute or wait",
            param="preemption",
        )
    return SchedulingChoices(
        policy=flags.policy,
        preemption=flags.preemption,
        tpot_target_ms=flags.tpot_target_ms,
        ttft_target_ms=flags.ttft_target_ms,
        async_scheduling=AsyncScheduling(flags.async_scheduling),
        overrides=PolicyOverrides(
            **{each.name: getattr(flags, each.name) for each in fields(PolicyOverrides)}
        ),
    )


def _target_ms(text: str) -> float | None:
    if text == "none":
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise SettingsError(f"target {text!r}: give milliseconds above 0, or none")
    return value
