"""What may be deleted: only what no version can name any more, and not before the grace is over."""

from __future__ import annotations

from quantum.lake.table import GRACE_MS, Table, plan_cleaning
from tests.quantum.lake.table.stores import MemoryStore
from tests.quantum.lake.table.writers import (
    OTHER,
    STREAM,
    add,
    all_rows,
    compact,
    proposal,
    write_file,
    write_range,
)


def cleaned(store: MemoryStore, now_ms: int) -> list[str]:
    stored = list(store.names("_data"))
    table = Table.open(store)
    return plan_cleaning(table.state, table.history(), stored, now_ms=now_ms)


def test_a_loser_goes_when_its_offsets_are_committed_and_it_is_old() -> None:
    store = MemoryStore()
    table = Table.create(store, schema_version=1, at_ms=0)
    loser = write_range(store, STREAM, 1, 3)
    assert cleaned(store, 10 * GRACE_MS) == [], "its writer may still wake up"
    add(table, STREAM, 1, 2)
    assert cleaned(store, GRACE_MS - 1) == []
    assert cleaned(store, GRACE_MS) == [loser.path]


def test_a_sleeping_writer_of_a_new_stream_can_still_commit() -> None:
    store = MemoryStore()
    table = Table.create(store, schema_version=1, at_ms=0)
    sleeping = Table.open(store)
    file = write_range(store, OTHER, 1, 3)
    add(table, STREAM, 1, 2)
    assert cleaned(store, 10 * GRACE_MS) == []
    sleeping.commit(proposal(OTHER, 1, 3, file), at_ms=0)
    assert all_rows(store, OTHER) == [1, 2, 3]
    assert cleaned(store, 10 * GRACE_MS) == []


def test_what_was_replaced_stays_for_the_grace() -> None:
    store = MemoryStore()
    table = Table.create(store, schema_version=1, at_ms=0)
    old = [add(table, STREAM, row, row).path for row in (1, 2)]
    compact(table, STREAM, at_ms=5 * GRACE_MS)
    assert cleaned(store, 6 * GRACE_MS - 1) == []
    assert sorted(cleaned(store, 6 * GRACE_MS)) == sorted(old)
    for path in cleaned(store, 6 * GRACE_MS):
        store.delete(path)
    assert all_rows(store, STREAM) == [1, 2]


def test_a_rewritten_file_goes_when_its_moment_has_passed() -> None:
    store = MemoryStore()
    table = Table.create(store, schema_version=1, at_ms=0)
    name = "compact-00000000000000000000-00112233445566aa.parquet"
    loser = write_file(store, name, STREAM, [1])
    assert cleaned(store, GRACE_MS) == []
    add(table, STREAM, 1, 2)
    assert cleaned(store, GRACE_MS) == [loser.path]


def test_strangers_are_left_alone() -> None:
    store = MemoryStore()
    add(Table.create(store, schema_version=1, at_ms=0), STREAM, 1, 2)
    for name in ("_data/notes.txt", "_data/rows-dev-1-2-x.parquet"):
        store.create(name, b"")
    assert cleaned(store, 10 * GRACE_MS) == []
