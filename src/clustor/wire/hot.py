"""AppendEntries, its answer and DurabilityAck, each in one `struct` call: they are every round.

The bytes are those of the catalog, and the tests hold both codecs against each other. What is out
of the ordinary (a value that does not fit, a refusal, bytes that are too few or too many) is left
to the general codec by returning None: it has the words for it.
"""

from __future__ import annotations

import struct
from typing import Final

from .messages import AppendEntriesRequest, AppendEntriesResponse, DurabilityAckBody
from .types import Buffer, Dialect, IoWriterMode

ROUTE: Final = "QQQQI"
"""partition, source, target, term, durability mode epoch"""

APPEND_ID: Final = 0x14
RESPONSE_ID: Final = 0x15
ACK_ID: Final = 0x18

RouteFields = tuple[int, int, int, int, int]

_APPEND: Final = struct.Struct("<B" + ROUTE + "10Q")
_RESPONSE: Final = struct.Struct("<B" + ROUTE + "B6QBBB")
_ACK: Final = struct.Struct("<B" + ROUTE + "4QB")
_U16: Final = struct.Struct("<H")
_U32: Final = struct.Struct("<I")
_NO_CONFLICT: Final = b"\0\0"
_MODES: Final = {int(mode): mode for mode in IoWriterMode}
_FLAGS: Final = {0: False, 1: True}
_NARROW_COUNT_MAX: Final = 0xFFFF


def encode_append(
    route: RouteFields, message: AppendEntriesRequest, dialect: Dialect
) -> bytes | None:
    pieces = append_pieces(route, message, dialect)
    return None if pieces is None else b"".join(pieces)


def append_pieces(
    route: RouteFields, message: AppendEntriesRequest, dialect: Dialect
) -> list[Buffer] | None:
    """Encode it without a copy of its entries: pieces that follow each other."""
    entries = message.entries
    width = _U32 if dialect.wide_count else _U16
    if len(entries) > _NARROW_COUNT_MAX:
        return None
    try:
        head = _APPEND.pack(
            APPEND_ID,
            *route,
            message.prev_log_index,
            message.prev_log_term,
            message.raft_commit_index,
            message.wal_committed_index,
            message.lease_epoch,
            message.round_number,
            message.sent_ms,
            message.rtt_ms,
            message.quorum_applied_index,
            message.quorum_sm_durable_index,
        ) + width.pack(len(entries))
        parts: list[Buffer] = [head]
        for entry in entries:
            parts.append(_U32.pack(len(entry)))
            parts.append(entry)
    except struct.error:
        return None
    return parts


def decode_append(
    body: Buffer, dialect: Dialect
) -> tuple[RouteFields, AppendEntriesRequest] | None:
    width = _U32 if dialect.wide_count else _U16
    start = _APPEND.size + width.size
    if len(body) < start:
        return None
    fields = _APPEND.unpack_from(body)
    (count,) = width.unpack_from(body, _APPEND.size)
    entries: list[Buffer] = []
    length = len(body)
    for _ in range(count):
        if start + _U32.size > length:
            return None
        (size,) = _U32.unpack_from(body, start)
        end = start + _U32.size + size
        entries.append(body[start + _U32.size : end])
        start = end
    if start != length:
        return None
    prev, prev_term, commit, durable, lease, seq, sent, rtt, applied, kept = fields[6:]
    message = AppendEntriesRequest(
        prev, prev_term, commit, durable, lease, seq, sent, rtt, applied, kept, entries
    )
    return fields[1:6], message


def encode_response(
    route: RouteFields, message: AppendEntriesResponse, _dialect: Dialect
) -> bytes | None:
    if message.conflict_index is not None or message.conflict_term is not None:
        return None
    if message.io_writer_mode not in _MODES:
        return None
    try:
        fixed = _RESPONSE.pack(
            RESPONSE_ID,
            *route,
            message.success is True,
            message.last_log_index,
            message.prev_log_index,
            message.round_number,
            message.sent_ms,
            message.applied_index,
            message.sm_durable_index,
            message.io_writer_mode,
            message.installing is True,
            message.rejoining is True,
        )
    except struct.error:
        return None
    return fixed + _NO_CONFLICT


def decode_response(
    body: Buffer, _dialect: Dialect
) -> tuple[RouteFields, AppendEntriesResponse] | None:
    end = _RESPONSE.size
    if len(body) != end + 2 or body[end] or body[end + 1]:
        return None
    fields = _RESPONSE.unpack_from(body)
    flags = (_FLAGS.get(fields[6]), _FLAGS.get(fields[14]), _FLAGS.get(fields[15]))
    mode = _MODES.get(fields[13])
    success, installing, rejoining = flags
    if mode is None or success is None or installing is None or rejoining is None:
        return None
    last, prev, seq, sent, applied, kept = fields[7:13]
    message = AppendEntriesResponse(
        success, last, prev, seq, sent, applied, kept, mode, installing, rejoining
    )
    return fields[1:6], message


def encode_ack(route: RouteFields, message: DurabilityAckBody, _dialect: Dialect) -> bytes | None:
    if (message.partition_id, message.replica_id) != route[:2]:
        return None
    if message.io_writer_mode not in _MODES:
        return None
    try:
        return _ACK.pack(
            ACK_ID,
            *route,
            message.partition_id,
            message.replica_id,
            message.last_fsynced_index,
            message.segment_seq,
            message.io_writer_mode,
        )
    except struct.error:
        return None


def decode_ack(body: Buffer, _dialect: Dialect) -> tuple[RouteFields, DurabilityAckBody] | None:
    if len(body) != _ACK.size:
        return None
    fields = _ACK.unpack_from(body)
    mode = _MODES.get(fields[10])
    if mode is None or fields[6:8] != fields[1:3]:
        return None
    partition, replica, index, segment = fields[6:10]
    return fields[1:6], DurabilityAckBody(partition, replica, index, segment, mode)
