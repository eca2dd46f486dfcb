"""Control calls in the audit log: the replicated ring forgets them one day, the log does not.

Whoever watches the control plane's store hands its audit records here, in order and perhaps again
after a restart: each becomes one line, once. Where the log ended is read from the log itself. A
record that is missing, or that does not follow the one before it, is told like anything else.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

from clustor.control.audit import AuditRecord, Ring
from clustor.control.objects import canonical
from clustor.runtime.audit_writer import wall_ms
from clustor.security import AuditEvent, AuditSink, EventLine, decode_line

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


def trail_ends(lines: Iterable[bytes]) -> dict[Ring, tuple[int, str]]:
    """Find the last record of each ring that a log tells of: its number and its digest."""
    ends: dict[Ring, tuple[int, str]] = {}
    for raw in lines:
        if b'"record_sha256"' in raw:
            line = decode_line(raw)
            if isinstance(line, EventLine) and _DIGEST in line.facts:
                facts = line.facts
                ends[Ring(facts[_RING])] = (int(facts[_SEQUENCE]), facts[_DIGEST])
    return ends


class ControlTrail:
    """Follows both rings of the control plane's trail."""

    def __init__(self, sink: AuditSink, ends: dict[Ring, tuple[int, str]] | None = None) -> None:
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
        at_ms=wall_ms(),
        object=f"{record.ring.value}/{record.sequence}",
    )
