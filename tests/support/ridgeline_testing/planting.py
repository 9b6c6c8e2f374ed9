"""Plants a defect: one snippet of one function's source is replaced, for as long as a block lasts.

The function object stays; only its code is exchanged, so that whoever imported it by name has the defect too. The
snippet must occur exactly once: a defect whose place has gone is an error, and never counts as caught.
"""

import ast
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any


class PlaceGone(LookupError):
    """The code that a defect was written against is no more; the message names both."""


@dataclass(frozen=True, slots=True)
class Defect:
    """`place` is `module:function` or `module:Class.method`; `was` becomes `now` in its source.

    `caught_by` is the node id of the test that must fail under it, a parameter set's id included where there are
    several.
    """

    name: str
    place: str
    was: str
    now: str
    caught_by: str


@contextmanager
def planted(defect: Defect) -> Iterator[None]:
    """The defect is in the code inside the block. Raises PlaceGone, with nothing changed, where it fits nowhere."""
    module, function = _find(defect)
    sound = function.__code__
    function.__code__ = _defective(defect, module, function)
    try:
        yield
    finally:
        function.__code__ = sound


def _find(defect: Defect) -> tuple[ModuleType, FunctionType]:
    module_name, _, path = defect.place.partition(":")
    module = importlib.import_module(module_name)
    found: Any = module
    for name in path.split("."):
        found = inspect.getattr_static(found, name, None)
    if isinstance(found, property):
        found = found.fget
    elif isinstance(found, classmethod | staticmethod):
        found = found.__func__
    # A context manager, a cached function: what they wrap.
    found = inspect.unwrap(found) if found is not None else None
    if not isinstance(found, FunctionType):
        raise PlaceGone(f"{defect.name!r}: there is no function {defect.place}")
    return module, found


def _defective(defect: Defect, module: ModuleType, function: FunctionType) -> CodeType:
    source = textwrap.dedent(inspect.getsource(function))
    if source.count(defect.was) != 1:
        raise PlaceGone(
            f"{defect.name!r}: {defect.was!r} stands {source.count(defect.was)} times in {defect.place}: write the "
            "defect anew against the code as it is"
        )
    tree = ast.parse(source.replace(defect.was, defect.now))
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
    definition.decorator_list = []
    # Annotations may name what is imported for type checking alone.
    definition.returns = None
    for argument in ast.walk(definition.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    scope = dict(vars(module))
    exec(compile(tree, f"<defect: {defect.name}>", "exec"), scope)
    made: CodeType = scope[definition.name].__code__
    if made.co_freevars != function.__code__.co_freevars:
        raise PlaceGone(f"{defect.name!r}: {defect.place} closes over {function.__code__.co_freevars}")
    return made
