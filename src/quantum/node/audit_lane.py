"""The audit log on its way into the archive: when, what is waited for, and why.

Runs in the archiver's thread, beside the partitions. A store that fails is tried again; a log or
an archive that is not what it was is left alone, told, and looked at by people.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, Final

from clustor.security import SecurityError
from clustor.telemetry import MetricFamily, gauge
from quantum.archive import ArchiveDamaged, ArchiveError, ArchiveForeign, AuditExporter

_RETRY_SECONDS_MAX: Final = 60.0
_TROUBLE: Final = ("retrying", "stopped")

journal = logging.getLogger("quantum.archive")


class AuditLane:
    """One node's audit log. `turn` is called again and again, from one thread."""

    def __init__(
        self,
        exporter: AuditExporter,
        *,
        flush_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._exporter = exporter
        self._flush_seconds = flush_seconds
        self._clock = clock
        self._due_at = float("-inf")
        self._retry_seconds = 1.0
        self._state, self._reason = "starting", ""

    def turn(self) -> bool:
        """Export one object; say whether there may be more to export at once."""
        now = self._clock()
        if now < self._due_at or self._state == "stopped":
            return False
        try:
            more = self._exporter.step()
        except (ArchiveForeign, ArchiveDamaged, SecurityError) as error:
            self.give_up(str(error))
        except (ArchiveError, OSError) as error:
            self._try_again(str(error), now)
        else:
            self._retry_seconds = 1.0
            self._say("exporting" if more else "up to date", self._missed())
            self._due_at = now if more else now + self._flush_seconds
            return more
        return False

    def give_up(self, reason: str) -> None:
        """Export no more until the next start: an operator has to look."""
        journal.error("the audit log is not exported: %s", reason)
        self._say("stopped", reason)

    def status(self) -> dict[str, Any]:
        """Say how far it is; from any thread."""
        through = self._exporter.through
        return {"state": self._state, "reason": self._reason, "exported_sequence": through}

    def families(self) -> Iterator[MetricFamily | None]:
        """Give the series of the export."""
        through, text = self._exporter.through, "The newest line of the audit log in the archive"
        yield gauge("quantum.audit_exported_sequence", through, text)
        is_failing, text = self._state in _TROUBLE, "1: the audit log's export fails or has stopped"
        yield gauge("quantum.audit_export_failing", int(is_failing), text)

    def _missed(self) -> str:
        missed = self._exporter.missed
        if missed is None:
            return ""
        return f"lines {missed[0]} to {missed[1]} were removed before they were exported"

    def _try_again(self, reason: str, now: float) -> None:
        if reason != self._reason:
            journal.warning("the audit log is not exported yet: %s", reason)
        self._say("retrying", reason)
        self._due_at = now + self._retry_seconds
        self._retry_seconds = min(2 * self._retry_seconds, _RETRY_SECONDS_MAX)

    def _say(self, state: str, reason: str) -> None:
        if reason and state != "retrying" and reason != self._reason and state != "stopped":
            journal.error("the audit log's export: %s", reason)
        self._state, self._reason = state, reason
