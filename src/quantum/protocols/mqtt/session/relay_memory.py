"""What the node that a client reached must remember so that the client outlives its leader.

The session runs on another node. When that one is gone, or leads no more, the client's node says
CONNECT for it to whoever leads next, and says again what had no answer: what a client does after
a reconnect, without the client. That is no substitute where something would be lost unsaid:

- a session that outlives its connection is in the log, with all that waits for the client;
- a clean one is gone with its leader. Without a subscription and an open QoS 2 exchange nothing of
  it is missed. With one, or with a will, the connection must end, and the client know that.
"""

from __future__ import annotations

from typing import Final

from quantum.protocols.mqtt.codec import PacketReader, PacketType, PeerFault
from quantum.protocols.mqtt.codec.hot import (
    PINGREQ,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    SLOW,
    UNBOUNDED,
    scan,
)

MOVED: Final = b"\xe0\x01\x9d"
"""DISCONNECT of MQTT 5: Server moved."""
REMEMBERED_BYTES_MAX: Final = 4 << 20
"""Who has more unanswered is not remembered any more."""
_PUBLISH: Final = 0x30
_DUP: Final = 8
_QOS_BITS: Final = 6
_QOS_2: Final = 4
_CLEAN: Final = 2
_WILL: Final = 4
_TOPIC_ALIAS: Final = 0x23
_ENDS: Final = frozenset({PacketType.AUTH, PacketType.DISCONNECT, PacketType.CONNECT})
"""After these, nothing is resumed: what was said there is between the two of them."""
_ANSWERS: Final = frozenset(
    {
        PacketType.PUBACK,
        PacketType.PUBREC,
        PacketType.PUBCOMP,
        PacketType.SUBACK,
        PacketType.UNSUBACK,
    }
)
_HAS_ID: Final = frozenset({PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE, PacketType.PUBREL})


class RelayMemory:
    """The CONNECT of one relayed client, and what it said that has no answer yet."""

    __slots__ = (
        "_connect",
        "_has_subscribed",
        "_is_v5",
        "_is_whole",
        "_open",
        "_open_bytes",
        "_outlives",
        "_pings",
        "_reader",
    )

    def __init__(
        self, connect: bytes, *, is_v5: bool, outlives: bool, packet_bytes_max: int
    ) -> None:
        """Remember a client by its CONNECT packet; `outlives`: its session does the connection."""
        self._connect = connect
        self._is_v5 = is_v5
        self._outlives = outlives
        self._reader = PacketReader(packet_bytes_max)
        self._open: dict[int, bytes] = {}
        """Packets without an answer, by their ids, in the order in which they came."""
        self._open_bytes = 0
        self._pings = 0
        self._has_subscribed = False
        self._is_whole = True  # all that matters was understood, and is remembered

    @property
    def is_v5(self) -> bool:
        return self._is_v5

    @property
    def farewell(self) -> bytes:
        """What a client is told that cannot go on: before MQTT 5 there are no words for it."""
        return MOVED if self._is_v5 else b""

    @property
    def needs_session(self) -> bool:
        """Whether the next leader must have the session."""
        return self._outlives

    @property
    def can_resume(self) -> bool:
        """Whether nothing is lost where another leader goes on with this client."""
        if not self._is_whole or self._outlives:
            return self._is_whole
        has_will = self._connect[self._flags_at] & _WILL
        return (
            not has_will
            and not self._has_subscribed
            and not any(map(_is_once, self._open.values()))
        )

    def connect_again(self) -> bytes:
        """Return the CONNECT for the next leader: it finds the session, if there is one."""
        if not self._outlives:
            return self._connect
        at = self._flags_at
        flags = bytes((self._connect[at] & ~_CLEAN,))
        return self._connect[:at] + flags + self._connect[at + 1 :]

    def said_again(self) -> bytes:
        """Return what the next leader must hear behind it, and the beginning of what comes now."""
        again = [
            bytes((each[0] | _DUP,)) + each[1:] if each[0] >> 4 == PacketType.PUBLISH else each
            for each in self._open.values()
        ]
        pings = bytes((PINGREQ, 0)) * self._pings
        return b"".join(again) + pings + self._reader.take_all()

    @property
    def _flags_at(self) -> int:
        """Where the flags are: behind the header, the protocol's name and its level."""
        body = next(at for at in range(1, 5) if self._connect[at] < 0x80) + 1
        return body + 2 + int.from_bytes(self._connect[body : body + 2], "big") + 1

    # What passes.

    def client_said(self, data: bytes) -> None:
        """Note what needs an answer."""
        if not self._is_whole:
            return
        self._reader.receive(data)
        try:
            while self._is_whole and (window := self._reader.window()) is not None:
                buffer, start = window
                limit = self._reader.packet_bytes_max
                rows, end, _ = scan(buffer, start, limit, self._is_v5, UNBOUNDED)
                for first, packet_id, at, _, _, body, stop in rows:
                    if first == SLOW:
                        self._on_slow(buffer[at], buffer, at, body, stop)
                    elif packet_id and (first >> 4 == PacketType.PUBLISH or first == PUBREL):
                        self._add(packet_id, buffer[at:stop])
                    elif first == PINGREQ:
                        self._pings += 1
                self._reader.consume(end)
        except PeerFault:
            self._forget()  # its leader ends it

    def _on_slow(self, first: int, buffer: bytes, at: int, body: int, stop: int) -> None:
        kind = first >> 4
        if kind == PacketType.PUBLISH:
            self._on_slow_publish(first, buffer, at, body, stop)
        elif kind in _HAS_ID:
            self._has_subscribed |= kind == PacketType.SUBSCRIBE
            self._add(int.from_bytes(buffer[body : body + 2], "big"), buffer[at:stop])
        elif kind in _ENDS:
            self._forget()

    def _on_slow_publish(self, first: int, buffer: bytes, at: int, body: int, stop: int) -> None:
        """Note a PUBLISH with properties; an alias is the connection's, and ends with it."""
        topic_end = body + 2 + int.from_bytes(buffer[body : body + 2], "big")
        properties_at = topic_end + (2 if first & _QOS_BITS else 0)
        if self._is_v5:
            length = next((n for n in range(properties_at, stop) if buffer[n] < 0x80), stop)
            until = min(stop, length + 1 + _variable(buffer[properties_at : length + 1]))
            if _TOPIC_ALIAS in buffer[length + 1 : until]:
                self._forget()
                return
        if first & _QOS_BITS:
            self._add(int.from_bytes(buffer[topic_end : topic_end + 2], "big"), buffer[at:stop])

    def _add(self, packet_id: int, packet: bytes) -> None:
        self._settle(packet_id)
        self._open[packet_id] = packet
        self._open_bytes += len(packet)
        if self._open_bytes > REMEMBERED_BYTES_MAX:
            self._forget()

    def server_said(self, data: bytes) -> None:
        """Note what has its answer. Leaders write whole packets."""
        if not self._is_whole or (not self._open and not self._pings):
            return
        rows, end, _ = scan(data, 0, UNBOUNDED, self._is_v5, UNBOUNDED)
        for first, packet_id, at, _, _, body, _ in rows:
            if first in (PUBACK, PUBREC, PUBCOMP):
                self._settle(packet_id)
            elif first == SLOW:
                kind = data[at] >> 4
                if kind in _ANSWERS:
                    self._settle(int.from_bytes(data[body : body + 2], "big"))
                elif kind == PacketType.PINGRESP:
                    self._pings -= self._pings > 0
        if end != len(data):
            self._forget()

    def _settle(self, packet_id: int) -> None:
        self._open_bytes -= len(self._open.pop(packet_id, b""))

    def _forget(self) -> None:
        self._is_whole = False
        self._open.clear()


def _is_once(packet: bytes) -> bool:
    """Say whether a packet belongs to a QoS 2 exchange."""
    return packet[0] == PUBREL or (packet[0] & 0xF0 == _PUBLISH and packet[0] & _QOS_BITS == _QOS_2)


def _variable(encoded: bytes) -> int:
    return sum((byte & 0x7F) << 7 * n for n, byte in enumerate(encoded))
