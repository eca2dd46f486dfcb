"""The frequent packets without an object for any of them: find them in a buffer, write them.

Flat and fully typed: mypyc compiles it as it stands. `scan` finds what is well formed and
frequent, and judges nothing: whatever looks otherwise is a SLOW row, which `decode_packet`
decodes or refuses with the right reason.
"""

from __future__ import annotations

import sys
from array import array
from typing import Final

# (first byte, packet id, start, topic start, topic end, payload start, end): positions in the
# buffer. `start` is where the first byte stands; `end` ends the payload and the packet.
Row = tuple[int, int, int, int, int, int, int]

SLOW: Final = 0  # instead of a first byte; that is `buffer[start]`, the body payload start to end

PUBACK: Final = 0x40
PUBREC: Final = 0x50
PUBREL: Final = 0x62
PUBCOMP: Final = 0x70
PINGREQ: Final = 0xC0
_SUBSCRIBE: Final = 0x82
_UNSUBSCRIBE: Final = 0xA2

PACKET_COST: Final = 64
"""What a packet costs at the least, in bytes of a long one: PINGREQ has two and takes as long."""
PUBLISH_COST: Final = 128
"""The same for a PUBLISH."""
SLOW_COST: Final = 512
"""What a packet costs beyond that which is decoded field by field."""
FILTER_COST: Final = 64
"""What each byte of a SUBSCRIBE or UNSUBSCRIBE costs: each filter changes a trie in two logs."""
FILTERS_ALONE_BYTES: Final = 512
"""A longer one ends the walk: it is carried out in parts, and what follows it waits for them."""
UNBOUNDED: Final = 1 << 62

_LITTLE_ENDIAN: Final = sys.byteorder == "little"


def scan(  # noqa: PLR0917  # hot: positional
    buffer: bytes,
    start: int,
    packet_bytes_max: int,
    is_v5: bool,
    cost_max: int,
    before_publish: bool = False,
) -> tuple[list[Row], int, int]:
    """Find whole packets from `start` on: their rows, where the last of them ends, and their cost.

    The walk ends behind the packet that brings the cost to `cost_max`, so that nobody's megabytes
    of small packets are taken in one go; there is always a first one. Behind a SUBSCRIBE, or with
    `before_publish`, it ends before a PUBLISH, which is to come behind what was subscribed to.

    Frequent rows: PUBLISH with a topic and without properties, the four acknowledgements
    that say success, PINGREQ. A PUBLISH's topic is not empty, and not checked: whoever keeps
    topics checks those that are new (`check_topic_name`). The walk ends before a packet that
    is not whole, is larger than `packet_bytes_max`, or has an ill-formed length: `PacketReader`
    tells which.
    """
    rows: list[Row] = []
    position = start
    end = len(buffer)
    cost = 0
    while end - position >= 2 and cost < cost_max:
        first = buffer[position]
        length = buffer[position + 1]
        body = position + 2
        if length > 127:
            shift = 7
            length &= 127
            byte = 128
            while byte > 127 and body < end and shift < 28:
                byte = buffer[body]
                length |= (byte & 127) << shift
                body += 1
                shift += 7
            if byte == 0 or byte > 127:
                break
        stop = body + length
        size = stop - position
        if stop > end or size > packet_bytes_max:
            break
        if before_publish and 0x30 <= first < 0x40:
            break
        cost += size if size > PACKET_COST else PACKET_COST
        if 0x30 <= first < 0x40:
            if size < PUBLISH_COST:
                cost += PUBLISH_COST - (size if size > PACKET_COST else PACKET_COST)
            if length < 3:
                rows.append((SLOW, 0, position, body, body, body, stop))
                cost += SLOW_COST
                position = stop
                continue
            topic = body + 2
            after = topic + (buffer[body] << 8 | buffer[body + 1])
            payload = after
            packet_id = 0
            if first & 6:
                payload += 2
                if payload <= stop and first & 6 != 6:
                    packet_id = buffer[after] << 8 | buffer[after + 1]
                if not packet_id:
                    payload = stop + 1
            elif first & 8:
                payload = stop + 1
            if is_v5:
                if payload < stop and not buffer[payload]:
                    payload += 1
                else:
                    payload = stop + 1
            if payload <= stop and after > topic:
                rows.append((first, packet_id, position, topic, after, payload, stop))
            else:
                rows.append((SLOW, 0, position, body, body, body, stop))
                cost += SLOW_COST
        elif (
            first in (PUBACK, PUBREC, PUBREL, PUBCOMP)
            and (length == 2 or (is_v5 and 2 < length < 5 and not any(buffer[body + 2 : stop])))
            and (buffer[body] or buffer[body + 1])
        ):
            packet_id = buffer[body] << 8 | buffer[body + 1]
            rows.append((first, packet_id, position, stop, stop, stop, stop))
        elif first == PINGREQ and not length:
            rows.append((first, 0, position, stop, stop, stop, stop))
        else:
            rows.append((SLOW, 0, position, body, body, body, stop))
            cost += SLOW_COST
            if first in (_SUBSCRIBE, _UNSUBSCRIBE):
                before_publish = before_publish or first == _SUBSCRIBE
                cost += size * FILTER_COST
                if size > FILTERS_ALONE_BYTES:
                    position = stop
                    break
        position = stop
    return rows, position, cost


def publish_first_byte(qos: int, retain: bool, dup: bool) -> int:
    """Return the first byte of a PUBLISH, with its flags (§3.3.1)."""
    return 0x30 | qos << 1 | (1 if retain else 0) | (8 if dup else 0)


class SharedPublish:
    """One message on its way to many subscribers, who share its encoded topic and payload.

    `properties` is the encoded block with its length, b"\\0" for none, and None before MQTT 5.
    The caller has checked topic and size.
    """

    __slots__ = ("_first_byte", "_prefix", "_tail", "_topic")

    def __init__(self, topic: bytes, payload: bytes, properties: bytes | None) -> None:
        self._topic = len(topic).to_bytes(2, "big") + topic
        self._tail = payload if properties is None else properties + payload
        self._first_byte = 0  # of the last packet, and
        self._prefix = b""  # all of that packet up to its packet identifier

    def encode(self, first_byte: int, packet_id: int) -> bytes:
        """Encode the packet for one subscriber; `packet_id` counts where the QoS is not 0."""
        if first_byte & 6:
            return b"".join(
                (self._prefix_for(first_byte), packet_id.to_bytes(2, "big"), self._tail)
            )
        return self._prefix_for(first_byte) + self._tail

    def append_to(self, pieces: list[bytes], first_byte: int, packet_id: int) -> None:
        """Append that packet in pieces, for a connection that joins all it has once a turn."""
        pieces.append(self._prefix_for(first_byte))
        if first_byte & 6:
            pieces.append(packet_id.to_bytes(2, "big"))
        pieces.append(self._tail)

    def _prefix_for(self, first_byte: int) -> bytes:
        if first_byte != self._first_byte:
            length = len(self._topic) + len(self._tail) + (2 if first_byte & 6 else 0)
            self._prefix = bytes((first_byte,)) + _encode_length(length) + self._topic
            self._first_byte = first_byte
        return self._prefix


def encode_publish(
    topic: bytes, payload: bytes, first_byte: int, packet_id: int, properties: bytes | None
) -> bytes:
    """Encode one PUBLISH for one subscriber; the arguments are those of SharedPublish."""
    return SharedPublish(topic, payload, properties).encode(first_byte, packet_id)


def encode_ack(first_byte: int, packet_id: int) -> bytes:
    """Encode an acknowledgement that says success: PUBACK, PUBREC, PUBREL or PUBCOMP."""
    return (first_byte << 24 | 0x20000 | packet_id).to_bytes(4, "big")


def encode_acks(first_byte: int, packet_ids: list[int]) -> bytes:
    """Encode the same acknowledgement for many packet identifiers, back to back."""
    head = first_byte << 24 | 0x20000
    words = array("I", [head | packet_id for packet_id in packet_ids])
    if _LITTLE_ENDIAN:
        words.byteswap()
    return words.tobytes()


def _encode_length(length: int) -> bytes:
    if length < 128:
        return bytes((length,))
    if length < 16_384:
        return bytes((length & 127 | 128, length >> 7))
    if length < 2_097_152:
        return bytes((length & 127 | 128, length >> 7 & 127 | 128, length >> 14))
    return bytes(
        (length & 127 | 128, length >> 7 & 127 | 128, length >> 14 & 127 | 128, length >> 21)
    )
