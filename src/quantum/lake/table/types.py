"""The words of a table: versions, streams with their offsets, and files."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, NewType, TypeAlias

import msgspec
from msgspec import Meta

Version = NewType("Version", int)
StreamName = NewType("StreamName", str)
"""Whose offsets a range counts: `tenant/number` of a partition."""

FORMAT_VERSION: Final = 1
NO_VERSION: Final = Version(-1)
NO_HEAD: Final = "0" * 64

_Count: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]  # what canonical JSON can hold
_Hex: TypeAlias = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
_Path: TypeAlias = Annotated[str, Meta(pattern=r"^(?!.*\.\.)[A-Za-z0-9_%~=-][A-Za-z0-9._%~=/-]*$")]


class FileKind(StrEnum):
    """What the rows of a file are."""

    ROWS = "rows"  # accepted messages, as the log has them
    DEAD = "dead"  # what could not be read, with its offset and the reason
    TYPED = "typed"  # payloads under a schema, beside the raw rows
    STATE = "state"  # the machine of a stream behind its last offset: no table's rows


class TableOperation(StrEnum):
    CREATE = "create"
    INGEST = "ingest"
    COMPACT = "compact"
    BACKFILL = "backfill"


class DataFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of the table. Its name is never used again, its bytes never change."""

    path: _Path
    """Where it is, below the table."""
    kind: FileKind
    stream: StreamName
    first: _Count
    """Its rows have offsets from here …"""
    last: _Count
    """… to here, both included; other files may have some of them, but no row is in two."""
    rows: _Count
    bytes: _Count
    digest: _Hex
    """BLAKE3 of the file."""
    root: _Hex
    """The Merkle root of its rows, in order."""
    place: str = ""
    """The directory in which a reader of plain Parquet finds it, `tenant=…/date=…`."""
    view: str = ""
    """Which typed view it belongs to."""


class OffsetRange(msgspec.Struct, frozen=True, array_like=True):
    """Offsets from `first` to `last`, both included."""

    first: _Count
    last: _Count


class Commit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One step of a table's history, as it stands in the log."""

    version: Annotated[int, Meta(ge=0)]
    parent: _Hex
    """BLAKE3 of the commit before it."""
    writer: str
    """Who wrote it: chosen at random, so that a writer knows its own commit again."""
    at_ms: _Count
    operation: TableOperation
    schema_version: Annotated[int, Meta(ge=1)]
    ranges: dict[StreamName, OffsetRange] = {}
    """The offsets that this commit covers, whether they hold rows or not."""
    digests: dict[StreamName, str] = {}
    """What the broker's machine was behind the last of them."""
    add: tuple[DataFile, ...] = ()
    remove: tuple[str, ...] = ()
    format_version: int = FORMAT_VERSION
    views: dict[str, str] = {}
    """The typed views that were written with it, and the digests of their descriptions. A commit
    without any does not mention them: those of older releases do not."""


class VersionProposal(msgspec.Struct, frozen=True):
    """What a writer wants to become the next version, whichever that is.

    `base` pins the version it was made from: a commit that rewrites files must not meet others.
    """

    operation: TableOperation
    schema_version: int
    ranges: dict[StreamName, OffsetRange] = {}
    digests: dict[StreamName, str] = {}
    add: tuple[DataFile, ...] = ()
    remove: tuple[str, ...] = ()
    base: int | None = None
    views: dict[str, str] = {}
