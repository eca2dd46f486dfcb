"""The framed stream between a KV client and a node, after `Upgrade: clustor-kv`.

    request  length:u32  request_id:u32  partition_id:u64  operation:u8  body
    reply    length:u32  request_id:u32  status:u8  body

All little-endian; `length` counts what follows it. Requests are pipelined, replies come in any
order. A request id is the client's own, unique among its open requests. A watch is answered by
many replies under its id until it is cancelled or its connection ends; a watch that names how
many events it takes (a poll) is answered once, and is over. A watch that has nothing to say for a
second says so, by no events: a client that hears nothing at all asks another node.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import Annotated, Final, TypeAlias

import msgspec

from clustor.kv import KvRecord

REQUEST_BYTES_MAX: Final = 2 << 20
REPLY_BYTES_MAX: Final = 8 << 20
NEVER_REACHED: Final = (1 << 63) - 1  # as the `reached` of a poll that wants events only

_REQUEST: Final = struct.Struct("<IIQB")
_REPLY: Final = struct.Struct("<IIB")
_REQUEST_HEAD_BYTES: Final = _REQUEST.size - 4
_REPLY_HEAD_BYTES: Final = _REPLY.size - 4


class KvOperation(IntEnum):
    COMMAND = 1  # body: an encoded command of clustor.kv
    WATCH = 2  # body: a WatchRequest
    CANCEL = 3  # ends the watch of the same request id; no body
    SNAPSHOT_READ = 4  # body: a Get or a Range, of what this node has applied, however old


class Status(IntEnum):
    APPLIED = 0  # body: the reply of clustor.kv; what it tells is fsynced on a quorum
    NOT_LEADER = 1  # body: the leader's admin address, or nothing; nothing happened
    UNKNOWN = 2  # leadership was lost: it may happen once, or never
    REFUSED = 3  # body: why; nothing happened
    EVENTS = 4  # body: a WatchEvents
    COMPACTED = 5  # body: the oldest revision that a watch can start from; the watch has ended
    THROTTLED = 6  # body: a ThrottleEnvelope as JSON; nothing happened, try again when it says


class WatchRequest(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Send what happens after `revision` to keys with one of `prefixes` (none: all keys).

    With `events_max` it is a poll: one reply, of about so many events, as soon as there are any.
    It is a reply of none once this node has reached `reached`, and otherwise within a second or
    so, as a sign of life: from a node that has applied `revision` and knows a leader. A node
    that hangs behind its group says nothing, so that the client can ask another.
    """

    revision: int
    prefixes: list[bytes]
    events_max: Annotated[int, msgspec.Meta(ge=0)] = 0
    reached: int = NEVER_REACHED


class WatchEvents(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Events in order; nothing that was asked for is missing up to `through`."""

    events: list[KvRecord]
    through: int


Request: TypeAlias = tuple[int, int, int, bytes]
"""request_id, partition_id, operation, body"""
Reply: TypeAlias = tuple[int, int, bytes]
"""request_id, status, body"""


class StreamViolation(Exception):
    """The other side sent what is no frame of this stream; the connection ends."""


def encode_request(request_id: int, partition: int, operation: int, body: bytes) -> bytes:
    return _REQUEST.pack(_REQUEST_HEAD_BYTES + len(body), request_id, partition, operation) + body


def encode_reply(request_id: int, status: int, body: bytes) -> bytes:
    return _REPLY.pack(_REPLY_HEAD_BYTES + len(body), request_id, status) + body


def encode_replies(request_ids: Iterable[int], status: int, bodies: Iterable[bytes]) -> bytes:
    """Encode many replies of one status, back to back."""
    pack = _REPLY.pack
    return b"".join(
        [
            pack(_REPLY_HEAD_BYTES + len(body), request_id, status) + body
            for request_id, body in zip(request_ids, bodies, strict=True)
        ]
    )


def take_requests(buffer: bytearray) -> list[Request]:
    """Remove every whole request from `buffer`. Raises StreamViolation."""
    requests: list[Request] = []
    position, end = 0, len(buffer)
    unpack = _REQUEST.unpack_from
    data = bytes(buffer)
    while position + _REQUEST.size <= end:
        length, request_id, partition, operation = unpack(data, position)
        if not _REQUEST_HEAD_BYTES <= length <= REQUEST_BYTES_MAX:
            raise StreamViolation(f"a request of {length} bytes")
        after = position + 4 + length
        if after > end:
            break
        requests.append((request_id, partition, operation, data[position + _REQUEST.size : after]))
        position = after
    del buffer[:position]
    return requests


def take_replies(buffer: bytearray) -> list[Reply]:
    """Remove every whole reply from `buffer`. Raises StreamViolation."""
    replies: list[Reply] = []
    position, end = 0, len(buffer)
    unpack = _REPLY.unpack_from
    data = bytes(buffer)
    while position + _REPLY.size <= end:
        length, request_id, status = unpack(data, position)
        if not _REPLY_HEAD_BYTES <= length <= REPLY_BYTES_MAX:
            raise StreamViolation(f"a reply of {length} bytes")
        after = position + 4 + length
        if after > end:
            break
        replies.append((request_id, status, data[position + _REPLY.size : after]))
        position = after
    del buffer[:position]
    return replies
