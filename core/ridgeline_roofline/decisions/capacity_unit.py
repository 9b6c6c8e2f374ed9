"""The capacity unit: requests a second of a replica at the reference workload, within its targets."""

from dataclasses import dataclass

from ridgeline_roofline.decisions.decision import Decision
from ridgeline_roofline.serving import REFERENCE_WORKLOAD, Workload, served
from ridgeline_roofline.step.timing import RooflineStepModel


@dataclass(frozen=True, slots=True)
class CapacityFacts:
    model: RooflineStepModel
    workload: Workload = REFERENCE_WORKLOAD
    efficiency: float = 1.0
    """Share of the floor's speed that is reached."""


def capacity_units(facts: CapacityFacts) -> Decision[float]:
    """Requests a second of one replica; 0 where a target cannot be met, with the reason."""
    found, work = served(facts.model, facts.workload, efficiency=facts.efficiency), facts.workload
    where = f"{facts.model.gpu.gpu_id} {facts.model.layout}"
    asked = f"{work.prompt_tokens:.0f} in, {work.output_tokens:.0f} out, TTFT {work.ttft_s:g} s, TPOT {work.tpot_s:g} s"
    if found.rows == 0:
        return Decision(0.0, f"{where} serves nothing of {asked}: {found.by}")
    return Decision(
        found.requests_per_s,
        f"{where} serves {found.requests_per_s:.3f} requests/s of {asked}: {found.rows} rows in steps of "
        f"{found.step_s * 1e3:.2f} ms, limited by {found.by}",
    )
