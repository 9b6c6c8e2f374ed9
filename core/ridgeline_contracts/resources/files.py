"""The files that are made from the kinds: one CRD a file, and their reference."""

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from ridgeline_contracts.resources.kinds import API_VERSION, KINDS, Kind, custom_resource_definition

_HEADER = "# Made from core/ridgeline_contracts/resources by `make resources`; edit that.\n"
_INTRODUCTION = f"""# Custom resources

Group and version: `{API_VERSION}`. Made from `core/ridgeline_contracts/resources` by `make resources`.
`kubectl explain workerpool.spec.layout` prints the same texts. Bounds and rules are checked by the API server.
"""


def resource_files() -> Mapping[str, str]:
    """Text by path from the repository's root."""
    # In both charts: Helm installs what lies in crds/ and never touches it again, so upgrades have their own.
    definitions = {
        f"charts/{folder}/{kind.plural}.yaml": _HEADER
        + yaml.safe_dump(custom_resource_definition(kind), sort_keys=False, width=110)
        for kind in KINDS
        for folder in ("ridgeline/crds", "ridgeline-crds/templates")
    }
    return {**definitions, "docs/resources.md": "\n".join([_INTRODUCTION, *map(_reference, KINDS)])}


def _reference(kind: Kind) -> str:
    schema = custom_resource_definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    scope = "namespaced" if kind.namespaced else "cluster-scoped"
    lines = [f"## {kind.name}", "", f"{scope}, short name `{kind.short}`.", ""]
    for part in ("spec", "status"):
        rows = list(_rows(schema["properties"][part], part))
        lines += ["| field | type | default | meaning |", "|---|---|---|---|", *rows, ""]
    rules = list(_rules(schema))
    if rules:
        lines += ["Refused by the API server:", "", *[f"- {message}" for message in rules], ""]
    return "\n".join(lines)


def _rows(schema: Mapping[str, Any], path: str) -> Iterator[str]:
    required = schema.get("required", ())
    for name, field in schema["properties"].items():
        where = f"{path}.{name}"
        if "properties" in field.get("items", {}):
            yield _row(where, field, name in required)
            yield from _rows(field["items"], f"{where}[]")
        elif "properties" in field:
            yield _row(where, field, name in required)
            yield from _rows(field, where)
        else:
            yield _row(where, field, name in required)


def _row(where: str, field: Mapping[str, Any], required: bool) -> str:
    default = field.get("default")
    shown = "required" if required else "" if default is None or isinstance(default, dict) else f"`{default}`"
    return f"| `{where}` | {_type(field)} | {shown} | {field['description']} |"


def _type(field: Mapping[str, Any]) -> str:
    if "enum" in field:
        return ", ".join(field["enum"])
    low, high = field.get("minimum"), field.get("maximum")
    if low is not None and high is not None:
        return f"{field['type']}, {'above ' if field.get('exclusiveMinimum') else ''}{low:g} to {high:g}"
    return "list" if field["type"] == "array" else str(field["type"])


def _rules(schema: Mapping[str, Any]) -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations", ()):
        yield rule["message"]
    below = [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]
    for field in below:
        yield from _rules(field)
