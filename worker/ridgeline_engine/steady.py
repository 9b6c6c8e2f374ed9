"""For how many steps a plan stays the same: what a twin may run at once.

A plan stays the same while nobody arrives, ends, lacks a block or is paused, and no threshold moves. Arrivals are
the caller's to know; the rest follows from the sequences, the pool and the policies. The answer is a lower bound: 1
where two classes share the step or a prompt is computed.
"""

from bisect import bisect_left
from collections.abc import Sequence

from ridgeline_contracts.kv import GroupId
from ridgeline_contracts.step import StepModel

from ridgeline_engine.drafting import OpenLaunch
from ridgeline_engine.kv_manager import KVManager
from ridgeline_engine.policy.census import take_census
from ridgeline_engine.scheduler import Scheduler
from ridgeline_engine.sequence import Sequence as EngineSequence


def steady_steps(opened: OpenLaunch, scheduler: Scheduler, model: StepModel, *, steps_to_refit: int) -> int:
    """Steps, the one open launch included, that are alike; at least 1. `steps_to_refit`: as long the model stays."""
    sequences, census = opened.sequences, take_census(scheduler.running)
    alike = (
        opened.shape.prefill_tokens == 0
        and len(scheduler.waiting) == 0
        # In this order the next step's rows come too; one that was just admitted may stand elsewhere.
        and list(sequences) == scheduler.running
        and not (census.interactive.rows and census.batch.rows)
    )
    if not alike:
        return 1
    left = min(each.max_output_tokens - each.output_tokens for each in sequences)
    most = max(1, min(left, steps_to_refit))
    most = 1 + bisect_left(
        range(2, most + 1), True, key=lambda steps: not _has_blocks(scheduler.kv, sequences, steps)
    )
    # The open launch is planned already: the cap is asked for those after it.
    return 1 + scheduler.thresholds.steps_below_cap(model, census, most=most - 1)


def _has_blocks(kv: KVManager, sequences: Sequence[EngineSequence], steps: int) -> bool:
    """Whether the pool holds what all rows need until the last of `steps` steps, the first being planned."""
    need: dict[GroupId, int] = {}
    for sequence in sequences:
        for group, count in kv.growth(sequence, sequence.planned_tokens + steps - 1).items():
            need[group] = need.get(group, 0) + count
    return kv.pool.can_allocate(need)
