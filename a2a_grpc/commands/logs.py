"""Logs on stderr: lines for people, or one JSON object a line for programs.

Where several processes write to the same stderr, each line names its process.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime

LEVELS = ("debug", "info", "warning", "error")

_CHATTY = ("alembic", "asyncio", "httpcore", "httpx", "sqlalchemy")
"""Libraries that report each step as INFO; one of them with URLs that hold secrets."""


class HumanFormatter(logging.Formatter):
    """Time, level, logger and message on a line, and the traceback below."""

    def __init__(self, *, name_process: bool = False) -> None:
        process = "[%(process)d] " if name_process else ""
        super().__init__(f"%(asctime)s %(levelname)s {process}%(name)s: %(message)s", "%H:%M:%S")


class JSONFormatter(logging.Formatter):
    """One JSON object: time (UTC), level, logger, message, and exception if there is one."""

    def __init__(self, *, name_process: bool = False) -> None:
        super().__init__()
        self._name_process = name_process

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC)
        entry: dict[str, object] = {
            "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if self._name_process:
            entry["process"] = record.process
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


class RedactingFormatter(logging.Formatter):
    """What another formatter makes, without what is secret, tracebacks included."""

    def __init__(self, inner: logging.Formatter, redact: Callable[[str], str]) -> None:
        super().__init__()
        self._inner = inner
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        return self._redact(self._inner.format(record))


def configure(
    *, json_lines: bool, level: str, redact: Callable[[str], str] = str, name_process: bool = False
) -> None:
    """Send all logs, and Python's warnings, to stderr.

    Args:
        json_lines: JSON in place of lines for people.
        level: one of LEVELS, for everything; libraries that log each step stay at WARNING unless it
            is "debug".
        redact: takes what is secret out of a line.
        name_process: whether each line has the id of this process.
    """
    handler = logging.StreamHandler(sys.stderr)
    formatter = JSONFormatter if json_lines else HumanFormatter
    handler.setFormatter(RedactingFormatter(formatter(name_process=name_process), redact))
    number = logging.getLevelNamesMapping()[level.upper()]
    logging.basicConfig(handlers=[handler], level=number, force=True)
    logging.captureWarnings(True)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(
            logging.NOTSET if level == "debug" else max(number, logging.WARNING)
        )
