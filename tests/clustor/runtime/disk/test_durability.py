"""A completed Sync leaves no dirty page behind: the kernel itself is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from clustor.log.steps import Create, FileName, Plan, Sync, WriteFile
from clustor.runtime.disk import Disk, Partition
from tests.clustor.runtime.disk.harness import succeed, unwritten_pages

WAL = FileName("wal")
LEDGER = FileName("ledger")
FAR = 16 << 20
"""Beyond any folio: pages that lie together are written together, asked for or not."""


def append_plan(turn: int) -> Plan:
    return (
        WriteFile(WAL, turn * 4096, b"w" * 4096),
        Sync(WAL),
        WriteFile(LEDGER, turn * 64, b"l" * 64),
        Sync(LEDGER),
    )


def test_nothing_is_dirty_when_an_append_completes(
    disk: Disk, partition: Partition, root: Path
) -> None:
    succeed(disk, partition, (Create(WAL), Create(LEDGER)))
    for turn in range(10):
        succeed(disk, partition, append_plan(turn))
        assert (unwritten_pages(root / WAL), unwritten_pages(root / LEDGER)) == (0, 0)


PLANS: dict[str, Plan] = {
    "bytes of an earlier plan": (WriteFile(WAL, FAR, b"b"), Sync(WAL)),
    "two writes, one sync": (WriteFile(WAL, FAR, b"b"), WriteFile(WAL, 0, b"c"), Sync(WAL)),
    "a sync alone": (Sync(WAL),),
    "a write to another file between": (
        WriteFile(WAL, 0, b"b"),
        WriteFile(LEDGER, 0, b"c"),
        Sync(WAL),
    ),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_a_sync_covers_every_write_of_its_own_plan(
    disk: Disk, partition: Partition, root: Path, plan: Plan
) -> None:
    """The file is clean before: only the plan's own steps can leave something dirty."""
    start = (Create(WAL), Create(LEDGER), WriteFile(WAL, 0, b"x" * 20_000), Sync(WAL))
    succeed(disk, partition, start)
    succeed(disk, partition, plan)
    assert unwritten_pages(root / WAL) == 0


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_a_sync_covers_every_earlier_write(
    disk: Disk, partition: Partition, root: Path, plan: Plan
) -> None:
    succeed(disk, partition, (Create(WAL), Create(LEDGER), WriteFile(WAL, 0, b"x" * 20_000)))
    assert unwritten_pages(root / WAL) > 0
    succeed(disk, partition, plan)
    assert unwritten_pages(root / WAL) == 0


def test_a_write_behind_a_synced_one_is_not_forgotten(
    disk: Disk, partition: Partition, root: Path
) -> None:
    succeed(disk, partition, (Create(WAL), WriteFile(WAL, 0, b"x" * FAR), Sync(WAL)))
    succeed(disk, partition, (WriteFile(WAL, 0, b"1"), Sync(WAL), WriteFile(WAL, FAR - 9, b"2")))
    assert unwritten_pages(root / WAL) > 0
    succeed(disk, partition, (WriteFile(WAL, 0, b"3"), Sync(WAL)))
    assert unwritten_pages(root / WAL) == 0


def test_what_someone_left_dirty_is_synced_too(disk: Disk, root: Path) -> None:
    for name in (WAL, LEDGER):
        (root / name).write_bytes(b"x" * 20_000)
    assert unwritten_pages(root / WAL) > 0
    partition = disk.open_partition(root)
    succeed(disk, partition, append_plan(0))
    assert (unwritten_pages(root / WAL), unwritten_pages(root / LEDGER)) == (0, 0)
