"""Inputs of a plan from a YAML file: the flags' names, values as people write them."""

from collections.abc import Mapping
from pathlib import Path

import yaml
from ridgeline_contracts.errors import NotFound, SettingsError


def read_inputs_file(path: Path) -> Mapping[str, str | list[str]]:
    """Texts by name, for `read_inputs`. Raises NotFound or SettingsError naming the file and the key."""
    try:
        parsed = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise NotFound(f"{path} is not there: give a YAML file of inputs, such as `batch: 64`") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError(f"{path} is not readable as YAML: {error}", param="file") from error
    if parsed is None:
        return {}
    if not isinstance(parsed, dict):
        raise SettingsError(f"{path} holds a {type(parsed).__name__}: give `name: value` lines", param="file")
    return {str(key): _text(path, str(key), value) for key, value in parsed.items()}


def _text(path: Path, key: str, value: object) -> str | list[str]:
    if isinstance(value, list):
        return [str(item) for item in value]
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)
    raise SettingsError(f"{path}: {key} is {value!r}, expected a number or a text such as 8k", param=key)
