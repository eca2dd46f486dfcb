"""What all keepers of keys do alike while a key is staged, active, retired and at last zeroized.

How far a key is, and what is due next, is decided by `clustor.security` (`KeyState`,
`plan_rotation`, `plan_signer`); a keeper owns where its keys are. Here is how a step is told, and
how people ask for a new key before its time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from clustor.runtime.data_directory import sync_directory, write_durably
from clustor.security import AuditEvent, AuditPort, KeyUse

WISH_PREFIX: Final = "rotate-"


def note_step(
    audit: AuditPort | None,
    who: str,
    what: str,
    key: str,
    *,
    at_ms: int,
    facts: dict[str, str] | None,
) -> None:
    """Write a step of a key's life into the audit log, where there is one."""
    if audit is not None:
        audit.note(
            AuditEvent(
                who=who, what=what, outcome="Done", at_ms=at_ms, object=key, facts=facts or {}
            )
        )


def wish_for(directory: Path, use: KeyUse) -> None:
    """Let a new key be made before its time."""
    write_durably(directory / (WISH_PREFIX + use.value), b"")


def is_wished(directory: Path, use: KeyUse) -> bool:
    """Say whether somebody asked for a new key."""
    return (directory / (WISH_PREFIX + use.value)).exists()


def grant_wish(directory: Path, use: KeyUse) -> None:
    """Forget a wish, durably: the key that was asked for is staged."""
    wish = directory / (WISH_PREFIX + use.value)
    if wish.exists():
        wish.unlink()
        sync_directory(directory)
