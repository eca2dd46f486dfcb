"""Exit codes, and the one line that goes with each."""

from __future__ import annotations

from enum import IntEnum
from typing import NoReturn

import typer
from rich.console import Console

from clustor.log import (
    AuthenticationFailed,
    ChecksumMismatch,
    KeyUnavailable,
    LogError,
    LogFenced,
    LogState,
    MissingFile,
    UnsupportedFormat,
)


class Exit(IntEnum):
    """What a script can tell apart. 0 is success, 2 is a wrong flag."""

    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3  # no log here, or a file that must be there is not
    WRONG_KEY = 4
    NEEDS_REPAIR = 5  # a checksum failed
    QUARANTINED = 6  # authentication failed, or proven data is gone
    UNSUPPORTED = 7  # written by a later release
    PORT_TAKEN = 8
    CERTIFICATE = 9
    SELF_TEST = 10
    REPLICA = 11  # a replica that must not start: its data is lost or damaged
    UNREACHABLE = 12  # no node answered, or none that leads, before the deadline
    CONFLICT = 13  # a condition did not hold


_BY_ERROR: tuple[tuple[type[LogError], Exit], ...] = (
    (KeyUnavailable, Exit.WRONG_KEY),
    (AuthenticationFailed, Exit.QUARANTINED),
    (ChecksumMismatch, Exit.NEEDS_REPAIR),
    (MissingFile, Exit.NOT_FOUND),
    (UnsupportedFormat, Exit.UNSUPPORTED),
    (LogFenced, Exit.QUARANTINED),
)
_BY_STATE = {LogState.NEEDS_REPAIR: Exit.NEEDS_REPAIR, LogState.QUARANTINED: Exit.QUARANTINED}

errors = Console(stderr=True, soft_wrap=True)


def exit_of(error: LogError) -> Exit:
    """Choose the exit code of an error."""
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), Exit.FAILED)


def exit_of_state(state: LogState) -> int:
    return _BY_STATE.get(state, 0)


def fail(message: str, code: Exit) -> NoReturn:
    """Say one sentence on standard error, and end with `code`."""
    errors.print(f"quantum: {message}", markup=False, highlight=False)
    raise typer.Exit(code)
