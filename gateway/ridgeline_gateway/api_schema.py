"""The OpenAPI description of bodies that are parsed by hand."""

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

_REFERENCE = "#/components/schemas/{model}"


def body_schema(model: type[BaseModel]) -> dict[str, Any]:
    """For `openapi_extra` of a route."""
    reference = {"$ref": _REFERENCE.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": reference}}}}


def add_schemas(app: FastAPI, models: Sequence[type[BaseModel]]) -> None:
    """Puts the models, and what they hold, among the components of the application's description."""
    describe = app.openapi

    def described() -> dict[str, Any]:
        schema = describe()
        components = schema.setdefault("components", {}).setdefault("schemas", {})
        for model in models:
            found = model.model_json_schema(ref_template=_REFERENCE)
            components.update(found.pop("$defs", {}))
            components[model.__name__] = found
        return schema

    app.openapi = described  # type: ignore[method-assign]
