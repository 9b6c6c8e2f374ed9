"""From typed classes to structural schemas, and from an object of the API server to a typed class.

camelCase outside, snake_case inside. An absent field takes its default: the API server fills defaults in, and an object
that was stored before a field existed has none.
"""

import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

from ridgeline_contracts.errors import InvalidRequest, InvariantError
from ridgeline_contracts.resources.field_rules import Rule, Schema, rule_object

_SCALARS: Final[Mapping[type, dict[str, Any]]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer", "format": "int64"},
    float: {"type": "number"},
    str: {"type": "string"},
}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a class, as both directions need it."""

    attribute: str
    name: str
    held: Any
    """Its type without None and without the annotation."""
    optional: bool
    required: bool
    default: Any
    schema: Schema


@cache
def fields_of(cls: type) -> tuple[Field, ...]:
    """In their order. Raises InvariantError for a field without a Schema: every field is documented."""
    if not is_dataclass(cls):
        raise InvariantError(f"{cls} is no dataclass")
    hints = get_type_hints(cls, include_extras=True)
    return tuple(_field(cls, each.name, hints[each.name], _default(each)) for each in fields(cls))


def _default(declared: Any) -> Any:
    if declared.default_factory is not MISSING:
        return declared.default_factory()
    return declared.default


def _field(cls: type, attribute: str, hint: Any, default: Any) -> Field:
    if get_origin(hint) is not Annotated:
        raise InvariantError(f"{cls.__name__}.{attribute} has no Schema")
    inner, schema = get_args(hint)[:2]
    optional = get_origin(inner) in (Union, types.UnionType)
    if optional:
        (inner,) = (each for each in get_args(inner) if each is not type(None))
    return Field(attribute, camel(attribute), inner, optional, default is MISSING, default, schema)


def camel(attribute: str) -> str:
    first, *rest = attribute.split("_")
    return first + "".join(each.capitalize() for each in rest)


def structural_schema(cls: type) -> dict[str, Any]:
    """The schema of an object of `cls`; its class attribute `RULES` becomes CEL."""
    listed = fields_of(cls)
    schema: dict[str, Any] = {
        "type": "object",
        "description": " ".join((cls.__doc__ or "").split()),
        "properties": {each.name: _field_schema(each) for each in listed},
    }
    required = [each.name for each in listed if each.required]
    rules: tuple[Rule, ...] = getattr(cls, "RULES", ())
    if required:
        schema["required"] = required
    if rules:
        schema["x-kubernetes-validations"] = [rule_object(rule) for rule in rules]
    return schema


def _field_schema(field: Field) -> dict[str, Any]:
    base = _type_schema(field.held)
    keywords = field.schema.keywords()
    rules = [
        *base.get("x-kubernetes-validations", ()),
        *keywords.get("x-kubernetes-validations", ()),
    ]
    schema = base | keywords
    if rules:
        schema["x-kubernetes-validations"] = rules
    if not field.required and field.default is not None and (shown := to_object(field.default)) != []:
        schema["default"] = shown
    return schema


def _type_schema(held: Any) -> dict[str, Any]:
    if held in _SCALARS:
        return dict(_SCALARS[held])
    if get_origin(held) is tuple:
        return {"type": "array", "items": _type_schema(get_args(held)[0]) | _item_bound(get_args(held)[0])}
    if get_origin(held) is Mapping:
        return _mapping_schema(get_args(held)[1])
    if issubclass(held, StrEnum):
        return {"type": "string", "enum": [each.value for each in held]}
    return structural_schema(held)


def _item_bound(item: Any) -> dict[str, Any]:
    return {"minLength": 1, "maxLength": 253} if item is str else {}


def _mapping_schema(value: Any) -> dict[str, Any]:
    if value is Any:
        # Atomic: server-side apply would make null of a mapping that its owner empties.
        free = {"x-kubernetes-preserve-unknown-fields": True, "x-kubernetes-map-type": "atomic"}
        return {"type": "object", **free}
    return {"type": "object", "additionalProperties": _type_schema(value) | _item_bound(value)}


def from_object(cls: type, held: Mapping[str, Any], *, path: str = "spec") -> Any:
    """An instance of `cls`. Unknown fields are left out, as the API server prunes them.

    Raises InvalidRequest naming the field and its value, for what a CRD of another version let through.
    """
    values = {}
    for each in fields_of(cls):
        where = f"{path}.{each.name}"
        found = held.get(each.name)
        if found is not None:
            values[each.attribute] = _read(each.held, found, where)
        elif each.required:
            raise InvalidRequest(f"{where} is missing: set it", param=where)
    return cls(**values)


def _read(held: Any, found: Any, where: str) -> Any:
    if get_origin(held) is tuple:
        _expect(found, list, where)
        return tuple(
            _read(get_args(held)[0], each, f"{where}[{number}]") for number, each in enumerate(found)
        )
    if get_origin(held) is Mapping:
        _expect(found, Mapping, where)
        return dict(found)
    if is_dataclass(held):
        _expect(found, Mapping, where)
        return from_object(held, found, path=where)  # type: ignore[arg-type]
    if held is float and type(found) is int:
        return float(found)
    if issubclass(held, StrEnum):
        return _member(held, found, where)
    _expect(found, held, where)
    return found


def _member(held: type[StrEnum], found: Any, where: str) -> StrEnum:
    try:
        return held(found)
    except ValueError:
        raise InvalidRequest(
            f"{where}={found!r}: give one of {' '.join(each.value for each in held)}", param=where
        ) from None


def _expect(found: Any, kind: Any, where: str) -> None:
    if not isinstance(found, kind) or (kind is int and isinstance(found, bool)):
        raise InvalidRequest(f"{where}={found!r} is not of type {kind.__name__}: mend it", param=where)


def to_object(value: Any) -> Any:
    """The form in which the API server holds it; what is None or an empty list is left out."""
    if is_dataclass(value) and not isinstance(value, type):
        named = {each.name: getattr(value, each.attribute) for each in fields_of(type(value))}
        return {name: to_object(each) for name, each in named.items() if each is not None and each != ()}
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, tuple | list):
        return [to_object(each) for each in value]
    if isinstance(value, Mapping):
        return {key: to_object(each) for key, each in value.items()}
    return value
