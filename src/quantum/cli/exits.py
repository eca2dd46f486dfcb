"""Exit codes, and the one line that goes with each."""

from __future__ import annotations

import errno
import os
from enum import IntEnum
from typing import TYPE_CHECKING, NoReturn

import typer

from quantum.cli.naming import pasteable

if TYPE_CHECKING:
    from clustor.log.errors import LogError
    from clustor.log.types import LogState
    from clustor.security import ChainFault


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
    NO_ROOM = 14  # the disk is too full to start on
    BEHIND = 15  # a table lacks messages that its log has


def exit_of(error: LogError) -> Exit:
    """Choose the exit code of an error."""
    from clustor.log import errors as log  # whoever has such an error has imported it

    by_error: tuple[tuple[type[LogError], Exit], ...] = (
        (log.KeyUnavailable, Exit.WRONG_KEY),
        (log.AuthenticationFailed, Exit.QUARANTINED),
        (log.ChecksumMismatch, Exit.NEEDS_REPAIR),
        (log.MissingFile, Exit.NOT_FOUND),
        (log.UnsupportedFormat, Exit.UNSUPPORTED),
        (log.LogFenced, Exit.QUARANTINED),
    )
    return next((code for kind, code in by_error if isinstance(error, kind)), Exit.FAILED)


def exit_of_state(state: LogState) -> int:
    from clustor.log.types import LogState

    by_state = {LogState.NEEDS_REPAIR: Exit.NEEDS_REPAIR, LogState.QUARANTINED: Exit.QUARANTINED}
    return by_state.get(state, 0)


def exit_of_fault(fault: ChainFault | None) -> int:
    """Choose the exit code of what was done to an audit log."""
    from clustor.security import ChainFaultKind

    by_kind = {ChainFaultKind.WRONG_KEY: Exit.WRONG_KEY, ChainFaultKind.UNSIGNED: Exit.FAILED}
    return 0 if fault is None else by_kind.get(fault.kind, Exit.QUARANTINED)


def fail_path(error: OSError) -> NoReturn:
    """End because of a path, a disk or a right that is not what a command needs."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        fail(f"the disk is full: {error.filename or 'make room and try again'}", Exit.NO_ROOM)
    said = error.strerror or str(error)
    if error.filename is None and _is_nowhere():
        fail("the directory that this was called in is gone; cd to one that is", Exit.NOT_FOUND)
    if error.filename is None:
        fail(said, Exit.FAILED)
    fail(f"cannot use {error.filename}: {said}; check the path and its rights", Exit.NOT_FOUND)


def _is_nowhere() -> bool:
    """Say whether the working directory does not exist any more."""
    try:
        os.getcwd()  # noqa: PTH109  # Path.cwd asks the same
    except FileNotFoundError:
        return True
    return False


def fail(message: str, code: Exit) -> NoReturn:
    """Say one sentence on standard error, and end with `code`."""
    typer.echo(f"quantum: {pasteable(message)}", err=True)
    raise typer.Exit(code)
