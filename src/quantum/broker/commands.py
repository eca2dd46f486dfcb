"""What is written into a partition's log.

Publishes travel packed, many in one command, because they are what there is most of. Everything
else is a small record. Time is in them: the leader stamps `now_ms`, and nobody looks at a clock.
"""

from __future__ import annotations

import struct
from collections.abc import Container
from typing import Annotated, Final, NamedTuple, TypeAlias, get_args

import msgspec
from msgspec import Meta

from quantum.broker.types import TIME_MAX_MS

PUBLISHES: Final = 0
"""The first byte of packed publishes; no record begins with it (MessagePack arrays do not)."""
PUBLISHES_HEAD: Final = struct.Struct("<BQHQQ")
OWN_ORIGIN: Final = 0xFFFF
PRGS_MAX: Final = 1_024
"""A tenant has no more partitions (quantumqtt §11.5)."""


Stamp: TypeAlias = Annotated[int, Meta(ge=0, le=TIME_MAX_MS)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)]
Amount: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 62)]
QosLevel: TypeAlias = Annotated[int, Meta(ge=0, le=2)]
# The bounds hold for what is decoded: no committed bytes bring numbers that cannot be kept.


class PublishesHead(NamedTuple):
    """Who sent the publishes behind it.

    `origin` is another partition whose leader of `origin_term` forwarded them, the first with
    the number `first_sequence`; or OWN_ORIGIN where the publishers' sessions are here.
    """

    kind: int
    now_ms: int
    origin: int
    origin_term: int
    first_sequence: int


def encode_publishes(
    now_ms: int, origin: int, origin_term: int, first_sequence: int, records: list[bytes]
) -> bytes:
    """Make one command of the records of many messages."""
    head = PUBLISHES_HEAD.pack(PUBLISHES, now_ms, origin, origin_term, first_sequence)
    return head + b"".join(records)


class _Command(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    pass


class WillSpec(msgspec.Struct, array_like=True):
    """A will as the client left it: the record of its message, and how long it waits."""

    record: bytes
    delay_seconds: Count
    patience_seconds: Count = 0
    """How long the client may be away after a connection that we broke: its keep-alive and a
    grace. Until then nobody knows that it is gone (C23)."""


class Attach(_Command, tag=1):
    """A client connected, and something about its session must be remembered."""

    now_ms: Stamp
    client_id: bytes
    clean_start: bool
    expiry_seconds: Count
    window: Count  # how many messages may be in flight to it
    will: WillSpec | None = None
    identity: bytes = b""  # a digest of whom its certificate names; empty: it showed none
    takes_over: bool = False  # its leader closes an older connection of the client for this one
    standard_wills: bool = False  # the tenant wants the standard's rules for every takeover


class Detach(_Command, tag=2):
    """A connection ended. `gracefully` says that its will is not wanted.

    `by_us` says that it was not the client's end: a node between it and here is gone, or another
    connection takes over. Its will waits for the client's own time.
    """

    now_ms: Stamp
    client_id: bytes
    epoch: int
    gracefully: bool
    expiry_seconds: Count | None = None  # MQTT 5 lets a DISCONNECT change it
    attachment: int = 0  # the connection that ends, as `Attached` said; 0 for whatever is there
    unsent_from: int = 0  # the first packet id in flight that never left the connection
    by_us: bool = False


class SubscriptionSpec(msgspec.Struct, array_like=True):
    """One line of a SUBSCRIBE. `share` is the group's name, empty for an ordinary one."""

    filter: bytes
    qos: QosLevel
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: QosLevel = 0  # 0, 1 or 2 as well
    identifier: Count = 0
    share: bytes = b""

    @property
    def key(self) -> bytes:
        """The filter as the client wrote it."""
        return b"$share/" + self.share + b"/" + self.filter if self.share else self.filter


class Subscribe(_Command, tag=3):
    now_ms: Stamp
    client_id: bytes
    epoch: int
    subscriptions: list[SubscriptionSpec]
    window: Count = 1  # how many messages may be in flight, if this makes the session


class Unsubscribe(_Command, tag=4):
    """`filters` as the client wrote them, `$share/…` included."""

    now_ms: Stamp
    client_id: bytes
    epoch: int
    filters: list[bytes]


class Acknowledge(_Command, tag=5):
    """What clients said of messages that the machine keeps for them: (client, kind, packet id)."""

    now_ms: Stamp
    acknowledgements: list[tuple[bytes, int, int]]


class PublishOnce(_Command, tag=6):
    """Publishes at QoS 2 of a session that outlives its connection: each is taken once."""

    now_ms: Stamp
    records: list[bytes]


class Release(_Command, tag=7):
    """PUBRELs of such sessions: (client, packet id)."""

    now_ms: Stamp
    releases: list[tuple[bytes, int]]


class ChannelItems(_Command, tag=8):
    """What another partition has for this one, in order; `sequences` names the place of each.

    A leader may leave out what nobody has to remember, and nothing else: what comes behind a
    gap counts, and what was in the gap never does.
    """

    now_ms: Stamp
    origin: int
    sequences: list[int]
    items: list[bytes]


class ChannelAcked(_Command, tag=9):
    """Another partition has everything up to `through`."""

    peer: int
    through: int


class LeaderStarted(_Command, tag=10):
    """A leader begins: every connection of its predecessors is gone."""

    now_ms: Stamp
    term: int


class Elapse(_Command, tag=11):
    """Time passed: what is due happens now."""

    now_ms: Stamp


class RemoveSession(_Command, tag=12):
    """An operator ends a session."""

    now_ms: Stamp
    client_id: bytes


class BeginRebalance(_Command, tag=13):
    """The tenant's ring has `prg_count` partitions from `routing_epoch` on (quantumqtt §2.1.4)."""

    now_ms: Stamp
    routing_epoch: Count
    prg_count: Annotated[int, Meta(ge=1, le=PRGS_MAX)]


class RoutesFlushed(_Command, tag=14):
    """The leader has answers for all that it passed on by the ring before this epoch's."""

    now_ms: Stamp
    routing_epoch: Count


class SetPolicy(_Command, tag=15):
    """What this partition may hold of its tenant's quotas, and the most of each during a grace.

    In the order of `quantum.tenancy.HELD`. And how shared subscriptions share (C12).
    """

    now_ms: Stamp
    shares: list[Amount]
    ceilings: list[Amount]
    hashes_shares: bool = False


class Part(_Command, tag=16):
    """One of `count` parts of a command that is larger than an entry (`parts.py`).

    `now_ms` is the command's own, for who looks for times in a log; 0 where it has none.
    """

    number: Count
    count: Count
    data: bytes
    now_ms: Stamp = 0


class SetFullQueues(_Command, tag=17):
    """What becomes of messages for a session whose queue is full (C24, `full_queues.py`)."""

    now_ms: Stamp
    policy: Count


class CreateStream(_Command, tag=18):
    """An operator wants a stream; with filters it captures what is published there (`streams`).

    Only the PRG that keeps the catalogue takes it.
    """

    now_ms: Stamp
    name: bytes
    filters: list[bytes]
    retention_ms: Stamp = 0  # 0: for ever
    retention_bytes: Amount = 0  # 0: any number


class DeleteStream(_Command, tag=19):
    """An operator ends a stream, and all that it holds."""

    now_ms: Stamp
    name: bytes


class TrimStreams(_Command, tag=20):
    """What is before these offsets is not wanted any more: (number of the stream, first offset).

    By the log and not by each replica's clock: the start of a stream never goes back.
    """

    now_ms: Stamp
    trims: list[tuple[Count, Amount]]


Command: TypeAlias = (
    Attach
    | Detach
    | Subscribe
    | Unsubscribe
    | Acknowledge
    | PublishOnce
    | Release
    | ChannelItems
    | ChannelAcked
    | LeaderStarted
    | Elapse
    | RemoveSession
    | BeginRebalance
    | RoutesFlushed
    | SetPolicy
    | SetFullQueues
    | CreateStream
    | DeleteStream
    | TrimStreams
    | Part
)

# What an acknowledgement says: MQTT's own packet types.
PUBACK: Final = 4
PUBREC: Final = 5
PUBCOMP: Final = 7

RECORD_TAGS: Final = frozenset(int(each.__struct_config__.tag) for each in get_args(Command))
"""The families of commands that this build knows, beside packed publishes."""
_FAMILY_BYTES: Final = range(1, 0x80)
_SHORT_ARRAYS: Final = range(0x91, 0xA0)


def unknown_family(data: bytes, sections: Container[int]) -> int | None:
    """Name the family of a command that a later build wrote; None for any other bytes.

    `sections` are the families of the sections that the machine has.

    A replica that skipped such a command would not be what the others are from then on, so it
    stops. Bytes that no build writes are no command for anybody: they are answered with nothing.
    """
    if len(data) < 2:
        return None
    if data[0] in _FAMILY_BYTES:
        return data[0] if data[0] not in sections else None
    is_record = data[0] in _SHORT_ARRAYS and data[1] in _FAMILY_BYTES
    return data[1] if is_record and data[1] not in RECORD_TAGS else None


_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_encoder = msgspec.msgpack.Encoder()


def encode_command(command: Command) -> bytes:
    return _encoder.encode(command)


def decode_command(data: bytes) -> Command:
    """Raises msgspec.DecodeError (or ValidationError, which is one) for other bytes."""
    return _decoder.decode(data)


def decode_known(data: bytes) -> Command | None:
    """Decode a command; None for bytes that the broker would skip."""
    try:
        return decode_command(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
