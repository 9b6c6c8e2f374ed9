"""Bytes on the disk, of folders that others write to."""

import os
from pathlib import Path


def bytes_below(folder: Path) -> int:
    """Size of all files below `folder`, links as themselves. Files and folders may vanish while we look."""
    total_bytes = 0
    # Unlike Path.rglob, os.walk passes over a folder that is gone when its turn comes.
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total_bytes += os.lstat(os.path.join(place, name)).st_size
            except FileNotFoundError:
                continue
    return total_bytes
