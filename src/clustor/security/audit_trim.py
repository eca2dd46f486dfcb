"""Which files of an audit log may go: whole ones, old ones, and none that anybody still needs."""

from __future__ import annotations

from typing import Final

from clustor.log.steps import Storage
from clustor.security.audit_files import file_heads, file_numbers, read_anchor

RETAINED_DAYS_MIN: Final = 400
"""clustor §12.3."""


def plan_trim(storage: Storage, *, before_ms: int, exported: int | None) -> list[int]:
    """Return the oldest files whose lines are all older than a moment, and not needed.

    `exported` is the newest line in the archive, None where the log is not exported: what is not
    there yet stays. The file of the anchor's seal stays too, and with it all that a restart reads.
    Raises AuditUnreadable.
    """
    anchor = read_anchor(storage)
    last = anchor.sequence - 1 if exported is None else min(anchor.sequence - 1, exported)
    first_kept = 0
    for number, head in file_heads(storage):
        # Lines are written in order: none before this file is younger than its head.
        if head.at_ms >= before_ms or head.sequence - 1 > last:
            break
        first_kept = number
    return [number for number in file_numbers(storage) if number < first_kept]
