"""The compiled library as Python functions. Calls release the GIL; pointers and shapes are the caller's duty."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_POINTER, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_float

_SIGNATURES: dict[str, tuple[type | None, list[type]]] = {
    "rl_linear": (
        _INT,
        [_POINTER, _LONG, _POINTER, _POINTER, _POINTER, _LONG, _LONG, _LONG, _LONG, _LONG, _INT, _INT],
    ),
    "rl_rms_norm": (
        None,
        [_POINTER, _LONG, _POINTER, _FLOAT, _POINTER, _LONG, _POINTER, _LONG, _LONG, _INT],
    ),
    "rl_silu_mul": (None, [_POINTER, _LONG, _POINTER, _LONG, _LONG, _INT]),
    "rl_rope_store": (
        _INT,
        [_POINTER, _LONG, _POINTER, _POINTER, _LONG, _POINTER, _INT, _LONG, _LONG, _POINTER]
        + [_LONG, _LONG, _LONG, _LONG, _INT],
    ),
    "rl_paged_attention": (
        _INT,
        [_POINTER, _LONG, _POINTER, _INT, _LONG, _LONG, _POINTER, _LONG, _POINTER, _POINTER]
        + [_LONG, _LONG, _LONG, _LONG, _LONG, _FLOAT, _LONG, _POINTER, _LONG, _INT],
    ),
}


@dataclass(frozen=True, slots=True)
class NativeLibrary:
    """The exported functions; see csrc for what each argument means."""

    path: Path
    linear: Callable[..., int]
    rms_norm: Callable[..., None]
    silu_mul: Callable[..., None]
    rope_store: Callable[..., int]
    paged_attention: Callable[..., int]


def load_library(path: Path) -> NativeLibrary:
    """Loads a library made by `build_library`. Raises OSError if it cannot be loaded here."""
    library = ctypes.CDLL(str(path))
    bound: dict[str, Callable[..., int]] = {}
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
        bound[name.removeprefix("rl_")] = function
    return NativeLibrary(path=path, **bound)
