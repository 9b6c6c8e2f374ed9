"""Bytes of a pipe to lines of text, however they are cut."""


class LineSplitter:
    """Feed it what was read; it returns the whole lines so far. A line past the limit comes in pieces."""

    def __init__(self, *, limit_bytes: int = 64 * 1024) -> None:
        self._limit_bytes = limit_bytes
        self._held = b""

    def feed(self, data: bytes) -> list[str]:
        """Whole lines without their ends. Bytes that are no UTF-8 are replaced."""
        *whole, self._held = (self._held + data).split(b"\n")
        if len(self._held) > self._limit_bytes:
            whole.append(self._held)
            self._held = b""
        return [_text(line) for line in whole]

    def finish(self) -> list[str]:
        """The last line, if it had no end."""
        held, self._held = self._held, b""
        return [_text(held)] if held else []


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\r")
