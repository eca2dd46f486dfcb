"""The authorisation log: its chain, its torn tail, and damage that is no torn tail."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustor.log.steps import Create, FileName, MakeDirectory, WriteFile
from clustor.log.types import LogIndex, PartitionId, Term
from clustor.sim.disk import SimDisk
from clustor.snapshot.authorization import (
    RECORD_BYTES,
    AuthorizationEntry,
    CompactionAuthAck,
    SnapshotAuthorizationRecord,
    decode_entry,
    encode_entry,
    plan_append_entry,
    plan_settle,
    plan_trim,
    read_authorization_log,
    root_hash,
)
from clustor.snapshot.errors import CorruptAuthorizationLog, SnapshotMisuse
from clustor.snapshot.layout import AUTHORIZATION_LOG
from clustor.snapshot.types import AuthSeq, SnapshotKind
from tests.clustor.snapshot.support import PARTITION, manifest_id, patient


def authorization(seq: int, parent: int | None = None) -> SnapshotAuthorizationRecord:
    return SnapshotAuthorizationRecord(
        manifest_id=manifest_id(seq),
        base_term=Term(1),
        base_index=LogIndex(seq * 100),
        generation=0,
        auth_seq=AuthSeq(seq),
        manifest_hash=hashlib.sha256(b"%d" % seq).digest(),
        parent=None if parent is None else manifest_id(parent),
        since_full_ms=seq * 7,
    )


def ack(seq: int) -> CompactionAuthAck:
    return CompactionAuthAck(manifest_id(seq), AuthSeq(seq))


STORY: tuple[AuthorizationEntry, ...] = (
    authorization(1),
    ack(1),
    authorization(2, parent=1),
    authorization(3, parent=2),
    ack(3),
)


def disk_with(data: bytes) -> SimDisk:
    disk = SimDisk()
    plan = (
        MakeDirectory("snapshot"),
        Create(AUTHORIZATION_LOG),
        WriteFile(AUTHORIZATION_LOG, 0, data),
    )
    disk.execute(plan)
    return disk


def encoded(entries: tuple[AuthorizationEntry, ...]) -> bytes:
    data, previous = b"", root_hash(PARTITION)
    for entry in entries:
        record = encode_entry(entry, previous)
        data, previous = data + record, record[-32:]
    return data


def test_no_file_is_an_empty_log() -> None:
    log = read_authorization_log(SimDisk(), PARTITION)
    assert (log.entries, log.next_auth_seq, log.settled) == ((), 1, True)


def test_appends_are_read_back_and_chained() -> None:
    disk = SimDisk()
    log = read_authorization_log(disk, PARTITION)
    for entry in STORY:
        plan, log = plan_append_entry(log, entry)
        disk.execute(plan)
    assert disk.read(AUTHORIZATION_LOG, 0, 10_000) == encoded(STORY)
    found = read_authorization_log(disk, PARTITION)
    assert found.entries == STORY
    assert (found.tail_hash, found.next_auth_seq) == (log.tail_hash, 4)
    assert STORY[2].snapshot_kind is SnapshotKind.DELTA  # type: ignore[union-attr]  # a record


@pytest.mark.parametrize(
    "entry", STORY, ids=lambda entry: f"{type(entry).__name__}{entry.auth_seq}"
)
def test_a_record_and_its_bytes_agree(entry: AuthorizationEntry) -> None:
    previous = bytes(range(32))
    assert decode_entry(encode_entry(entry, previous)) == (entry, previous)


@pytest.mark.parametrize("kept", range(RECORD_BYTES))
def test_a_torn_tail_is_measured_and_cut(kept: int) -> None:
    data = encoded(STORY)
    disk = disk_with(data[: 4 * RECORD_BYTES + kept])
    log = read_authorization_log(disk, PARTITION)
    assert (log.entries, log.torn_bytes) == (STORY[:4], kept)
    with pytest.raises(SnapshotMisuse):
        plan_append_entry(log, STORY[4])
    plan, log = plan_settle(log)
    disk.execute(plan)
    assert disk.size(AUTHORIZATION_LOG) == log.size_bytes
    plan, log = plan_append_entry(log, STORY[4])
    disk.execute(plan)
    assert disk.read(AUTHORIZATION_LOG, 0, 10_000) == data


def test_every_flip_before_the_last_record_is_corruption() -> None:
    data = encoded(STORY)
    for at in range(len(data) - RECORD_BYTES):
        disk = disk_with(data)
        disk.flip_bit(AUTHORIZATION_LOG, at, at % 8)
        with pytest.raises(CorruptAuthorizationLog):
            read_authorization_log(disk, PARTITION)


def test_a_flip_in_the_last_record_loses_that_record_only() -> None:
    data = encoded(STORY)
    for at in range(len(data) - RECORD_BYTES, len(data)):
        disk = disk_with(data)
        disk.flip_bit(AUTHORIZATION_LOG, at, at % 8)
        log = read_authorization_log(disk, PARTITION)
        assert (log.entries, log.torn_bytes) == (STORY[:4], RECORD_BYTES)


WRONG = {
    "a gap in the sequence": (authorization(1), authorization(3)),
    "an acknowledgement of nothing": (ack(1),),
    "an acknowledgement of an older one": (authorization(1), authorization(2), ack(1)),
    "an acknowledgement of another id": (
        authorization(1),
        CompactionAuthAck(manifest_id(9), AuthSeq(1)),
    ),
    "the same number twice": (authorization(1), authorization(1)),
}


@pytest.mark.parametrize("entries", WRONG.values(), ids=WRONG.keys())
def test_a_story_that_cannot_be_is_corruption(entries: tuple[AuthorizationEntry, ...]) -> None:
    with pytest.raises(CorruptAuthorizationLog):
        read_authorization_log(disk_with(encoded(entries)), PARTITION)


def test_a_record_that_is_left_out_or_moved_breaks_the_chain() -> None:
    whole = encoded((authorization(1), ack(1), authorization(2), ack(2)))
    pieces = [whole[at : at + RECORD_BYTES] for at in range(0, len(whole), RECORD_BYTES)]
    for other in ([pieces[0], *pieces[2:]], [pieces[0], pieces[2], pieces[1]]):
        with pytest.raises(CorruptAuthorizationLog):
            read_authorization_log(disk_with(b"".join(other)), PARTITION)


def test_another_partitions_log_is_not_ours() -> None:
    with pytest.raises(CorruptAuthorizationLog):
        read_authorization_log(disk_with(encoded(STORY)), PartitionId(8))


def test_a_trimmed_log_goes_on() -> None:
    disk = disk_with(encoded(STORY))
    plan, log = plan_settle(read_authorization_log(disk, PARTITION))
    disk.execute(plan)
    plan, log = plan_trim(log, AuthSeq(2))
    disk.execute(plan)
    assert read_authorization_log(disk, PARTITION).entries == STORY[2:] == log.entries
    plan, log = plan_append_entry(log, authorization(4))
    disk.execute(plan)
    assert read_authorization_log(disk, PARTITION).entries == (*STORY[2:], authorization(4))
    assert plan_trim(log, AuthSeq(1)) == ((), log)
    assert plan_trim(log, AuthSeq(99)) == ((), log)


@patient
@given(st.binary(max_size=3 * RECORD_BYTES))
def test_any_bytes_are_a_torn_tail_or_a_typed_error(data: bytes) -> None:
    log = read_authorization_log(disk_with(data), PARTITION)
    assert (log.entries, log.torn_bytes) == ((), len(data))
    with pytest.raises(CorruptAuthorizationLog):
        decode_entry(data)


@patient
@given(st.binary(min_size=RECORD_BYTES - 32, max_size=RECORD_BYTES - 32))
def test_any_body_with_a_good_hash_is_a_typed_error_or_reads_back(body: bytes) -> None:
    record = body + hashlib.sha256(body).digest()
    try:
        entry, previous = decode_entry(record)
    except CorruptAuthorizationLog:
        return
    assert encode_entry(entry, previous) == record


def test_the_file_has_the_name_that_operators_know() -> None:
    assert FileName("snapshot/authorization.log") == AUTHORIZATION_LOG
