"""Every executor keeps the steps' promises on real files."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from clustor.log.steps import (
    Create,
    DeleteFile,
    FileName,
    MakeDirectory,
    Plan,
    Rename,
    Step,
    Sync,
    SyncDirectory,
    SyncFiles,
    Truncate,
    WriteFile,
    plan_replace,
)
from clustor.log.types import IoWriterMode
from clustor.runtime.disk import (
    DirectoryStorage,
    Disk,
    DiskClosed,
    Partition,
    PathRefused,
    PlanFailed,
    PlanToken,
)
from clustor.runtime.disk.blocking import BlockingDisk
from clustor.runtime.disk.chain import CHAIN_STEPS_MAX
from clustor.runtime.disk.reserve import RESERVE_STEP_BYTES
from clustor.runtime.disk.ring import BUFFER_COUNT
from clustor.runtime.disk.uring import UringDisk
from tests.clustor.runtime.disk.harness import (
    contents,
    open_descriptors,
    run,
    succeed,
    take,
)

A = FileName("a")
B = FileName("b")
WAL = FileName("wal")
LEDGER = FileName("ledger")

STEPS: dict[str, tuple[Plan, dict[str, bytes | None]]] = {
    "create": ((Create(A),), {"a": b""}),
    "create in a directory": (
        (MakeDirectory("d"), Create(FileName("d/a"))),
        {"d": None, "d/a": b""},
    ),
    "write": ((Create(A), WriteFile(A, 0, b"hello")), {"a": b"hello"}),
    "write nothing": ((Create(A), WriteFile(A, 9, b""), Sync(A)), {"a": b""}),
    "write past the end": ((Create(A), WriteFile(A, 3, b"x")), {"a": b"\0\0\0x"}),
    "overwrite": (
        (Create(A), WriteFile(A, 0, b"12345"), Sync(A), WriteFile(A, 1, b"__")),
        {"a": b"1__45"},
    ),
    "write and sync twice": (
        (Create(A), WriteFile(A, 0, b"1"), Sync(A), WriteFile(A, 1, b"2"), Sync(A)),
        {"a": b"12"},
    ),
    "write twice, then sync": (
        (Create(A), WriteFile(A, 0, b"1"), WriteFile(A, 1, b"2"), Sync(A)),
        {"a": b"12"},
    ),
    "cut": ((Create(A), WriteFile(A, 0, b"12345"), Truncate(A, 2), Sync(A)), {"a": b"12"}),
    "extend": ((Create(A), Truncate(A, 3), WriteFile(A, 0, b"x"), Sync(A)), {"a": b"x\0\0"}),
    "rename": ((Create(A), WriteFile(A, 0, b"x"), Rename(A, B), Sync(B)), {"b": b"x"}),
    "rename over another": (
        (Create(A), Create(B), WriteFile(B, 0, b"old"), WriteFile(A, 0, b"new"), Rename(A, B)),
        {"b": b"new"},
    ),
    "rename, then write to the new name": (
        (Create(A), WriteFile(A, 0, b"1"), Rename(A, B), WriteFile(B, 1, b"2"), Create(A)),
        {"a": b"", "b": b"12"},
    ),
    "rename onto itself": ((Create(A), Rename(A, A), WriteFile(A, 0, b"1")), {"a": b"1"}),
    "delete": ((Create(A), DeleteFile(A), SyncDirectory("")), {}),
    "delete what is not there": ((DeleteFile(A), DeleteFile(FileName("x/y"))), {}),
    "delete and create anew": (
        (
            Create(A),
            WriteFile(A, 0, b"old"),
            DeleteFile(A),
            Create(A),
            WriteFile(A, 0, b"n"),
            Sync(A),
        ),
        {"a": b"n"},
    ),
    "sync many": (
        (
            Create(A),
            Create(B),
            WriteFile(A, 0, b"1"),
            SyncFiles((A, B)),
            WriteFile(B, 0, b"2"),
            Sync(B),
        ),
        {"a": b"1", "b": b"2"},
    ),
    "sync none of many": ((SyncFiles(()), Create(A), SyncFiles((A,)), SyncFiles((A,))), {"a": b""}),
    "directories": (
        (MakeDirectory("d/e"), MakeDirectory("d/e"), SyncDirectory("d"), SyncDirectory("")),
        {"d": None, "d/e": None},
    ),
    "replace": ((*plan_replace(A, b"1"), *plan_replace(A, b"22")), {"a": b"22"}),
    "nothing": ((), {}),
}


@pytest.mark.parametrize(("plan", "expected"), STEPS.values(), ids=STEPS.keys())
def test_steps_do_what_they_say(
    disk: Disk, partition: Partition, root: Path, plan: Plan, expected: dict[str, bytes | None]
) -> None:
    completion = succeed(disk, partition, plan)
    assert contents(root) == expected
    assert len(completion.sync_durations) == sum(isinstance(step, Sync) for step in plan)


@pytest.mark.parametrize(("plan", "expected"), STEPS.values(), ids=STEPS.keys())
def test_execute_does_the_same_in_the_callers_thread(
    disk: Disk, partition: Partition, root: Path, plan: Plan, expected: dict[str, bytes | None]
) -> None:
    durations = disk.execute(partition, plan)
    assert contents(root) == expected
    assert len(durations) == sum(isinstance(step, Sync) for step in plan)
    assert all(duration > 0 for duration in durations)


def append_plan(turn: int) -> Plan:
    wal, ledger = bytes([turn]) * 4096, bytes([turn]) * 64
    return (
        WriteFile(WAL, turn * 4096, wal),
        Sync(WAL),
        WriteFile(LEDGER, turn * 64, ledger),
        Sync(LEDGER),
    )


def test_appends_follow_each_other(disk: Disk, partition: Partition, root: Path) -> None:
    succeed(disk, partition, (Create(WAL), Create(LEDGER), SyncDirectory("")))
    for turn in range(20):
        assert len(succeed(disk, partition, append_plan(turn)).sync_durations) == 2
    assert contents(root) == {
        "wal": b"".join(bytes([turn]) * 4096 for turn in range(20)),
        "ledger": b"".join(bytes([turn]) * 64 for turn in range(20)),
    }


def test_a_warm_append_is_one_chain(ring_disk: UringDisk, root: Path) -> None:
    partition = ring_disk.open_partition(root)
    succeed(ring_disk, partition, (Create(WAL), Create(LEDGER)))
    before = ring_disk._chain_number
    for turn in range(3):
        succeed(ring_disk, partition, append_plan(turn))
        assert ring_disk._chain_number == before + turn + 1


def test_closed_files_free_their_places_in_the_ring(ring_disk: UringDisk, root: Path) -> None:
    partition = ring_disk.open_partition(root)
    assert ring_disk._ring is not None
    before = len(ring_disk._ring._free_slots)
    succeed(ring_disk, partition, (Create(WAL), Create(LEDGER), *append_plan(0)))
    assert len(ring_disk._ring._free_slots) == before - 2
    succeed(ring_disk, partition, (DeleteFile(LEDGER),))
    assert len(ring_disk._ring._free_slots) == before - 1
    ring_disk.close_partition(partition)
    assert len(ring_disk._ring._free_slots) == before


def test_registered_buffers_come_back(ring_disk: UringDisk, root: Path) -> None:
    partition = ring_disk.open_partition(root)
    assert ring_disk._ring is not None
    before = len(ring_disk._ring._free_buffers)
    assert before == (BUFFER_COUNT if ring_disk.mode == IoWriterMode.FIXED_URING else 0)
    succeed(ring_disk, partition, (Create(WAL), Create(LEDGER)))
    for turn in range(2 * BUFFER_COUNT):
        succeed(ring_disk, partition, append_plan(turn))
    assert len(ring_disk._ring._free_buffers) == before


def test_a_file_from_before_is_synced_whole_first(ring_disk: UringDisk, root: Path) -> None:
    """Someone may have written to it and died; syncing a range would not cover that."""
    for name in (WAL, LEDGER):
        (root / name).write_bytes(b"from before")
    partition = ring_disk.open_partition(root)
    succeed(ring_disk, partition, append_plan(0))
    assert ring_disk._chain_number == 2
    succeed(ring_disk, partition, append_plan(1))
    assert ring_disk._chain_number == 3
    ring_disk.execute(partition, (Truncate(WAL, 0),))
    succeed(ring_disk, partition, append_plan(0))
    assert ring_disk._chain_number == 5


def test_large_and_many_writes(disk: Disk, partition: Partition, root: Path) -> None:
    large = bytes(range(256)) * 8192
    many = tuple(WriteFile(B, at, b"%c" % (at % 256)) for at in range(3 * CHAIN_STEPS_MAX))
    succeed(
        disk, partition, (Create(A), Create(B), WriteFile(A, 5, large), Sync(A), *many, Sync(B))
    )
    expected_many = bytes(at % 256 for at in range(3 * CHAIN_STEPS_MAX))
    assert contents(root) == {"a": bytes(5) + large, "b": expected_many}


def test_plans_of_one_partition_run_in_order(disk: Disk, partition: Partition, root: Path) -> None:
    disk.submit(partition, (Create(A),), PlanToken(0))
    for turn in range(1, 200):
        disk.submit(partition, (WriteFile(A, 0, b"%03d" % turn), Sync(A)), PlanToken(turn))
    completions = take(disk, 200)
    assert [completion.token for completion in completions] == list(range(200))
    assert contents(root) == {"a": b"199"}


def test_many_partitions_share_a_disk(disk: Disk, tmp_path: Path) -> None:
    partitions: list[Partition] = []
    for number in range(300):
        (tmp_path / str(number)).mkdir()
        partitions.append(disk.open_partition(tmp_path / str(number)))
    for token, partition in enumerate(partitions):
        plan = (Create(A), WriteFile(A, 0, b"%d" % token), Sync(A))
        disk.submit(partition, plan, PlanToken(token))
    completions = take(disk, len(partitions))
    assert {completion.error for completion in completions} == {None}
    assert all(partitions[each.token] is each.partition for each in completions)
    for number in range(300):
        assert contents(tmp_path / str(number)) == {"a": b"%d" % number}


async def test_a_loop_can_watch_the_disk(disk: Disk, partition: Partition) -> None:
    loop = asyncio.get_running_loop()
    over: asyncio.Future[PlanToken] = loop.create_future()
    loop.add_reader(disk.fileno(), lambda: over.set_result(disk.completions()[0].token))
    disk.submit(partition, (Create(A), WriteFile(A, 0, b"x"), Sync(A)), PlanToken(3))
    assert await asyncio.wait_for(over, 60) == 3
    loop.remove_reader(disk.fileno())


def test_a_drained_disk_is_quiet(disk: Disk, partition: Partition) -> None:
    """A leftover wake-up per plan would cost the loop a turn."""
    succeed(disk, partition, (Create(A), WriteFile(A, 0, b"x"), Sync(A)))
    with pytest.raises(BlockingIOError):
        os.eventfd_read(disk.fileno())
    assert disk.completions() == []


def test_reservation_leaves_the_length_alone(disk: Disk, partition: Partition, root: Path) -> None:
    succeed(disk, partition, (Create(A, reserve_bytes=1 << 20), WriteFile(A, 0, b"x"), Sync(A)))
    status = (root / "a").stat()
    assert status.st_size == 1
    assert status.st_blocks * 512 >= 1 << 20


def test_room_is_reserved_step_by_step_ahead_of_the_writes(
    disk: Disk, partition: Partition, root: Path
) -> None:
    """A new log of many groups takes little room; a long one has it before it needs it."""
    succeed(disk, partition, (Create(A, reserve_bytes=64 << 20), WriteFile(A, 0, b"x"), Sync(A)))
    held = (root / "a").stat().st_blocks * 512
    assert RESERVE_STEP_BYTES <= held < 2 * RESERVE_STEP_BYTES
    succeed(disk, partition, (WriteFile(A, RESERVE_STEP_BYTES - 1, b"xx"), Sync(A)))
    status = (root / "a").stat()
    assert status.st_size == RESERVE_STEP_BYTES + 1
    assert 2 * RESERVE_STEP_BYTES <= status.st_blocks * 512 < 3 * RESERVE_STEP_BYTES


def test_nothing_is_reserved_beyond_what_was_asked_for(
    disk: Disk, partition: Partition, root: Path
) -> None:
    most = RESERVE_STEP_BYTES + 4096
    succeed(
        disk, partition, (Create(A, reserve_bytes=most), WriteFile(A, most - 1, b"xx"), Sync(A))
    )
    assert (root / "a").stat().st_blocks * 512 <= most + (64 << 10)


WRONG: dict[str, tuple[Step, type[OSError]]] = {
    "create what is there": (Create(A), FileExistsError),
    "create below nothing": (Create(FileName("x/y")), FileNotFoundError),
    "create below a file": (Create(FileName("a/y")), NotADirectoryError),
    "write to nothing": (WriteFile(B, 0, b"x"), FileNotFoundError),
    "write to a directory": (WriteFile(FileName("d"), 0, b"x"), IsADirectoryError),
    "write before the start": (WriteFile(A, -1, b"x"), OSError),
    "sync nothing": (Sync(B), FileNotFoundError),
    "sync nothing among many": (SyncFiles((A, B)), FileNotFoundError),
    "cut nothing": (Truncate(B, 0), FileNotFoundError),
    "rename nothing": (Rename(B, A), FileNotFoundError),
    "rename a directory": (Rename(FileName("d"), B), IsADirectoryError),
    "rename over a directory": (Rename(A, FileName("d")), IsADirectoryError),
    "delete a directory": (DeleteFile(FileName("d")), IsADirectoryError),
    "sync no directory": (SyncDirectory("x"), FileNotFoundError),
    "sync a file as a directory": (SyncDirectory("a"), NotADirectoryError),
    "make a directory of a file": (MakeDirectory("a"), NotADirectoryError),
}


@pytest.mark.parametrize(("step", "error"), WRONG.values(), ids=WRONG.keys())
def test_a_failing_step_ends_its_plan_and_says_what_failed(
    disk: Disk, partition: Partition, root: Path, step: Step, error: type[OSError]
) -> None:
    start: Plan = (Create(A), MakeDirectory("d"), WriteFile(A, 0, b"before"), Sync(A))
    failure = run(disk, partition, (*start, step, WriteFile(A, 0, b"after!"), Sync(A))).error
    assert isinstance(failure, PlanFailed)
    assert (failure.step_number, failure.step) == (4, type(step).__name__)
    assert isinstance(OSError(failure.errno, ""), error)
    assert contents(root) == {"a": b"before", "d": None}
    assert partition.fenced == ()
    succeed(disk, partition, (WriteFile(A, 0, b"later!"), Sync(A)))


ESCAPES = ["../a", "/a", "", "d/../../a", ".", "d//a", "a\0b", "link", "linked/a"]


@pytest.mark.parametrize("name", ESCAPES)
def test_no_name_leads_out_of_the_directory(
    disk: Disk, partition: Partition, root: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / "a").write_bytes(b"outside")
    (root / "link").symlink_to(tmp_path / "a")
    (root / "linked").symlink_to(tmp_path)
    file = FileName(name)
    for step in (WriteFile(file, 0, b"x"), Truncate(file, 0), Rename(file, B), Create(file)):
        assert isinstance(run(disk, partition, (step,)).error, PathRefused | PlanFailed), step
    storage = DirectoryStorage(root)
    with pytest.raises((PathRefused, NotADirectoryError)):
        storage.read(file, 0, 1)
    storage.close()
    assert (tmp_path / "a").read_bytes() == b"outside"
    assert sorted(os.listdir(tmp_path)) == ["a", "partition"]


def test_open_files_are_bounded_and_dirty_ones_stay_open(root: Path) -> None:
    names = [FileName(f"f{number:02}") for number in range(40)]
    for disk in (BlockingDisk(open_files_max=4), UringDisk(open_files_max=4)):
        partition = disk.open_partition(root)
        for name in names:
            succeed(
                disk,
                partition,
                (DeleteFile(name), Create(name), WriteFile(name, 0, b"1"), Sync(name)),
            )
        assert len(disk._table) <= 4
        disk.execute(partition, tuple(WriteFile(name, 1, b"2") for name in names))
        assert len(disk._table) == len(names)
        for name in names:
            succeed(disk, partition, (Sync(name), WriteFile(name, 2, b"3"), Sync(name)))
        succeed(disk, partition, (Create(A), DeleteFile(A)))
        assert len(disk._table) <= 4
        disk.close()
        assert contents(root) == dict.fromkeys(names, b"123")


def test_closing_finishes_the_work_and_leaves_no_descriptor(disk: Disk, root: Path) -> None:
    partition = disk.open_partition(root)
    succeed(disk, partition, (Create(A), WriteFile(A, 0, b"warm"), Sync(A)))
    for turn in range(50):
        disk.submit(partition, (WriteFile(A, 0, b"%04d" % turn), Sync(A)), PlanToken(turn))
    disk.close()
    assert [each.token for each in disk.completions()] == list(range(50))
    assert contents(root) == {"a": b"0049"}
    with pytest.raises(DiskClosed):
        disk.submit(partition, (), PlanToken(0))
    leaks = [each for each in open_descriptors() if str(root) in each or "io_uring" in each]
    assert leaks == []


def test_a_storage_follows_renames_and_deletions(disk: Disk, root: Path) -> None:
    partition = disk.open_partition(root)
    storage = DirectoryStorage(root)
    disk.execute(
        partition, (Create(A), WriteFile(A, 0, b"one"), Create(B), WriteFile(B, 0, b"two!"))
    )
    assert (storage.read(A, 1, 9), storage.size(B)) == (b"ne", 4)
    disk.execute(partition, (Rename(B, A),))
    assert (storage.read(A, 0, 9), storage.names("")) == (b"two!", ["a"])
    with pytest.raises(FileNotFoundError):
        storage.size(B)
    disk.execute(partition, (DeleteFile(A),))
    with pytest.raises(FileNotFoundError):
        storage.read(A, 0, 1)
    assert storage.names("nowhere") == []
    storage.close()
