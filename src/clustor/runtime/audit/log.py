"""Where a running node tells what happened: straight to the log, or past a guard against storms."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

from clustor.printable import printable
from clustor.runtime.audit.keys import open_audit_keys
from clustor.runtime.audit.writer import AUDIT_DIRECTORY, LIMITS, AuditWriter, WriterLimits
from clustor.runtime.data_directory import DataDirectory
from clustor.runtime.errors import DataDirectoryRefused
from clustor.security import AuditEvent, AuditUnreadable, StormGuard, events_per_window
from clustor.wall_clock import wall_clock_ms

_FLUSH_SECONDS: Final = 60.0

journal = logging.getLogger("clustor.audit")


class AuditLog:
    """A node's audit log, with what must be kept apart: acts of people, and refusals by the score.

    `note` and `record` are for what was done: each event is a line. `refused` is for what anybody
    can cause at will: the first few of a kind become lines, the rest are counted.
    """

    def __init__(self, writer: AuditWriter, active_partitions: int = 0) -> None:
        self.writer = writer
        self._guard = StormGuard(events_per_window(active_partitions))
        self._clients = StormGuard(events_per_window(active_partitions))
        """Apart from refusals: connections by the thousand push none of those out."""
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(_FLUSH_SECONDS, self._flush)
        self.refusals: dict[str, int] = {}
        """How often each kind of refusal came, written down or not."""

    def note(self, event: AuditEvent) -> bool:
        """Take an event; it never waits."""
        return self.writer.note(event)

    async def record(self, event: AuditEvent) -> None:
        """Return when the event is durable; raises AuditFailed."""
        await self.writer.record(event)

    def refused(
        self, what: str, *, who: str, why: str, target: str = "", tenant: str = ""
    ) -> None:  # fmt: skip
        """Count a refusal, and write it down unless there is a storm of its kind."""
        self.refusals[what] = self.refusals.get(what, 0) + 1
        event = AuditEvent(
            who=printable(who),
            what=what,
            outcome=printable(why),
            at_ms=wall_clock_ms(),
            object=printable(target),
            tenant=tenant,
        )
        for each in self._guard.admit(event):
            self.writer.note(each)

    def client_did(
        self, what: str, *, who: str, why: str, tenant: str, every: bool
    ) -> None:  # fmt: skip
        """Tell of a client that came or went: of every one, or of the first few and a count."""
        who, why = printable(who), printable(why)
        event = AuditEvent(who=who, what=what, outcome=why, at_ms=wall_clock_ms(), tenant=tenant)
        for each in (event,) if every else self._clients.admit(event):
            self.writer.note(each)

    def peer_refused(self, peer: int, error: Exception) -> None:
        """Tell of a connection between nodes that was refused."""
        self.refused(type(error).__name__, who=f"node/{peer}" if peer else "", why=str(error))

    def error_contained(self, place: str, who: str, error: str) -> None:
        """Tell of an error of our own that ended one connection, task or group."""
        self.refused("ErrorContained", who=who, why=error, target=place)

    def node_did(self, what: str, node: int) -> None:
        """Tell what became of this node."""
        self.note(
            AuditEvent(
                who="(node)",
                what=what,
                outcome="Done",
                at_ms=wall_clock_ms(),
                object=f"node/{node}",
            )
        )

    def group_did(self, what: str, partition: int, node: int, term: int, reason: str) -> None:
        """Tell what became of a group on this node, and in which term."""
        self.note(
            AuditEvent(
                who=f"node/{node}",
                what=what,
                outcome="Done",
                at_ms=wall_clock_ms(),
                object=f"group/{partition}",
                facts={"term": str(term), "reason": reason[:64]},
            )
        )

    async def close(self) -> None:
        """Write the summaries, seal, and close."""
        self._timer.cancel()
        for guard in (self._guard, self._clients):
            for each in guard.flush(wall_clock_ms(), everything=True):
                self.writer.note(each)
        await self.writer.close()

    def _flush(self) -> None:
        self._timer = self._loop.call_later(_FLUSH_SECONDS, self._flush)
        for guard in (self._guard, self._clients):
            for each in guard.flush(wall_clock_ms()):
                self.writer.note(each)


def open_desk(
    data: DataDirectory | Path, *, active_partitions: int = 0, limits: WriterLimits = LIMITS
) -> AuditLog:
    """Open the audit log of a node's directory, made where it is missing.

    Raises KeyUnavailable, AuditFailed, and DataDirectoryRefused for a log that must not be
    continued: people look at it with `quantum audit verify`, and move it aside.
    """
    root, store = (data, data / "keys") if isinstance(data, Path) else (data.root, data.keys)
    keys = open_audit_keys(store, wall_clock_ms())
    directory = root / AUDIT_DIRECTORY
    try:
        writer = AuditWriter(directory, keys.signer, limits=limits)
    except AuditUnreadable as error:
        raise DataDirectoryRefused(error.reason, directory=directory, **error.facts) from error
    return AuditLog(writer, active_partitions)
