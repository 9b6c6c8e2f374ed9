"""The `tojson` filter of chat templates: plain JSON, not the HTML-safe form of Jinja."""

import json
from typing import Any


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Takes the arguments that templates written for transformers pass."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
