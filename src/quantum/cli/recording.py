"""What a command did, told to the audit log of the directory that it changed."""

from __future__ import annotations

from pathlib import Path

from clustor.log.errors import KeyUnavailable
from clustor.runtime.audit.record_once import command_event, record_now
from clustor.runtime.errors import NodeError
from clustor.security import SecurityError
from quantum.cli.consoles import errors


def record_done(data: Path, what: str, target: str, facts: dict[str, str] | None = None) -> None:
    """Tell the audit log; what was done stays done where that fails, and people are told."""
    try:
        record_now(data, [command_event(what, "Done", target, facts)])
    except (SecurityError, NodeError, KeyUnavailable) as error:
        errors.print(
            f"quantum: done, but the audit log does not know it: {error}",
            markup=False,
            highlight=False,
        )
