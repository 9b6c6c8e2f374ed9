"""Logs: one line a record on stderr, `time level logger message key=value ...`. Never a tenant's text."""

import logging
import sys
from datetime import UTC, datetime

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
LEVEL_NAMES = tuple(_LEVELS)


class LineFormatter(logging.Formatter):
    """Keeps a record on one line; a traceback is folded into it."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = f"{when} {record.levelname.lower()} {record.name} {record.getMessage()}"
        if record.exc_info:
            line += f" traceback={self.formatException(record.exc_info)!r}"
        return line.replace("\n", "\\n")


def log_to_stderr(level_name: str) -> None:
    """Sets up the process's root logger. Called once, by an entry point."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    logging.basicConfig(handlers=[handler], level=_LEVELS[level_name], force=True)
