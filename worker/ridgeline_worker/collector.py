"""The garbage collector of a process that steps: it must not walk everything between two steps."""

import gc

_YOUNG_OBJECTS = 50_000
"""A step of 256 rows makes some thousand objects, nearly all of which die by their counts."""


def calm_collector() -> None:
    """Call it once, when model and engine are built: what lives now is never looked at again, and passes are rare.

    A full pass walks each cached block: with a million of them it would take seconds, in which nobody gets a token.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, 20, 100)
