"""Merging a pool's podTemplate over the rendered one."""

from collections.abc import Mapping
from typing import Any


def merged(base: Any, over: Any) -> Any:
    """Mappings by key, lists of named objects by name, everything else replaced. None in `over` removes a key."""
    if isinstance(base, Mapping) and isinstance(over, Mapping):
        result = {key: value for key, value in base.items() if key not in over}
        for key, value in over.items():
            if value is not None:
                result[key] = merged(base[key], value) if key in base else value
        return result
    if _named(base) and _named(over):
        by_name = {each["name"]: each for each in over}
        kept = [merged(each, by_name.pop(each["name"])) if each["name"] in by_name else each for each in base]
        return [*kept, *by_name.values()]
    return over


def _named(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(each, Mapping) and "name" in each for each in value)
    )
