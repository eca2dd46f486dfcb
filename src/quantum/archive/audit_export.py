"""A node's audit log in the archive: the same lines under names that cannot be taken twice.

    _audit/node-<node>/<log_id>/<first>.jsonl     whole signed batches, beginning at line <first>

An object is *created*, on the condition that its name is free, and the next one begins behind its
last line. So the newest object says where to go on, nothing has to be remembered for that, and an
upload whose answer was lost, or which a dead process has still under way, is found and taken as
it is: there is no gap and no second copy of a line. No tenant's name begins with `_`.

The lines are plain JSON: who did what, never a payload or a secret (quantumqtt §9.6).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from clustor.runtime.data_directory import sync_directory, write_durably
from clustor.runtime.disk import DirectoryStorage
from clustor.security import (
    NOTHING,
    AuditFollower,
    BatchRun,
    LineDigest,
    decode_line,
    digest_of,
    read_anchor,
)
from quantum.archive.errors import ArchiveDamaged, ArchiveForeign
from quantum.archive.objects import Objects

AUDIT_FOLDER: Final = "_audit/"
MARK_FILE: Final = "exported.json"
OBJECT_BYTES_MAX: Final = 128 << 20
"""More than a batch of the longest lines behind `RUN_BYTES`."""
_NAME: Final = re.compile(r"_audit/node-(\d{1,9})/([0-9a-zA-Z-]{1,64})/(\d{20})\.jsonl")


@dataclass(frozen=True, slots=True, order=True)
class ArchivedLog:
    """One audit log in an archive."""

    node: int
    log_id: str

    @property
    def folder(self) -> str:
        return f"{AUDIT_FOLDER}node-{self.node}/{self.log_id}/"

    def object_name(self, first: int) -> str:
        return f"{self.folder}{first:020d}.jsonl"

    def __str__(self) -> str:
        return f"node-{self.node}/{self.log_id}"


class ExportMark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a log's directory says about its export: no line behind `through` may be removed."""

    archive: str
    log_id: str
    through: int
    digest: str


def archived_logs(objects: Objects) -> list[ArchivedLog]:
    """List the audit logs of an archive."""
    return [
        ArchivedLog(int(node.removeprefix("node-")), log_id)
        for node in objects.folders(AUDIT_FOLDER)
        if node.removeprefix("node-").isdecimal()
        for log_id in objects.folders(f"{AUDIT_FOLDER}{node}/")
    ]


def object_names(objects: Objects, log: ArchivedLog) -> list[str]:
    """List a log's objects, in the order of their lines."""
    return [name for name in objects.names(log.folder) if _NAME.fullmatch(name)]


def archived_lines(objects: Objects, log: ArchivedLog) -> Iterator[bytes]:
    """Yield every line of a log without its newline, one object in memory at a time."""
    for name in object_names(objects, log):
        lines = objects.get(name, OBJECT_BYTES_MAX).split(b"\n")
        yield from lines if lines[-1] else lines[:-1]


def read_mark(directory: Path) -> ExportMark | None:
    """Return what a log's directory says about its export; None: it is not exported."""
    try:
        return msgspec.json.decode((directory / MARK_FILE).read_bytes(), type=ExportMark)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise ArchiveDamaged(
            "the mark of the audit log's export cannot be read",
            file=str(directory / MARK_FILE),
        ) from error


def forget_export(directory: Path) -> None:
    """Let the log be trimmed as if it was never exported: the archive was turned off."""
    if (directory / MARK_FILE).exists():
        (directory / MARK_FILE).unlink()
        sync_directory(directory)


class AuditExporter:
    """Brings one node's audit log into the archive. Used by one thread."""

    def __init__(
        self,
        objects: Objects,
        url: str,
        directory: Path,
        node: int,
        pace: Callable[[int], None] = lambda _bytes: None,
    ) -> None:
        """Nothing is read yet, but from now on no line may be removed that is not exported."""
        self._objects = objects
        self._url = url
        self._directory = directory
        self._node = node
        self._pace = pace
        self._follower: AuditFollower | None = None
        mark = read_mark(directory)
        if mark is None or mark.archive != url:
            self._mark("", 0, NOTHING)

    @property
    def through(self) -> int:
        """The newest line that is in the archive, as far as is known."""
        return 0 if self._follower is None else self._follower.through

    @property
    def missed(self) -> tuple[int, int] | None:
        """Lines that somebody removed from the disk before they were exported."""
        return None if self._follower is None else self._follower.missed

    def step(self) -> bool:
        """Export what is signed and durable, up to one object; False: that was all.

        Raises ArchiveError, and SecurityError where the log on the disk is not what it was.
        """
        storage = DirectoryStorage(self._directory)
        try:
            follower = self._follower
            if follower is None:
                follower = self._follower = self._resume(read_anchor(storage).log_id)
            run = follower.take_run(storage)
        finally:
            storage.close()
        if run is None:
            return False
        self._pace(len(run.data))
        follower.advance(self._create(run))
        self._mark(follower.log_id, follower.through, follower.digest)
        return True

    def _resume(self, log_id: str) -> AuditFollower:
        """Go on behind the newest object."""
        log = ArchivedLog(self._node, log_id)
        names = object_names(self._objects, log)
        if not names:
            self._mark(log_id, 0, NOTHING)
            return AuditFollower(log_id)
        newest = _run_of(names[-1], self._objects.get(names[-1], OBJECT_BYTES_MAX))
        self._mark(log_id, newest.last, newest.head)
        return AuditFollower(log_id, newest.last, newest.head)

    def _create(self, run: BatchRun) -> BatchRun:
        """Create a run's object, or take the one that is there already; return what it holds."""
        assert self._follower is not None
        name = ArchivedLog(self._node, self._follower.log_id).object_name(run.first)
        if self._objects.create(name, run.data):
            return run
        there = self._objects.get(name, OBJECT_BYTES_MAX)
        if not run.data.startswith(there) or not there:
            raise ArchiveForeign("the archive holds other lines of this audit log", object=name)
        return _run_of(name, there)

    def _mark(self, log_id: str, through: int, digest: LineDigest) -> None:
        mark = ExportMark(self._url, log_id, through, digest)
        write_durably(self._directory / MARK_FILE, msgspec.json.encode(mark) + b"\n")


def _run_of(name: str, data: bytes) -> BatchRun:
    """Read an object's first and last line; raises ArchiveDamaged."""
    lines = data.removesuffix(b"\n").split(b"\n")
    first, last = decode_line(lines[0]), decode_line(lines[-1])
    if first is None or last is None or not data.endswith(b"\n"):
        raise ArchiveDamaged("an object of the audit log is not what was written", object=name)
    return BatchRun(first.sequence, last.sequence, data, digest_of(lines[-1]))
