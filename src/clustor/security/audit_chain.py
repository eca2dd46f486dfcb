"""Writing the chain: events become lines, and at most 1,000 of them stand before each seal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from clustor.security.audit_lines import (
    NOTHING,
    Anchor,
    AnyLine,
    AuditEvent,
    EventLine,
    FileLine,
    KeyId,
    Leftover,
    LineDigest,
    SealLine,
    anchored_bytes,
    bounded_event,
    digest_of,
    encode_line,
    encode_signature,
    sealed_bytes,
)

BATCH_EVENTS_MAX: Final = 1_000  # clustor §12.3

Sign = Callable[[bytes], bytes]
"""Ed25519 over these bytes; the key itself stays outside."""


@dataclass(frozen=True, slots=True)
class ChainEnd:
    """Where a log ends; by default before its first line."""

    sequence: int = 0
    digest: LineDigest = NOTHING
    sealed: int = 0
    sealed_digest: LineDigest = NOTHING
    batch: int = 0
    open_events: int = 0


BEGINNING: Final = ChainEnd()


class AuditChain:
    """The end of one log, to which lines are added. Equal calls give equal bytes."""

    def __init__(self, log_id: str, sign: Sign, key_id: KeyId, end: ChainEnd = BEGINNING) -> None:
        """Go on behind `end`."""
        self.log_id = log_id
        self._sign = sign
        self.key_id = key_id
        self.sequence = end.sequence
        self.digest = end.digest
        self.sealed = end.sealed
        """The place of the newest seal."""
        self.sealed_digest = end.sealed_digest
        self._batch = end.batch
        self.open_events = end.open_events
        """Events behind the newest seal: at most BATCH_EVENTS_MAX."""

    @property
    def open_lines(self) -> int:
        """Lines behind the newest seal, which nothing has signed yet."""
        return self.sequence - self.sealed

    @property
    def is_full(self) -> bool:
        """Whether a seal must come before the next event."""
        return self.open_events >= BATCH_EVENTS_MAX

    def begin_file(
        self, file: int, at_ms: int, leftovers: tuple[Leftover, ...] = ()
    ) -> bytes:  # fmt: skip
        """Return the first line of a file."""
        return self._add(
            FileLine(
                sequence=self.sequence + 1,
                previous=self.digest,
                log_id=self.log_id,
                file=file,
                at_ms=at_ms,
                unsigned_lines=self.open_lines,
                leftovers=leftovers,
            )
        )

    def append(self, event: AuditEvent) -> bytes:
        """Return the line of an event; what no line can hold is clipped."""
        assert not self.is_full, "seal first"
        event = bounded_event(event)
        line = self._add(
            EventLine(
                sequence=self.sequence + 1,
                previous=self.digest,
                who=event.who,
                what=event.what,
                outcome=event.outcome,
                at_ms=event.at_ms,
                object=event.object,
                tenant=event.tenant,
                trace_id=event.trace_id,
                facts=event.facts,
            )
        )
        self.open_events += 1
        return line

    def seal(self, at_ms: int) -> bytes:
        """Return the signed line that closes the batch."""
        seal = SealLine(
            sequence=self.sequence + 1,
            previous=self.digest,
            log_id=self.log_id,
            batch=self._batch + 1,
            first=self.sealed + 1,
            last_sealed=self.sealed,
            last_seal=self.sealed_digest,
            at_ms=at_ms,
            key_id=self.key_id,
            signature="",
        )
        signature = encode_signature(self._sign(sealed_bytes(seal)))
        line = self._add(msgspec.structs.replace(seal, signature=signature))
        self._batch += 1
        self.sealed, self.sealed_digest, self.open_events = self.sequence, self.digest, 0
        return line

    def anchor(self) -> Anchor:
        """Return the anchor that names the newest seal."""
        bare = Anchor(
            log_id=self.log_id,
            sequence=self.sealed,
            digest=self.sealed_digest,
            key_id=self.key_id,
            signature="",
        )
        signature = encode_signature(self._sign(anchored_bytes(bare)))
        return msgspec.structs.replace(bare, signature=signature)

    def _add(self, line: AnyLine) -> bytes:
        encoded = encode_line(line)
        self.sequence += 1
        self.digest = digest_of(encoded)
        return encoded
