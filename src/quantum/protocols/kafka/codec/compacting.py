"""What is left of record batches when only the last record of each key stays (compaction).

Records stay as they are, byte for byte, in a batch that stands for the offsets it stood for; where
some are gone their offsets are gaps. A record without a key, and a batch that cannot be read or
would inflate beyond the bound, stays: nothing says that it is superseded.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Final, NamedTuple

from quantum.protocols.kafka.codec.compression import (
    INFLATED_BYTES_MAX,
    Compression,
    deflate,
    inflate,
)
from quantum.protocols.kafka.codec.errors import CorruptBatch
from quantum.protocols.kafka.codec.record_batch import (
    CRC_AT,
    HEADER,
    HEADER_BYTES,
    LENGTH_END,
    TIMESTAMP_TYPE,
    BatchHeader,
    crc_of,
    read_header,
)
from quantum.protocols.kafka.codec.records import (
    RECORD_BYTES_MIN,
    MarkerKind,
    read_marker,
    read_signed,
)

KEYS_MAX: Final = 1 << 18
"""Keys that are held at once: about 48 MiB. What lies behind the one that is too many waits."""
_DIGEST_BYTES: Final = 16
_NULL: Final = -1


class _Seen(NamedTuple):
    """A record in the inflated bytes of its batch: from its length to its end."""

    start: int
    end: int
    offset: int
    timestamp: int
    key: bytes | None
    is_tombstone: bool


class KeyCompaction:
    """Decides for one partition what a pass leaves of each batch; one thread at a time.

    First every batch from where the files are compacted already is noted, in order; then all of the
    partition is asked for. `aborted` has a producer and its first and last offset for each. A pass
    with too many keys ends earlier, but always behind `before`.
    """

    def __init__(
        self,
        through: int,
        purged: int,
        aborted: Iterable[tuple[int, int, int]],
        *,
        before: int = 0,
        keys_max: int = KEYS_MAX,
    ) -> None:
        self.through = through
        self.purged = purged
        self._aborted: dict[int, list[tuple[int, int]]] = {}
        for producer_id, first, last in aborted:
            self._aborted.setdefault(producer_id, []).append((first, last))
        self._last: dict[bytes, int] = {}
        self._keys_max = keys_max
        self._before = before

    def note(self, batch: memoryview) -> bool:
        """Take in the keys of a batch; False where no more are taken: the pass ends before it."""
        header = read_header(batch)
        if header.last_offset >= self.through:
            return False
        if len(self._last) >= self._keys_max and header.base_offset > self._before:
            self.through, self.purged = header.base_offset, min(self.purged, header.base_offset)
            return False
        if not header.is_control and not self._is_aborted(header):
            for seen in _seen_in(header, batch)[1]:
                if seen.key is not None:
                    self._last[_digest(seen.key)] = seen.offset
        return True

    def left_of(self, batch: memoryview) -> memoryview | bytes | None:
        """Return a batch as it is to be kept, the same object if whole; None: nothing of it.

        Something of the last one of the pass is always kept, so that every reader reaches the end.
        """
        header = read_header(batch)
        is_last = header.last_offset == self.through - 1
        if header.last_offset >= self.through:
            return batch
        if header.is_control:
            is_over = header.last_offset < self.purged and not is_last and _is_commit(batch)
            return None if is_over else batch
        if self._is_aborted(header):
            return batch if is_last else None
        data, records = _seen_in(header, batch)
        end = header.last_offset if is_last else -1
        kept = [seen for seen in records if seen.offset == end or self._stays(seen)]
        if len(kept) == len(records):
            return batch
        return _joined(header, data, kept) if kept else None

    def _stays(self, seen: _Seen) -> bool:
        if seen.key is None:
            return True
        if seen.is_tombstone and seen.offset < self.purged:
            return False
        return self._last.get(_digest(seen.key), seen.offset) <= seen.offset

    def _is_aborted(self, header: BatchHeader) -> bool:
        if not header.is_transactional:
            return False
        ranges = self._aborted.get(header.producer_id, ())
        return any(first <= header.base_offset <= last for first, last in ranges)


def max_timestamp_of(batch: memoryview | bytes) -> int:
    """Return the newest time in a batch, as its header says."""
    return read_header(batch).max_timestamp


def _digest(key: bytes) -> bytes:
    # No two keys may be taken for one another, whoever chooses them.
    return blake2b(key, digest_size=_DIGEST_BYTES).digest()


def _is_commit(batch: memoryview) -> bool:
    try:
        return read_marker(batch).kind is MarkerKind.COMMIT
    except CorruptBatch:
        return False


def _seen_in(header: BatchHeader, batch: memoryview) -> tuple[bytes, list[_Seen]]:
    """Find the records of a batch; none where it cannot be read: then it stays whole."""
    try:
        codec = Compression(header.attributes & 0x07)
        data = inflate(codec, batch[HEADER_BYTES:], bytes_max=INFLATED_BYTES_MAX)
        if not 0 <= header.record_count <= len(data) // RECORD_BYTES_MIN:
            return b"", []
        return data, list(_walk(header, data))
    except (CorruptBatch, ValueError):
        return b"", []


def _walk(header: BatchHeader, data: bytes) -> Iterator[_Seen]:
    position = 0
    for _ in range(header.record_count):
        start = position
        length, position = read_signed(data, position, 32)
        end = position + length
        if length < 0 or end > len(data):
            raise CorruptBatch("record runs beyond its batch", length=length)
        delta, position = read_signed(data, position + 1, 64)
        offset_delta, position = read_signed(data, position, 32)
        key_bytes, position = read_signed(data, position, 32)
        key = None if key_bytes == _NULL else data[position : position + key_bytes]
        position += max(0, key_bytes)
        value_bytes, position = read_signed(data, position, 32)
        if key_bytes < _NULL or value_bytes < _NULL or position + max(0, value_bytes) > end:
            raise CorruptBatch("a field runs beyond its record", length=length)
        place = (header.base_offset + offset_delta, header.base_timestamp + delta)
        yield _Seen(start, end, *place, key, value_bytes == _NULL)
        position = end


def _joined(header: BatchHeader, data: bytes, kept: list[_Seen]) -> bytes:
    """Put records into a batch of the same offsets; none of them is touched."""
    packed = deflate(header.compression, b"".join(data[at.start : at.end] for at in kept))
    newest = header.max_timestamp
    if not header.attributes & TIMESTAMP_TYPE:
        newest = max(at.timestamp for at in kept)
    length = HEADER_BYTES - LENGTH_END + len(packed)
    made = header._replace(length=length, max_timestamp=newest, record_count=len(kept))
    batch = bytearray(HEADER_BYTES) + packed
    HEADER.pack_into(batch, 0, *made)
    struct.pack_into(">I", batch, CRC_AT, crc_of(batch))
    return bytes(batch)
