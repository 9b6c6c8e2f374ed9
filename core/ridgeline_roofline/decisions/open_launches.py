"""Whether to launch the next step while one runs: the host's time is hidden, rows behind an unseen end are wasted."""

from dataclasses import dataclass

from ridgeline_contracts.step import StepModel

from ridgeline_roofline.decisions.decision import Decision
from ridgeline_roofline.decisions.prefill_cost import decode_ms

_MOST = 2
"""One runs, one is ready: a third would hide nothing more."""


@dataclass(frozen=True, slots=True)
class OpenLaunchFacts:
    rows: int
    """Sequences that run."""
    context_tokens: int
    """Of one of them, on average."""
    host_ms: float
    """Measured, of one step: planning, commit and all else outside the executor."""
    mean_output_tokens: float | None
    """Of the outputs that ended; None while none has."""
    host_share_ratio: float
    """Part of the device's rate that the host takes away while it works: 0 beside a GPU, up to 1 on a CPU whose
    cores all run the model."""


def open_launches(model: StepModel, facts: OpenLaunchFacts) -> Decision[int]:
    """2 where hiding the host saves more than the wasted rows cost, else 1.

    A step of d ms on the device takes d + h with the host after it, and max(d, h) + share x h with the host beside
    it: min(d, h) - share x h is saved. Of B rows, B / L end unseen each step, L the mean length of an output, and
    each has cost the time of one more row; a lone row has cost a whole step.
    """
    rows = facts.rows
    if rows < 1:
        return Decision(1, "open launches = 1: nothing runs")
    step_ms = decode_ms(model, rows, rows * facts.context_tokens)
    saved_ms = min(step_ms, facts.host_ms) - facts.host_share_ratio * facts.host_ms
    row_ms = step_ms - (decode_ms(model, rows - 1, (rows - 1) * facts.context_tokens) if rows > 1 else 0.0)
    ends = 0.0 if facts.mean_output_tokens is None else rows / max(1.0, facts.mean_output_tokens)
    wasted_ms = ends * row_ms
    value = _MOST if saved_ms > wasted_ms else 1
    return Decision(
        value,
        f"open launches = {value}: beside a step of {step_ms:.2f} ms the host's {facts.host_ms:.2f} ms save "
        f"{saved_ms:.3f} ms (it takes {facts.host_share_ratio:.0%} of the device meanwhile); {ends:.3f} rows a step "
        f"end unseen and waste {wasted_ms:.3f} ms",
    )
