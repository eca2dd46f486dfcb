"""What compaction leaves of batches, compared with the simplest way to say it."""

from __future__ import annotations

import random

import pytest

from quantum.protocols.kafka.codec import (
    KafkaRecord,
    Marker,
    MarkerKind,
    build_batch,
    build_marker,
    check_stored,
)
from quantum.protocols.kafka.codec.compacting import KeyCompaction
from quantum.protocols.kafka.codec.compression import Compression
from quantum.protocols.kafka.codec.record_batch import TIMESTAMP_TYPE, TRANSACTIONAL
from quantum.protocols.kafka.codec.records import iterate_records

Records = list[KafkaRecord]


def record(offset: int, key: bytes | None, value: bytes | None) -> KafkaRecord:
    return KafkaRecord(offset, 1_000 + offset, key, value, (("h", b"%d" % offset),))


def drawn(rng: random.Random) -> tuple[list[bytes], list[tuple[int, int, int]]]:
    """A log: plain batches in every codec, transactions that end in a marker, tombstones."""
    batches, aborted, offset = [], [], 0
    while offset < 120:
        first = offset
        records = []
        for _ in range(rng.randint(1, 6)):
            key = None if rng.random() < 0.05 else b"%d" % rng.randrange(8)
            value = None if rng.random() < 0.2 else b"v%d" % offset
            records.append(record(offset, key, value))
            offset += 1
        codec = rng.choice(list(Compression))
        if rng.random() < 0.6:
            batches.append(build_batch(records, compression=codec))
            continue
        facts = {"producer_id": 7, "producer_epoch": 1}
        batches.append(
            build_batch(
                records, compression=codec, base_sequence=0, attributes=TRANSACTIONAL, **facts
            )
        )
        kind = rng.choice(list(MarkerKind))
        batches.append(build_marker(Marker(kind, 0), offset=offset, timestamp=offset, **facts))
        if kind is MarkerKind.ABORT:
            aborted.append((7, first, offset))
        offset += 1
    return batches, aborted


def run(
    batches: list[bytes],
    through: int,
    purged: int,
    aborted: list[tuple[int, int, int]],
    since: int = 0,
    **more: int,
) -> tuple[list[bytes], KeyCompaction]:
    rule = KeyCompaction(through, purged, aborted, **more)
    for batch in batches:
        if check_stored(batch).last_offset >= since and not rule.note(memoryview(batch)):
            break
    left = (rule.left_of(memoryview(batch)) for batch in batches)
    return [bytes(each) for each in left if each is not None], rule


def data_of(batches: list[bytes], aborted: list[tuple[int, int, int]]) -> Records:
    """What a reader of committed data finds."""
    found = []
    for batch in batches:
        header = check_stored(batch)
        gone = header.is_transactional and any(a <= header.base_offset <= b for _, a, b in aborted)
        if not header.is_control and not gone:
            found += list(iterate_records(batch))
    return found


def wanted(records: Records, through: int, purged: int) -> Records:
    below = [each for each in records if each.offset < through]
    last = {each.key: each.offset for each in below}
    return [
        each
        for each in records
        if each.offset >= through - 1
        or each.key is None
        or (each.offset == last[each.key] and not (each.value is None and each.offset < purged))
    ]


@pytest.mark.parametrize("seed", range(40))
def test_the_last_record_of_each_key_stays_as_it_was(seed: int) -> None:
    rng = random.Random(seed)
    batches, aborted = drawn(rng)
    ends = [check_stored(batch).last_offset + 1 for batch in batches]
    through = rng.choice(ends[len(ends) // 2 :])
    purged = rng.choice([0, through // 2, through])
    left, _ = run(batches, through, purged, aborted)
    records = data_of(batches, aborted)
    assert data_of(left, aborted) == wanted(records, through, purged)
    bases = {check_stored(at).base_offset: check_stored(at).last_offset for at in batches}
    assert all(bases[check_stored(at).base_offset] == check_stored(at).last_offset for at in left)
    assert max(check_stored(at).last_offset for at in left) == ends[-1] - 1, "the end is reached"


@pytest.mark.parametrize("seed", range(40))
def test_passes_one_after_another_come_to_the_same_as_the_last_alone(seed: int) -> None:
    """A replica that missed passes, or cut them short for want of room, ends where the rest do."""
    rng = random.Random(seed)
    batches, aborted = drawn(rng)
    ends = [check_stored(batch).last_offset + 1 for batch in batches]
    first, second = sorted(rng.sample(ends, 2))
    purged = rng.choice([0, first])
    direct, _ = run(batches, second, purged, aborted)
    once, _ = run(batches, first, 0, aborted)
    twice, _ = run(once, second, purged, aborted, since=first - 1)
    assert twice == direct
    short, through, steps = batches, 0, 0
    while through < second:
        before = max(0, through - 1)
        short, rule = run(
            short, second, purged, aborted, since=before, before=before + 1, keys_max=3
        )
        assert rule.through > through, "each pass goes on"
        through, steps = rule.through, steps + 1
    assert short == direct and steps >= 1


def test_the_time_of_the_append_stays_and_another_is_that_of_what_is_left() -> None:
    rows = [record(0, b"a", b"1"), record(1, b"b", b"2"), record(2, b"a", b"3")]
    rest = build_batch([record(3, b"b", b"4")])
    for attributes, newest in ((0, 1_002), (TIMESTAMP_TYPE, 1_002)):
        left, _ = run([build_batch(rows, attributes=attributes), rest], 4, 0, [])
        header = check_stored(left[0])
        assert (header.record_count, header.max_timestamp) == (1, newest)
        assert (header.base_offset, header.last_offset_delta) == (0, 2)


def test_a_batch_that_cannot_be_read_stays_whole() -> None:
    good = build_batch([record(2, b"a", b"2")])
    bad = bytearray(build_batch([record(0, b"a", b"0"), record(1, b"a", b"1")]))
    bad[70:] = b"\xff" * len(bad[70:])
    rule = KeyCompaction(4, 4, [])
    tail = build_batch([record(3, b"z", b"3")])
    for batch in (bytes(bad), good, tail):
        rule.note(memoryview(batch))
    whole = memoryview(bytes(bad))
    assert rule.left_of(whole) is whole


def test_a_bomb_is_not_inflated_beyond_the_bound() -> None:
    bomb = build_batch([record(0, b"a", bytes(80 << 20))], compression=Compression.ZSTD)
    assert len(bomb) < 1 << 20
    rule = KeyCompaction(3, 0, [])
    for batch in (bomb, build_batch([record(1, b"a", b"1")]), build_batch([record(2, b"b", b"")])):
        rule.note(memoryview(batch))
    whole = memoryview(bomb)
    assert rule.left_of(whole) is whole


def test_the_end_of_a_pass_can_always_be_read() -> None:
    """Who reads up to the end would wait for ever where nothing stands before it."""
    facts = {"producer_id": 7, "producer_epoch": 1}
    commit = build_marker(Marker(MarkerKind.COMMIT, 0), offset=2, timestamp=2, **facts)
    deleted = build_batch([record(0, b"a", b"1"), record(1, b"a", None)])
    for batches, through in (([deleted], 2), ([deleted, commit], 3)):
        left, _ = run(batches, through, through, [])
        assert [check_stored(each).last_offset for each in left] == [through - 1]
    later = [deleted, commit, build_batch([record(3, b"b", b"2")])]
    left, _ = run(later, 4, 3, [])
    assert [check_stored(each).last_offset for each in left] == [3]
