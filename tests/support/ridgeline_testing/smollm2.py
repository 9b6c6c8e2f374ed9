"""The real small model, fetched through the product's own code into the user's cache, once."""

import os
from pathlib import Path

from ridgeline_cli.__main__ import read_context
from ridgeline_cli.model.commands import open_fetcher, stderr_progress


def smollm2_folder() -> Path:
    """The folder of SmolLM2-135M-Instruct. The first call on a machine downloads it (half a minute).

    Safe to call from several test processes at once: they wait for the one that fetches.
    """
    return (
        open_fetcher(read_context(os.environ), stderr_progress()).fetch("smollm2-135m-instruct").folder.path
    )
