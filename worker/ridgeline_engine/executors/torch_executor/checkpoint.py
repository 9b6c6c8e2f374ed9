"""Reads named tensors out of a model folder's safetensors files, one at a time, through a memory map."""

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from ridgeline_contracts.errors import SettingsError
from safetensors import SafetensorError, safe_open
from torch import Tensor

_KNOWN_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class Checkpoint:
    """A context manager. Tensors that it gives are views of the map: copy what is to outlive it."""

    def __init__(self, paths: tuple[Path, ...]) -> None:
        self._paths = paths
        self._stack = ExitStack()
        self._files: dict[str, tuple[Path, Any]] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for path in self._paths:
                file = stack.enter_context(_open(path))
                self._files.update((name, (path, file)) for name in file.keys())  # noqa: SIM118 - not a mapping
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.clear()
        self._stack.close()

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor called `name`. Raises SettingsError if it is missing, of another shape or of a strange
        dtype."""
        if name not in self._files:
            raise SettingsError(
                f"weight {name} is not in the safetensors files of {self._paths[0].parent}: "
                "config.json names another architecture than the weights have, or a shard is missing"
            )
        path, file = self._files[name]
        found: Tensor = file.get_tensor(name)
        if tuple(found.shape) != shape:
            raise SettingsError(
                f"weight {name} in {path} has shape {list(found.shape)}, config.json asks for {list(shape)}: "
                "the two files do not belong together, fetch the model again"
            )
        if found.dtype not in _KNOWN_DTYPES:
            raise SettingsError(
                f"weight {name} in {path} has dtype {found.dtype}; bf16, fp16 and fp32 are known"
            )
        return found


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise SettingsError(f"{path} is not a safetensors file ({error}): fetch the model again") from error
