"""Blocks that an admission must leave to those that run."""

from ridgeline_roofline.decisions.decision import Decision


def admission_reserve_blocks(running_sequences: int) -> Decision[int]:
    """Blocks a group keeps free when a sequence is admitted: one more for each that runs.

    Each running sequence may need its next block before any other ends; with less in hand, the newcomer would
    be preempted almost at once, and its prefill computed twice. Nothing is kept for an empty engine.
    """
    return Decision(
        running_sequences, f"reserve = {running_sequences} blocks: one for each of the running sequences"
    )
