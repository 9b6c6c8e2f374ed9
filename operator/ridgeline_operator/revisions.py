"""The last accepted spec, kept in a ControllerRevision: it goes on being served while a newer one is refused."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from ridgeline_contracts.resources.field_rules import Schema
from ridgeline_contracts.resources.model import GenerationFormat, ModelSource
from ridgeline_contracts.resources.shapes import from_object, to_object
from ridgeline_contracts.resources.status import Derivation
from ridgeline_contracts.resources.worker_pool import WorkerPoolSpec

from ridgeline_operator.admission import Fits
from ridgeline_operator.render.facts import Manifest


@dataclass(frozen=True, slots=True)
class Accepted:
    """A pool as it was accepted, with what it follows from: a Model that changed later does not reach back."""

    pool: Annotated[WorkerPoolSpec, Schema("Its spec.")]
    source: Annotated[ModelSource, Schema("The Model's.")]
    model_revision: Annotated[str, Schema("The Model's.")]
    format: Annotated[GenerationFormat, Schema("Of its generation.")]
    served_name: Annotated[str, Schema("What tenants ask for.")]
    weights_bytes: Annotated[int, Schema("Of a replica.")]
    ledger: Annotated[str, Schema("As text.")]
    derivations: Annotated[tuple[Derivation, ...], Schema("With their working.")] = ()
    capacity_per_s: Annotated[float | None, Schema("Of a replica.")] = None

    @property
    def fits(self) -> Fits:
        return Fits(
            self.format,
            self.served_name,
            self.weights_bytes,
            self.derivations,
            self.ledger,
            self.capacity_per_s,
        )


def accepted_of(pool: WorkerPoolSpec, source: ModelSource, model_revision: str, fits: Fits) -> Accepted:
    return Accepted(
        pool,
        source,
        model_revision,
        fits.format,
        fits.served_name,
        fits.weights_bytes,
        fits.ledger,
        fits.derivations,
        fits.capacity_per_s,
    )


def newest(revisions: Sequence[Manifest]) -> Accepted | None:
    """What was accepted last. Raises InvalidRequest for one that another version wrote and this cannot read."""
    if not revisions:
        return None
    last = max(revisions, key=lambda each: each["revision"])
    read: Accepted = from_object(Accepted, last["data"], path="data")
    return read


def revision_body(
    pool_name: str, accepted: Accepted, held: Sequence[Manifest]
) -> tuple[str, Mapping[str, Any]]:
    """(name, body): equal contents have one name, and what is new has the highest number."""
    data = to_object(accepted)
    digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:10]
    name = f"{pool_name}-{digest}"
    numbers = {each["metadata"]["name"]: int(each["revision"]) for each in held}
    number = numbers.get(name, max(numbers.values(), default=0) + 1)
    return name, {"data": data, "revision": number}
