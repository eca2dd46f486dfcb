"""The three frequent messages without an object for any record: found, and written, as bytes.

Flat and fully typed: mypyc compiles it as it stands. `scan_produce` finds where each partition's
batch stands in the request, the encoders write what is around stored batches and never copy one.
"""

from __future__ import annotations

import struct
from typing import Final

from quantum.protocols.kafka.codec.errors import MalformedRequest, RequestTooLarge

# (topic, partition, start, end): where the partition's batch stands; start is -1 where it is null.
ProduceRow = tuple[bytes, int, int, int]
# (node, host, port, rack): where a leader that another partition's answer names can be reached.
Endpoint = tuple[int, bytes, int, bytes | None]

ROWS_MAX: Final = 65_536
"""The most topics, and the most partitions, of one Produce: more would hold a node up."""
TAGS_MAX: Final = 1_024
PRODUCE_FLEXIBLE: Final = 9
FETCH_FLEXIBLE: Final = 12
FETCH_TOPIC_IDS: Final = 13

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_LEADER_TAG: Final = struct.Struct(">iib")
_DIVERGING_TAG: Final = struct.Struct(">iqb")


def read_varint(buffer: bytes, position: int) -> tuple[int, int]:
    """Read an unsigned variable integer of at most 32 bits: its value, and where it ends."""
    value = 0
    shift = 0
    end = len(buffer)
    while position < end and shift < 35:
        byte = buffer[position]
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                break
            return value, position
        shift += 7
    raise MalformedRequest("ill-formed variable integer")


def skip_tags(buffer: bytes, position: int) -> int:
    """Return where the tagged fields at `position` end; unknown ones are for others (KIP-482)."""
    count, position = read_varint(buffer, position)
    if count > TAGS_MAX:
        raise MalformedRequest("impossible count of tagged fields", count=count)
    while count:
        _, position = read_varint(buffer, position)
        size, position = read_varint(buffer, position)
        position += size
        if position > len(buffer):
            raise MalformedRequest("a tagged field runs beyond the request")
        count -= 1
    return position


def _count(buffer: bytes, position: int, flexible: bool) -> tuple[int, int]:
    """Read the length of an array: none may be null, or longer than the bytes that are left."""
    if flexible:
        count, position = read_varint(buffer, position)
        count -= 1
    else:
        if position + 4 > len(buffer):
            raise MalformedRequest("request ends within an array's length")
        count = _INT32.unpack_from(buffer, position)[0]
        position += 4
    if count < 0 or count > len(buffer) - position:
        raise MalformedRequest("impossible length of an array", count=count)
    return count, position


def _text(buffer: bytes, position: int, flexible: bool) -> tuple[int, int]:
    """Return where a string starts and ends; the start is -1 where it is null."""
    if flexible:
        length, position = read_varint(buffer, position)
        length -= 1
    else:
        if position + 2 > len(buffer):
            raise MalformedRequest("request ends within a string's length")
        length = _INT16.unpack_from(buffer, position)[0]
        position += 2
    if length < 0:
        if length < -1:
            raise MalformedRequest("negative length of a string", length=length)
        return -1, position
    if length > 32767 or position + length > len(buffer):
        raise MalformedRequest("a string runs beyond the request", length=length)
    return position, position + length


def _blob(buffer: bytes, position: int, flexible: bool) -> tuple[int, int]:
    """Return where bytes start and end; the start is -1 where they are null."""
    if flexible:
        length, position = read_varint(buffer, position)
        length -= 1
    else:
        if position + 4 > len(buffer):
            raise MalformedRequest("request ends within the length of a batch")
        length = _INT32.unpack_from(buffer, position)[0]
        position += 4
    if length < 0:
        if length < -1:
            raise MalformedRequest("negative length of a batch", length=length)
        return -1, position
    if position + length > len(buffer):
        raise MalformedRequest("a batch runs beyond the request", length=length)
    return position, position + length


def scan_produce(
    buffer: bytes, position: int, version: int
) -> tuple[bytes | None, int, int, list[ProduceRow]]:
    """Find the batches of a Produce request: transactional id, acks, time-out in ms, and rows.

    Versions 0 to 12. Topics are not empty and not checked otherwise. A partition that is named
    twice is malformed: one of the two answers would be lost. Raises MalformedRequest, and
    RequestTooLarge for more topics or partitions than anybody needs.
    """
    flexible = version >= PRODUCE_FLEXIBLE
    transactional_id: bytes | None = None
    if version >= 3:
        start, position = _text(buffer, position, flexible)
        if start >= 0:
            transactional_id = buffer[start:position]
    if position + 6 > len(buffer):
        raise MalformedRequest("request ends before its topics")
    acks: int = _INT16.unpack_from(buffer, position)[0]
    timeout_ms: int = _INT32.unpack_from(buffer, position + 2)[0]
    topics, position = _count(buffer, position + 6, flexible)
    if topics > ROWS_MAX:
        raise RequestTooLarge("too many topics in a Produce", count=topics, limit=ROWS_MAX)
    rows: list[ProduceRow] = []
    seen: set[tuple[bytes, int]] = set()
    for _ in range(topics):
        start, position = _text(buffer, position, flexible)
        if start < 0 or start == position:
            raise MalformedRequest("a topic without a name")
        topic = buffer[start:position]
        partitions, position = _count(buffer, position, flexible)
        if len(rows) + partitions > ROWS_MAX:
            raise RequestTooLarge("too many partitions in a Produce", limit=ROWS_MAX)
        for _ in range(partitions):
            if position + 4 > len(buffer):
                raise MalformedRequest("request ends within a partition")
            index: int = _INT32.unpack_from(buffer, position)[0]
            start, position = _blob(buffer, position + 4, flexible)
            rows.append((topic, index, start, position))
            if (topic, index) in seen:
                raise MalformedRequest("a partition is named twice", partition=index)
            seen.add((topic, index))
            if flexible:
                position = skip_tags(buffer, position)
        if flexible:
            position = skip_tags(buffer, position)
    if flexible:
        position = skip_tags(buffer, position)
    return transactional_id, acks, timeout_ms, rows


def encode_varint(value: int) -> bytes:
    """Encode an unsigned variable integer."""
    if value < 0x80:
        return value.to_bytes(1, "big")
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _put_count(out: bytearray, count: int, flexible: bool) -> None:
    if flexible:
        out += encode_varint(count + 1)
    else:
        out += _INT32.pack(count)


def _put_text(out: bytearray, text: bytes | None, flexible: bool) -> None:
    if flexible:
        out += encode_varint(0 if text is None else len(text) + 1)
    else:
        out += _INT16.pack(-1 if text is None else len(text))
    if text is not None:
        out += text


def _put_endpoints(out: bytearray, endpoints: list[Endpoint]) -> None:
    """Write the tagged fields of a whole answer: where the leaders it names are, or nothing."""
    if not endpoints:
        out += b"\x00"
        return
    inner = bytearray(encode_varint(len(endpoints) + 1))
    for node, host, port, rack in endpoints:
        inner += _INT32.pack(node)
        _put_text(inner, host, flexible=True)
        inner += _INT32.pack(port)
        _put_text(inner, rack, flexible=True)
        inner += b"\x00"
    out += b"\x01\x00" + encode_varint(len(inner)) + inner


class ProducedPartition:
    """The answer for one partition of a Produce."""

    __slots__ = (
        *("base_offset", "error", "error_message", "index", "leader_epoch", "leader_id"),
        *("log_append_ms", "log_start_offset"),
    )

    def __init__(  # noqa: PLR0917  # hot: positional
        self,
        index: int,
        error: int,
        base_offset: int = -1,
        log_append_ms: int = -1,
        log_start_offset: int = -1,
        error_message: bytes | None = None,
        leader_id: int = -1,
        leader_epoch: int = -1,
    ) -> None:
        self.index = index
        self.error = error
        self.base_offset = base_offset
        self.log_append_ms = log_append_ms
        self.log_start_offset = log_start_offset
        self.error_message = error_message
        self.leader_id = leader_id  # with its epoch, the hint of KIP-951; -1 is 'not said'
        self.leader_epoch = leader_epoch


def encode_produce_response(
    version: int,
    correlation_id: int,
    topics: list[tuple[bytes, list[ProducedPartition]]],
    throttle_ms: int = 0,
    endpoints: list[Endpoint] | None = None,
) -> bytes:
    """Encode a whole Produce answer with its length, in versions 0 to 12."""
    flexible = version >= PRODUCE_FLEXIBLE
    out = bytearray(4)
    out += _INT32.pack(correlation_id)
    if flexible:
        out += b"\x00"
    _put_count(out, len(topics), flexible)
    for topic, partitions in topics:
        _put_text(out, topic, flexible)
        _put_count(out, len(partitions), flexible)
        for each in partitions:
            _put_produced(out, each, version, flexible)
        if flexible:
            out += b"\x00"
    if version >= 1:
        out += _INT32.pack(throttle_ms)
    if flexible:
        _put_endpoints(out, endpoints if endpoints is not None and version >= 10 else [])
    _INT32.pack_into(out, 0, len(out) - 4)
    return bytes(out)


def _put_produced(out: bytearray, each: ProducedPartition, version: int, flexible: bool) -> None:
    out += _INT32.pack(each.index)
    out += _INT16.pack(each.error)
    out += _INT64.pack(each.base_offset)
    if version >= 2:
        out += _INT64.pack(each.log_append_ms)
    if version >= 5:
        out += _INT64.pack(each.log_start_offset)
    if version >= 8:
        _put_count(out, 0, flexible)  # no errors of single records: batches are opaque
        _put_text(out, each.error_message, flexible)
    if flexible:
        if version >= 10 and (each.leader_id != -1 or each.leader_epoch != -1):
            out += b"\x01\x00\x09" + _LEADER_TAG.pack(each.leader_id, each.leader_epoch, 0)
        else:
            out += b"\x00"


class FetchedPartition:
    """The answer for one partition of a Fetch; `batches` are stored bytes, sent as they are."""

    __slots__ = (
        *("aborted", "batches", "diverging_end_offset", "diverging_epoch", "error"),
        *("high_watermark", "index", "last_stable_offset", "leader_epoch", "leader_id"),
        "log_start_offset",
    )

    def __init__(  # noqa: PLR0917  # hot: positional
        self,
        index: int,
        error: int,
        high_watermark: int = -1,
        last_stable_offset: int = -1,
        log_start_offset: int = -1,
        batches: list[memoryview] | None = None,
        aborted: list[tuple[int, int]] | None = None,
        leader_id: int = -1,
        leader_epoch: int = -1,
        diverging_epoch: int = -1,
        diverging_end_offset: int = -1,
    ) -> None:
        self.index = index
        self.error = error
        self.high_watermark = high_watermark
        self.last_stable_offset = last_stable_offset
        self.log_start_offset = log_start_offset
        self.batches = batches  # None is 'null records', which librdkafka does not take
        self.aborted = aborted  # (producer id, first offset) for read_committed; None otherwise
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.diverging_epoch = diverging_epoch
        self.diverging_end_offset = diverging_end_offset


def encode_fetch_response(  # noqa: PLR0917  # hot: positional
    version: int,
    correlation_id: int,
    topics: list[tuple[bytes, list[FetchedPartition]]],
    error: int = 0,
    session_id: int = 0,
    throttle_ms: int = 0,
    endpoints: list[Endpoint] | None = None,
) -> list[bytes | memoryview]:
    """Encode a whole Fetch answer with its length, in versions 4 to 16, as pieces to write.

    A topic is its name, and from version 13 on the 16 bytes of its id. The stored batches are
    pieces themselves: nothing of them is copied or looked at.
    """
    flexible = version >= FETCH_FLEXIBLE
    pieces: list[bytes | memoryview] = []
    out = bytearray()
    out += _INT32.pack(throttle_ms)
    if version >= 7:
        out += _INT16.pack(error)
        out += _INT32.pack(session_id)
    _put_count(out, len(topics), flexible)
    total = 0
    for topic, partitions in topics:
        if version >= FETCH_TOPIC_IDS:
            out += topic
        else:
            _put_text(out, topic, flexible)
        _put_count(out, len(partitions), flexible)
        for each in partitions:
            _put_fetched(out, each, version, flexible)
            batches = each.batches
            if batches:
                pieces.append(bytes(out))
                total += len(out)
                out = bytearray()
                for batch in batches:
                    pieces.append(batch)
                    total += len(batch)
            if flexible:
                _put_fetched_tags(out, each)
        if flexible:
            out += b"\x00"
    if flexible:
        _put_endpoints(out, endpoints if endpoints is not None and version >= 16 else [])
    pieces.append(bytes(out))
    total += len(out)
    head = _INT32.pack(correlation_id) + (b"\x00" if flexible else b"")
    pieces[0] = _INT32.pack(len(head) + total) + head + bytes(pieces[0])
    return pieces


def _put_fetched(out: bytearray, each: FetchedPartition, version: int, flexible: bool) -> None:
    out += _INT32.pack(each.index)
    out += _INT16.pack(each.error)
    out += _INT64.pack(each.high_watermark)
    out += _INT64.pack(each.last_stable_offset)
    if version >= 5:
        out += _INT64.pack(each.log_start_offset)
    aborted = each.aborted
    if aborted is None:
        out += b"\x00" if flexible else b"\xff\xff\xff\xff"
    else:
        _put_count(out, len(aborted), flexible)
        for producer_id, first_offset in aborted:
            out += _INT64.pack(producer_id)
            out += _INT64.pack(first_offset)
            if flexible:
                out += b"\x00"
    if version >= 11:
        out += b"\xff\xff\xff\xff"  # no preferred replica: the leader serves
    batches = each.batches
    size = -1
    if batches is not None:
        size = 0
        for batch in batches:
            size += len(batch)
    if flexible:
        out += encode_varint(size + 1)
    else:
        out += _INT32.pack(size)


def _put_fetched_tags(out: bytearray, each: FetchedPartition) -> None:
    diverges = each.diverging_epoch != -1 or each.diverging_end_offset != -1
    hints = each.leader_id != -1 or each.leader_epoch != -1
    out += encode_varint((1 if diverges else 0) + (1 if hints else 0))
    if diverges:
        out += b"\x00\x0d"
        out += _DIVERGING_TAG.pack(each.diverging_epoch, each.diverging_end_offset, 0)
    if hints:
        out += b"\x01\x09" + _LEADER_TAG.pack(each.leader_id, each.leader_epoch, 0)
