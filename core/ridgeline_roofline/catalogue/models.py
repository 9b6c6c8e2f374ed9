"""The models that are known by name, each from a config.json kept beside this module as data."""

import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Final

from ridgeline_contracts.errors import NotFound, SettingsError

from ridgeline_roofline.catalogue.model_spec import ModelSpec
from ridgeline_roofline.catalogue.read_config import read_config

MODEL_IDS: Final = (
    "llama-3.1-8b",
    "llama-3.1-405b",
    "llama-3.3-70b",
    "deepseek-v3",
    "gpt-oss-120b",
    "qwen3-32b",
    "qwen3-235b-a22b",
    "mixtral-8x7b",
    "smollm2-135m",
    "nemotron-h-8b",
)


def model_named(model_id: str) -> ModelSpec:
    """Raises SettingsError that lists the ids."""
    if model_id not in MODEL_IDS:
        raise SettingsError(
            f"model={model_id!r} is not in the catalogue: give one of {' '.join(MODEL_IDS)}, "
            "or the path of a folder with a config.json",
            param="model",
        )
    return read_config(model_config(model_id), model_id=model_id)


def model_config(model_id: str) -> Mapping[str, Any]:
    """The config.json of a model of the catalogue."""
    text = resources.files(__package__).joinpath("models", f"{model_id}.json").read_text(encoding="utf-8")
    parsed: dict[str, Any] = json.loads(text)
    return parsed


def model_at(path: Path) -> ModelSpec:
    """A model by its folder, or by its config.json. Raises NotFound or SettingsError naming the path."""
    file = path / "config.json" if path.is_dir() else path
    try:
        parsed = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise NotFound(f"{file} is not there: give a folder that holds the model's config.json") from error
    except (OSError, ValueError) as error:
        raise SettingsError(f"{file} is not readable as JSON: {error}", param="model") from error
    if not isinstance(parsed, dict):
        raise SettingsError(f"{file} holds no JSON object", param="model")
    return read_config(parsed, model_id=file.parent.name)
