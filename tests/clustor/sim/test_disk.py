"""The simulated disk keeps exactly what `clustor.log.steps` promises, and loses the rest."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterable

import pytest

from clustor.log.steps import (
    Create,
    DeleteFile,
    FileName,
    MakeDirectory,
    Plan,
    Rename,
    Step,
    Storage,
    Sync,
    SyncDirectory,
    SyncFiles,
    Truncate,
    WriteFile,
    plan_replace,
)
from clustor.sim.disk import (
    SECTOR_BYTES,
    CrashChoice,
    DiskStalled,
    SimDisk,
    TooManyCrashStates,
)

A = FileName("a")
B = FileName("b")
OLD = b"o" * SECTOR_BYTES
NEW = b"n" * SECTOR_BYTES
ALL = 10**9


def disk_with(file: FileName, data: bytes, **options: bool) -> SimDisk:
    disk = SimDisk(**options)
    disk.execute((Create(file), WriteFile(file, 0, data), Sync(file), SyncDirectory("")))
    assert disk.is_synced
    return disk


def content(disk: Storage, file: FileName) -> bytes | None:
    try:
        return disk.read(file, 0, ALL)
    except FileNotFoundError:
        return None


def outcomes(disks: Iterable[SimDisk], file: FileName) -> set[bytes | None]:
    return {content(disk, file) for disk in disks}


def test_it_is_a_storage() -> None:
    storage: Storage = disk_with(A, b"hello")
    assert (storage.names(""), storage.size(A), storage.read(A, 1, 3)) == (["a"], 5, b"ell")
    assert storage.read(A, 4, 10) == b"o"
    assert storage.read(A, 5, 10) == b""
    assert storage.names("nowhere") == []


def test_reads_see_what_no_sync_has_made_durable() -> None:
    disk = disk_with(A, OLD * 3)
    disk.execute((WriteFile(A, 500, b"x" * 600), Truncate(A, 1300)))
    assert disk.read(A, 0, ALL) == (OLD * 3)[:500] + b"x" * 600 + (OLD * 3)[1100:1300]


def test_a_synced_file_survives_every_crash() -> None:
    disk = disk_with(A, OLD + NEW)
    assert outcomes(disk.crash_states(), A) == {OLD + NEW}


def test_each_unsynced_sector_is_kept_lost_or_torn_on_its_own() -> None:
    disk = disk_with(A, OLD * 2)
    disk.run_step(WriteFile(A, 0, NEW * 2))
    found = outcomes(disk.crash_states(), A)
    assert {OLD + OLD, OLD + NEW, NEW + OLD, NEW + NEW} <= found
    prefix_torn = NEW[:256] + OLD[256:] + OLD
    suffix_torn = OLD[:256] + NEW[256:] + OLD
    assert {prefix_torn, suffix_torn} <= found


@pytest.mark.parametrize("size", [1, 100, 511, 512, 513, 1536])
def test_only_written_bytes_are_ever_in_doubt(size: int) -> None:
    disk = disk_with(A, OLD * 4)
    disk.run_step(WriteFile(A, 200, b"n" * size))
    for found in outcomes(disk.crash_states(10**6), A):
        assert found is not None
        assert found[:200] == OLD[:200]
        assert found[200 + size :] == (OLD * 4)[200 + size :]
        assert set(found[200 : 200 + size]) <= set(b"on")


def test_every_version_of_a_sector_may_survive() -> None:
    disk = disk_with(A, OLD)
    disk.execute((WriteFile(A, 0, b"1" * 512), WriteFile(A, 0, b"2" * 512)))
    assert {OLD, b"1" * 512, b"2" * 512} <= outcomes(disk.crash_states(), A)


def test_an_append_may_keep_its_length_and_lose_its_bytes_and_the_reverse() -> None:
    disk = disk_with(A, OLD)
    disk.run_step(WriteFile(A, 512, NEW))
    found = outcomes(disk.crash_states(), A)
    assert {OLD, OLD + bytes(512), OLD + NEW} <= found


def test_a_long_append_may_keep_only_its_first_pages() -> None:
    disk = disk_with(A, b"")
    disk.run_step(WriteFile(A, 0, b"n" * 10_000))
    sizes = {disk.random_crash(random.Random(seed)).size(A) for seed in range(200)}
    assert sizes == {0, 4096, 8192, 10_000}


def test_a_lost_length_hides_the_bytes_behind_it_from_a_later_extension() -> None:
    disk = disk_with(A, b"")
    disk.run_step(WriteFile(A, 0, NEW * 2))
    for after in disk.crash_states():
        size = after.size(A)
        after.run_step(Truncate(A, 2048))
        assert after.read(A, size, ALL) == bytes(2048 - size)


def test_an_unsynced_cut_survives_as_a_whole_or_not_at_all() -> None:
    disk = disk_with(A, OLD * 4)
    disk.run_step(Truncate(A, 512))
    assert outcomes(disk.crash_states(), A) == {OLD, OLD * 4}


def test_what_is_written_behind_a_lost_cut_is_lost_with_it() -> None:
    disk = disk_with(A, OLD * 2)
    disk.execute((Truncate(A, 512), WriteFile(A, 512, NEW)))
    found = outcomes(disk.crash_states(), A)
    assert {OLD * 2, OLD, OLD + NEW, OLD + bytes(512)} <= found
    for data in found - {OLD * 2}:
        assert data is not None
        assert b"o" not in data[512:]


def test_a_synced_cut_forgets_what_was_behind_it() -> None:
    disk = disk_with(A, OLD * 3)
    disk.execute((Truncate(A, 700), Sync(A), Truncate(A, 1536), Sync(A)))
    expected = (OLD * 3)[:700] + bytes(1536 - 700)
    assert outcomes(disk.crash_states(), A) == {expected}


def test_a_sync_of_one_file_says_nothing_about_another() -> None:
    disk = disk_with(A, OLD)
    disk.execute(
        (Create(B), Sync(B), SyncDirectory(""), WriteFile(B, 0, NEW), WriteFile(A, 0, NEW))
    )
    disk.run_step(Sync(A))
    assert outcomes(disk.crash_states(), A) == {NEW}
    assert {b"", NEW} <= outcomes(disk.crash_states(), B)


def test_a_synced_file_without_a_synced_name_may_be_gone() -> None:
    disk = SimDisk()
    disk.execute((Create(A), WriteFile(A, 0, NEW), Sync(A)))
    assert outcomes(disk.crash_states(), A) == {None, NEW}


def test_a_synced_name_without_synced_bytes_may_be_empty() -> None:
    disk = SimDisk()
    disk.execute((Create(A), WriteFile(A, 0, NEW), SyncDirectory("")))
    found = outcomes(disk.crash_states(), A)
    assert {b"", NEW, bytes(512)} <= found
    assert None not in found


def test_a_rename_is_whole_or_lost() -> None:
    disk = disk_with(A, OLD)
    disk.execute((Create(B), WriteFile(B, 0, NEW), Sync(B), SyncDirectory("")))
    disk.run_step(Rename(B, A))
    states = {(content(after, A), content(after, B)) for after in disk.crash_states()}
    assert states == {(OLD, NEW), (NEW, None)}
    disk.run_step(SyncDirectory(""))
    assert outcomes(disk.crash_states(), A) == {NEW}


def test_a_rename_before_the_sync_of_its_bytes_may_show_an_empty_file() -> None:
    disk = disk_with(A, OLD)
    disk.execute((Create(B), WriteFile(B, 0, NEW), Rename(B, A), SyncDirectory("")))
    assert b"" in outcomes(disk.crash_states(), A)


def test_a_deletion_may_be_forgotten_until_its_directory_is_synced() -> None:
    disk = disk_with(A, OLD)
    disk.run_step(DeleteFile(A))
    assert content(disk, A) is None
    assert outcomes(disk.crash_states(), A) == {OLD, None}
    disk.run_step(SyncDirectory(""))
    assert outcomes(disk.crash_states(), A) == {None}


@pytest.mark.parametrize("reorder", [False, True])
def test_directory_operations_survive_as_a_prefix_unless_reordering_is_on(reorder: bool) -> None:
    disk = SimDisk(reorder_directory_ops=reorder)
    disk.execute((Create(A), Create(B)))
    found = {tuple(after.names("")) for after in disk.crash_states()}
    expected = {(), ("a",), ("a", "b")}
    assert found == (expected | {("b",)} if reorder else expected)


def test_reordering_keeps_cause_before_effect() -> None:
    disk = SimDisk(reorder_directory_ops=True)
    disk.execute((Create(A), WriteFile(A, 0, NEW), Sync(A), Rename(A, B)))
    states = {(content(after, A), content(after, B)) for after in disk.crash_states()}
    assert states == {(None, None), (NEW, None), (None, NEW)}


def test_what_is_in_a_directory_is_lost_with_the_directorys_own_name() -> None:
    inner = FileName("d/e/f")
    disk = SimDisk()
    disk.execute((MakeDirectory("d/e"), Create(inner), Sync(inner), SyncDirectory("d/e")))
    found = {tuple(after.names("d/e")) for after in disk.crash_states()}
    assert found == {(), ("f",)}
    disk.execute((SyncDirectory("d"), SyncDirectory("")))
    assert {tuple(after.names("d/e")) for after in disk.crash_states()} == {("f",)}


def test_a_lost_directory_is_empty_when_it_is_made_again() -> None:
    inner = FileName("d/f")
    disk = SimDisk()
    disk.execute((MakeDirectory("d"), Create(inner), Sync(inner), SyncDirectory("d")))
    for after in disk.crash_states():
        lost = after.names("") == []
        after.run_step(MakeDirectory("d"))
        assert after.names("d") == ([] if lost else ["f"])


def test_a_write_after_a_crash_was_taken_does_not_reach_into_it() -> None:
    disk = disk_with(A, OLD)
    crashed = disk.crash(CrashChoice())
    disk.execute((WriteFile(A, 0, NEW), Sync(A)))
    assert content(crashed, A) == OLD


def test_a_rename_between_directories_never_shows_the_file_twice_or_nowhere() -> None:
    target = FileName("d/b")
    disk = disk_with(A, NEW)
    disk.execute((MakeDirectory("d"), SyncDirectory(""), Rename(A, target)))
    for synced in ("", "d"):
        twin = disk.copy()
        states = {(content(after, A), content(after, target)) for after in twin.crash_states()}
        assert states == {(NEW, None), (None, NEW)}
        twin.run_step(SyncDirectory(synced))
        assert outcomes(twin.crash_states(), target) == {NEW}
        assert outcomes(twin.crash_states(), A) == {None}


@pytest.mark.parametrize("reorder", [False, True])
def test_a_planned_replacement_shows_old_or_new_at_every_crash_point(reorder: bool) -> None:
    disk = disk_with(A, OLD * 2, reorder_directory_ops=reorder)
    seen: set[bytes | None] = set()
    for point in disk.crash_points(plan_replace(A, NEW * 2)):
        seen |= outcomes(point.crash_states(), A)
    assert seen == {OLD * 2, NEW * 2}
    assert outcomes(disk.crash_states(), A) == {NEW * 2}


def test_a_replacement_that_skips_its_sync_is_caught() -> None:
    """The disk must be able to refute a wrong plan, or it proves nothing about a right one."""
    disk = disk_with(A, OLD * 2)
    careless: Plan = tuple(s for s in plan_replace(A, NEW * 2) if not isinstance(s, Sync))
    seen: set[bytes | None] = set()
    for point in disk.crash_points(careless):
        seen |= outcomes(point.crash_states(10**6), A)
    assert not seen <= {OLD * 2, NEW * 2}


def test_crash_points_stand_before_between_and_after_the_steps() -> None:
    disk = SimDisk()
    points = list(disk.crash_points((Create(A), WriteFile(A, 0, b"1"), WriteFile(A, 0, b"2"))))
    assert [content(point, A) for point in points] == [None, b"", b"1", b"2"]


def test_copies_and_crashes_share_nothing_that_changes() -> None:
    disk = disk_with(A, OLD)
    twin, crashed = disk.copy(), disk.crash(CrashChoice())
    disk.execute((WriteFile(A, 0, b"1"), Sync(A)))
    twin.execute((WriteFile(A, 0, b"2"), Sync(A)))
    crashed.execute((WriteFile(A, 0, b"3"), Sync(A)))
    assert [content(each, A) for each in (disk, twin, crashed)] == [
        b"1" + OLD[1:],
        b"2" + OLD[1:],
        b"3" + OLD[1:],
    ]


def test_more_outcomes_than_wanted_are_refused_before_the_first() -> None:
    disk = disk_with(A, OLD * 64)
    disk.run_step(WriteFile(A, 0, NEW * 64))
    with pytest.raises(TooManyCrashStates) as caught:
        next(disk.crash_choices(1000))
    assert caught.value.count > caught.value.limit == 1000
    found = outcomes(disk.crashes(random.Random(1), max_exhaustive=1000, samples=50), A)
    assert {OLD * 64, NEW * 64} <= found
    assert len(found) > 20


def test_the_count_of_outcomes_is_exact() -> None:
    disk = disk_with(A, OLD * 3)
    disk.execute(
        (WriteFile(A, 0, NEW * 3), WriteFile(A, 600, b"z" * 9), Create(B), WriteFile(B, 0, NEW))
    )
    count = sum(1 for _ in disk.crash_choices(10**6))
    assert sum(1 for _ in disk.crash_choices(count)) == count
    with pytest.raises(TooManyCrashStates):
        next(disk.crash_choices(count - 1))


@pytest.mark.parametrize("seed", range(20))
def test_a_drawn_crash_repeats_with_its_seed_and_is_one_of_the_listed(seed: int) -> None:
    disk = disk_with(A, OLD * 2)
    disk.execute((WriteFile(A, 100, b"n" * 2), Create(B), WriteFile(A, 1000, b"z")))
    first = disk.random_crash(random.Random(seed))
    again = disk.random_crash(random.Random(seed))
    state = (content(first, A), content(first, B))
    assert state == (content(again, A), content(again, B))
    assert state in {(content(after, A), content(after, B)) for after in disk.crash_states()}


def test_a_failed_sync_promises_nothing_and_a_second_one_lies() -> None:
    disk = disk_with(A, OLD)
    disk.fail_next_sync(A)
    disk.run_step(WriteFile(A, 0, NEW))
    with pytest.raises(OSError, match="Input") as caught:
        disk.run_step(Sync(A))
    assert caught.value.errno == errno.EIO
    assert content(disk, A) == NEW
    disk.run_step(Sync(A))
    assert {OLD, NEW} <= outcomes(disk.crash_states(), A)
    disk.execute((WriteFile(A, 0, NEW), Sync(A)))
    assert outcomes(disk.crash_states(), A) == {NEW}


def test_a_failed_sync_may_take_the_new_bytes_from_readers() -> None:
    disk = disk_with(A, OLD)
    disk.fail_next_sync(A, evict=True)
    disk.run_step(WriteFile(A, 0, NEW))
    with pytest.raises(OSError, match="Input"):
        disk.run_step(Sync(A))
    assert content(disk, A) == OLD


def test_a_full_disk_takes_what_fits_and_no_more() -> None:
    disk = disk_with(A, OLD)
    disk.limit_room(10)
    disk.execute((WriteFile(A, 0, NEW), WriteFile(A, 510, b"12345")))
    with pytest.raises(OSError, match="No space") as caught:
        disk.run_step(WriteFile(A, 515, b"1234567890"))
    assert caught.value.errno == errno.ENOSPC
    assert disk.read(A, 510, ALL) == b"12345" + b"1234567"
    disk.limit_room(None)
    disk.run_step(WriteFile(A, 515, b"1234567890"))
    assert disk.size(A) == 525


def test_a_flipped_bit_is_seen_now_and_after_every_crash() -> None:
    disk = disk_with(A, b"\x00\x00")
    disk.run_step(WriteFile(A, 0, b"\xff"))
    disk.flip_bit(A, 1, 3)
    assert content(disk, A) == b"\xff\x08"
    assert outcomes(disk.crash_states(), A) == {b"\xff\x08", b"\x00\x08"}
    with pytest.raises(ValueError, match="no bit"):
        disk.flip_bit(A, 2, 0)


def test_a_stalled_disk_begins_nothing() -> None:
    disk = disk_with(A, OLD)
    disk.stalled = True
    with pytest.raises(DiskStalled):
        disk.run_step(WriteFile(A, 0, NEW))
    disk.stalled = False
    assert content(disk, A) == OLD


def test_a_lost_disk_answers_nothing_ever_again() -> None:
    disk = disk_with(A, OLD)
    disk.lose()
    for attempt in (lambda: disk.read(A, 0, 1), lambda: disk.names(""), lambda: disk.size(A)):
        with pytest.raises(OSError, match="Input"):
            attempt()
    with pytest.raises(OSError, match="Input"):
        disk.crash(CrashChoice()).run_step(Create(B))


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (Create(A), FileExistsError),
        (Create(FileName("d")), FileExistsError),
        (Create(FileName("x/y")), FileNotFoundError),
        (Create(FileName("a/y")), NotADirectoryError),
        (WriteFile(B, 0, b""), FileNotFoundError),
        (WriteFile(FileName("d"), 0, b""), IsADirectoryError),
        (Sync(B), FileNotFoundError),
        (Truncate(B, 0), FileNotFoundError),
        (Rename(B, A), FileNotFoundError),
        (Rename(A, FileName("d")), IsADirectoryError),
        (Rename(A, FileName("x/a")), FileNotFoundError),
        (DeleteFile(FileName("d")), IsADirectoryError),
        (SyncDirectory("x"), FileNotFoundError),
        (SyncDirectory("a"), NotADirectoryError),
        (MakeDirectory("a/b"), NotADirectoryError),
        (Create(FileName("../a")), ValueError),
        (Create(FileName("/a")), ValueError),
        (Create(FileName("")), ValueError),
        (MakeDirectory("d/.."), ValueError),
    ],
    ids=repr,
)
def test_wrong_steps_fail_as_the_kernel_fails_them(step: Step, error: type[Exception]) -> None:
    disk = disk_with(A, OLD)
    disk.run_step(MakeDirectory("d"))
    with pytest.raises(error):
        disk.run_step(step)
    assert (disk.names(""), content(disk, A)) == (["a", "d"], OLD)


def test_deleting_and_making_twice_is_no_error() -> None:
    disk = SimDisk()
    disk.execute(
        (MakeDirectory("d"), MakeDirectory("d"), DeleteFile(A), DeleteFile(FileName("x/y")))
    )
    assert disk.names("") == ["d"]


def test_syncing_many_files_makes_those_durable_and_no_other() -> None:
    disk = SimDisk()
    for file in (A, B, FileName("c")):
        disk.execute((Create(file), Sync(file), SyncDirectory(""), WriteFile(file, 0, NEW)))
    disk.run_step(SyncFiles((A, B)))
    after = disk.crash(CrashChoice())
    assert [after.size(file) for file in (A, B, FileName("c"))] == [len(NEW), len(NEW), 0]


def test_syncing_many_files_fails_where_one_does_and_leaves_names_alone() -> None:
    disk = SimDisk()
    disk.execute((Create(A), Create(B), WriteFile(A, 0, NEW), WriteFile(B, 0, NEW)))
    with pytest.raises(FileNotFoundError):
        disk.run_step(SyncFiles((A, FileName("missing"))))
    disk.fail_next_sync(B)
    with pytest.raises(OSError, match="Input/output error"):
        disk.run_step(SyncFiles((A, B)))
    disk.run_step(
        SyncFiles((A, B))
    )  # the kernel forgot: only a fence keeps this from being trusted
    assert disk.crash(disk.everything_kept()).read(A, 0, 9) == NEW[:9]
    assert not disk.is_synced, "the names are still those of the page cache"
