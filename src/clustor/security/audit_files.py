"""An audit log in files: plans for writing, recovery after a crash, reading for everybody.

anchor.json                 the newest seal; replaced whole, after the seal itself is durable
audit-0000000001.jsonl      lines; a file begins with a `file` line, and rotates behind a seal

Nothing is written over and nothing is cut. Each start begins a new file; what a crash left behind
the last whole line stays where it is, and the new file's first line names its place and digest.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from clustor.log.steps import (
    Create,
    FileName,
    Plan,
    Step,
    Storage,
    Sync,
    SyncDirectory,
    WriteFile,
    plan_replace,
)
from clustor.security.audit_chain import AuditChain, ChainEnd, Sign
from clustor.security.audit_lines import (
    Anchor,
    AnyLine,
    AuditEvent,
    EventLine,
    FileLine,
    KeyId,
    Leftover,
    SealLine,
    decode_anchor,
    decode_line,
    digest_of,
    encode_anchor,
)
from clustor.security.errors import AuditTruncated, AuditUnreadable

ANCHOR_FILE: Final = FileName("anchor.json")
FILE_BYTES_MAX: Final = 16 << 20
_ANCHOR_BYTES_MAX: Final = 4096
_FILE_NAME: Final = re.compile(r"audit-([0-9]{10})\.jsonl")
_READ_BYTES: Final = 1 << 20


def file_name(number: int) -> FileName:
    """Return the name of a file of the log."""
    return FileName(f"audit-{number:010d}.jsonl")


def file_numbers(storage: Storage) -> list[int]:
    """List the files of the log, oldest first."""
    found = (_FILE_NAME.fullmatch(name) for name in storage.names(""))
    return sorted(int(match[1]) for match in found if match is not None)


def file_heads(storage: Storage) -> list[tuple[int, FileLine]]:
    """Return the files' first lines, oldest first; a file has none that a crash cut too early."""
    heads: list[tuple[int, FileLine]] = []
    for number in file_numbers(storage):
        line = decode_line(storage.read(file_name(number), 0, _READ_BYTES).partition(b"\n")[0])
        if isinstance(line, FileLine):
            heads.append((number, line))
    return heads


def read_anchor(storage: Storage) -> Anchor:
    """Read the anchor; raises AuditTruncated where there is none, for every log has one."""
    try:
        anchor = decode_anchor(storage.read(ANCHOR_FILE, 0, _ANCHOR_BYTES_MAX))
    except FileNotFoundError:
        raise AuditTruncated("the audit log has no anchor") from None
    if anchor is None:
        raise AuditUnreadable("the audit log's anchor cannot be read")
    return anchor


# Writing


class AuditJournal:
    """Plans appends to an open log. After a plan that failed it must be opened anew."""

    def __init__(
        self, chain: AuditChain, file: int, offset: int, *, file_bytes_max: int = FILE_BYTES_MAX
    ) -> None:
        self.chain = chain
        self._file = file
        self._offset = offset
        self._file_bytes_max = file_bytes_max

    def plan_append(self, events: Sequence[AuditEvent], at_ms: int, *, seal: bool) -> Plan:
        """Plan the lines of these events; when it is carried out, they are durable.

        With `seal`, or where a batch is full, a seal follows them and the anchor follows the seal.
        """
        steps: list[Step] = []
        lines: list[bytes] = []
        sealed_before = self.chain.sealed
        for event in events:
            if self.chain.is_full:
                lines.append(self.chain.seal(at_ms))
            lines.append(self.chain.append(event))
        is_long = self._offset + sum(map(len, lines)) >= self._file_bytes_max
        if self.chain.open_lines and (seal or self.chain.is_full or is_long):
            lines.append(self.chain.seal(at_ms))
        self._write(steps, lines)
        if self.chain.sealed != sealed_before:
            steps += plan_replace(ANCHOR_FILE, encode_anchor(self.chain.anchor()))
        if is_long:
            steps += self.plan_file(at_ms)
        return tuple(steps)

    def plan_file(self, at_ms: int, leftovers: tuple[Leftover, ...] = ()) -> Plan:
        """Plan the next file, and go on in it."""
        self._file, self._offset = self._file + 1, 0
        name = file_name(self._file)
        steps: list[Step] = [Create(name)]
        self._write(steps, [self.chain.begin_file(self._file, at_ms, leftovers)])
        return (*steps, SyncDirectory(""))

    def _write(self, steps: list[Step], lines: list[bytes]) -> None:
        if lines:
            data = b"\n".join(lines) + b"\n"
            name = file_name(self._file)
            steps += (WriteFile(name, self._offset, data), Sync(name))
            self._offset += len(data)


def plan_open(
    storage: Storage,
    sign: Sign,
    key_id: KeyId,
    *,
    new_log_id: str,
    at_ms: int,
    file_bytes_max: int = FILE_BYTES_MAX,
) -> tuple[AuditJournal, Plan]:
    """Recover the log, or begin one, and plan its next file.

    Raises AuditTruncated where the log ends before its anchor, and AuditUnreadable where it is
    not what was written: then nothing is appended, and people have to look.
    """
    numbers = file_numbers(storage)
    if not numbers and ANCHOR_FILE not in storage.names(""):
        chain = AuditChain(new_log_id, sign, key_id)
        journal = AuditJournal(chain, 0, 0, file_bytes_max=file_bytes_max)
        first_anchor = plan_replace(ANCHOR_FILE, encode_anchor(chain.anchor()))
        return journal, first_anchor + journal.plan_file(at_ms)
    anchor = read_anchor(storage)
    found = recover(storage, anchor)
    chain = AuditChain(anchor.log_id, sign, key_id, found.end)
    journal = AuditJournal(chain, numbers[-1] if numbers else 0, 0, file_bytes_max=file_bytes_max)
    again = [step for write in found.unproven for step in (write, Sync(write.file))]
    plan = (*again, *journal.plan_file(at_ms, found.leftovers))
    if found.end.sealed != anchor.sequence:  # the seal was durable, its anchor not yet
        plan += plan_replace(ANCHOR_FILE, encode_anchor(chain.anchor()))
    return journal, plan


# Recovery


@dataclass(frozen=True, slots=True)
class Recovered:
    """Where a log ends, what lies behind its whole lines, and what may be in memory alone."""

    end: ChainEnd
    leftovers: tuple[Leftover, ...]
    """What no file has named yet."""
    unproven: tuple[WriteFile, ...]
    """Everything behind the anchor's seal, to be written again where it is.

    After a failed sync the page cache may show bytes that no later sync writes.
    """


@dataclass(frozen=True, slots=True)
class _Content:
    """One file: its lines, each with the offset behind it, as far as they are one chain."""

    number: int
    data: bytes
    lines: list[tuple[int, bytes, AnyLine]]

    @property
    def leftover(self) -> Leftover | None:
        offset = self.lines[-1][0] if self.lines else 0
        rest = self.data[offset:]
        if self.lines and not rest:
            return None
        digest = hashlib.sha256(rest).hexdigest()
        return Leftover(file=self.number, offset=offset, bytes=len(rest), sha256=digest)

    def unproven(self, anchored: int) -> WriteFile | None:
        """Return what stands behind the line `anchored`."""
        proven = (offset for offset, _, line in self.lines if line.sequence <= anchored)
        offset = max(proven, default=0)
        rest = self.data[offset:]
        return WriteFile(file_name(self.number), offset, rest) if rest else None


def recover(storage: Storage, anchor: Anchor) -> Recovered:
    """Find the end of a log by reading its newest files, back to the anchor's seal."""
    contents: list[_Content] = []
    for number in reversed(file_numbers(storage)):
        content = _content(storage, number)
        contents.insert(0, content)
        sealed = [line.sequence for _, _, line in content.lines if isinstance(line, SealLine)]
        if sealed and sealed[0] <= anchor.sequence:
            break
    lines = [(raw, line) for content in contents for _, raw, line in content.lines]
    end = _end_of(lines)
    _require_anchored(lines, end, anchor)
    heads = (line for _, line in lines if isinstance(line, FileLine))
    named = {each.file for head in heads for each in head.leftovers}
    leftovers = (content.leftover for content in contents if content.number not in named)
    unproven = (content.unproven(anchor.sequence) for content in contents)
    return Recovered(
        end,
        tuple(each for each in leftovers if each is not None),
        tuple(each for each in unproven if each is not None),
    )


def _content(storage: Storage, number: int) -> _Content:
    data = storage.read(file_name(number), 0, storage.size(file_name(number)))
    lines: list[tuple[int, bytes, AnyLine]] = []
    offset = 0
    while (end := data.find(b"\n", offset)) >= 0:
        raw = data[offset:end]
        line = decode_line(raw)
        if line is None or not (_follows(*lines[-1][1:], line) if lines else _heads(line, number)):
            break
        offset = end + 1
        lines.append((offset, raw, line))
    return _Content(number, data, lines)


def _heads(line: AnyLine, number: int) -> bool:
    return isinstance(line, FileLine) and line.file == number


def _follows(raw: bytes, before: AnyLine, line: AnyLine) -> bool:
    return line.sequence == before.sequence + 1 and line.previous == digest_of(raw)


def _end_of(lines: list[tuple[bytes, AnyLine]]) -> ChainEnd:
    """Walk lines that were read from several files; they must be one chain."""
    end = ChainEnd()
    for at, (raw, line) in enumerate(lines):
        if at and not _follows(*lines[at - 1], line):
            raise AuditUnreadable("the audit log's files do not follow each other", line=at + 1)
        place, digest = line.sequence, digest_of(raw)
        if isinstance(line, SealLine):
            end = ChainEnd(place, digest, place, digest, line.batch, 0)
        else:
            events = end.open_events + isinstance(line, EventLine)
            end = ChainEnd(place, digest, end.sealed, end.sealed_digest, end.batch, events)
    return end


def _require_anchored(lines: list[tuple[bytes, AnyLine]], end: ChainEnd, anchor: Anchor) -> None:
    """Refuse a log that ends before its anchor, or has something else in its place."""
    if end.sealed < anchor.sequence:
        raise AuditTruncated(
            "the audit log ends before its anchor", sealed=end.sealed, anchored=anchor.sequence
        )
    if anchor.sequence == 0:
        is_anchored = not lines or lines[0][1].sequence == 1
    else:
        is_anchored = any(
            line.sequence == anchor.sequence and digest_of(raw) == anchor.digest
            for raw, line in lines
        )
    if not is_anchored:
        raise AuditUnreadable("the log is not the one of its anchor", sequence=anchor.sequence)


# Reading


@dataclass(frozen=True, slots=True)
class LinePlace:
    """Where a line stands."""

    file: str
    line: int


class AuditReader:
    """All lines of a log in order, without what crashes left; it knows where each one stood."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.numbers = file_numbers(storage)
        self._leftovers = self._named_leftovers()
        self._begins: list[tuple[int, int]] = []  # the first line's number, and its file
        self._count = 0
        self.bytes_read = 0
        self.torn_bytes = 0
        """What follows the last newline of the last file: a write that a crash has cut."""
        self.changed_leftovers: list[Leftover] = []
        """Leftovers that are not what the log says about them."""

    @property
    def size_bytes(self) -> int:
        return sum(self._storage.size(file_name(number)) for number in self.numbers)

    @property
    def leftovers(self) -> list[Leftover]:
        """What crashes left, as the log itself names it."""
        return list(self._leftovers.values())

    def lines(self) -> Iterator[bytes]:
        """Yield every line without its newline."""
        for number in self.numbers:
            self._begins.append((self._count + 1, number))
            leftover = self._leftovers.get(number)
            yield from self._file_lines(number, leftover)
            if leftover is not None and not self._is_unchanged(leftover):
                self.changed_leftovers.append(leftover)

    def locate(self, line: int) -> LinePlace:
        """Say where a line stood that `lines` has given."""
        begins, number = max(
            (each for each in self._begins if each[0] <= max(line, 1)), default=(1, 0)
        )
        return LinePlace(file_name(number), line - begins + 1)

    def _file_lines(self, number: int, leftover: Leftover | None) -> Iterator[bytes]:
        name = file_name(number)
        end = leftover.offset if leftover is not None else self._storage.size(name)
        waiting, offset = b"", 0
        while offset < end:
            piece = self._storage.read(name, offset, min(_READ_BYTES, end - offset))
            if not piece:
                break
            offset += len(piece)
            self.bytes_read += len(piece)
            *whole, waiting = (waiting + piece).split(b"\n")
            for line in whole:
                self._count += 1
                yield line
        if waiting and number == self.numbers[-1]:
            self.torn_bytes = len(waiting)
        elif waiting:
            self._count += 1
            yield waiting

    def _named_leftovers(self) -> dict[int, Leftover]:
        heads = file_heads(self._storage)
        return {each.file: each for _, head in heads for each in head.leftovers}

    def _is_unchanged(self, leftover: Leftover) -> bool:
        name = file_name(leftover.file)
        rest = self._storage.read(name, leftover.offset, self._storage.size(name))
        is_whole = len(rest) == leftover.bytes
        return is_whole and hashlib.sha256(rest).hexdigest() == leftover.sha256
