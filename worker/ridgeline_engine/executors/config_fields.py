"""Reads of config.json that name the field and its value when it is not what it must be."""

import math
from collections.abc import Mapping
from typing import Any

from ridgeline_contracts.errors import SettingsError


class ConfigFields:
    """Typed access to a parsed config.json. A field that is null counts as missing, as in Hugging Face's own
    files."""

    def __init__(self, config: Mapping[str, Any], *, prefix: str = "") -> None:
        self._config = config
        self._prefix = prefix

    def count(self, name: str, *, default: int | None = None) -> int:
        """A positive whole number."""
        value = self._config.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise self._strange(name, value, "a positive whole number")
        return value

    def optional_count(self, name: str) -> int | None:
        return None if self._config.get(name) is None else self.count(name)

    def positive(self, name: str, *, default: float | None = None) -> float:
        """A positive finite number."""
        value = self._config.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf:
            return float(value)
        raise self._strange(name, value, "a positive number")

    def flag(self, name: str, *, default: bool) -> bool:
        value = self._config.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._strange(name, value, "true or false")
        return value

    def text_list(self, name: str) -> tuple[str, ...] | None:
        value = self._config.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self._strange(name, value, "a list of words")
        return tuple(value)

    def group(self, name: str) -> "ConfigFields | None":
        """The fields of an object inside the config, None where it is missing."""
        value = self._config.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._strange(name, value, "an object")
        return ConfigFields(value, prefix=f"{self._prefix}{name}.")

    def word(self, *names: str, default: str) -> str:
        """The first of `names` that is set (older files use older names)."""
        for name in names:
            value = self._config.get(name)
            if value is not None:
                if not isinstance(value, str):
                    raise self._strange(name, value, "a word")
                return value
        return default

    def _strange(self, name: str, value: object, wanted: str) -> SettingsError:
        return SettingsError(
            f"{self._prefix}{name} in config.json is {value!r}, expected {wanted}: "
            "mend the file or fetch the model again",
            param=name,
        )
