"""Audit events of a command: opened, written, sealed and closed in one call.

Commands that change a cluster's directory have a log of their own there: the nodes' logs are open
in their processes.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Sequence
from pathlib import Path

from clustor.runtime.audit.keys import open_audit_keys
from clustor.runtime.audit.writer import AUDIT_DIRECTORY, AuditLock
from clustor.runtime.disk import BlockingDisk, DirectoryStorage, DiskError
from clustor.runtime.errors import AuditFailed
from clustor.runtime.keys.store import KEYS_DIRECTORY
from clustor.security import AuditEvent, key_id_of, plan_open
from clustor.wall_clock import wall_clock_ms


def record_now(root: Path, events: Sequence[AuditEvent]) -> None:
    """Write events to the log of `root`; they are durable and signed when this returns.

    Raises AuditFailed, AuditUnreadable and KeyUnavailable; another command is waited for.
    """
    directory = root / AUDIT_DIRECTORY
    directory.mkdir(parents=True, mode=0o700, exist_ok=True)
    signer = open_audit_keys(root / KEYS_DIRECTORY, wall_clock_ms()).signer
    with AuditLock(directory, wait=True):
        disk = BlockingDisk()
        storage = DirectoryStorage(directory)
        try:
            partition = disk.open_partition(directory)
            journal, plan = plan_open(
                storage,
                signer.sign,
                key_id_of(signer.public_key().public_bytes_raw()),
                new_log_id=os.urandom(16).hex(),
                at_ms=wall_clock_ms(),
            )
            disk.execute(partition, plan)
            disk.execute(partition, journal.plan_append(events, wall_clock_ms(), seal=True))
        except DiskError as error:
            raise AuditFailed("the audit log cannot be written", cause=error) from error
        finally:
            storage.close()
            disk.close()


def command_event(
    what: str, outcome: str, target: str, facts: dict[str, str] | None = None
) -> AuditEvent:
    """Return the event of a command that somebody gave on this machine."""
    return AuditEvent(
        who=f"local:{_user()}",
        what=what,
        outcome=outcome,
        at_ms=wall_clock_ms(),
        object=target,
        facts=facts or {},
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
