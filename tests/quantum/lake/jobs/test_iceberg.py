"""The table as Iceberg's: the same rows, each version once, whoever else mirrors it or dies."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from quantum.lake.jobs.compact import clean, compact
from quantum.lake.jobs.errors import PackageMissing
from quantum.lake.jobs.iceberg import DIRECTORY, RANGES_PROPERTY, VERSION_PROPERTY
from quantum.lake.jobs.iceberg import mirror_to_iceberg as mirror
from quantum.lake.jobs.verify import verify
from quantum.lake.table import DirectoryStore, Table
from tests.quantum.lake.jobs.tables import filled, payloads
from tests.quantum.lake.jobs.test_ingest import story
from tests.quantum.lake.table.stores import Crash, DyingStore

pytestmark = pytest.mark.filterwarnings("ignore")  # of its dependencies


def iceberg_of(root: Path) -> Any:
    """Open it as a stranger does: by its directory alone."""
    from pyiceberg.table import StaticTable

    return StaticTable.from_metadata(f"file://{root / DIRECTORY}")


def rows_of(root: Path) -> list[bytes]:
    found = iceberg_of(root).scan().to_arrow().to_pylist()
    found.sort(key=lambda row: (row["prg"], row["raft_index"], row["sub_index"]))
    return [row["payload"] for row in found]


def test_without_the_package_one_sentence_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _ = story()
    store = DirectoryStore(tmp_path)
    filled(log, store)
    monkeypatch.setitem(sys.modules, "pyiceberg.exceptions", None)
    with pytest.raises(PackageMissing, match="need the package pyiceberg"):
        mirror(Table.open(store))


def test_an_iceberg_reader_sees_the_same_rows(tmp_path: Path) -> None:
    pytest.importorskip("pyiceberg")
    log, _ = story()
    store = DirectoryStore(tmp_path)
    filled(log, store, entries=4)
    assert mirror(Table.open(store)) == Table.open(store).state.version
    assert rows_of(tmp_path) == payloads(store)
    before = iceberg_of(tmp_path)
    mirror(Table.open(store))
    assert iceberg_of(tmp_path).metadata == before.metadata, "nothing was new"
    log.publish(1, b"more")
    filled(log, store)
    compact(store, files_min=2)
    mirror(Table.open(store))
    assert rows_of(tmp_path) == payloads(store)
    assert len(list(iceberg_of(tmp_path).scan().plan_files())) == 2
    assert before.scan().to_arrow().num_rows == len(payloads(store)) - 1, "an older snapshot"
    assert clean(store, grace_ms=0)
    assert rows_of(tmp_path) == payloads(store)
    assert verify(log, store).is_equal, "what is Iceberg's is no stray"


def test_a_snapshot_says_which_offsets_it_brought(tmp_path: Path) -> None:
    pytest.importorskip("pyiceberg")
    log, _ = story()
    store = DirectoryStore(tmp_path)
    filled(log, store, entries=4)
    mirror(Table.open(store))
    found = iceberg_of(tmp_path)
    through: dict[str, int] = {}
    for snapshot in found.metadata.snapshots:
        for stream, (first, last) in json.loads(snapshot.summary[RANGES_PROPERTY]).items():
            assert first == through.get(stream, 0) + 1
            through[stream] = last
    state = Table.open(store).state
    assert through == {stream: each.last for stream, each in state.ranges.items()}
    assert found.metadata.properties[VERSION_PROPERTY] == str(state.version)


def test_a_mirror_that_was_quicker_is_not_repeated(tmp_path: Path) -> None:
    pytest.importorskip("pyiceberg")
    from pyiceberg.exceptions import CommitFailedException

    from quantum.lake.jobs import iceberg

    log, _ = story()
    store = DirectoryStore(tmp_path)
    filled(log, store, entries=4)
    table = Table.open(store)
    late = iceberg.open_iceberg(store)
    mirror(table)
    with pytest.raises(CommitFailedException):
        iceberg._mirror(table, late, table.history()[1])
    assert rows_of(tmp_path) == payloads(store)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", range(6))
def test_a_mirror_that_died_is_completed(tmp_path: Path, step: int, after: bool) -> None:
    pytest.importorskip("pyiceberg")
    log, _ = story()
    store = DirectoryStore(tmp_path)
    filled(log, store, entries=4)
    dying = DyingStore(store, at_step=step, after=after)
    with suppress(Crash):
        mirror(Table.open(dying))
    mirror(Table.open(store))
    assert rows_of(tmp_path) == payloads(store)
    versions = [int(each.summary[VERSION_PROPERTY]) for each in iceberg_of(tmp_path).snapshots()]
    assert versions == sorted(set(versions))
