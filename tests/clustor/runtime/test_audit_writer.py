"""The audit log of a running process, on real files: durable, bounded, never in the loop's way."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from random import Random

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from clustor.log.errors import KeyUnavailable
from clustor.log.steps import Plan
from clustor.runtime.audit.keys import (
    AUDIT_KEY_FILE,
    AUDIT_KEYS_FILE,
    OVERLAP_MS,
    load_trusted,
    open_audit_keys,
    rotate_audit_key,
)
from clustor.runtime.audit.writer import AuditWriter, WriterLimits
from clustor.runtime.disk import DirectoryStorage, DiskError, SyncDurations
from clustor.runtime.errors import AuditFailed
from clustor.security import (
    AuditReader,
    AuditTruncated,
    ChainVerdict,
    EventLine,
    TrustedKey,
    decode_line,
    file_name,
    read_anchor,
    trust,
    verify_lines,
)
from tests.clustor.runtime.waiting import until
from tests.clustor.security.audit_logs import KEY, TRUSTED, event

KILLS = 3


def checked(directory: Path, keys: object = None) -> tuple[ChainVerdict, list[str]]:
    storage = DirectoryStorage(directory)
    reader = AuditReader(storage)
    lines = list(reader.lines())
    trusted = TRUSTED if keys is None else keys
    verdict = verify_lines(lines, trusted, anchor=read_anchor(storage))  # type: ignore[arg-type]
    storage.close()
    decoded = (decode_line(line) for line in lines)
    return verdict, [line.object for line in decoded if isinstance(line, EventLine)]


async def test_what_is_recorded_is_in_the_file_when_the_call_returns(tmp_path: Path) -> None:
    writer = AuditWriter(tmp_path, KEY, limits=WriterLimits(seal_seconds=60))
    await asyncio.gather(*(writer.record(event(number)) for number in range(300)))
    verdict, objects = checked(tmp_path)
    assert verdict.is_intact and verdict.unsigned_lines > 0
    assert objects == [f"node/{number}" for number in range(300)]
    await writer.close()
    verdict, _ = checked(tmp_path)
    assert verdict.is_intact and verdict.unsigned_lines == 0
    assert writer.head == (verdict.sealed_sequence, verdict.sealed_head)


async def test_an_open_batch_is_sealed_after_its_time(tmp_path: Path) -> None:
    writer = AuditWriter(tmp_path, KEY, limits=WriterLimits(seal_seconds=0.02))
    await writer.record(event(1))
    await until(lambda: checked(tmp_path)[0].unsigned_lines == 0, "a seal")
    await writer.close()


async def test_a_full_queue_refuses_counts_and_says_so_later(tmp_path: Path) -> None:
    writer = AuditWriter(tmp_path, KEY, limits=WriterLimits(queue_events_max=4))
    taken = [writer.note(event(number)) for number in range(20)]
    assert taken.count(True) == 5  # one went to the disk at once, four wait
    assert writer.lost == 15
    await writer.close()
    verdict, objects = checked(tmp_path)
    assert verdict.is_intact and len(objects) == 6  # with the line that tells of the lost ones


async def test_back_pressure_lets_everybody_in_at_last(tmp_path: Path) -> None:
    writer = AuditWriter(tmp_path, KEY, limits=WriterLimits(queue_events_max=3))
    await asyncio.gather(*(writer.record(event(number)) for number in range(200)))
    await writer.close()
    verdict, objects = checked(tmp_path)
    assert verdict.is_intact and len(objects) == 200 and writer.lost == 0


async def test_a_disk_that_fails_is_told_to_everybody_who_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = AuditWriter(tmp_path, KEY)
    await writer.record(event(1))

    def refuse(_plan: object) -> object:
        raise DiskError("no room", file="audit")

    monkeypatch.setattr(writer._partition, "execute", refuse)
    results = await asyncio.gather(
        *(writer.record(event(number)) for number in range(2, 5)), return_exceptions=True
    )
    assert all(isinstance(result, AuditFailed) for result in results)
    assert not writer.note(event(9))
    with pytest.raises(AuditFailed):
        await writer.record(event(9))
    await writer.close()
    again = AuditWriter(tmp_path, KEY)
    await again.close()
    verdict, objects = checked(tmp_path)
    assert verdict.is_intact and objects == ["node/1"]


async def test_a_disk_that_hangs_does_not_stop_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = AuditWriter(tmp_path, KEY, limits=WriterLimits(queue_events_max=10))
    hanging = threading.Event()
    execute = writer._partition.execute

    def hang(plan: Plan) -> SyncDurations:
        assert hanging.wait(30)
        return execute(plan)

    monkeypatch.setattr(writer._partition, "execute", hang)
    waiting = [asyncio.create_task(writer.record(event(number))) for number in range(30)]
    for _ in range(1_000):
        await asyncio.sleep(0)  # the loop turns, and nobody was told a lie
    assert not any(task.done() for task in waiting) and writer.waiting == 10
    assert not writer.note(event(99))
    hanging.set()
    await asyncio.gather(*waiting)
    await writer.close()
    verdict, objects = checked(tmp_path)
    assert verdict.is_intact and len(objects) == 31  # with the line about the lost one


async def test_a_log_that_was_cut_does_not_open(tmp_path: Path) -> None:
    writer = AuditWriter(tmp_path, KEY)
    await writer.record(event(1))
    await writer.close()
    path = tmp_path / file_name(1)
    path.write_bytes(path.read_bytes().partition(b"\n")[0] + b"\n")
    with pytest.raises(AuditTruncated):
        AuditWriter(tmp_path, KEY)


def test_nothing_recorded_is_lost_when_the_process_is_killed(tmp_path: Path) -> None:
    rng = Random(5)
    number = 0
    for _ in range(KILLS):
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.clustor.runtime.auditing_process",
             str(tmp_path), str(number)],
            stdout=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        for _ in range(rng.randint(1, 60)):
            assert process.stdout.readline(), "the process ended by itself"
        process.kill()
        said = process.stdout.read().split(b"\n")[:-1]
        process.wait()
        process.stdout.close()
        number = int(said[-1]) if said else number
        verdict, objects = checked(
            tmp_path / "audit", load_trusted(tmp_path / "keys/audit-keys.json")
        )
        assert verdict.is_intact, verdict.fault
        assert set(map(str, range(number))) <= set(objects)
        number = max(map(int, objects)) + 1
    assert number > 50


def test_keys_are_made_once_and_rotated_with_an_overlap(tmp_path: Path) -> None:
    first = open_audit_keys(tmp_path, 1_000)
    assert open_audit_keys(tmp_path, 2_000).trusted.keys() == first.trusted.keys()
    second = rotate_audit_key(tmp_path, 5_000)
    old = next(key for name, key in second.trusted.items() if name in first.trusted)
    assert old.retires_at_ms == 5_000 + OVERLAP_MS
    assert len(second.trusted) == 2
    assert open_audit_keys(tmp_path, 6_000).trusted == second.trusted


def test_a_rotation_that_a_crash_cut_is_finished(tmp_path: Path) -> None:
    open_audit_keys(tmp_path, 1_000)
    before = (tmp_path / AUDIT_KEY_FILE).read_bytes()
    rotate_audit_key(tmp_path, 2_000)
    listed = (tmp_path / AUDIT_KEYS_FILE).read_text().replace(f"{2_000 + OVERLAP_MS}", "null")
    (tmp_path / AUDIT_KEYS_FILE).write_text(listed)  # it signs, and the old one has no end yet
    keys = open_audit_keys(tmp_path, 3_000)
    assert [key.retires_at_ms for key in keys.trusted.values()] == [3_000 + OVERLAP_MS, None]
    (tmp_path / AUDIT_KEYS_FILE).write_text(listed)  # it is trusted, and does not sign yet
    (tmp_path / AUDIT_KEY_FILE).write_bytes(before)
    keys = open_audit_keys(tmp_path, 3_000)
    assert [key.retires_at_ms for key in keys.trusted.values()] == [None, None]


def test_a_signing_key_that_is_gone_is_not_replaced_in_silence(tmp_path: Path) -> None:
    open_audit_keys(tmp_path, 1_000)
    (tmp_path / AUDIT_KEY_FILE).unlink()
    with pytest.raises(KeyUnavailable):
        open_audit_keys(tmp_path, 1_000)


async def test_a_rotated_key_goes_on_in_the_same_log(tmp_path: Path) -> None:
    other = Ed25519PrivateKey.generate()
    for signer in (KEY, other):
        writer = AuditWriter(tmp_path, signer)
        await writer.record(event(1))
        await writer.close()
    both = trust(
        TrustedKey(KEY.public_key().public_bytes_raw()),
        TrustedKey(other.public_key().public_bytes_raw()),
    )
    verdict, objects = checked(tmp_path, both)
    assert verdict.is_intact and len(objects) == 2
