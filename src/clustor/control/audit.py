"""The audit trail: one record per call, refused ones too, each chained to the one before it.

A record also holds the answer, and that makes a call idempotent: who repeats a request id gets
the same bytes again. The trail is a ring, not an archive: the exporter follows the watch and
signs what it writes (clustor §12.3). What nodes publish by the second has a ring of its own, so
that it never pushes an operator's call out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import StrEnum
from hashlib import sha256
from typing import Annotated, Any, ClassVar, Final

import msgspec

from clustor.control.calls import Command
from clustor.control.draft import Draft, DraftReading, Refuse, prefix_of, scan_records
from clustor.control.objects import ControlObject, canonical, decode_object, key_of
from clustor.control.rbac import CallerAuthority
from clustor.control.types import AccessRole, Count, Digest, Identity, Name, RefusalCode, Text
from clustor.kv import Key

TOUCHED_MAX: Final = 16
NOTHING: Final = bytes(32)  # before the first record


class AuditRing(StrEnum):
    CALLS = "calls"
    PUBLICATIONS = "publications"


RING_RECORDS_MAX: Final = {AuditRing.CALLS: 16_384, AuditRing.PUBLICATIONS: 4_096}


class AuditRecord(ControlObject, frozen=True, kw_only=True):
    """Who did what, when, and what became of it."""

    PREFIX: ClassVar[str] = "audit/"
    ring: AuditRing
    sequence: Count
    at: Count
    identity: Identity
    roles: tuple[AccessRole, ...]
    break_glass: Name | None
    kind: Text
    request_id: Name
    command_sha256: Digest
    outcome: Text  # "Done", or the code of the refusal
    touched: tuple[str, ...]  # the keys of the objects that changed, at most TOUCHED_MAX
    answer: bytes
    previous: Digest  # SHA-256 of the ring's record before this one

    def key(self) -> Key:
        return key_of(AuditRecord, self.ring.value, self.sequence)


class AuditIndex(ControlObject, frozen=True, kw_only=True):
    """How far the archive has come (quantumqtt §9.6)."""

    PREFIX: ClassVar[str] = "audit_index/"
    ring: AuditRing
    through: Count
    sha256: Digest  # of the archived segment
    location: Text
    indexed_at: Count

    def key(self) -> Key:
        return key_of(AuditIndex, self.ring.value)


class IndexAudit(Command, frozen=True, kw_only=True):
    """Record that the trail was archived through a sequence."""

    ring: AuditRing
    through: Count
    sha256: Digest
    location: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]


def on_index_audit(
    draft: Draft, _authority: CallerAuthority, command: IndexAudit
) -> dict[str, Any]:
    held = draft.find(AuditIndex, command.ring.value)
    if held is not None and command.through <= held.through:
        raise Refuse(RefusalCode.CONFLICT, "archived already", through=held.through)
    if draft.find(AuditRecord, command.ring.value, command.through) is None:
        raise Refuse(RefusalCode.NOT_FOUND, "the trail has no such record", through=command.through)
    draft.put(
        AuditIndex(
            ring=command.ring,
            through=command.through,
            sha256=command.sha256,
            location=command.location,
            indexed_at=draft.now_ms,
        )
    )
    return {"through": command.through}


class AuditTrail:
    """Both rings, as they follow from the records in the store."""

    def __init__(self, store: DraftReading, observe: Callable[[AuditRecord], None]) -> None:
        """Load both rings; `observe` sees each record, in order."""
        self._store = store
        self._by_request: dict[tuple[str, str], Key] = {}
        self._sequences: dict[AuditRing, deque[tuple[int, tuple[str, str]]]] = {}
        self._previous: dict[AuditRing, bytes] = {}
        for ring in AuditRing:
            self._sequences[ring] = deque()
            self._previous[ring] = NOTHING
            for record in scan_records(store, prefix_of(AuditRecord, ring.value)):
                held = decode_object(AuditRecord, record.value)
                self._note(held, record.value)
                observe(held)

    def _note(self, record: AuditRecord, encoded: bytes) -> None:
        request = (record.identity, record.request_id)
        if record.outcome != RefusalCode.REQUEST_ID_REUSED:  # that id is the first call's
            self._by_request[request] = record.key()
        self._sequences[record.ring].append((record.sequence, request))
        self._previous[record.ring] = sha256(encoded).digest()

    def known(self, identity: str, request_id: str) -> AuditRecord | None:
        """Return the record of an earlier call with this request id of this caller."""
        key = self._by_request.get((identity, request_id))
        found = self._store.get(key) if key is not None else None
        return decode_object(AuditRecord, found.value) if found is not None else None

    def next_sequence(self, ring: AuditRing) -> int:
        sequences = self._sequences[ring]
        return sequences[-1][0] + 1 if sequences else 1

    def oldest_sequence(self, ring: AuditRing) -> int:
        sequences = self._sequences[ring]
        return sequences[0][0] if sequences else 1

    def previous(self, ring: AuditRing) -> bytes:
        return self._previous[ring]

    def append(self, record: AuditRecord, changes: dict[Key, bytes | None]) -> None:
        """Add a record to what is about to be changed; the oldest of a full ring goes."""
        encoded = canonical(record)
        changes[record.key()] = encoded
        self._note(record, encoded)
        sequences = self._sequences[record.ring]
        if len(sequences) > RING_RECORDS_MAX[record.ring]:
            sequence, request = sequences.popleft()
            gone = key_of(AuditRecord, record.ring.value, sequence)
            changes[gone] = None
            if self._by_request.get(request) == gone:
                del self._by_request[request]
