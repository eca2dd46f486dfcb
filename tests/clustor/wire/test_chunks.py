"""ChunkedList (§7.1, §8.1): split, shuffled, repeated, damaged; exactly one error for each."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustor.wire import (
    Reassembly,
    WireBodyTooLarge,
    WireBodyTooShort,
    WireChunkCrcMismatch,
    WireChunkDuplicateItem,
    WireChunkMissing,
    WireChunkMissingCrc,
    WireChunkOverlap,
    WireChunkReassemblyAborted,
    WireError,
    WireMisuse,
    WireUnknownField,
    decode_chunk,
    encode_chunks,
)
from clustor.wire.chunks import REASSEMBLY_CHUNKS_MAX


def castagnoli(data: bytes) -> int:
    """Compute CRC-32C bit by bit: a second implementation that shares no table."""
    crc = 0xFFFF_FFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F6_3B78 if crc & 1 else 0)
    return crc ^ 0xFFFF_FFFF


def chunk(
    total: int, offset: int, items: list[bytes], *, flags: int = 0, count: int | None = None
) -> bytes:
    """Write a chunk by hand; `flags=1` appends the checksum."""
    count = len(items) if count is None else count
    body = total.to_bytes(4, "little") + offset.to_bytes(4, "little")
    body += count.to_bytes(2, "little") + bytes([flags])
    body += b"".join(len(item).to_bytes(4, "little") + item for item in items)
    return body + castagnoli(body).to_bytes(4, "little") if flags == 1 else body


def names(count: int) -> list[bytes]:
    return [b"%07d" % number for number in range(count)]


def test_the_twin_computes_the_published_check_value() -> None:
    assert castagnoli(b"123456789") == 0xE3069283


BOTH_WAYS = {
    "empty": ([], False, chunk(0, 0, [])),
    "empty with checksum": ([], True, chunk(0, 0, [], flags=1)),
    "two items": ([b"a", b""], False, bytes.fromhex("0200000000000000020000010000006100000000")),
    "two items with checksum": ([b"a", b""], True, chunk(2, 0, [b"a", b""], flags=1)),
}


@pytest.mark.parametrize(("items", "has_crc", "wire"), BOTH_WAYS.values(), ids=BOTH_WAYS.keys())
def test_list_and_bytes_agree(items: list[bytes], has_crc: bool, wire: bytes) -> None:
    assert list(encode_chunks(items, has_crc=has_crc)) == [wire]
    reassembly = Reassembly()
    reassembly.add(wire)
    assert reassembly.is_complete
    assert reassembly.finish() == items


@given(
    items=st.sets(st.binary(max_size=9)).map(sorted) | st.just(names(2_500)),
    seed=st.integers(0, 9),
    has_crc=st.booleans(),
)
def test_chunks_in_any_order_and_more_than_once_give_the_list(
    items: list[bytes], seed: int, has_crc: bool
) -> None:
    """§8.1: deduplication by chunk_offset."""
    chunks = list(encode_chunks(items, has_crc=has_crc)) * 2
    random.Random(seed).shuffle(chunks)
    reassembly = Reassembly()
    for each in chunks:
        reassembly.add(memoryview(each))
    assert reassembly.finish() == items


def test_the_encoder_splits_at_1024_items_and_at_64_kib() -> None:
    by_count = [decode_chunk(each) for each in encode_chunks(names(2_049))]
    assert [(each.chunk_offset, each.chunk_len) for each in by_count] == [
        (0, 1024),
        (1024, 1024),
        (2048, 1),
    ]
    large = [bytes([number]) * 30_000 for number in range(5)]
    by_size = list(encode_chunks(large))
    assert [decode_chunk(each).chunk_len for each in by_size] == [2, 2, 1]
    assert max(map(len, by_size)) <= 64 * 1024


def test_the_largest_item_fills_a_chunk_exactly() -> None:
    (full,) = encode_chunks([bytes(64 * 1024 - 11 - 8)])
    assert len(full) == 64 * 1024
    assert decode_chunk(full).chunk_len == 1


TOO_MUCH_TO_SEND: dict[str, list[bytes]] = {
    "an item over a chunk": [bytes(64 * 1024 - 11 - 8 + 1)],
    "over 8 MiB": [bytes(60_000)] * 140,
    "over a million items": [b""] * 1_000_001,
}


@pytest.mark.parametrize("items", TOO_MUCH_TO_SEND.values(), ids=TOO_MUCH_TO_SEND.keys())
def test_a_list_that_no_peer_could_take_is_a_misuse(items: list[bytes]) -> None:
    with pytest.raises(WireMisuse):
        list(encode_chunks(items))


A, B, C = b"a", b"b", b"c"
WITH_CRC = chunk(1, 0, [A], flags=1)

ONE_CHUNK: dict[str, tuple[bytes, type[WireError]]] = {
    "header cut": (chunk(1, 0, [A])[:10], WireBodyTooShort),
    "items cut": (chunk(1, 0, [A])[:-1], WireBodyTooShort),
    "item length cut": (chunk(2, 0, [A], count=2), WireBodyTooShort),
    "counted item past the end": (chunk(1, 0, [], count=1) + b"\xff" * 4, WireBodyTooShort),
    "no items in a list that has some": (chunk(1, 0, []), WireBodyTooShort),
    "checksum missing": (WITH_CRC[:-4], WireChunkMissingCrc),
    "checksum cut": (WITH_CRC[:-1], WireChunkMissingCrc),
    "checksum wrong": (WITH_CRC[:-1] + bytes([WITH_CRC[-1] ^ 1]), WireChunkCrcMismatch),
    "item damaged": (WITH_CRC[:-5] + b"b" + WITH_CRC[-4:], WireChunkCrcMismatch),
    "checksum without its flag": (chunk(1, 0, [A]) + bytes(4), WireUnknownField),
    "bytes after the checksum": (WITH_CRC + b"\0", WireUnknownField),
    "unknown flag": (chunk(1, 0, [A], flags=2), WireUnknownField),
    "1025 items": (chunk(1025, 0, [b""] * 1025), WireBodyTooLarge),
    "over 64 KiB": (chunk(1, 0, [bytes(64 * 1024)]), WireBodyTooLarge),
    "past the end of the list": (chunk(2, 1, [A, B]), WireChunkReassemblyAborted),
    "over a million": (chunk(1_000_001, 0, [A]), WireChunkReassemblyAborted),
}


@pytest.mark.parametrize(("payload", "error"), ONE_CHUNK.values(), ids=ONE_CHUNK.keys())
def test_a_bad_chunk_raises_its_error_and_ends_the_list(
    payload: bytes, error: type[WireError]
) -> None:
    with pytest.raises(error):
        decode_chunk(payload)
    reassembly = Reassembly()
    with pytest.raises(error):
        reassembly.add(payload)
    with pytest.raises(WireChunkReassemblyAborted):
        reassembly.add(chunk(1, 0, [A]))
    with pytest.raises(WireChunkReassemblyAborted):
        reassembly.finish()
    assert not reassembly.is_complete


TWO_CHUNKS: dict[str, tuple[bytes, bytes, type[WireError]]] = {
    "same offset, other item": (chunk(3, 0, [A]), chunk(3, 0, [B]), WireChunkOverlap),
    "same offset, longer": (chunk(3, 0, [A]), chunk(3, 0, [A, B]), WireChunkOverlap),
    "reaches into the next": (chunk(3, 1, [B]), chunk(3, 0, [A, B]), WireChunkOverlap),
    "starts inside the one before": (chunk(3, 0, [A, B]), chunk(3, 1, [B]), WireChunkOverlap),
    "covers another": (chunk(3, 1, [B]), chunk(3, 0, [A, B, C]), WireChunkOverlap),
    "another total": (chunk(3, 0, [A]), chunk(2, 1, [B]), WireChunkReassemblyAborted),
    "another total, empty": (chunk(3, 0, [A]), chunk(0, 0, []), WireChunkReassemblyAborted),
}


@pytest.mark.parametrize(("one", "two", "error"), TWO_CHUNKS.values(), ids=TWO_CHUNKS.keys())
def test_chunks_that_contradict_each_other(one: bytes, two: bytes, error: type[WireError]) -> None:
    reassembly = Reassembly()
    reassembly.add(one)
    with pytest.raises(error):
        reassembly.add(two)


def test_the_same_items_with_and_without_checksum_are_the_same_chunk() -> None:
    reassembly = Reassembly()
    reassembly.add(chunk(1, 0, [A]))
    reassembly.add(chunk(1, 0, [A], flags=1))
    assert reassembly.finish() == [A]


MISSING: dict[str, tuple[list[bytes], int]] = {
    "all": ([], 0),
    "the first": ([chunk(3, 1, [B, C])], 0),
    "the middle": ([chunk(3, 0, [A]), chunk(3, 2, [C])], 1),
    "the last": ([chunk(3, 0, [A, B])], 2),
}


@pytest.mark.parametrize(("chunks", "offset"), MISSING.values(), ids=MISSING.keys())
def test_a_list_that_ends_early_names_the_first_gap(chunks: list[bytes], offset: int) -> None:
    reassembly = Reassembly()
    for each in chunks:
        reassembly.add(each)
    assert not reassembly.is_complete
    with pytest.raises(WireChunkMissing) as refusal:
        reassembly.finish()
    assert refusal.value.facts["offset"] == offset


@pytest.mark.parametrize(
    "chunks", [[chunk(2, 0, [A, A])], [chunk(2, 0, [A]), chunk(2, 1, [A])]], ids=["one", "two"]
)
def test_an_item_that_stands_twice_is_refused(chunks: list[bytes]) -> None:
    reassembly = Reassembly()
    for each in chunks:
        reassembly.add(each)
    with pytest.raises(WireChunkDuplicateItem):
        reassembly.finish()


def test_eight_mib_are_held_and_one_byte_more_aborts() -> None:
    """§7.1: the reassembly cap counts the items with their lengths."""
    size = 60_000 - 4
    fits = 8 * 1024 * 1024 // 60_000
    last = 8 * 1024 * 1024 - fits * 60_000 - 4

    def fill(last_size: int) -> Reassembly:
        reassembly = Reassembly()
        for place in range(fits):
            reassembly.add(chunk(fits + 1, place, [place.to_bytes(4, "little") + bytes(size - 4)]))
        reassembly.add(chunk(fits + 1, fits, [bytes(last_size)]))
        return reassembly

    assert len(fill(last).finish()) == fits + 1
    with pytest.raises(WireChunkReassemblyAborted):
        fill(last + 1)


def test_a_peer_of_tiny_chunks_is_bounded_too() -> None:
    reassembly = Reassembly()
    for place in range(REASSEMBLY_CHUNKS_MAX):
        reassembly.add(chunk(1_000_000, place, [b""]))
    with pytest.raises(WireChunkReassemblyAborted):
        reassembly.add(chunk(1_000_000, REASSEMBLY_CHUNKS_MAX, [b""]))


def test_what_a_broken_list_held_is_dropped() -> None:
    reassembly = Reassembly()
    reassembly.add(chunk(3, 0, [A]))
    with pytest.raises(WireChunkOverlap):
        reassembly.add(chunk(3, 0, [B]))
    assert reassembly.held_bytes == 0
