"""Control calls in the audit log: the replicated ring forgets them one day, the log does not.

Whoever watches the control plane's store hands its audit records here, in order and perhaps again
after a restart: each becomes one line, once. Where the log ended is read from the log itself. A
record that is missing, or that does not follow the one before it, is told like anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path
from typing import Final

from clustor.control.audit import AuditRecord, AuditRing
from clustor.control.draft import DraftReading, find, prefix_of
from clustor.control.objects import canonical, decode_object
from clustor.kv import prefix_end
from clustor.runtime.disk import DirectoryStorage
from clustor.security import (
    AuditEvent,
    AuditPort,
    EventLine,
    decode_line,
    file_name,
    file_numbers,
)
from clustor.wall_clock import wall_clock_ms

_RECORDS_PER_LOOK: Final = 256
_FILES_LOOKED_AT: Final = 4
"""A start reads no more than that: what a busy log told longer ago may be told once more."""
_RING, _SEQUENCE, _DIGEST = "ring", "sequence", "record_sha256"


def event_of_record(record: AuditRecord) -> AuditEvent:
    """Turn a control call's record into an event. The call's answer is left out."""
    return AuditEvent(
        who=record.identity,
        what=record.kind,
        outcome=record.outcome,
        at_ms=record.at,
        object=" ".join(record.touched),
        trace_id=record.request_id,
        facts={
            _RING: record.ring.value,
            _SEQUENCE: str(record.sequence),
            _DIGEST: sha256(canonical(record)).hexdigest(),
            "command_sha256": record.command_sha256.hex(),
            "break_glass": record.break_glass or "",
        },
    )


def trail_ends(lines: Iterable[bytes]) -> dict[AuditRing, tuple[int, str]]:
    """Find the last record of each ring that a log tells of: its number and its digest."""
    ends: dict[AuditRing, tuple[int, str]] = {}
    for raw in lines:
        if b'"record_sha256"' in raw:
            line = decode_line(raw)
            if isinstance(line, EventLine) and _DIGEST in line.facts:
                facts = line.facts
                ends[AuditRing(facts[_RING])] = (int(facts[_SEQUENCE]), facts[_DIGEST])
    return ends


class ControlTrail:
    """Follows both rings of the control plane's trail."""

    def __init__(
        self, sink: AuditPort, ends: dict[AuditRing, tuple[int, str]] | None = None
    ) -> None:
        self._sink = sink
        self._ends = dict(ends or {})

    def on_record(self, record: AuditRecord) -> bool:
        """Take a record; False: the log has no room now, hand it in again.

        A record that the log has already is taken and not written again.
        """
        number, digest = self._ends.get(record.ring, (0, ""))
        if record.sequence <= number:
            return True
        problem = _problem(record, number, digest)
        if problem is not None and not self._sink.note(_alarm(record, problem)):
            return False
        event = event_of_record(record)
        if not self._sink.note(event):
            return False
        self._ends[record.ring] = (record.sequence, event.facts[_DIGEST])
        return True


class ControlFollower:
    """Tells the audit log of every control call that this node's replica has applied.

    Each node does, so that a call stands in as many logs as there are nodes. What nodes publish
    by the second (the other ring) is left out: it would bury the acts of people.
    """

    def __init__(self, state: Callable[[], DraftReading], sink: AuditPort, audit: Path) -> None:
        """`audit` is the log's directory: where the last life of this node ended is read there."""
        self._state = state
        self._ends = _newest_ends(audit)
        self._trail = ControlTrail(sink, self._ends)
        self._next = self._ends.get(AuditRing.CALLS, (0, ""))[0] + 1

    def look(self) -> None:
        """Take what was applied since the last look, a bounded piece of it."""
        store = self._state()
        for _ in range(_RECORDS_PER_LOOK):
            record = find(store, AuditRecord, AuditRing.CALLS.value, self._next)
            record = record or self._oldest_after_a_gap(store)
            if record is None or not self._trail.on_record(record):
                return
            self._next = record.sequence + 1

    def _oldest_after_a_gap(self, store: DraftReading) -> AuditRecord | None:
        """Return where the ring begins, if it has forgotten what was wanted."""
        prefix = prefix_of(AuditRecord, AuditRing.CALLS.value)
        page = store.range(prefix, prefix_end(prefix), 1)
        if not page.records:
            return None
        oldest = decode_object(AuditRecord, page.records[0].value)
        return oldest if oldest.sequence > self._next else None


def _newest_ends(audit: Path) -> dict[AuditRing, tuple[int, str]]:
    """Look for the last control call in the newest files of a log."""
    storage = DirectoryStorage(audit)
    try:
        for number in sorted(file_numbers(storage), reverse=True)[:_FILES_LOOKED_AT]:
            name = file_name(number)
            ends = trail_ends(storage.read(name, 0, storage.size(name)).split(b"\n"))
            if AuditRing.CALLS in ends:
                return ends
    finally:
        storage.close()
    return {}


def _problem(record: AuditRecord, number: int, digest: str) -> str | None:
    if number and record.sequence != number + 1:
        return f"records {number + 1} to {record.sequence - 1} are missing"
    if number and record.previous.hex() != digest:
        return "it does not follow the record before it"
    return None


def _alarm(record: AuditRecord, problem: str) -> AuditEvent:
    return AuditEvent(
        who="(control trail)",
        what="ControlTrailBroken",
        outcome=problem,
        at_ms=wall_clock_ms(),
        object=f"{record.ring.value}/{record.sequence}",
    )
