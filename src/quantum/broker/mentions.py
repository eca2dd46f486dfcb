"""Where a message stands in the commands of an entry, and when: the log read as a story."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from quantum.broker.commands import (
    OWN_ORIGIN,
    PUBLISHES_HEAD,
    ChannelItems,
    Command,
    PublishesHead,
    PublishOnce,
    decode_known,
)
from quantum.broker.items import Deliver, Forward, Returned, Targeted, decode_item
from quantum.broker.message import Message, decode_record
from quantum.broker.sections import is_section_command, section_stamp


class MentionKind(StrEnum):
    """What an entry does with a message."""

    PUBLISHED = "published"  # by a client whose session is here, or passed on by its leader
    TAKEN = "taken"  # at QoS 2, in the partition of the publisher's session
    FORWARDED = "forwarded"  # that one, in the partition of its topic
    DELIVERED = "delivered"  # to a partition whose sessions want it
    TARGETED = "targeted"  # to one session: its turn in a shared subscription, or retained
    RETURNED = "returned"  # not acknowledged by a member of a shared subscription


@dataclass(frozen=True, slots=True)
class Mention:
    """One message in one command."""

    kind: MentionKind
    at_ms: int
    message: Message
    origin: int | None = None
    """The partition that it came from; None: its publisher's session is here."""
    client_id: bytes = b""
    share: bytes = b""


@dataclass(frozen=True, slots=True)
class MessageIdentity:
    """What tells a message from all others: who sent it, in which exchange, and what it says."""

    client_id: bytes
    epoch: int
    packet_id: int
    topic: bytes
    payload: bytes

    @classmethod
    def of(cls, message: Message) -> MessageIdentity:
        return cls(
            message.client_id, message.epoch, message.packet_id, message.topic, message.payload
        )

    @property
    def needle(self) -> bytes:
        """Bytes that stand in every entry which has the message."""
        return self.client_id + self.topic


def stamp_of(command: bytes) -> int:
    """Return the time that a command says; 0: it says none."""
    if command[:1] == b"\0" and len(command) >= PUBLISHES_HEAD.size:
        return PublishesHead(*PUBLISHES_HEAD.unpack_from(command)).now_ms
    if is_section_command(command):
        return section_stamp(command)
    return int(getattr(decode_known(command), "now_ms", 0))


def mentions_in(commands: Sequence[bytes]) -> Iterator[Mention]:
    """Walk all messages of the commands of one entry; what no build wrote is passed over."""
    for command in commands:
        try:
            if command[:1] == b"\0":
                yield from _packed(command)
            elif not is_section_command(command):
                yield from _recorded(decode_known(command))
        except (msgspec.DecodeError, ValueError, struct.error):
            continue


def _packed(command: bytes) -> Iterator[Mention]:
    head = PublishesHead(*PUBLISHES_HEAD.unpack_from(command))
    origin = None if head.origin == OWN_ORIGIN else head.origin
    at = PUBLISHES_HEAD.size
    while at < len(command):
        message, at = decode_record(command, at)
        yield Mention(MentionKind.PUBLISHED, head.now_ms, message, origin)


def _recorded(command: Command | None) -> Iterator[Mention]:
    if isinstance(command, PublishOnce):
        for record in command.records:
            yield Mention(MentionKind.TAKEN, command.now_ms, decode_record(record)[0])
    elif isinstance(command, ChannelItems):
        for encoded in command.items:
            found = _in_item(encoded, command)
            if found is not None:
                yield found


def _in_item(encoded: bytes, command: ChannelItems) -> Mention | None:
    now_ms, origin = command.now_ms, command.origin
    match decode_item(encoded):
        case Deliver(record):
            message = decode_record(record)[0]
            return Mention(MentionKind.DELIVERED, now_ms, message, origin)
        case Forward(record):
            return Mention(MentionKind.FORWARDED, now_ms, decode_record(record)[0], origin)
        case Targeted(client_id=client_id, record=record, share=share):
            message = decode_record(record)[0]
            return Mention(MentionKind.TARGETED, now_ms, message, origin, client_id, share)
        case Returned(share=share, record=record):
            message = decode_record(record)[0]
            return Mention(MentionKind.RETURNED, now_ms, message, origin, share=share)
        case _:
            return None
