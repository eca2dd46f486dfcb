"""An audit log on a disk that loses power between any two steps: what was acknowledged stays."""

from __future__ import annotations

import random

import pytest

from clustor.log.steps import Create, FileName, Plan, Storage, Sync, Truncate, WriteFile
from clustor.security import (
    ANCHOR_FILE,
    AuditEvent,
    AuditJournal,
    AuditReader,
    AuditTruncated,
    AuditUnreadable,
    ChainFaultKind,
    ChainVerdict,
    EventLine,
    decode_line,
    file_name,
    plan_open,
    read_anchor,
    verify_lines,
)
from clustor.sim.disk import CrashChoice, SimDisk
from tests.clustor.security.audit_logs import KEY, KEY_ID, TRUSTED, event

SMALL_FILE = 4096


def opened(disk: SimDisk, *, file_bytes_max: int = SMALL_FILE) -> AuditJournal:
    journal, plan = plan_open(
        disk, KEY.sign, KEY_ID, new_log_id="log", at_ms=5, file_bytes_max=file_bytes_max
    )
    disk.execute(plan)
    return journal


def checked(storage: Storage) -> ChainVerdict:
    reader = AuditReader(storage)
    verdict = verify_lines(reader.lines(), TRUSTED, anchor=read_anchor(storage))
    assert not reader.changed_leftovers
    return verdict


def recorded(storage: Storage) -> list[str]:
    lines = (decode_line(line) for line in AuditReader(storage).lines())
    return [line.object for line in lines if isinstance(line, EventLine)]


def test_a_log_goes_on_over_starts_and_files() -> None:
    disk = SimDisk()
    expected = []
    for start in range(3):
        journal = opened(disk)
        for number in range(20):
            disk.execute(journal.plan_append([event(number)], 9, seal=number % 7 == 3))
            expected.append(f"node/{number}")
        assert checked(disk).is_intact, start
    assert recorded(disk) == expected
    assert len(disk.names("")) > 6
    assert disk.is_synced


def test_what_a_stop_seals_is_signed_to_the_end() -> None:
    disk = SimDisk()
    journal = opened(disk)
    disk.execute(journal.plan_append([event(1), event(2)], 9, seal=True))
    verdict = checked(disk)
    assert verdict.unsigned_lines == 0 and verdict.events == 2
    assert journal.plan_append([], 9, seal=True) == ()  # nothing to seal


def test_more_events_than_a_batch_holds_are_sealed_in_between() -> None:
    disk = SimDisk()
    journal = opened(disk, file_bytes_max=1 << 20)
    disk.execute(journal.plan_append([event(number) for number in range(2_500)], 9, seal=False))
    verdict = checked(disk)
    assert verdict.is_intact and verdict.events == 2_500
    assert verdict.batches == 3 and verdict.unsigned_lines <= 1_000


@pytest.mark.parametrize("seed", range(40))
def test_no_crash_loses_an_acknowledged_event_or_breaks_the_log(seed: int) -> None:
    """Power is cut around every step of every plan; the next start goes on, and all verifies."""
    rng = random.Random(seed)
    disk = SimDisk(reorder_directory_ops=rng.random() < 0.5)
    acknowledged: list[str] = []
    for _ in range(4):
        journal, plan = plan_open(
            disk, KEY.sign, KEY_ID, new_log_id="log", at_ms=5, file_bytes_max=SMALL_FILE
        )
        events: list[AuditEvent] = []
        for number in range(rng.randrange(1, 12)):
            if rng.random() < 0.2:
                break
            disk.execute(plan)
            acknowledged += [each.object for each in events]
            events = [event(100 * number + each) for each in range(rng.randrange(1, 5))]
            plan = journal.plan_append(events, 9, seal=rng.random() < 0.4)
        disk = _cut(disk, plan, rng)
        assert is_in_order(acknowledged, recorded_prefix(disk)), seed
    opened(disk)
    assert checked(disk).is_intact, seed
    assert is_in_order(acknowledged, recorded(disk)), seed


def _cut(disk: SimDisk, plan: Plan, rng: random.Random) -> SimDisk:
    points = list(disk.copy().crash_points(plan))
    return rng.choice(points).random_crash(rng)


def recorded_prefix(disk: SimDisk) -> list[str]:
    """Read the log as the next start will find it."""
    copy = disk.copy()
    opened(copy)
    return recorded(copy)


def is_in_order(wanted: list[str], held: list[str]) -> bool:
    rest = iter(held)
    return all(each in rest for each in wanted)


def test_every_outcome_of_a_crash_in_a_sealing_append_can_be_opened() -> None:
    before = SimDisk()
    journal = opened(before)
    before.execute(journal.plan_append([event(1)], 9, seal=False))
    plan = journal.plan_append([event(2), event(3)], 9, seal=True)
    outcomes = 0
    for point in before.crash_points(plan):
        for found in point.crashes(random.Random(1), max_exhaustive=600, samples=50):
            outcomes += 1
            opened(found)
            verdict = checked(found)
            assert verdict.is_intact, verdict.fault
            assert "node/1" in recorded(found)
    assert outcomes > 20


def test_an_anchor_that_a_crash_left_behind_catches_up() -> None:
    disk = SimDisk()
    journal = opened(disk)
    plan = journal.plan_append([event(1)], 9, seal=True)
    disk.execute(plan[:2])  # the seal is durable, its anchor is not
    assert read_anchor(disk).sequence == 0
    opened(disk)
    assert read_anchor(disk).sequence == 3
    assert checked(disk).is_intact


def test_a_torn_write_stays_as_evidence_and_is_named() -> None:
    disk = SimDisk()
    journal = opened(disk)
    disk.execute(journal.plan_append([event(1)], 9, seal=True))
    plan = journal.plan_append([event(2)], 9, seal=False)
    write = next(step for step in plan if isinstance(step, WriteFile))
    disk.execute((WriteFile(write.file, write.offset, write.data[:40]), Sync(write.file)))
    assert verify_lines(AuditReader(disk).lines(), TRUSTED).is_intact
    opened(disk)
    reader = AuditReader(disk)
    assert verify_lines(reader.lines(), TRUSTED).is_intact
    assert [(each.file, each.bytes) for each in reader.leftovers] == [(1, 40)]
    assert not reader.changed_leftovers
    disk.flip_bit(write.file, write.offset + 3, 1)
    changed = AuditReader(disk)
    assert verify_lines(changed.lines(), TRUSTED).is_intact
    assert changed.changed_leftovers


def test_lines_that_only_memory_held_after_a_failed_sync_are_written_again() -> None:
    disk = SimDisk()
    journal = opened(disk)
    name = file_name(1)
    disk.execute(journal.plan_append([event(1)], 9, seal=True))
    disk.fail_next_sync(name)
    with pytest.raises(OSError, match="error"):
        disk.execute(journal.plan_append([event(2)], 9, seal=False))
    opened(disk)
    after = disk.crash(CrashChoice())
    assert checked(after).is_intact
    assert recorded(after) == ["node/1", "node/2"]


def cut_to(disk: SimDisk, name: FileName, kept: bytes) -> None:
    disk.execute((Truncate(name, 0), WriteFile(name, 0, kept), Sync(name)))


def test_a_log_that_was_cut_takes_no_more_lines() -> None:
    disk = SimDisk()
    journal = opened(disk)
    for number in range(3):
        disk.execute(journal.plan_append([event(number)], 9, seal=True))
    data = disk.read(file_name(1), 0, 1 << 20)
    for kept in range(len(data)):
        if data[kept - 1 : kept] == b"\n" and kept < len(data):
            copy = disk.copy()
            cut_to(copy, file_name(1), data[:kept])
            with pytest.raises(AuditTruncated):
                opened(copy)
    copy = disk.copy()
    cut_to(copy, file_name(1), b"")
    with pytest.raises(AuditTruncated):
        opened(copy)


def test_a_log_without_its_anchor_or_with_another_takes_no_more_lines() -> None:
    disk = SimDisk()
    journal = opened(disk)
    disk.execute(journal.plan_append([event(1)], 9, seal=True))
    gone = disk.copy()
    cut_to(gone, ANCHOR_FILE, b"")
    with pytest.raises(AuditUnreadable):
        opened(gone)
    other = SimDisk()
    others = opened(other)
    other.execute(others.plan_append([event(2)], 9, seal=True))
    cut_to(disk, ANCHOR_FILE, other.read(ANCHOR_FILE, 0, 4096))
    with pytest.raises(AuditUnreadable):
        opened(disk)


def test_whole_files_that_are_gone_or_swapped_are_found() -> None:
    disk = SimDisk()
    journal = opened(disk, file_bytes_max=1500)
    for number in range(12):
        disk.execute(journal.plan_append([event(number)], 9, seal=True))
    numbers = AuditReader(disk).numbers
    assert len(numbers) > 3
    contents = {n: disk.read(file_name(n), 0, 1 << 20) for n in numbers}
    for number in numbers[:-1]:
        copy = disk.copy()
        cut_to(copy, file_name(number), b"")
        fault = checked(copy).fault
        assert fault is not None and fault.kind is ChainFaultKind.DROPPED
    one, two = numbers[1], numbers[2]
    cut_to(disk, file_name(one), contents[two])
    cut_to(disk, file_name(two), contents[one])
    fault = checked(disk).fault
    assert fault is not None


def test_a_foreign_file_in_the_directory_is_no_line() -> None:
    disk = SimDisk()
    opened(disk)
    disk.execute((Create(FileName("notes.txt")),))
    assert checked(disk).is_intact


def test_a_fault_is_located_in_its_file() -> None:
    disk = SimDisk()
    journal = opened(disk, file_bytes_max=1500)
    for number in range(12):
        disk.execute(journal.plan_append([event(number)], 9, seal=True))
    third = file_name(AuditReader(disk).numbers[2])
    data = disk.read(third, 0, 1 << 20).split(b"\n")
    data[1] = data[1].replace(b"acme", b"evil")
    cut_to(disk, third, b"\n".join(data))
    reader = AuditReader(disk)
    fault = verify_lines(reader.lines(), TRUSTED).fault
    assert fault is not None
    place = reader.locate(fault.line)
    assert (place.file, place.line, fault.kind) == (third, 2, ChainFaultKind.ALTERED)
