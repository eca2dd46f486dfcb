"""The body of a frame between two nodes: which message it is, for which group, and many at once.

    packet = message_id:u8 || route || body
    route  = partition_id:u64, source_replica_id:u64, target_replica_id:u64,
             term:u64, durability_mode_epoch:u32
    batch  = 0x0F || count || (u32 length || packet) …

The route is the stream context of §7.1: it carries the sender's term, to which a leader binds
a DurabilityAck, and the sender's durability mode epoch, which every Raft message must carry.
Bodies are exactly those of the catalog, so PreVoteResponse keeps its published bytes (C1).
A body that names its partition or its sender names those of its route, or is refused: an ack
must not count for another group than the one it came to.
Everything that waits for one peer, of all groups, goes as one batch in one frame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

from . import hot
from .codec import codec_of
from .envelopes import Envelope, EnvelopeHeader
from .errors import WireBodyTooLarge, WireBodyTooShort, WireMisuse, WireUnknownField
from .fields import BYTES, U32, U64, RepeatedField
from .handshake import Handshake
from .messages import (
    AppendEntriesRequest,
    AppendEntriesResponse,
    DurabilityAckBody,
    RaftMessage,
    SystemEntry,
)
from .table import BATCH_ID, ROW_BY_CLASS, MessageFamily, WireRow, row_of_id
from .types import (
    BASELINE,
    EXPLAIN_BODY_BYTES_MAX,
    Buffer,
    Dialect,
    DurabilityModeEpoch,
    PartitionId,
    ReplicaId,
    Term,
)

Message = TypeVar("Message")

LONG_ENTRIES_BYTES: Final = 32 << 10
"""So many bytes of entries are sent as they are, and not joined with what else there is to say."""


@dataclass(slots=True)
class PacketRoute:
    """Who says it to whom, in which group, and under which term and epoch."""

    partition_id: Annotated[PartitionId, U64]
    source_replica_id: Annotated[ReplicaId, U64]
    target_replica_id: Annotated[ReplicaId, U64]
    term: Annotated[Term, U64]
    durability_mode_epoch: Annotated[DurabilityModeEpoch, U32]


@dataclass(slots=True)
class Packet:
    """A message on its route."""

    route: PacketRoute
    message: RaftMessage | Envelope


@dataclass(slots=True)
class PacketBatch:
    """The encoded packets that share a frame."""

    packets: Annotated[list[Buffer], RepeatedField(BYTES, wide_count=True)]


_ROUTE = codec_of(PacketRoute)
_BATCH = codec_of(PacketBatch)
_BATCH_HEAD = bytes([BATCH_ID])
_HEADER_BYTES = 1 + 4 * 8 + 4
_BATCH_OVERHEAD_BYTES = 1 + 4  # its id and its count at the widest
_SLICE_OVERHEAD_BYTES = 4


def encode_body(message: object, dialect: Dialect = BASELINE) -> bytes:
    """Return the bare body of any message of the table."""
    row = _row_of(message)
    body = row.codec.encode(message, dialect)
    _check_cap(row, len(body), dialect)
    return body


def decode_body(message: type[Message], body: Buffer, dialect: Dialect = BASELINE) -> Message:
    """Return the message of this class whose bare body this is, or raise a WireError."""
    row = ROW_BY_CLASS[message]
    _check_cap(row, len(body), dialect)
    decoded: Message = row.codec.decode(body, dialect)
    return decoded


def encode_system_entry(entry: SystemEntry) -> tuple[int, bytes]:
    """Return the id and the payload of a log entry.

    The log outlives every connection, so nothing negotiated shapes its bytes.
    """
    return _row_of(entry).message_id, encode_body(entry)


def decode_system_entry(message_id: int, payload: Buffer) -> SystemEntry:
    """Return the system entry that a log entry of this id carries, or raise a WireError."""
    row = row_of_id(message_id)
    if row.family is not MessageFamily.SYSTEM_LOG:
        raise WireUnknownField("not a system log entry", message=row.name)
    entry: SystemEntry = decode_body(row.message, payload)
    return entry


def encode_packet(packet: Packet, dialect: Dialect = BASELINE) -> bytes:
    """Return the frame body that carries one message."""
    encoded = _encode_hot(packet, dialect)
    if encoded is not None and len(encoded) <= dialect.body_bytes_max:
        return encoded
    return encode_any_packet(packet, dialect)


def _encode_hot(packet: Packet, dialect: Dialect) -> bytes | None:
    """Encode one of the messages of every round; None: the general codec shall do it."""
    message = packet.message
    if type(message) not in _HOT_KINDS:
        return None
    fields = _route_fields(packet.route)
    if isinstance(message, AppendEntriesRequest):
        return hot.encode_append(fields, message, dialect)
    if isinstance(message, AppendEntriesResponse):
        return hot.encode_response(fields, message, dialect)
    assert isinstance(message, DurabilityAckBody)
    return hot.encode_ack(fields, message, dialect)


def _route_fields(route: PacketRoute) -> hot.RouteFields:
    return (
        route.partition_id,
        route.source_replica_id,
        route.target_replica_id,
        route.term,
        route.durability_mode_epoch,
    )


_HOT_KINDS = frozenset({AppendEntriesRequest, AppendEntriesResponse, DurabilityAckBody})
"""A RepairingAck is a DurabilityAck too, but another message."""


def encode_any_packet(packet: Packet, dialect: Dialect = BASELINE) -> bytes:
    """Return the frame body that carries one message, by the codec that its fields declare."""
    row = _row_of(packet.message)
    if not row.on_stream:
        raise WireMisuse("not a message of the stream", message=row.name)
    if row.names_route and not _agrees(packet):
        raise WireMisuse("the message names another group than its route", message=row.name)
    parts: list[Buffer] = [row.message_id.to_bytes(1, "little")]
    _ROUTE.write(packet.route, parts, dialect)
    row.codec.write(packet.message, parts, dialect)
    encoded = b"".join(parts)
    _check_cap(row, len(encoded) - _HEADER_BYTES, dialect)
    if len(encoded) > dialect.body_bytes_max:
        raise WireBodyTooLarge(
            "packet too large for a frame", length=len(encoded), limit=dialect.body_bytes_max
        )
    return encoded


def decode_packet(body: Buffer, dialect: Dialect = BASELINE) -> Packet:
    """Return the one message of a frame body that is not a batch, or raise a WireError."""
    decode = _HOT_DECODERS.get(body[0]) if body else None
    if decode is not None and len(body) - _HEADER_BYTES <= dialect.body_bytes_max:
        found = decode(body, dialect)
        if found is not None:
            return Packet(PacketRoute(*found[0]), found[1])
    return decode_any_packet(body, dialect)


_HOT_DECODERS: dict[int, Callable[[Buffer, Dialect], tuple[Any, Any] | None]] = {
    hot.APPEND_ID: hot.decode_append,
    hot.RESPONSE_ID: hot.decode_response,
    hot.ACK_ID: hot.decode_ack,
}


def decode_any_packet(body: Buffer, dialect: Dialect = BASELINE) -> Packet:
    """Return the one message of a frame body, by the codec that its fields declare."""
    row = _stream_row(body)
    _check_cap(row, len(body) - _HEADER_BYTES, dialect)
    route, offset = _ROUTE.read(body, 1, dialect)
    packet = Packet(route, row.codec.decode(body, dialect, offset=offset))
    if row.names_route and not _agrees(packet):
        raise WireUnknownField("the message names another group than its route", message=row.name)
    return packet


def encode_batches(packets: Iterable[Packet], dialect: Dialect = BASELINE) -> Iterator[bytes]:
    """Yield as few frame bodies as the peer's cap allows, in the order of `packets`.

    A packet that is alone in its frame goes bare.
    """
    count_max = 0xFFFF_FFFF if dialect.wide_count else 0xFFFF
    held: list[Buffer] = []
    held_bytes = _BATCH_OVERHEAD_BYTES
    for packet in packets:
        encoded = encode_packet(packet, dialect)
        size = _SLICE_OVERHEAD_BYTES + len(encoded)
        if held and (held_bytes + size > dialect.body_bytes_max or len(held) == count_max):
            yield _encode_held(held, dialect)
            held, held_bytes = [], _BATCH_OVERHEAD_BYTES
        held.append(encoded)
        held_bytes += size
    if held:
        yield _encode_held(held, dialect)


def is_long(packet: Packet) -> bool:
    """Say whether a packet has entries that had better not be copied on their way out."""
    message = packet.message
    return isinstance(message, AppendEntriesRequest) and (
        sum(map(len, message.entries)) >= LONG_ENTRIES_BYTES
    )


def encode_bodies(
    packets: Iterable[Packet], dialect: Dialect = BASELINE
) -> Iterator[Sequence[Buffer]]:
    """Yield the frame bodies of `encode_batches`, each as pieces that follow each other.

    A packet with long entries goes bare, and they are pieces themselves: all followers of a turn
    are sent the same ones.
    """
    held: list[Packet] = []
    for packet in packets:
        pieces = _long_pieces(packet, dialect) if is_long(packet) else None
        if pieces is None:
            held.append(packet)
            continue
        yield from ([body] for body in encode_batches(held, dialect))
        held = []
        yield pieces
    yield from ([body] for body in encode_batches(held, dialect))


def _long_pieces(packet: Packet, dialect: Dialect) -> list[Buffer] | None:
    """Encode a long packet; None: the general way shall do it, or say why it cannot be."""
    message = packet.message
    assert isinstance(message, AppendEntriesRequest)
    pieces = hot.append_pieces(_route_fields(packet.route), message, dialect)
    if pieces is None or sum(map(len, pieces)) > dialect.body_bytes_max:
        return None
    return pieces


def decode_packets(body: Buffer, dialect: Dialect = BASELINE) -> Iterator[Packet]:
    """Yield the messages of a frame body, one or a batch; slices in them are views of `body`.

    Packets before a bad one are yielded before its error is raised.
    """
    if not body or body[0] != BATCH_ID:
        yield decode_packet(memoryview(body), dialect)
        return
    batch = _BATCH.decode(memoryview(body), dialect, offset=1)
    for packet in batch.packets:
        yield decode_packet(packet, dialect)


def encode_handshake(handshake: Handshake) -> bytes:
    """Return the body of a connection's first frame."""
    row = ROW_BY_CLASS[Handshake]
    return row.message_id.to_bytes(1, "little") + row.codec.encode(handshake)


def decode_handshake(body: Buffer) -> Handshake:
    """Return the peer's offer. Nothing is negotiated yet, so no byte of it may be unknown."""
    if len(body) > EXPLAIN_BODY_BYTES_MAX:
        raise WireBodyTooLarge("handshake too large", length=len(body))
    if not body:
        raise WireBodyTooShort("empty body")
    row = row_of_id(body[0])
    if row.message is not Handshake:
        raise WireUnknownField("a connection begins with a handshake", message=row.name)
    handshake: Handshake = row.codec.decode(body, offset=1)
    return handshake


def _encode_held(held: list[Buffer], dialect: Dialect) -> bytes:
    if len(held) == 1:
        return bytes(held[0])
    return _BATCH_HEAD + _BATCH.encode(PacketBatch(held), dialect)


def _row_of(message: object) -> WireRow:
    try:
        return ROW_BY_CLASS[type(message)]
    except KeyError:
        raise WireMisuse("not a message of the catalog", type=type(message).__name__) from None


def _stream_row(body: Buffer) -> WireRow:
    if not body:
        raise WireBodyTooShort("empty body")
    row = row_of_id(body[0])
    if not row.on_stream:
        raise WireUnknownField("not a message of the stream", message=row.name)
    return row


def _agrees(packet: Packet) -> bool:
    route, message = packet.route, packet.message
    if isinstance(message, DurabilityAckBody):
        return (message.partition_id, message.replica_id) == (
            route.partition_id,
            route.source_replica_id,
        )
    return not isinstance(message, EnvelopeHeader) or message.partition_id == route.partition_id


def _check_cap(row: WireRow, length: int, dialect: Dialect) -> None:
    if row.family is not MessageFamily.EXPLAIN and length <= dialect.body_bytes_max:
        return  # nearly always
    limit = row.body_bytes_max(dialect)
    if length > limit:
        raise WireBodyTooLarge("body too large", message=row.name, length=length, limit=limit)
