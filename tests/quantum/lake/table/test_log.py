"""A table's log: versions, checkpoints, holes, lost answers; in memory, on disk and in a bucket."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from obstore.store import MemoryStore as ObjectMemory

from quantum.archive.objects import StoredObject, StoreObjects
from quantum.lake.table import (
    BucketStore,
    CommitUnknown,
    DirectoryStore,
    NoTable,
    RangeTaken,
    Table,
    TableDamaged,
    TableExists,
    TableStore,
    open_store,
)
from quantum.lake.table.log import CHECKPOINT_EVERY, checkpoint_name, commit_name
from tests.quantum.lake.table.stores import MemoryStore
from tests.quantum.lake.table.writers import (
    OTHER,
    PLACE,
    STREAM,
    add,
    all_rows,
    compact,
    proposal,
    write_range,
)


@pytest.fixture(params=["memory", "directory", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> TableStore:
    if request.param == "memory":
        return MemoryStore()
    if request.param == "directory":
        return DirectoryStore(tmp_path / "deep" / "table")
    return BucketStore(StoreObjects(ObjectMemory()), "memory://table")


def test_two_writers_share_a_table(store: TableStore) -> None:
    one = Table.create(store, schema_version=1, at_ms=0)
    two = Table.open(store)
    add(one, STREAM, 1, 3)
    add(two, OTHER, 7, 8)
    add(one, STREAM, 4, 4)
    assert all_rows(store, STREAM) == [1, 2, 3, 4]
    assert all_rows(store, OTHER) == [7, 8]
    with pytest.raises(RangeTaken):
        add(two, STREAM, 4, 6)
    assert compact(two, STREAM).rows == 4
    assert all_rows(store, STREAM) == [1, 2, 3, 4]
    assert [commit.version for commit in one.history()] == [0, 1, 2, 3, 4]
    assert sum(file.rows for file in one.at_version(2).files.values()) == 5


def test_there_is_one_table_at_a_place(store: TableStore) -> None:
    with pytest.raises(NoTable):
        Table.open(store)
    Table.create(store, schema_version=1, at_ms=0)
    with pytest.raises(TableExists):
        Table.create(store, schema_version=1, at_ms=0)
    assert Table.open_or_create(store, schema_version=1, at_ms=0).state.version == 0
    with pytest.raises(NoTable):
        Table.open(store).at_version(3)


def test_a_name_is_created_once_and_whole(store: TableStore) -> None:
    assert store.create("a/b", b"one")
    assert not store.create("a/b", b"two")
    assert store.read("a/b") == b"one"
    store.delete("a/b")
    store.delete("a/b")
    with pytest.raises(FileNotFoundError):
        store.read("a/b")


def test_checkpoints_are_read_and_not_believed_blindly() -> None:
    store = MemoryStore()
    table = Table.create(store, schema_version=1, at_ms=0)
    for row in range(1, CHECKPOINT_EVERY + 3):
        add(table, STREAM, row, row)
    whole = table.refresh()
    name = checkpoint_name(CHECKPOINT_EVERY)
    first = store.files.pop(commit_name(1))  # proves that the checkpoint was used
    assert Table.open(store).state == whole
    store.files[commit_name(1)] = first
    good = store.files[name]
    for bad in (b"", good[:-3], good.replace(whole.head[:8].encode(), b"00000000")):
        store.files[name] = bad if bad != good else good.replace(b'"head":"', b'"head":"0')
        assert Table.open(store).state == whole


def test_a_hole_is_not_taken_for_an_empty_table() -> None:
    store = MemoryStore()
    table = Table.create(store, schema_version=1, at_ms=0)
    add(table, STREAM, 1, 1)
    del store.files[commit_name(0)]
    with pytest.raises(TableDamaged):
        Table.open(store)


class Deaf(MemoryStore):
    """Answers are lost: the commit happened, or it did not."""

    def __init__(self, below: MemoryStore, *, happens: bool) -> None:
        super().__init__()
        self.files, self.modified_ms = below.files, below.modified_ms
        self._happens = happens

    def create(self, name: str, data: bytes) -> bool:
        if not name.startswith("_quantum_log"):
            return super().create(name, data)
        if self._happens:
            super().create(name, data)
        raise OSError("connection reset")


def test_a_lost_answer_is_looked_up() -> None:
    below = MemoryStore()
    add(Table.create(below, schema_version=1, at_ms=0), STREAM, 1, 2)
    add(Table.open(Deaf(below, happens=True)), STREAM, 3, 4)
    assert all_rows(below, STREAM) == [1, 2, 3, 4]
    with pytest.raises(CommitUnknown):
        add(Table.open(Deaf(below, happens=False)), STREAM, 5, 6)
    assert all_rows(below, STREAM) == [1, 2, 3, 4]


def test_the_loser_of_a_race_looks_again() -> None:
    """Between a writer's look and its commit another one commits, each time."""

    class Racing(MemoryStore):
        races = 3

        def create(self, name: str, data: bytes) -> bool:
            if name.startswith("_quantum_log") and self.races:
                self.races -= 1
                rival = MemoryStore()
                rival.files, rival.modified_ms = self.files, self.modified_ms
                add(Table.open(rival), OTHER, 4 - self.races, 4 - self.races)
            return super().create(name, data)

    store = Racing()
    store.races = 0
    table = Table.create(store, schema_version=1, at_ms=0)
    store.races = 3
    add(table, STREAM, 1, 2)
    assert all_rows(store, STREAM) == [1, 2]
    assert all_rows(store, OTHER) == [2, 3, 4]


def test_plain_readers_of_a_directory_see_what_is_committed(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    table = Table.create(store, schema_version=1, at_ms=0)
    write_range(store, STREAM, 1, 2)  # an orphan
    add(table, STREAM, 1, 2)
    add(table, STREAM, 3, 3)
    assert plain_rows(tmp_path) == [1, 2, 3]
    old = table.state
    compact(table, STREAM)
    assert plain_rows(tmp_path) == [1, 2, 3]
    for file in old.files.values():  # for those who read the version before
        assert store.read(file.path)
    shown = next((tmp_path / PLACE).iterdir())
    assert shown.stat().st_nlink == 2


def plain_rows(directory: Path) -> list[int]:
    return sorted(int(line) for path in visible(directory) for line in path.read_text().split())


def visible(directory: Path) -> Iterator[Path]:
    for base, directories, names in os.walk(directory):
        directories[:] = [each for each in directories if each[0] not in "_."]
        yield from (Path(base, name) for name in names if name[0] not in "_.")


def test_half_written_files_have_no_name(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    store.create("_data/a", b"1")
    (tmp_path / "_data" / ".new-0011").write_bytes(b"half")
    assert [each.name for each in store.names("")] == ["_data/a"]


def test_addresses_of_tables(tmp_path: Path) -> None:
    assert isinstance(open_store(str(tmp_path)), DirectoryStore)
    assert isinstance(open_store(f"file://{tmp_path}"), DirectoryStore)
    assert open_store(f"file://{tmp_path}").uri("a") == f"file://{tmp_path}/a"
    assert isinstance(next(iter([StoredObject("a", 1, 2)])), StoredObject)
    assert isinstance(open_store("memory:///"), BucketStore)


def test_a_commit_with_a_foreign_range_changes_nothing(store: TableStore) -> None:
    table = Table.create(store, schema_version=1, at_ms=0)
    add(table, STREAM, 1, 2)
    before = table.refresh()
    with pytest.raises(RangeTaken):
        table.commit(proposal(STREAM, 2, 3), at_ms=0)
    assert Table.open(store).state == before
