"""The journal of a process: text for people or one line of JSON for each event, at any level."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from typing import Final, TextIO

from clustor.printable import printable
from clustor.telemetry import Event, encode_line

FORMAT_VARIABLE: Final = "QUANTUM_LOG_FORMAT"
FORMATS: Final = ("text", "json")
LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
ROOTS: Final = ("clustor", "quantum", "slipstream")
"""Whose loggers may be set; what libraries say follows the root."""


class UnknownLevel(ValueError):
    """No such level, or no such logger."""


class JournalLevels:
    """The levels of a process, changeable while it runs."""

    def get(self) -> dict[str, str]:
        """Return the level of the root (`""`) and of every logger that has its own."""
        found = {"": logging.getLevelName(logging.getLogger().level)}
        for name, logger in sorted(logging.Logger.manager.loggerDict.items()):
            is_ours = name.split(".", 1)[0] in ROOTS
            if is_ours and isinstance(logger, logging.Logger) and logger.level:
                found[name] = logging.getLevelName(logger.level)
        return found

    def names(self) -> list[str]:
        """Return the loggers that may be set: the roots, and whatever spoke below them."""
        known = logging.Logger.manager.loggerDict
        ours = (name for name in known if name.split(".", 1)[0] in ROOTS)
        return sorted({*ROOTS, *ours})

    def effective(self, logger: str) -> str:
        """Return the level that holds for a logger, its own or an inherited one."""
        return str(logging.getLevelName(logging.getLogger(logger).getEffectiveLevel()))

    def set(self, level: str, logger: str = "") -> None:
        """Set the level of a logger, at once; `""` is the root. Raises UnknownLevel."""
        if level.upper() not in LEVELS:
            raise UnknownLevel(f"not a level: {level}; one of {', '.join(LEVELS)}")
        if logger and logger.split(".", 1)[0] not in ROOTS:
            raise UnknownLevel(f"not a logger of ours: {logger}; below {', '.join(ROOTS)}")
        logging.getLogger(logger).setLevel(level.upper())


class JsonFormatter(logging.Formatter):
    """Writes a record as one line of JSON. `extra={"facts": {…}}` gives it facts by name."""

    def __init__(self, node_id: int) -> None:
        super().__init__()
        self._node_id = node_id

    def format(self, record: logging.LogRecord) -> str:
        error = None
        if record.exc_info and record.exc_info[1] is not None:
            error = "".join(traceback.format_exception(record.exc_info[1]))
        facts = getattr(record, "facts", {})
        event = Event(
            int(record.created * 1000),
            record.levelname,
            record.name,
            self._node_id,
            str(record.msg),
            record.getMessage(),
            facts if isinstance(facts, dict) else {},
            error,
        )
        return encode_line(event).decode()


class TextFormatter(logging.Formatter):
    """Writes a record as one line of text, whoever's words stand in it; a traceback follows."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # `logging` calls it so
        return printable(super().formatMessage(record))


def log_format(wanted: str | None = None) -> str:
    """Return what was asked for by flag, else by environment, else text."""
    found = wanted or os.environ.get(FORMAT_VARIABLE) or "text"
    return found if found in FORMATS else "text"


def set_up_logging(
    node_id: int,
    wanted: str | None = None,
    *,
    level: int = logging.INFO,
    text: str = "%(asctime)s %(message)s",
    stream: TextIO | None = None,
) -> None:
    """Let everything that is logged go to standard error, in the wanted format."""
    handler = logging.StreamHandler(stream or sys.stderr)
    as_json = log_format(wanted) == "json"
    handler.setFormatter(JsonFormatter(node_id) if as_json else TextFormatter(text))
    logging.basicConfig(level=level, handlers=[handler])
