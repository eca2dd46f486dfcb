"""`compact` and `clean`: fewer files, the same rows, for readers of every kind."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from quantum.lake.jobs.compact import clean, compact, plan_compaction
from quantum.lake.jobs.delta import mirror_to_delta
from quantum.lake.jobs.verify import verify
from quantum.lake.table import DirectoryStore, FileKind, Table
from tests.quantum.lake.jobs.logs import MemorySource
from tests.quantum.lake.jobs.tables import filled, payloads
from tests.quantum.lake.jobs.test_ingest import story
from tests.quantum.lake.table.stores import MemoryStore


def small_files() -> tuple[MemorySource, MemoryStore]:
    log, _ = story()
    store = MemoryStore()
    filled(log, store, entries=1)
    return log, store


def test_small_files_become_one_and_the_rows_stay() -> None:
    log, store = small_files()
    before = payloads(store)
    done = compact(store, files_min=2)
    assert (done.files_before, done.files_after) == (8, 2)
    assert payloads(store) == before
    assert verify(log, store).is_equal
    assert len(store.plain()) == 2
    assert compact(store, files_min=2).files_before == 0
    log.publish(0, b"more")
    filled(log, store)
    assert payloads(store) == [*before[:9], b"more", *before[9:]]


def test_files_of_other_days_views_and_streams_stay_apart() -> None:
    _, store = small_files()
    groups = plan_compaction(Table.open(store).state, files_min=1)
    for group in groups:
        assert len({(file.kind, file.view, file.stream, file.place) for file in group}) == 1
    sizes = [file.bytes for group in groups for file in group]
    halves = plan_compaction(Table.open(store).state, file_bytes=3 * max(sizes), files_min=1)
    assert all(sum(file.bytes for file in group) <= 3 * max(sizes) for group in halves)
    assert len(halves) > len(groups)


def test_an_ingest_in_between_wins() -> None:
    log, store = small_files()
    before = payloads(store)

    class Meddling(MemoryStore):
        def create(self, name: str, data: bytes) -> bool:
            if "compact-" in name and not self.meddled:
                self.meddled = True
                log.publish(1, b"meanwhile")
                filled(log, store)
            return super().create(name, data)

        meddled = False

    meddling = Meddling()
    meddling.files, meddling.modified_ms = store.files, store.modified_ms
    assert compact(meddling, files_min=2).files_before == 0
    assert payloads(store) == [*before, b"meanwhile"]
    assert verify(log, store).is_equal


def test_losers_and_what_was_replaced_are_cleaned_after_the_grace() -> None:
    log, store = small_files()
    compact(store, files_min=2)
    now_ms = time.time_ns() // 1_000_000
    for name in store.modified_ms:
        store.modified_ms[name] = now_ms
    assert clean(store) == []
    gone = clean(store, grace_ms=0)
    assert len([name for name in gone if "rows-" in name]) == 8
    assert len(store.plain()) == 2
    assert verify(log, store).is_equal


def test_a_delta_reader_sees_the_same_rows(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    log, _ = story()
    store = DirectoryStore(tmp_path)
    filled(log, store, entries=4)

    def delta_rows() -> list[bytes]:
        mirror_to_delta(Table.open(store))
        found = deltalake.DeltaTable(str(tmp_path)).to_pyarrow_table().to_pylist()
        found.sort(key=lambda row: (row["prg"], row["raft_index"], row["sub_index"]))
        return [row["payload"] for row in found]

    assert delta_rows() == payloads(store)
    assert delta_rows() == payloads(store)
    version = deltalake.DeltaTable(str(tmp_path)).version()
    log.publish(1, b"more")
    filled(log, store)
    compact(store, files_min=2)
    assert delta_rows() == payloads(store)
    assert deltalake.DeltaTable(str(tmp_path)).version() == version + 2
    assert len(Table.open(store).state.of_kind(FileKind.ROWS)) == 2
