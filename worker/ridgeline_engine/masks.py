"""Token masks of constrained sequences: filled while the device runs, once the token before is known."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ridgeline_contracts.errors import InvariantError

from ridgeline_engine.drafting import OpenLaunch
from ridgeline_engine.request import Request
from ridgeline_engine.seam import SlotId, TokenMask
from ridgeline_engine.sequence import Sequence


class MaskSource(Protocol):
    """Says which tokens a constrained text may go on with. It may raise: that ends the one request."""

    def constrains(self, request: Request) -> bool: ...

    def mask(self, request: Request, choice: int, output: tuple[int, ...]) -> TokenMask:
        """For the token behind `output`, which holds what earlier attempts emitted too."""
        ...


@dataclass(frozen=True, slots=True)
class FilledMasks:
    by_slot: Mapping[SlotId, TokenMask] = field(default_factory=dict)
    failed: tuple[tuple[Sequence, Exception], ...] = ()
    """Sequences whose mask could not be made: their rows are sampled unmasked, and must be dropped."""


def needs_masks(source: MaskSource | None, opened: OpenLaunch) -> bool:
    """Whether some row samples for a constrained request."""
    return source is not None and any(
        row.logits and source.constrains(sequence.request)
        for sequence, row in zip(opened.sequences, opened.plan.rows, strict=True)
    )


def fill_masks(source: MaskSource | None, opened: OpenLaunch) -> FilledMasks:
    """Of the rows whose sequence still owns its slot. All launches before must be committed."""
    if source is None:
        return FilledMasks()
    masks: dict[SlotId, TokenMask] = {}
    failed: list[tuple[Sequence, Exception]] = []
    for sequence, row in zip(opened.sequences, opened.plan.rows, strict=True):
        owns = (sequence.slot, sequence.generation) == (row.slot, row.generation)
        if not row.logits or not owns or not source.constrains(sequence.request):
            continue
        output = tuple(sequence.tokens[sequence.prompt_tokens :])
        try:
            masks[row.slot] = source.mask(sequence.request, sequence.choice, output)
        except InvariantError:
            raise
        except Exception as error:  # noqa: BLE001 - ends this request alone
            failed.append((sequence, error))
    return FilledMasks(masks, tuple(failed))
