"""The errors of the rooms below, in the words of a reader: which partition, which index."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from clustor.log.errors import (
    CorruptLog,
    KeyUnavailable,
    LogError,
    LogMisuse,
    MissingFile,
    UnsupportedFormat,
)
from clustor.log.types import Entry
from clustor.replica.errors import ReplicaError
from clustor.runtime.errors import NodeError
from clustor.snapshot.errors import SnapshotFailure
from quantum.archive.errors import (
    ArchiveDamaged,
    ArchiveError,
    ArchiveFormatUnknown,
    ArchiveMissing,
    ArchiveMisuse,
    ArchiveUnreachable,
)
from quantum.archive.types import PrgId
from quantum.lake.errors import (
    BadAddress,
    DamagedBlock,
    LakeError,
    LogGone,
    SourceUnreachable,
    UnknownFormat,
    WrongKey,
)


@contextmanager
def in_readers_words(prg: PrgId | None = None, index: int | None = None) -> Iterator[None]:
    """Turn what logs, snapshots and archives raise into a LakeError."""
    try:
        yield
    except LakeError:
        raise
    except (LogError, SnapshotFailure, ReplicaError, ArchiveError, NodeError, OSError) as error:
        raise translated(error, prg, index) from error


def translated(error: Exception, prg: PrgId | None, index: int | None) -> LakeError:
    """Return the reader's error for one of a room below."""
    facts = {name: value for name, value in getattr(error, "facts", {}).items() if name != "prg"}
    if "index" in facts:
        index = int(str(facts.pop("index")))
    reason = str(getattr(error, "reason", error))
    at = index or 0
    match error:
        case KeyUnavailable():
            return WrongKey(reason, prg=prg, index=index, **facts)
        case UnsupportedFormat() | ArchiveFormatUnknown():
            return UnknownFormat(reason, prg=prg, index=index, **facts)
        case ArchiveUnreachable():
            return SourceUnreachable(reason, prg=prg, index=index, **facts)
        case ArchiveMissing() if index is None:  # of the list itself: nobody knows what is gone
            return DamagedBlock(reason, prg=prg, **facts)
        case LogMisuse() | MissingFile() | ArchiveMissing() | FileNotFoundError() if (
            prg is not None
        ):
            facts = {name: facts[name] for name in facts if name not in ("first", "last")}
            return LogGone(reason, prg=prg, first=at, last=at, **facts)
        case CorruptLog() | SnapshotFailure() | ArchiveDamaged() | ReplicaError():
            return DamagedBlock(reason, prg=prg, index=index, **facts)
        case NodeError() | ArchiveMisuse() | FileNotFoundError() | NotADirectoryError():
            return BadAddress(reason, prg=prg, **facts)
        case OSError():
            return SourceUnreachable(reason, prg=prg, index=index)
        case _:
            return LakeError(reason, prg=prg, index=index, **facts)


def naming_the_entry(entries: Iterator[Entry], prg: PrgId, first: int) -> Iterator[Entry]:
    """Pass entries on; an error names the one behind the last good one."""
    index = first
    while True:
        with in_readers_words(prg, index):
            entry = next(entries, None)
        if entry is None:
            return
        yield entry
        index = entry.index + 1
