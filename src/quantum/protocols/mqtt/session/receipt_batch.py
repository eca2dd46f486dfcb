"""Acknowledgements that name their message: what a publisher asks for receives, others pay nothing.

A PUBLISH of MQTT 5 with the user property `quantum-receipt`, whatever its value, is answered with
one of the same name: the id by which `quantum receipts get` finds the message in the log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from clustor.security.receipts import digest_message, receipt_id
from quantum.broker import Message
from quantum.partition.batches import PublishBatch, Token
from quantum.partition.leader import PartitionLeader
from quantum.protocols.mqtt.codec import (
    Properties,
    ProtocolVersion,
    Puback,
    Publish,
    Pubrec,
    ReasonCode,
    encode_packet,
)
from quantum.protocols.mqtt.codec.types import PacketId
from quantum.protocols.mqtt.session.session_client import SessionClient
from quantum.protocols.mqtt.session.traces import PublishTrace, TracedBatch

RECEIPT_PROPERTY: Final = "quantum-receipt"
_QOS_1: Final = 1

MakeBatch: TypeAlias = Callable[[bytes], PublishBatch]
"""Makes the batch of one publish out of the acknowledgement that waits."""


def batch_maker(
    connection: SessionClient,
    packet: Publish,
    message: Message,
    owner: PartitionLeader,
    trace: PublishTrace | None,
) -> MakeBatch | None:
    """Return what makes the batch of a publish with properties; None: it is like any other."""
    if packet.qos and _asks(packet) and connection.agreed.wants_reasons:
        return lambda ack: ReceiptBatch(connection, ack, message, owner, trace)
    if trace is not None:
        return lambda ack: TracedBatch(connection, ack, trace)
    return None


def _asks(packet: Publish) -> bool:
    said = packet.properties.user_properties
    return bool(said) and any(name == RECEIPT_PROPERTY for name, _ in said)


class ReceiptBatch(PublishBatch):
    """A batch of one publish whose answer names the entry of the log that has it."""

    __slots__ = ("_group", "_message", "_packet_bytes_max", "_trace")

    def __init__(
        self,
        owner: SessionClient,
        token: Token,
        message: Message,
        partition: PartitionLeader,
        trace: PublishTrace | None,
    ) -> None:
        super().__init__(owner, token, 1)
        self._message = message
        self._group = int(partition.group.partition_id)
        self._packet_bytes_max = owner.agreed.packet_bytes_max
        self._trace = trace

    def finish(self, index: int = 0) -> None:
        reason = self.refused[0][1] if self.refused else 0
        is_refused = reason >= ReasonCode.UNSPECIFIED_ERROR
        if self._trace is not None:
            self._trace.finish(f"0x{reason:02x}" if is_refused else "")
        if index and not is_refused:
            self._name_entry(index, reason)
        super().finish(index)

    def _name_entry(self, index: int, reason: int) -> None:
        """Say in the acknowledgement where the message is, if that fits what the client takes."""
        message = self._message
        name = receipt_id(self._group, index, digest_message(message.topic, message.payload))
        kind = Puback if message.qos == _QOS_1 else Pubrec
        answer = encode_packet(
            kind(
                PacketId(message.packet_id),
                ReasonCode(reason),
                Properties(user_properties=((RECEIPT_PROPERTY, name),)),
            ),
            ProtocolVersion.V5,
        )
        if not self._packet_bytes_max or len(answer) <= self._packet_bytes_max:
            self.token, self.refused = answer, None
