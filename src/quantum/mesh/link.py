"""What the brokers of two nodes say to each other, and how they notice that something was lost.

Each flush is one frame with the sender's incarnation and a number. A frame that is not the next
one says that others were lost: everything that rests on the link begins anew.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, TypeAlias

import msgspec

from quantum.broker.queues import QueueEntry, Settlement
from quantum.edge.ports import Transport


class _Said(msgspec.Struct, array_like=True):
    pass


class RelayOpen(_Said, tag=1):
    """A client of the sender whose session's partition the receiver leads."""

    relay: int
    transport: Transport
    address: str
    tenant: str
    identity: str | None
    server_name: str | None
    not_after_ms: int | None
    client_id: bytes  # the one that was assigned, or empty
    data: bytes
    named_tenant: str | None = None


class RelayData(_Said, tag=2):
    """Bytes of a relayed connection; `opened_here` says whether the sender opened it."""

    relay: int
    opened_here: bool
    data: bytes


class RelayEnd(_Said, tag=3):
    relay: int
    opened_here: bool
    by_us: bool = False  # the node ends it, and perhaps not the client
    again: bool = False  # the session is led elsewhere, and its client has no answer yet


class RelayTaken(_Said, tag=4):
    """So many more bytes have left the receiver's buffers."""

    relay: int
    opened_here: bool
    taken: int


class RelayExpelled(_Said, tag=20):
    """The sender's client is believed no more; the receiver tells it why, and ends the relay."""

    relay: int
    why: str


class ForwardedPublishes(_Said, tag=5):
    """Publishes for the owner of their topics, numbered from `first`."""

    tenant: str
    origin: int
    owner: int
    term: int
    first: int
    records: list[bytes]


class ForwardsDone(_Said, tag=6):
    """The owner's word about the publishes from `first` to `through`."""

    tenant: str
    origin: int
    owner: int
    term: int
    first: int
    through: int
    refused: list[tuple[int, int]]
    index: int = 0  # the entry of the owner's log that has them; 0: an older build said this


class Unlogged(_Said, tag=7):
    """QoS 0 messages for the owner of their topics."""

    tenant: str
    owner: int
    records: list[bytes]


class UnloggedDeliver(_Said, tag=8):
    """QoS 0 messages for the sessions of a partition, of topics that `origin` owns."""

    tenant: str
    origin: int
    prg: int
    records: list[bytes]


class UnloggedMember(_Said, tag=11):
    """A QoS 0 message for one member of a shared subscription."""

    tenant: str
    prg: int
    client_id: bytes
    epoch: int
    identifier: int
    record: bytes


class Items(_Said, tag=9):
    """Items of the stream from `origin` to `prg`, from `first` on; `prg` has all up to `base`."""

    tenant: str
    origin: int
    prg: int
    first: int
    items: list[bytes]
    base: int


class ItemsTaken(_Said, tag=10):
    """The partition `prg` has everything of `origin` up to `through`."""

    tenant: str
    origin: int
    prg: int
    through: int


class ForwardsHeld(_Said, tag=12):
    """The owner takes no publishes from `origin` now, and says why (quantumqtt §4.6.1)."""

    tenant: str
    origin: int
    owner: int
    reason: str


class SlowDown(_Said, tag=13):
    """A subscriber of the sender cannot follow a publisher of the receiver, or can again."""

    tenant: str
    prg: int
    publisher: bytes
    subscriber: bytes
    slow: bool


class AskedCommand(_Said, tag=14):
    """A section's command for a partition that the receiver leads; `number` is the sender's."""

    tenant: str
    prg: int
    number: int
    command: bytes


class AnsweredCommand(_Said, tag=15):
    """The reply to an `AskedCommand`; None: nobody knows, or the sender does not lead."""

    tenant: str
    prg: int
    number: int
    reply: bytes | None


class QueueAttach(_Said, tag=24):
    """A receiver of the sender wants messages of a queue that the receiver leads.

    `held` are messages that an earlier leader gave it, and `said` what it has said of them.
    """

    tenant: str
    prg: int
    link: int  # the sender's number of this attachment
    queue: bytes
    mode: int
    selector: str
    held: list[int]
    said: list[Settlement]
    not_from: bytes = b""
    terminus: bytes = b""


class QueueCredit(_Said, tag=25):
    """So many messages may be given in all; `taken` have left for the client."""

    tenant: str
    prg: int
    link: int
    limit: int
    taken: int
    drain: int  # another number than before: say when nothing more is there


class QueueDetach(_Said, tag=26):
    """The receiver is gone; `failed`: what it held counts as a failed delivery."""

    tenant: str
    prg: int
    link: int
    failed: bool


class QueueSettles(_Said, tag=27):
    """What a receiver says of messages."""

    tenant: str
    prg: int
    link: int
    said: list[Settlement]


class QueueDeliveries(_Said, tag=28):
    """Messages for a receiver."""

    tenant: str
    prg: int
    link: int
    deliveries: list[tuple[QueueEntry, bytes]]


class QueueSettled(_Said, tag=29):
    """What was said of these messages is durable, or has no meaning any more."""

    tenant: str
    prg: int
    link: int
    numbers: list[int]


class QueueTold(_Said, tag=30):
    """Nothing more is there for a drain of this number; or, with a reason, the attachment ends."""

    tenant: str
    prg: int
    link: int
    drained: int
    ended: int


class NodeAsked(_Said, tag=31):
    """A question of people that the receiver can answer; `number` is the sender's."""

    number: int
    kind: str
    question: bytes


class NodeAnswered(_Said, tag=32):
    """The answer to a `NodeAsked`; None: the sender cannot answer it."""

    number: int
    answer: bytes | None


Said: TypeAlias = (
    RelayOpen
    | RelayData
    | RelayEnd
    | RelayTaken
    | RelayExpelled
    | ForwardedPublishes
    | ForwardsDone
    | Unlogged
    | UnloggedDeliver
    | UnloggedMember
    | Items
    | ItemsTaken
    | ForwardsHeld
    | SlowDown
    | AskedCommand
    | AnsweredCommand
    | QueueAttach
    | QueueCredit
    | QueueDetach
    | QueueSettles
    | QueueDeliveries
    | QueueSettled
    | QueueTold
    | NodeAsked
    | NodeAnswered
)


class Frame(msgspec.Struct, array_like=True):
    """What was said in a turn; or, if that is too long, the next piece of it."""

    incarnation: int
    number: int
    said: list[Said]
    piece: bytes = b""
    at: int = 0  # where in the whole the piece begins
    is_last: bool = True


_decoder = msgspec.msgpack.Decoder(Frame)
_said_decoder: msgspec.msgpack.Decoder[list[Said]] = msgspec.msgpack.Decoder(list[Said])
_encoder = msgspec.msgpack.Encoder()


class _Piece(NamedTuple):
    """Of a word that is too long for a frame: cut and encoded when it leaves, not before.

    A message of 16 MiB is copied several times on its way. A turn that did that all at once would
    be as long as a follower's patience with its leader.
    """

    number: int
    whole: bytes
    begin: int
    end: int

    def encode(self, incarnation: int) -> bytes:
        piece, is_last = self.whole[self.begin : self.end], self.end >= len(self.whole)
        return _encoder.encode(Frame(incarnation, self.number, [], piece, self.begin, is_last))


class LinkOut:
    """What this node has for one peer in this turn."""

    __slots__ = ("_bytes", "_frames", "_held", "_incarnation", "_number", "_said", "dropped")

    def __init__(self, incarnation: int) -> None:
        self._incarnation = incarnation
        self._number = 0
        self._said: list[Said] = []
        self._bytes = 0
        self._frames: deque[bytes | _Piece] = deque()
        self._held = 0  # the bytes of all frames
        self.dropped = 0
        """How many QoS 0 messages were dropped because the peer does not keep up, ever."""

    def say(self, said: Said, size: int) -> None:
        """Let something leave with the turn; frames stay below the size of a packet."""
        if self._held > HELD_BYTES_MAX and isinstance(said, _MAY_BE_LOST):
            self.dropped += 1
            return
        if self._said and self._bytes + size > _FRAME_BYTES_MAX:
            self._close_frame()
        self._said.append(said)
        self._bytes += size

    def _close_frame(self) -> None:
        if self._bytes <= 2 * _FRAME_BYTES_MAX:
            self._number += 1
            encoded = _encoder.encode(Frame(self._incarnation, self._number, self._said))
            self._frames.append(encoded)
            self._held += len(encoded)
        else:
            whole = _encoder.encode(self._said)
            for begin in range(0, len(whole), _FRAME_BYTES_MAX):
                self._number += 1
                end = min(begin + _FRAME_BYTES_MAX, len(whole))
                self._frames.append(_Piece(self._number, whole, begin, end))
            self._held += len(whole)
        self._said, self._bytes = [], 0

    def take(self, bytes_max: int = 1 << 62) -> list[bytes]:
        """Return the next frames, about so many bytes of them and at least one if there is one."""
        if self._said:
            self._close_frame()
        taken: list[bytes] = []
        while self._frames and bytes_max > 0:
            frame = self._frames.popleft()
            if isinstance(frame, _Piece):
                self._held -= frame.end - frame.begin
                frame = frame.encode(self._incarnation)
            else:
                self._held -= len(frame)
            taken.append(frame)
            bytes_max -= len(frame)
        return taken

    @property
    def has_more(self) -> bool:
        """Whether frames are left for the next turn."""
        return bool(self._frames)

    def begin_anew(self) -> None:
        """The connection broke: what the peer did not get, it will notice."""
        self._incarnation += 1
        self._number = 0
        self._said, self._bytes = [], 0
        self._frames.clear()
        self._held = 0


class LinkIn:
    """What one peer says, as long as nothing is missing."""

    __slots__ = ("_incarnation", "_number", "_pieces")

    def __init__(self) -> None:
        self._incarnation = -1
        self._number = 0
        self._pieces = bytearray()

    def receive(self, data: bytes) -> tuple[list[Said], bool]:
        """Return what was said, and whether something before it was lost.

        Raises msgspec.DecodeError for bytes that are no frame.
        """
        frame = _decoder.decode(data)
        is_next = frame.incarnation == self._incarnation and frame.number == self._number + 1
        first_ever = self._incarnation < 0 and frame.number == 1
        self._incarnation, self._number = frame.incarnation, frame.number
        if not (is_next or first_ever):
            self._pieces = bytearray()
        return self._said(frame), not (is_next or first_ever)

    def _said(self, frame: Frame) -> list[Said]:
        """Return what a frame says; of one in pieces nothing before the last, or if one is lost."""
        if not frame.piece:
            return frame.said
        if frame.at != len(self._pieces):
            return []
        self._pieces += frame.piece
        if not frame.is_last:
            return []
        whole, self._pieces = self._pieces, bytearray()
        return _said_decoder.decode(whole)


_FRAME_BYTES_MAX = 1 << 20
HELD_BYTES_MAX = 32 << 20
_MAY_BE_LOST = (Unlogged, UnloggedDeliver, UnloggedMember)
