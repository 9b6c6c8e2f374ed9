"""From what should be and what is to what must be done. Pure."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ridgeline_operator.render.facts import HASH_ANNOTATION, Manifest

Ref: TypeAlias = tuple[str, str, str, str]
"""apiVersion, kind, namespace, name."""


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply of a whole manifest."""

    manifest: Manifest
    resource_version: str | None
    """That was observed: the API server refuses the write if it has changed. None: there was none."""


@dataclass(frozen=True, slots=True)
class Delete:
    """With everything below it. Refused by the API server if the object is another by now."""

    ref: Ref
    uid: str
    resource_version: str


Action: TypeAlias = Apply | Delete


def plan(desired: Iterable[Manifest], observed: Iterable[Manifest]) -> list[Action]:
    """`observed`: all children of the one owner. Applies in the order of `desired`, then deletes what is left.

    An object is applied when it is missing, when it was rendered otherwise (the hash in its annotation), or when
    somebody changed what we set. plan(desired, desired as applied) is empty.
    """
    held = {ref_of(each): each for each in observed}
    actions: list[Action] = []
    for manifest in desired:
        stamped = stamp(manifest)
        found = held.pop(ref_of(manifest), None)
        if found is None:
            actions.append(Apply(stamped, None))
        elif not _gone(found) and not contains(found, stamped):
            actions.append(Apply(stamped, found["metadata"].get("resourceVersion")))
    actions += [
        Delete(ref, each["metadata"].get("uid", ""), each["metadata"].get("resourceVersion", ""))
        for ref, each in held.items()
        if not _gone(each)
    ]
    return actions


def ref_of(manifest: Manifest) -> Ref:
    metadata = manifest["metadata"]
    return manifest["apiVersion"], manifest["kind"], metadata.get("namespace", ""), metadata["name"]


def stamp(manifest: Manifest) -> Manifest:
    """With the hash of all of it as an annotation: a field that is no longer rendered shows by it."""
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    metadata = manifest["metadata"]
    annotations = {
        **metadata.get("annotations", {}),
        HASH_ANNOTATION: hashlib.sha256(text.encode()).hexdigest()[:16],
    }
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def contains(found: Any, wanted: Any) -> bool:
    """Whether everything in `wanted` stands in `found`, which may hold more: the API server's defaults."""
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(
            contains(found.get(key), value) or (found.get(key) is None and value in ({}, [], None, False))
            for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(found, list)
            and len(found) == len(wanted)
            and all(contains(a, b) for a, b in zip(found, wanted, strict=True))
        )
    return bool(found == wanted)


def _gone(found: Manifest) -> bool:
    """It is being deleted: what takes its place comes with the event of its end."""
    return "deletionTimestamp" in found["metadata"]
