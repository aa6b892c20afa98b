"""Logs on stderr: lines for people, or one JSON object a line for programs."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

LEVELS = ("debug", "info", "warning", "error")

_CHATTY = ("alembic", "asyncio", "httpcore", "httpx", "sqlalchemy")
"""Libraries that report each step as INFO; one of them with URLs that hold secrets."""


class HumanFormatter(logging.Formatter):
    """Time, level, logger and message on a line, and the traceback below."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S")


class JSONFormatter(logging.Formatter):
    """One JSON object: time (UTC), level, logger, message, and exception if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC)
        entry = {
            "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def configure(*, json_lines: bool, level: str) -> None:
    """Send all logs, and Python's warnings, to stderr.

    Args:
        json_lines: JSON in place of lines for people.
        level: one of LEVELS, for everything; libraries that log each step stay at WARNING unless it
            is "debug".
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JSONFormatter() if json_lines else HumanFormatter())
    number = logging.getLevelNamesMapping()[level.upper()]
    logging.basicConfig(handlers=[handler], level=number, force=True)
    logging.captureWarnings(True)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(
            logging.NOTSET if level == "debug" else max(number, logging.WARNING)
        )
