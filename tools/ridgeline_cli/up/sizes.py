"""Sizes of memory as people write them: `512MiB`, `1.5GiB`, `2GB`, or plain bytes."""

import re

from ridgeline_contracts.errors import SettingsError

_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def parse_size(text: str, *, flag: str) -> int:
    """Bytes. Units are powers of 1000, with an `i` of 1024. Raises SettingsError naming `flag`."""
    found = _SIZE.fullmatch(text.strip())
    base = 1024 if found is not None and found[3] else 1000
    size_bytes = 0 if found is None else int(float(found[1]) * base ** _POWERS[found[2].lower()])
    if size_bytes <= 0:
        raise SettingsError(f"{flag} {text!r} is no size: write 512MiB, 2GB or a number of bytes", param=flag)
    return size_bytes


def written_size(size_bytes: int) -> str:
    """`1.5 GiB`, or `300 MiB` below one."""
    if size_bytes >= 1024**3:
        return f"{size_bytes / 1024**3:.1f} GiB"
    return f"{size_bytes / 1024**2:.0f} MiB"
