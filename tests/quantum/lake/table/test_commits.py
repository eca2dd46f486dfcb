"""What a commit must be to become part of the history: one test for each rule."""

from __future__ import annotations

import msgspec
import pytest

from quantum.lake.table import (
    Commit,
    DataFile,
    FileGone,
    FileKind,
    OffsetRange,
    RangeGap,
    RangeTaken,
    StreamName,
    TableDamaged,
    TableMisuse,
    TableOperation,
    TableState,
    VersionProposal,
    decode_commit,
    encode_commit,
    fold,
    plan_commit,
)

STREAM = StreamName("dev/0")
ZEROS = "0" * 64


def file(
    path: str, first: int, last: int, rows: int = 1, kind: FileKind = FileKind.ROWS
) -> DataFile:
    return DataFile(path, kind, STREAM, first, last, rows, 10, ZEROS, ZEROS)


def ingest(first: int, last: int, *add: DataFile, remove: tuple[str, ...] = ()) -> VersionProposal:
    return VersionProposal(
        TableOperation.INGEST, 1, {STREAM: OffsetRange(first, last)}, {}, add, remove
    )


def after(*proposals: VersionProposal) -> TableState:
    """Return what a table is after these commits."""
    state = TableState()
    for each in (VersionProposal(TableOperation.CREATE, 1), *proposals):
        commit = plan_commit(state, each, writer="w", at_ms=5)
        state = fold(state, commit, encode_commit(commit))
    return state


def test_ranges_of_a_stream_follow_each_other() -> None:
    state = after(ingest(5, 9, file("a", 5, 9)), ingest(10, 12, file("b", 10, 11)))
    assert state.ranges == {STREAM: OffsetRange(5, 12)}
    assert state.next_offset(STREAM) == 13
    assert state.next_offset(StreamName("dev/1")) is None
    assert set(state.files) == {"a", "b"}
    assert state.version == 2


@pytest.mark.parametrize(("first", "last"), [(5, 9), (9, 12), (1, 4), (1, 20), (7, 8)])
def test_offsets_that_are_committed_are_taken(first: int, last: int) -> None:
    with pytest.raises(RangeTaken) as raised:
        plan_commit(after(ingest(5, 9)), ingest(first, last), writer="w", at_ms=0)
    assert raised.value.facts["following"] == 10


def test_offsets_are_not_left_out() -> None:
    with pytest.raises(RangeGap):
        plan_commit(after(ingest(5, 9)), ingest(11, 12), writer="w", at_ms=0)


def test_a_file_stays_within_the_offsets_of_its_commit() -> None:
    with pytest.raises(TableMisuse):
        plan_commit(after(), ingest(1, 4, file("a", 1, 5)), writer="w", at_ms=0)


def test_rows_are_never_removed_by_new_ones() -> None:
    state = after(ingest(1, 4, file("a", 1, 4)))
    with pytest.raises(TableMisuse):
        plan_commit(state, ingest(5, 6, remove=("a",)), writer="w", at_ms=0)
    states = after(ingest(1, 4, file("s", 4, 4, kind=FileKind.STATE)))
    plan_commit(states, ingest(5, 6, remove=("s",)), writer="w", at_ms=0)


def test_a_rewriting_commit_keeps_the_number_of_rows_and_meets_no_other() -> None:
    state = after(ingest(1, 4, file("a", 1, 4, rows=3)), ingest(5, 6, file("b", 5, 6, rows=2)))

    def rewrite(rows: int, base: int = state.version) -> VersionProposal:
        added = (file("c", 1, 6, rows=rows),)
        return VersionProposal(TableOperation.COMPACT, 1, add=added, remove=("a", "b"), base=base)

    plan_commit(state, rewrite(5), writer="w", at_ms=0)
    with pytest.raises(TableMisuse):
        plan_commit(state, rewrite(4), writer="w", at_ms=0)
    with pytest.raises(FileGone):
        plan_commit(state, rewrite(5, base=1), writer="w", at_ms=0)


def test_what_is_not_there_cannot_be_replaced() -> None:
    with pytest.raises(FileGone):
        plan_commit(
            after(),
            VersionProposal(TableOperation.COMPACT, 1, remove=("a",), base=0),
            writer="w",
            at_ms=0,
        )


def commit_of(state: TableState, proposal: VersionProposal) -> Commit:
    return plan_commit(state, proposal, writer="w", at_ms=7)


def test_bytes_and_commit_agree() -> None:
    commit = commit_of(after(), ingest(1, 4, file("a", 1, 4)))
    data = encode_commit(commit)
    assert decode_commit(data) == commit
    assert data == (
        b'{"add":[{"bytes":10,"digest":"%b","first":1,"kind":"rows","last":4,"path":"a",'
        b'"place":"","root":"%b","rows":1,"stream":"dev/0","view":""}],"at_ms":7,"digests":{},'
        b'"format_version":1,"operation":"ingest","parent":"%b","ranges":{"dev/0":[1,4]},'
        b'"remove":[],"schema_version":1,"version":1,"writer":"w"}\n'
    ) % (ZEROS.encode(), ZEROS.encode(), commit.parent.encode())


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[:-2],
        lambda data: data.replace(b'"version":1', b'"version": 1'),
        lambda data: data.replace(b'"add"', b'"and"'),
        lambda data: data.replace(b'"path":"a"', b'"path":"../a"'),
        lambda data: data.replace(b'"path":"a"', b'"path":"a/../../b"'),
        lambda data: data.replace(b'"first":1', b'"first":-1'),
        lambda data: data.replace(b'"format_version":1', b'"format_version":2'),
        lambda data: b"",
    ],
)
def test_other_bytes_are_no_commit(spoil: object) -> None:
    data = encode_commit(commit_of(after(), ingest(1, 4, file("a", 1, 4))))
    assert callable(spoil)
    with pytest.raises(TableDamaged):
        decode_commit(spoil(data))


def test_a_log_that_contradicts_itself_is_not_believed() -> None:
    state = after(ingest(1, 4))
    honest = commit_of(state, ingest(5, 6))
    for changes in (
        {"ranges": {STREAM: OffsetRange(4, 6)}},
        {"ranges": {STREAM: OffsetRange(6, 6)}},
        {"version": 5},
        {"parent": "f" * 64},
        {"remove": ("gone",)},
    ):
        forged = msgspec.structs.replace(honest, **changes)
        with pytest.raises(TableDamaged):
            fold(state, forged, encode_commit(forged))
