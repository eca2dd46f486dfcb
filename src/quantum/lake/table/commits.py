"""The table's history as a value: how commits are written down, checked and folded. Pure.

Two rules carry exactly-once. The offsets of a stream are committed without gap and without
overlap: a commit begins where the last one ended, or it is refused. And a version exists once:
the storage creates its file for one writer only (`log`). Whoever loses looks again, and finds
that its offsets are taken.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import msgspec
import rfc8785
from blake3 import blake3

from quantum.lake.table.coverage import Coverages, extended
from quantum.lake.table.errors import (
    FileGone,
    RangeGap,
    RangeTaken,
    TableDamaged,
    TableMisuse,
)
from quantum.lake.table.types import (
    FORMAT_VERSION,
    NO_HEAD,
    NO_VERSION,
    Commit,
    DataFile,
    FileKind,
    OffsetRange,
    StreamName,
    TableOperation,
    Version,
    VersionProposal,
)

_OF_VIEWS: Final = (FileKind.TYPED, FileKind.DEAD)


@dataclass(frozen=True, slots=True)
class TableState:
    """What a table is at one version."""

    version: Version = NO_VERSION
    head: str = NO_HEAD
    """BLAKE3 of the commit of this version."""
    schema_version: int = 0
    ranges: dict[StreamName, OffsetRange] = field(default_factory=dict)
    digests: dict[StreamName, str] = field(default_factory=dict)
    files: dict[str, DataFile] = field(default_factory=dict)
    views: Coverages = field(default_factory=dict)

    @property
    def exists(self) -> bool:
        return self.version >= 0

    def next_offset(self, stream: StreamName) -> int | None:
        """Return where the next commit of a stream has to begin; None for a stream that is new."""
        known = self.ranges.get(stream)
        return None if known is None else known.last + 1

    def of_kind(self, kind: FileKind, view: str = "") -> list[DataFile]:
        """List the files of one kind, in the order of streams and offsets."""
        found = (file for file in self.files.values() if file.kind == kind and file.view == view)
        return sorted(found, key=lambda file: (file.stream, file.first, file.last, file.path))

    def state_of(self, stream: StreamName) -> DataFile | None:
        """Return the file that holds a stream's machine behind its last offset."""
        last = self.ranges.get(stream)
        for file in self.files.values():
            if file.kind == FileKind.STATE and file.stream == stream:
                return file if last is not None and file.last == last.last else None
        return None


def encode_commit(commit: Commit) -> bytes:
    """Write a commit in the one form that it has (RFC 8785)."""
    document = msgspec.to_builtins(commit)
    if not commit.views:
        del document["views"]
    return rfc8785.dumps(document) + b"\n"


def decode_commit(data: bytes) -> Commit:
    """Raises TableDamaged for what `encode_commit` did not write."""
    try:
        commit = msgspec.json.decode(data, type=Commit)
    except msgspec.MsgspecError as error:
        raise TableDamaged("a commit cannot be read", cause=error) from error
    if commit.format_version != FORMAT_VERSION:
        raise TableDamaged("a commit of another format", format=commit.format_version)
    if encode_commit(commit) != data:
        raise TableDamaged("a commit is not in its canonical form", version=commit.version)
    return commit


def digest_of(data: bytes) -> str:
    return blake3(data).hexdigest()


def plan_commit(state: TableState, proposal: VersionProposal, *, writer: str, at_ms: int) -> Commit:
    """Make the commit that turns `state` into what is proposed.

    Raises RangeTaken, RangeGap, FileGone where the table has moved on, and TableMisuse for a
    proposal that contradicts itself.
    """
    if proposal.base is not None and proposal.base != state.version:
        raise FileGone("the table changed meanwhile", base=proposal.base, version=state.version)
    _check_ranges(state, proposal.ranges)
    _check_files(state, proposal)
    return Commit(
        version=state.version + 1,
        parent=state.head,
        writer=writer,
        at_ms=at_ms,
        operation=proposal.operation,
        schema_version=proposal.schema_version,
        ranges=proposal.ranges,
        digests=proposal.digests,
        add=proposal.add,
        remove=proposal.remove,
        views=proposal.views,
    )


def _check_ranges(state: TableState, ranges: dict[StreamName, OffsetRange]) -> None:
    for stream, wanted in ranges.items():
        following = state.next_offset(stream)
        if wanted.last < wanted.first:
            raise TableMisuse("a range ends before it begins", stream=stream, range=wanted)
        if following is None or wanted.first == following:
            continue
        facts = {"stream": stream, "first": wanted.first, "last": wanted.last}
        if wanted.first < following:
            raise RangeTaken("these offsets are committed already", **facts, following=following)
        raise RangeGap("offsets would be left out", **facts, following=following)


def _check_files(state: TableState, proposal: VersionProposal) -> None:
    for path in proposal.remove:
        if path not in state.files:
            raise FileGone("a file to be replaced is gone", path=path)
    if len(set(proposal.remove)) != len(proposal.remove):
        raise TableMisuse("a file is removed twice")
    for file in proposal.add:
        if file.path in state.files:
            raise TableMisuse("a file is there already", path=file.path)
        if proposal.operation == TableOperation.INGEST:
            covered = proposal.ranges.get(file.stream)
            if covered is None or not covered.first <= file.first <= file.last <= covered.last:
                raise TableMisuse("a file exceeds its commit's offsets", path=file.path)
    if len({file.path for file in proposal.add}) != len(proposal.add):
        raise TableMisuse("a file is added twice")
    if proposal.operation == TableOperation.COMPACT:
        _check_same_rows(state, proposal)
    elif proposal.operation == TableOperation.BACKFILL:
        _check_only_views_change(state, proposal)
    else:
        _check_only_states_go(state, proposal)


def _check_same_rows(state: TableState, proposal: VersionProposal) -> None:
    """A rewriting commit holds as many rows of each kind and stream as it takes away."""
    if proposal.ranges:
        raise TableMisuse("a rewriting commit covers no offsets of its own")
    gone, come = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    for path in proposal.remove:
        old = state.files[path]
        gone[old.kind, old.view, old.stream] += old.rows
    for new in proposal.add:
        come[new.kind, new.view, new.stream] += new.rows
    if +gone != +come:
        raise TableMisuse("a rewriting commit would change how many rows there are")


def _check_only_views_change(state: TableState, proposal: VersionProposal) -> None:
    """A commit that writes views of rows that are there leaves these rows alone."""
    changed = [*proposal.add, *(state.files[path] for path in proposal.remove)]
    if proposal.ranges or any(each.kind not in _OF_VIEWS for each in changed):
        raise TableMisuse("a backfilling commit changes nothing but views")


def _check_only_states_go(state: TableState, proposal: VersionProposal) -> None:
    for path in proposal.remove:
        if state.files[path].kind != FileKind.STATE:
            raise TableMisuse("rows are only ever rewritten, not removed", path=path)


def fold(state: TableState, commit: Commit, data: bytes) -> TableState:
    """Return what the table is after a commit whose bytes are `data`.

    The checks of `plan_commit` are made again: a log that contradicts itself is not believed.
    Raises TableDamaged.
    """
    if commit.version != state.version + 1 or commit.parent != state.head:
        raise TableDamaged(
            "a commit does not follow the one before it", version=commit.version, after=state.head
        )
    proposal = VersionProposal(
        commit.operation,
        commit.schema_version,
        commit.ranges,
        commit.digests,
        commit.add,
        commit.remove,
    )
    try:
        _check_ranges(state, commit.ranges)
        _check_files(state, proposal)
    except (RangeTaken, RangeGap, FileGone, TableMisuse) as error:
        raise TableDamaged(
            "a commit contradicts those before it", version=commit.version, cause=error
        ) from error
    files = {path: file for path, file in state.files.items() if path not in commit.remove}
    files |= {file.path: file for file in commit.add}
    return TableState(
        Version(commit.version),
        digest_of(data),
        commit.schema_version,
        _extended(state.ranges, commit.ranges),
        state.digests | commit.digests,
        files,
        extended(state.views, state.ranges, commit.operation, commit.ranges, commit.views),
    )


def _extended(
    known: dict[StreamName, OffsetRange], more: dict[StreamName, OffsetRange]
) -> dict[StreamName, OffsetRange]:
    ranges = dict(known)
    for stream, added in more.items():
        first = ranges[stream].first if stream in ranges else added.first
        ranges[stream] = OffsetRange(first, added.last)
    return ranges
