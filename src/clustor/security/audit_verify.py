"""Verifying an audit log: line by line, or batch by batch on many machines.

A batch is what one seal covers. `verify_batch` needs nothing but the batch and the keys; given the
digest before it, it checks the link too. So a log is split by `split_batches`, its batches are
verified in any order and place, and `join_batches` checks that they follow each other.

What can be seen, and what cannot:
- Any changed, missing, added or moved line before a seal is seen, unless its author has the key.
- Lines behind the last seal are chained, not signed: they are counted as `unsigned_lines`. Who can
  write the file can rewrite or cut them.
- A log that was cut before its anchor is seen. A log *and* its anchor put back to an older state
  together are consistent: that is seen only against a head that was kept elsewhere (`expect_head`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final, TypeAlias

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from clustor.security.audit_chain import BATCH_EVENTS_MAX
from clustor.security.audit_lines import (
    NOTHING,
    Anchor,
    AnyLine,
    EventLine,
    FileLine,
    KeyId,
    LineDigest,
    SealLine,
    anchored_bytes,
    decode_line,
    decode_signature,
    digest_of,
    key_id_of,
    sealed_bytes,
)

_BATCH_LINES_MAX: Final = 4 * BATCH_EVENTS_MAX
"""Where a seal should have come long ago, a batch is cut all the same: memory stays bounded."""


class ChainFaultKind(StrEnum):
    """What was done to a log."""

    ALTERED = "altered"
    DROPPED = "dropped"
    REORDERED = "reordered"
    TRUNCATED = "truncated"
    UNSIGNED = "unsigned"
    WRONG_KEY = "wrong key"


@dataclass(frozen=True, slots=True)
class ChainFault:
    """The first thing that is wrong."""

    kind: ChainFaultKind
    line: int
    """Which line of what was given, from 1; for a missing line, where it is missed."""
    detail: str


@dataclass(frozen=True, slots=True)
class TrustedKey:
    """A public key, and the time in which its seals count; the times of two keys may overlap.

    Plain data, so that it can be sent to other machines.
    """

    public_key: bytes
    activates_at_ms: int = 0
    retires_at_ms: int | None = None

    def is_active(self, at_ms: int) -> bool:
        ended = self.retires_at_ms is not None and at_ms >= self.retires_at_ms
        return at_ms >= self.activates_at_ms and not ended

    def made(self, signature: str, content: bytes) -> bool:
        """Say whether this key made a signature."""
        try:
            _loaded(self.public_key).verify(decode_signature(signature), content)
        except InvalidSignature:
            return False
        return True


@lru_cache(maxsize=64)
def _loaded(public_key: bytes) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(public_key)


TrustedKeys: TypeAlias = Mapping[KeyId, TrustedKey]


def trust(*keys: TrustedKey) -> dict[KeyId, TrustedKey]:
    """Return the keys under their names."""
    return {key_id_of(key.public_key): key for key in keys}


@dataclass(frozen=True, slots=True)
class SealedLines:
    """Lines up to a seal, or those behind the last one."""

    lines: tuple[bytes, ...]
    first_line: int
    """Where the batch begins in what was given, from 1."""


@dataclass(frozen=True, slots=True)
class BatchVerdict:
    """What one batch is by itself: enough to check that batches follow each other."""

    first_line: int
    lines: int
    events: int = 0
    first_sequence: int = 0
    last_sequence: int = 0
    previous: LineDigest = NOTHING
    """What the first line says about the line before it."""
    digest: LineDigest = NOTHING
    """Of the last line."""
    log_id: str = ""
    sealed: bool = False
    fault: ChainFault | None = None


@dataclass(slots=True)
class ChainVerdict:
    """What a whole log is."""

    lines: int = 0
    events: int = 0
    batches: int = 0
    log_id: str = ""
    last_sequence: int = 0
    head: LineDigest = NOTHING
    """The digest of the last line."""
    sealed_sequence: int = 0
    sealed_head: LineDigest = NOTHING
    """The digest of the last seal: what a witness elsewhere should keep."""
    unsigned_lines: int = 0
    fault: ChainFault | None = None
    expected_found: bool | None = None
    """Whether the expected head stands in the log; None: nothing was expected."""

    @property
    def is_intact(self) -> bool:
        return self.fault is None


def split_batches(lines: Iterable[bytes], first_line: int = 1) -> Iterator[SealedLines]:
    """Cut lines (without newlines) behind each seal; what follows the last one comes last."""
    waiting: list[bytes] = []
    for line in lines:
        waiting.append(line)
        if is_seal(line) or len(waiting) >= _BATCH_LINES_MAX:
            yield SealedLines(tuple(waiting), first_line)
            first_line += len(waiting)
            waiting = []
    if waiting:
        yield SealedLines(tuple(waiting), first_line)


def is_seal(line: bytes) -> bool:
    """Say whether a line is a seal, at a glance first."""
    return b'"kind":"seal"' in line and isinstance(decode_line(line), SealLine)


def verify_batch(
    batch: SealedLines,
    trusted: TrustedKeys,
    *,
    previous_digest: LineDigest | None = None,
    first_sequence: int | None = None,
) -> BatchVerdict:
    """Verify one batch; with the digest and the place before it, its link to them as well."""
    lines = [decode_line(line) for line in batch.lines]
    digests = [digest_of(line) for line in batch.lines]
    last = lines[-1]
    seal = last if isinstance(last, SealLine) else None
    seal_fault = _check_seal(seal, trusted) if seal is not None else None
    if first_sequence is None:
        is_sound = seal is not None and seal_fault is None
        first_sequence = seal.first if seal is not None and is_sound else None
    fault = (
        _check_order(lines, first_sequence, seal_is_sound=seal_fault is None)
        or _check_chain(lines, digests, previous_digest, seal_is_sound=seal_fault is None)
        or (
            ChainFault(seal_fault[0], len(lines), seal_fault[1]) if seal_fault is not None else None
        )
        or (_check_cover(lines, seal) if seal is not None else None)
        or _check_one_log(lines)
    )
    if fault is not None:
        moved = ChainFault(fault.kind, batch.first_line + fault.line - 1, fault.detail)
        return BatchVerdict(batch.first_line, len(lines), fault=moved)
    whole = [line for line in lines if line is not None]
    return BatchVerdict(
        batch.first_line,
        len(lines),
        events=sum(isinstance(line, EventLine) for line in whole),
        first_sequence=whole[0].sequence,
        last_sequence=whole[-1].sequence,
        previous=LineDigest(whole[0].previous),
        digest=digests[-1],
        log_id=next((line.log_id for line in whole if not isinstance(line, EventLine)), ""),
        sealed=seal is not None,
    )


def _check_seal(seal: SealLine, trusted: TrustedKeys) -> tuple[ChainFaultKind, str] | None:
    key = trusted.get(KeyId(seal.key_id))
    if key is None:
        return ChainFaultKind.WRONG_KEY, f"a seal of key {seal.key_id}, which is not trusted"
    if not key.made(seal.signature, sealed_bytes(seal)):
        return ChainFaultKind.ALTERED, "the seal's signature does not hold"
    if not key.is_active(seal.at_ms):
        return ChainFaultKind.WRONG_KEY, f"key {seal.key_id} was not in force at {seal.at_ms}"
    return None


def _check_order(
    lines: SequenceOf[AnyLine | None], first: int | None, *, seal_is_sound: bool
) -> ChainFault | None:
    """Find the first line that is not the one that belongs at its place."""
    for at, line in enumerate(lines):
        if line is None:
            return ChainFault(ChainFaultKind.ALTERED, at + 1, "not a line of an audit log")
        wanted = line.sequence if first is None else first + at
        first = wanted - at
        if line.sequence != wanted:
            return _misplaced(lines, at, line.sequence, wanted, seal_is_sound=seal_is_sound)
    return None


def _misplaced(
    lines: SequenceOf[AnyLine | None], at: int, found: int, wanted: int, *, seal_is_sound: bool
) -> ChainFault:
    """Say what happened where `found` stands instead of `wanted`."""
    following = lines[at + 1] if at + 1 < len(lines) else None
    if following is not None and following.sequence == wanted + 1:
        return ChainFault(
            ChainFaultKind.ALTERED, at + 1, f"it calls itself {found} at place {wanted}"
        )
    if following is None and at + 1 == len(lines) and not seal_is_sound:
        return ChainFault(ChainFaultKind.ALTERED, at + 1, "the seal's signature does not hold")
    later = any(line is not None and line.sequence == wanted for line in lines[at + 1 :])
    if found < wanted or later:
        return ChainFault(
            ChainFaultKind.REORDERED, at + 1, f"line {found} stands where {wanted} belongs"
        )
    return ChainFault(ChainFaultKind.DROPPED, at + 1, f"lines {wanted} to {found - 1} are missing")


def _check_chain(
    lines: SequenceOf[AnyLine | None],
    digests: SequenceOf[LineDigest],
    before: LineDigest | None,
    *,
    seal_is_sound: bool,
) -> ChainFault | None:
    """Find the first line that is not what the line after it saw.

    A line whose own `previous` was changed breaks two links; a line whose other members were
    changed breaks one, the next line's.
    """
    broken = [
        line is not None and wanted is not None and line.previous != wanted
        for line, wanted in zip(lines, [before, *digests[:-1]], strict=True)
    ]
    if True not in broken:
        return None
    at = broken.index(True)
    is_last = at + 1 == len(lines)
    is_itself = at == 0 or (broken[at + 1] if not is_last else not seal_is_sound)
    culprit = at if is_itself else at - 1
    return ChainFault(ChainFaultKind.ALTERED, culprit + 1, "it is not the line that was chained")


def _check_cover(lines: SequenceOf[AnyLine | None], seal: SealLine) -> ChainFault | None:
    """Check that a sound seal begins where its batch does."""
    first = lines[0]
    assert first is not None
    if seal.first != first.sequence:
        return ChainFault(
            ChainFaultKind.DROPPED, 1, f"lines {seal.first} to {first.sequence - 1} are missing"
        )
    if seal.last_seal != first.previous or seal.last_sealed != first.sequence - 1:
        return ChainFault(ChainFaultKind.ALTERED, 1, "it does not follow the seal before it")
    return None


def _check_one_log(lines: SequenceOf[AnyLine | None]) -> ChainFault | None:
    log_id: str | None = None
    for at, line in enumerate(lines):
        if isinstance(line, SealLine | FileLine):
            if log_id is not None and line.log_id != log_id:
                return ChainFault(ChainFaultKind.ALTERED, at + 1, "a line of another log")
            log_id = line.log_id
    return None


def join_batches(
    batches: Iterable[BatchVerdict],
    trusted: TrustedKeys | None = None,
    anchor: Anchor | None = None,
) -> ChainVerdict:
    """Check that batches, verified one by one and given in order, follow each other.

    With the anchor (and the keys that it may be signed with) also that none is missing at the end.
    """
    verdict = ChainVerdict()
    if anchor is not None:
        verdict.fault = _check_anchor(anchor, trusted or {})
    for batch in batches:
        if verdict.fault is not None:
            return verdict
        _join(verdict, batch)
        if verdict.fault is None and anchor is not None:
            verdict.fault = _meets_anchor(batch, anchor)
    if verdict.fault is None:
        verdict.fault = _check_end(verdict, anchor, require_signed=False)
    return verdict


def _join(verdict: ChainVerdict, batch: BatchVerdict) -> None:
    fault = batch.fault
    wanted = verdict.last_sequence + 1
    if fault is None and verdict.batches:
        kind = ChainFaultKind.DROPPED if batch.first_sequence > wanted else ChainFaultKind.REORDERED
        if batch.first_sequence != wanted:
            fault = ChainFault(kind, batch.first_line, f"line {wanted} belongs here")
        elif batch.previous != verdict.head:
            fault = ChainFault(
                ChainFaultKind.ALTERED, batch.first_line, "it does not follow what is before"
            )
    if fault is None and verdict.log_id and batch.log_id not in ("", verdict.log_id):
        fault = ChainFault(ChainFaultKind.ALTERED, batch.first_line, "a batch of another log")
    verdict.fault = fault
    verdict.lines += batch.lines
    if fault is not None:
        return
    verdict.batches += 1
    verdict.events += batch.events
    verdict.log_id = verdict.log_id or batch.log_id
    verdict.last_sequence, verdict.head = batch.last_sequence, batch.digest
    if batch.sealed:
        verdict.sealed_sequence, verdict.sealed_head = batch.last_sequence, batch.digest
        verdict.unsigned_lines = 0
    else:
        verdict.unsigned_lines += batch.lines


def verify_lines(
    lines: Iterable[bytes],
    trusted: TrustedKeys,
    *,
    anchor: Anchor | None = None,
    expect_head: str | None = None,
    from_start: bool = True,
    require_signed: bool = False,
) -> ChainVerdict:
    """Verify a whole log in one pass over its lines (without newlines), in bounded memory.

    `expect_head` is the digest of a line that must stand in the log: what a witness kept.
    `from_start=False` takes a log whose oldest files were removed after their time.
    """
    verdict = ChainVerdict(expected_found=None if expect_head is None else expect_head == NOTHING)
    fault = _check_anchor(anchor, trusted) if anchor is not None else None
    if fault is not None:
        verdict.fault = fault
        return verdict
    for batch in split_batches(lines):
        goes_on = verdict.batches > 0
        known = goes_on or from_start
        found = verify_batch(
            batch,
            trusted,
            previous_digest=(verdict.head if goes_on else NOTHING) if known else None,
            first_sequence=verdict.last_sequence + 1 if known else None,
        )
        _join(verdict, found)
        if verdict.fault is None and anchor is not None:
            verdict.fault = _meets_anchor(found, anchor)
        if expect_head is not None and not verdict.expected_found:
            verdict.expected_found = any(digest_of(line) == expect_head for line in batch.lines)
        if verdict.fault is not None:
            return verdict
    verdict.fault = _check_end(verdict, anchor, require_signed=require_signed)
    return verdict


def _check_anchor(anchor: Anchor, trusted: TrustedKeys) -> ChainFault | None:
    key = trusted.get(KeyId(anchor.key_id))
    if key is None:
        return ChainFault(
            ChainFaultKind.WRONG_KEY, 0, f"an anchor of key {anchor.key_id}, not trusted"
        )
    if not key.made(anchor.signature, anchored_bytes(anchor)):
        return ChainFault(ChainFaultKind.ALTERED, 0, "the anchor's signature does not hold")
    return None


def _meets_anchor(batch: BatchVerdict, anchor: Anchor) -> ChainFault | None:
    """Check the anchored seal when its batch comes by."""
    if batch.log_id not in ("", anchor.log_id):
        return ChainFault(ChainFaultKind.ALTERED, batch.first_line, "the anchor is another log's")
    last_line = batch.first_line + batch.lines - 1
    at_anchor = batch.first_sequence <= anchor.sequence <= batch.last_sequence
    if at_anchor and (not batch.sealed or batch.last_sequence != anchor.sequence):
        return ChainFault(
            ChainFaultKind.UNSIGNED, last_line, "no seal stands where the anchor saw one"
        )
    if at_anchor and batch.digest != anchor.digest:
        return ChainFault(
            ChainFaultKind.ALTERED, last_line, "another seal stands where the anchor saw one"
        )
    return None


def _check_end(
    verdict: ChainVerdict, anchor: Anchor | None, *, require_signed: bool
) -> ChainFault | None:
    end = verdict.lines + 1
    if anchor is not None and verdict.sealed_sequence < anchor.sequence:
        missing = f"signed lines up to {anchor.sequence} were there, {verdict.last_sequence} are"
        return ChainFault(ChainFaultKind.TRUNCATED, end, missing)
    if verdict.expected_found is False:
        return ChainFault(ChainFaultKind.TRUNCATED, end, "the expected head is not in the log")
    if require_signed and verdict.unsigned_lines:
        first = end - verdict.unsigned_lines
        return ChainFault(
            ChainFaultKind.UNSIGNED, first, f"{verdict.unsigned_lines} lines have no seal yet"
        )
    return None
