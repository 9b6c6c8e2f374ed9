"""The compiled library as Python functions. Calls release the GIL; pointers and shapes are the caller's duty."""

import ctypes
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_KINDS: dict[str, Any] = {
    "p": ctypes.c_void_p,
    "l": ctypes.c_long,
    "i": ctypes.c_int,
    "f": ctypes.c_float,
}

_ARGUMENTS = {
    "rounds_activations": "",
    "linear": "plppplllllili",
    "weight_rows": "pilllplp",
    "rms_norm": "plpfplplli",
    "silu_mul": "plplli",
    "rope_store": "plpplpillplllli",
    "paged_attention": "plpillplpplllllflplii",
    "step": "pp",
    "best": "pllppi",
    "draw_scratch": "l",
    "draw": "plplppppppppi",
    "most_likely": "plpllppi",
}
"""By function: the kind of each argument; all return an int, mostly a fault code."""

Function = Callable[..., int]


@dataclass(frozen=True, slots=True)
class NativeLibrary:
    """The exported functions; see csrc for what each argument and fault code means."""

    path: Path
    rounds_activations: Function
    linear: Function
    weight_rows: Function
    rms_norm: Function
    silu_mul: Function
    rope_store: Function
    paged_attention: Function
    step: Function
    best: Function
    draw_scratch: Function
    draw: Function
    most_likely: Function


def load_library(path: Path) -> NativeLibrary:
    """Loads a library made by `build_library`. Raises OSError if it cannot be loaded here."""
    return NativeLibrary(path=path, **bind(ctypes.CDLL(str(path)), _ARGUMENTS))


def bind(library: ctypes.CDLL, names: Iterable[str]) -> dict[str, Function]:
    """These functions of a loaded library, with their arguments' kinds."""
    bound: dict[str, Function] = {}
    for name in names:
        function = getattr(library, f"rl_{name}")
        function.restype = ctypes.c_int
        function.argtypes = [_KINDS[kind] for kind in _ARGUMENTS[name]]
        bound[name] = function
    return bound
