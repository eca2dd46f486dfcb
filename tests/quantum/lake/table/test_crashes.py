"""A writer that ends at any step leaves the old table or the new one, and the next one goes on."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from quantum.lake.table import RangeTaken, Table, TableError
from tests.quantum.lake.table.stores import Crash, DyingStore, MemoryStore
from tests.quantum.lake.table.writers import (
    STREAM,
    add,
    all_rows,
    compact,
    proposal,
    rows_of,
    write_range,
)


def table_with(rows: int) -> MemoryStore:
    store = MemoryStore()
    table = Table.create(store, schema_version=1, at_ms=0)
    for row in range(1, rows + 1):
        add(table, STREAM, row, row)
    return store


def go_on(store: MemoryStore, last: int) -> None:
    """Do what a driver does that starts after another one died."""
    table = Table.open_or_create(store, schema_version=1, at_ms=0)
    following = table.state.next_offset(STREAM) or 1
    if following <= last:
        add(table, STREAM, following, last)
    table.show()


def shown_rows(store: MemoryStore) -> list[int]:
    files = Table.open(store).state.files.values()
    shown = [file for file in files if file.path.rpartition("/")[2] in store.plain()]
    assert {file.path.rpartition("/")[2] for file in shown} == store.plain(), "a stranger is seen"
    return sorted(row for file in shown for row in rows_of(store, file))


DEEDS: dict[str, Callable[[Table], object]] = {
    "ingest": lambda table: add(table, STREAM, 4, 6),
    "compact": lambda table: compact(table, STREAM),
}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("deed", DEEDS)
def test_a_crash_at_every_step_leaves_old_or_new(deed: str, after: bool) -> None:
    seen: set[tuple[int, ...]] = set()
    for step in range(100):
        store = table_with(3)
        dying = DyingStore(store, at_step=step, after=after)
        try:
            DEEDS[deed](Table.open(dying))
        except Crash:
            rows = all_rows(store, STREAM)
            assert rows in ([1, 2, 3], [1, 2, 3, 4, 5, 6])
            seen.add(tuple(rows))
            assert set(shown_rows_of_committed(store)) <= set(rows)
            go_on(store, 6)
            assert all_rows(store, STREAM) == [1, 2, 3, 4, 5, 6]
            assert shown_rows(store) == [1, 2, 3, 4, 5, 6]
        if dying.survived:
            assert step >= 3, "the deed has fewer steps than it should"
            break
    else:
        pytest.fail("the deed never ended")
    if deed == "ingest":
        assert len(seen) == 2, "no crash fell on either side of the commit"


def shown_rows_of_committed(store: MemoryStore) -> list[int]:
    """What plain readers see between a crash and the next writer: committed files only."""
    known = {path for commit in Table.open(store).history() for path in paths(commit.add)}
    names = {path.rpartition("/")[2]: path for path in known}
    return [int(line) for name in store.plain() for line in store.files[names[name]].split()]


def paths(files: tuple[object, ...]) -> list[str]:
    return [str(getattr(file, "path", "")) for file in files]


def test_creating_a_table_can_be_cut_short_as_well() -> None:
    for after in (False, True):
        store = MemoryStore()
        with pytest.raises(Crash):
            Table.create(DyingStore(store, at_step=0, after=after), schema_version=1, at_ms=0)
        go_on(store, 2)
        assert all_rows(store, STREAM) == [1, 2]


def test_a_zombie_loses_and_does_no_harm() -> None:
    """A driver sleeps with its files written; another one did its work meanwhile."""
    store = table_with(3)
    zombie = Table.open(store)
    slept = write_range(store, STREAM, 4, 6)
    add(Table.open(store), STREAM, 4, 5)
    with pytest.raises(RangeTaken):
        zombie.commit(proposal(STREAM, 4, 6, slept), at_ms=0)
    assert all_rows(store, STREAM) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("seed", range(60))
def test_many_writers_that_crash_anywhere_add_each_offset_once(seed: int) -> None:
    rng = random.Random(seed)
    store = MemoryStore()
    Table.create(store, schema_version=1, at_ms=0)
    drivers: list[Table] = [Table.open(store) for _ in range(3)]
    for _ in range(60):
        at = rng.randrange(3)
        driver = drivers[at]
        if rng.random() < 0.2:
            dying = DyingStore(store, at_step=rng.randrange(4), after=rng.random() < 0.5)
            driver.store = dying  # it may not have looked for long
        try:
            one_batch(driver, rng)
        except Crash:
            drivers[at] = Table.open(store)
        except TableError:
            driver.refresh()
        drivers[at].store = store
    end = (Table.open(store).state.next_offset(STREAM) or 1) - 1
    assert all_rows(store, STREAM) == list(range(1, end + 1)), f"seed {seed}"
    assert end > 10
    go_on(store, end)
    assert shown_rows(store) == list(range(1, end + 1))


def one_batch(driver: Table, rng: random.Random) -> None:
    """Ingest or compact from what the driver believes, which may be old."""
    if rng.random() < 0.25 and driver.state.files:
        compact(driver, STREAM)
        return
    first = driver.state.next_offset(STREAM) or 1
    add(driver, STREAM, first, first + rng.randrange(3))
