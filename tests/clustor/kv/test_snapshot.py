"""Snapshots: bounded chunks, a frozen moment, and nothing but whole ones taken in."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import pytest
from xxhash import xxh3_128_digest

from clustor.kv import (
    ClientId,
    Delete,
    Key,
    KvLimits,
    KvMachine,
    KvMisuse,
    Put,
    Revision,
    SnapshotRefused,
    StoreId,
    encode_command,
)

MIB = 1024 * 1024


def _filled(store_id: bytes = b"store-1") -> KvMachine:
    machine = KvMachine(StoreId(store_id))
    for number in range(1, 9):
        machine.apply(number, encode_command(Put(Key(b"k%d" % (number % 5)), b"v%d" % number, 9)))
    machine.apply(9, encode_command(Delete(Key(b"k1"), 5)))
    return machine


def test_a_chunk_holds_at_most_one_mebibyte_even_if_a_value_does_not_fit() -> None:
    machine = KvMachine(StoreId(b"s"))
    for number in range(1, 6):
        value = bytes([number]) * MIB
        machine.apply(number, encode_command(Put(Key(b"%d" % number), value)))
    chunks = list(machine.snapshot())
    assert [len(chunk) for chunk in chunks[:-1]] == [MIB] * 5
    # Five values, and no second copy of them for the five events.
    assert sum(map(len, chunks)) < 5 * MIB + 1024
    restored = KvMachine(StoreId(b""))
    restored.restore(chunks)
    assert restored.digest() == machine.digest()
    assert restored.get(Key(b"5")) == machine.get(Key(b"5"))


def test_a_snapshot_is_written_in_little_memory() -> None:
    machine = KvMachine(StoreId(b"s"), KvLimits(events_max=4))
    for number in range(1, 65):
        machine.apply(number, encode_command(Put(Key(b"%d" % number), bytes(MIB // 2))))
    tracemalloc.start()
    try:
        written = sum(len(chunk) for chunk in machine.snapshot())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert written > 32 * MIB
    assert peak < 6 * MIB


def test_a_snapshot_is_of_the_moment_it_was_asked_for() -> None:
    machine = _filled()
    expected = b"".join(machine.snapshot())
    chunks = machine.snapshot()
    machine.apply(10, encode_command(Put(Key(b"k2"), b"later")))
    machine.apply(11, encode_command(Delete(Key(b"k3"))))
    assert b"".join(chunks) == expected


def test_a_snapshot_carries_the_identity_and_the_limits_of_its_store() -> None:
    machine = KvMachine(StoreId(b"store-1"), KvLimits(value_bytes_max=7))
    restored = KvMachine(StoreId(b"store-2"))
    restored.restore(machine.snapshot())
    assert restored.store_id == b"store-1"
    assert restored.limits == KvLimits(value_bytes_max=7)


def test_a_recreated_store_with_equal_contents_is_another_store() -> None:
    assert _filled(b"store-1").digest() == _filled(b"store-1").digest()
    assert _filled(b"store-1").digest() != _filled(b"store-2").digest()


def test_a_restored_machine_knows_what_it_applied() -> None:
    restored = KvMachine(StoreId(b""))
    restored.restore(_filled().snapshot())
    assert restored.applied_index == 9
    with pytest.raises(KvMisuse) as raised:
        restored.apply(9, b"")
    assert raised.value.facts == {"index": 9, "applied_index": 9}


def test_every_cut_of_a_snapshot_is_refused_and_leaves_the_machine_alone() -> None:
    whole = b"".join(_filled().snapshot())
    machine = _filled(b"mine")
    before = b"".join(machine.snapshot())
    for cut in range(len(whole)):
        with pytest.raises(SnapshotRefused):
            machine.restore([whole[:cut]])
    assert b"".join(machine.snapshot()) == before


def test_every_changed_bit_of_a_snapshot_is_refused() -> None:
    whole = b"".join(_filled().snapshot())
    machine = KvMachine(StoreId(b"mine"))
    for position in range(len(whole)):
        for bit in (0, 3, 7):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << bit
            with pytest.raises(SnapshotRefused):
                machine.restore([bytes(damaged)])
    assert machine.revision == Revision(0)


@pytest.mark.parametrize("extra", [b"\0", b"\1\0\0\0\xc0"])
def test_bytes_after_the_end_are_refused(extra: bytes) -> None:
    with pytest.raises(SnapshotRefused):
        KvMachine(StoreId(b"")).restore([*_filled().snapshot(), extra])


def test_the_refusal_comes_before_a_huge_frame_is_held() -> None:
    def chunks_without_end() -> Iterator[bytes]:
        yield b"\xff\xff\xff\xff"
        raise AssertionError("read on after an impossible length")

    with pytest.raises(SnapshotRefused, match="frame too large"):
        KvMachine(StoreId(b"")).restore(chunks_without_end())


def test_limits_that_no_snapshot_could_carry_are_refused_at_once() -> None:
    with pytest.raises(KvMisuse):
        KvMachine(StoreId(b""), KvLimits(value_bytes_max=64 * MIB))


def test_the_bytes_of_a_snapshot_are_fixed() -> None:
    """These bytes are on disks and on the wire: a change here is a change of format."""
    machine = KvMachine(StoreId(b"s"))
    machine.apply(1, encode_command(Put(Key(b"a"), b"1", 9, 5, ClientId(b"c"), 1)))
    machine.apply(2, encode_command(Put(Key(b"b"), b"2")))
    machine.apply(3, encode_command(Delete(Key(b"b"))))
    frames = [
        # kind 0: version, store id, limits, revision, compacted, now, applied index
        "9800" "01" "c40173" "98cd0400ce00100000cc80ce00400000ce000186a0ce04000000cd2710ce00800000"
        "03" "00" "05" "03",
        # kind 1: a live record
        "9201" "96c40161c401310101010e",
        # kind 3: an event that is still its key's live record
        "9203" "c40161",
        # kind 2: an event that is not, and a tombstone
        "9202" "96c40162c4013202020100",
        "9202" "96c40162c4000003" "0000",
        # kind 4: a client, its sequence, and the bytes of its reply
        "9204" "93c40163" "01" "c403920301",
    ]  # fmt: skip
    body = b"".join(_framed(bytes.fromhex(frame)) for frame in frames)
    trailer = _framed(bytes.fromhex("9205c410") + xxh3_128_digest(body))
    assert b"".join(machine.snapshot()) == body + trailer


def _framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "little") + body
