"""What a field's type cannot say: bounds, patterns, and the CEL rules that the API server checks."""

from dataclasses import dataclass
from typing import Any

QUANTITY_CHARACTERS = 32
NAME_CHARACTERS = 63


@dataclass(frozen=True, slots=True)
class Rule:
    """A CEL rule over one object. `message` names the field and the fix; it is fixed text, which costs nothing."""

    expression: str
    message: str
    field_path: str | None = None
    """Below the object that the rule stands at, as `.drain`; the API server's answer names it."""


@dataclass(frozen=True, slots=True)
class Schema:
    """Stands in `Annotated[type, Schema(...)]`. Bounds are the API server's to check; `rules` are CEL."""

    doc: str
    minimum: float | None = None
    maximum: float | None = None
    exclusive_minimum: bool = False
    min_length: int | None = None
    max_length: int | None = None
    pattern: str | None = None
    min_items: int | None = None
    max_items: int | None = None
    max_properties: int | None = None
    key: str | None = None
    """Of a list of objects: the field by which entries are merged, and unique."""
    unique: bool = False
    """Of a list of scalars."""
    rules: tuple[Rule, ...] = ()

    def keywords(self) -> dict[str, Any]:
        """The keywords of a structural schema that stand beside `type`."""
        found = {
            "description": self.doc,
            "minimum": self.minimum,
            "maximum": self.maximum,
            "exclusiveMinimum": self.exclusive_minimum or None,
            "minLength": self.min_length,
            "maxLength": self.max_length,
            "pattern": self.pattern,
            "minItems": self.min_items,
            "maxItems": self.max_items,
            "maxProperties": self.max_properties,
            "x-kubernetes-list-map-keys": None if self.key is None else [self.key],
            "x-kubernetes-list-type": "map" if self.key else "set" if self.unique else None,
            "x-kubernetes-validations": [rule_object(rule) for rule in self.rules] or None,
        }
        return {name: value for name, value in found.items() if value is not None}


def rule_object(rule: Rule) -> dict[str, Any]:
    """As it stands under x-kubernetes-validations."""
    path = {} if rule.field_path is None else {"fieldPath": rule.field_path}
    return {"rule": rule.expression, "message": rule.message, **path}


def text(doc: str, *, most: int = 253, least: int = 1, pattern: str | None = None) -> Schema:
    """A bounded text. Bounds keep CEL within the API server's cost budget."""
    return Schema(doc, min_length=least, max_length=most, pattern=pattern)


def object_name(doc: str) -> Schema:
    """The name of an object: a DNS label."""
    return text(doc, most=NAME_CHARACTERS, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")


def count(doc: str, *, least: int = 1, most: int, rules: tuple[Rule, ...] = ()) -> Schema:
    return Schema(doc, minimum=least, maximum=most, rules=rules)


def more_than_zero(doc: str, *, most: float) -> Schema:
    return Schema(doc, minimum=0, exclusive_minimum=True, maximum=most)


def quantity(doc: str, *, field: str) -> Schema:
    """A Kubernetes quantity of more than zero."""
    parses = Rule("isQuantity(self)", f"{field} must be a quantity with its unit, such as 512Mi or 16Gi")
    above = Rule(
        "!isQuantity(self) || quantity(self).isGreaterThan(quantity('0'))",
        f"{field} must be more than 0: give a size such as 16Gi",
    )
    return Schema(doc, min_length=1, max_length=QUANTITY_CHARACTERS, rules=(parses, above))


def fixed(field: str, why: str) -> Rule:
    """The field cannot be changed once it is set."""
    return Rule("self == oldSelf", f"{field} cannot be changed: {why}")
