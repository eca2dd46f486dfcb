"""What a client says once it is let in: each packet goes to whom it concerns, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from quantum.broker import PUBACK, PUBCOMP, PUBREC, SubscribeReply
from quantum.broker.message import BEFORE_V5, FROM_V5, RETAIN, encode_plain_record
from quantum.broker.reasons import QUOTA_EXHAUSTED
from quantum.broker.receiving import REFUSED
from quantum.broker.types import NEVER_EXPIRES
from quantum.partition.leader import PartitionLeader
from quantum.protocols.mqtt.codec import (
    Auth,
    Direction,
    Disconnect,
    Packet,
    PacketType,
    Pingreq,
    ProtocolViolation,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    Suback,
    SubscribePacket,
    Unsuback,
    UnsubscribePacket,
    decode_packet,
)
from quantum.protocols.mqtt.codec.hot import PINGREQ as PINGREQ_BYTE
from quantum.protocols.mqtt.codec.hot import PUBACK as PUBACK_BYTE
from quantum.protocols.mqtt.codec.hot import PUBCOMP as PUBCOMP_BYTE
from quantum.protocols.mqtt.codec.hot import PUBREC as PUBREC_BYTE
from quantum.protocols.mqtt.codec.hot import PUBREL as PUBREL_BYTE
from quantum.protocols.mqtt.codec.hot import SLOW, Row
from quantum.protocols.mqtt.session.authentication import (
    AuthenticationAccepted,
    AuthenticationRefused,
    Challenge,
    Talk,
)
from quantum.protocols.mqtt.session.deliver_out import UPPER_HALF, answer_stray_pubrec
from quantum.protocols.mqtt.session.delivery import Outgoing, system_message
from quantum.protocols.mqtt.session.filter_parts import FilterParts
from quantum.protocols.mqtt.session.permit import is_publish
from quantum.protocols.mqtt.session.publish_in import PublishIn
from quantum.protocols.mqtt.session.session_client import SessionClient
from quantum.protocols.mqtt.session.subscribing import SubscribePlan, plan_unsubscribe

_PINGRESP: Final = b"\xd0\x00"
_QOS_1: Final = frozenset({0x32, 0x33, 0x3A, 0x3B})


class PacketDispatch:
    """The packets of one connection. Made when the first one behind CONNECT comes."""

    __slots__ = ("_connection", "inbound")

    def __init__(self, connection: SessionClient) -> None:
        self._connection = connection
        self.inbound = PublishIn(connection)

    def on_rows(self, buffer: bytes, rows: list[Row]) -> None:
        """Take packets in order; QoS 1 publishes for one partition become one batch, and so do
        PUBACKs. The slots that exchanges leave free are filled once, not after each.
        """
        connection, inbound = self._connection, self.inbound
        owners = connection.permit.owners
        records: list[bytes] = []
        packet_ids: list[int] = []
        topics: list[bytes] = []
        batch_owner: PartitionLeader | None = None
        pubacks: list[int] = []
        client_id, epoch = connection.client_id, connection.epoch
        plain = 1 | (FROM_V5 if connection.is_v5 else BEFORE_V5)
        for first, packet_id, start, topic_at, topic_end, payload_at, end in rows:
            if first in _QOS_1:
                topic = buffer[topic_at:topic_end]
                owner = owners.get(topic) or inbound.owner_of(topic)
                if owner is not batch_owner and batch_owner is not None:
                    inbound.add_batch(batch_owner, records, packet_ids, topics)
                    records, packet_ids, topics = [], [], []
                batch_owner = owner
                if owner is None:
                    inbound.refuse_topic(topic, 1, packet_id)
                    continue
                payload, flags = buffer[payload_at:end], plain | RETAIN if first & 1 else plain
                record = encode_plain_record(topic, payload, flags, client_id, epoch, packet_id)
                records.append(record)
                packet_ids.append(packet_id)
                topics.append(topic)
                continue
            if batch_owner is not None:
                inbound.add_batch(batch_owner, records, packet_ids, topics)
                records, packet_ids, topics, batch_owner = [], [], [], None
            if first == PUBACK_BYTE:
                pubacks.append(packet_id)
                continue
            if pubacks:
                self._on_pubacks(pubacks)
                pubacks = []
            if first == SLOW:
                self._on_slow(buffer[start], buffer[payload_at:end])
            elif first > PUBACK_BYTE:
                self._on_short(first, packet_id)
            else:
                topic, payload = buffer[topic_at:topic_end], buffer[payload_at:end]
                self._on_plain_publish(first, packet_id, topic, payload)
            if not connection.is_live:
                return
        if batch_owner is not None:
            inbound.add_batch(batch_owner, records, packet_ids, topics)
        if pubacks:
            self._on_pubacks(pubacks)
        if connection.outward is not None:
            connection.outward.use_room()

    def on_counted_rows(self, buffer: bytes, rows: list[Row]) -> None:
        """Take packets of a client whose publishes are counted; too many are refused."""
        connection = self._connection
        admitted = connection.permit.admit(buffer, rows)
        if admitted.is_whole:
            self.on_rows(buffer, rows)
            return
        for row in rows:
            if not connection.is_live:
                return
            if is_publish(buffer, row) and (admitted.refuses_all or buffer[row[2]] & 1):
                self._refuse_row(buffer, row)
            else:
                self.on_rows(buffer, [row])

    def _refuse_row(self, buffer: bytes, row: Row) -> None:
        """Answer a publish with Quota exceeded; nothing of it is carried out."""
        first, packet_id, start, _, _, payload_at, end = row
        reason = ReasonCode.QUOTA_EXCEEDED
        if first != SLOW:
            self.inbound.refuse((first & 6) >> 1, packet_id, reason)
            return
        version, body = self._connection.version, buffer[payload_at:end]
        packet = decode_packet(buffer[start], body, version, direction=Direction.TO_SERVER)
        assert isinstance(packet, Publish)
        self.inbound.refuse_publish(packet, reason)

    def _on_plain_publish(self, first: int, packet_id: int, topic: bytes, payload: bytes) -> None:
        """Take a QoS 0 or QoS 2 publish without properties."""
        inbound = self.inbound
        if not first & 6:
            inbound.on_publish_0(topic, payload, first & 1)
            return
        owner = self._connection.permit.owners.get(topic) or inbound.owner_of(topic)
        if owner is None:
            inbound.refuse_topic(topic, 2, packet_id)
        else:
            inbound.on_publish_2(owner, topic, payload, first, packet_id)

    def _on_short(self, first: int, packet_id: int) -> None:
        """Take one of the packets that say nothing but a packet id, or not even that."""
        if first == PUBREL_BYTE:
            self._on_pubrel(packet_id)
        elif first == PUBREC_BYTE:
            self._on_pubrec(packet_id)
        elif first == PUBCOMP_BYTE:
            self._on_pubcomp(packet_id)
        else:
            assert first == PINGREQ_BYTE
            self._connection.stage(_PINGRESP)

    def _on_slow(self, first_byte: int, body: bytes) -> None:
        """Decode a packet; a second CONNECT is none, whatever is in it ([MQTT-3.1.0-2])."""
        if first_byte >> 4 == PacketType.CONNECT:
            raise ProtocolViolation(ReasonCode.PROTOCOL_ERROR, "a second CONNECT")
        packet = decode_packet(
            first_byte, body, self._connection.version, direction=Direction.TO_SERVER
        )
        self._on_packet(packet)

    def _on_packet(self, packet: Packet) -> None:
        match packet:
            case Publish():
                self.inbound.on_publish(packet)
            case SubscribePacket():
                self._on_subscribe(packet)
            case UnsubscribePacket():
                self._on_unsubscribe(packet)
            case Pingreq():
                self._connection.stage(_PINGRESP)
            case Disconnect():
                self._on_disconnect(packet)
            case Puback() | Pubrec() if packet.reason_code.is_failure:
                self._on_negative(packet.packet_id)
            case Puback():
                self._on_pubacks([packet.packet_id])
            case Pubrec():
                self._on_pubrec(packet.packet_id)
            case Pubrel():
                self._on_pubrel(packet.packet_id)
            case Pubcomp():
                self._on_pubcomp(packet.packet_id)
            case Auth():
                self._on_auth(packet)
            case _:
                raise ProtocolViolation(ReasonCode.PROTOCOL_ERROR, "a packet out of place")

    def _on_pubrel(self, packet_id: int) -> None:
        """End a QoS 2 exchange; one that is not known is over already, and that is fine."""
        if not self.inbound.defers_release(packet_id):
            self.inbound.release(packet_id)

    # What the client says of what it got.

    def _on_pubacks(self, packet_ids: list[int]) -> None:
        connection = self._connection
        for packet_id in packet_ids:
            if packet_id < UPPER_HALF:
                connection.acknowledge(PUBACK, packet_id)
        if connection.outward is not None:
            connection.outward.on_pubacks(packet_ids)

    def _on_pubrec(self, packet_id: int) -> None:
        if packet_id < UPPER_HALF:
            self._connection.acknowledge(PUBREC, packet_id)
        elif (outward := self._connection.outward) is None or not outward.on_pubrec(packet_id):
            answer_stray_pubrec(self._connection, packet_id)

    def _on_pubcomp(self, packet_id: int) -> None:
        if packet_id < UPPER_HALF:
            self._end_kept(PUBCOMP, packet_id)
        elif (outward := self._connection.outward) is not None:
            outward.on_pubcomp(packet_id)

    def _on_negative(self, packet_id: int) -> None:
        """The client refused a message: the exchange is over (MQTT 5, 4.3.3)."""
        if packet_id < UPPER_HALF:
            self._end_kept(REFUSED, packet_id)
        elif (outward := self._connection.outward) is not None:
            outward.on_refused(packet_id)

    def _end_kept(self, kind: int, packet_id: int) -> None:
        self._connection.acknowledge(kind, packet_id)
        if (outward := self._connection.outward) is not None:
            outward.settle_kept(packet_id)

    # Who it is, and its leave.

    def _on_auth(self, packet: Auth) -> None:
        """Let a client that is let in prove again who it is."""
        connection = self._connection
        talk = connection.talk
        if talk is None:  # [MQTT-4.12.0-6]
            why = "AUTH without an authentication method"
            raise ProtocolViolation(ReasonCode.PROTOCOL_ERROR, why)
        verdict = talk.on_auth(packet)
        if isinstance(verdict, Challenge):
            connection.write_now(talk.challenge(verdict.data))
        elif isinstance(verdict, AuthenticationAccepted):
            self._on_accepted_again(talk, verdict)
        else:
            self._on_refused_again(verdict)

    def _on_accepted_again(self, talk: Talk, verdict: AuthenticationAccepted) -> None:
        connection = self._connection
        connection.believe(verdict)
        if verdict.identity in (None, connection.identity):
            connection.send(talk.success())
            return
        why = "it authenticated again as somebody else"
        connection.note_refused("IdentityChanged", why)
        connection.expelled(why)

    def _on_refused_again(self, verdict: AuthenticationRefused) -> None:
        connection = self._connection
        if verdict.audit:
            connection.note_refused(verdict.audit, verdict.why)
        connection.gracefully = True  # no will after that (§10.4)
        is_shut = verdict.reason is ReasonCode.SERVER_UNAVAILABLE
        reason = ReasonCode.SERVER_BUSY if is_shut else verdict.reason  # C11
        connection.disconnect(reason, verdict.why)  # [MQTT-4.12.1-2]

    def _on_disconnect(self, packet: Disconnect) -> None:
        """End as the client wants it."""
        connection = self._connection
        expiry = packet.properties.session_expiry_interval
        if expiry is not None:
            if expiry and not connection.expiry_seconds:
                raise ProtocolViolation(
                    ReasonCode.PROTOCOL_ERROR, "the session expiry interval was zero"
                )
            if expiry != NEVER_EXPIRES:
                expiry = min(expiry, connection.limits.session_expiry_seconds_max)
            connection.new_expiry_seconds = expiry
        connection.gracefully = packet.reason_code is ReasonCode.SUCCESS  # [MQTT-3.14.4-3]
        connection.drop("disconnected by the client")

    # Subscriptions.

    def _on_subscribe(self, packet: SubscribePacket) -> None:
        connection = self._connection
        plan = connection.permit.plan_subscribe(packet)
        if not plan.specs:  # nothing of it concerns the log
            connection.send(plan.answer([]))
            return

        def subscribed(found: SubscribeReply | None) -> None:
            if found is None:
                connection.suback_left()
            else:
                suback = plan.answer(found.reasons)
                if QUOTA_EXHAUSTED in found.reasons:
                    why = "the tenant is over its quota for long"
                    connection.end_soon(ReasonCode.QUOTA_EXCEEDED, why)
                self._answer_when_taken(found, suback, connection.suback_left)
                self._answer_system(plan, suback)

        connection.suback_due()
        commands = plan.commands(connection.client_id, connection.window)
        FilterParts(connection, commands, subscribed).begin()

    def _answer_system(self, plan: SubscribePlan, suback: Suback) -> None:
        """Send what `$SYS` says now, as if it were retained."""
        connection = self._connection
        for topic, payload, identifiers in plan.system_answers(suback, connection.home):
            connection.deliver(Outgoing(system_message(topic, payload)), 0, 1, identifiers)

    def _on_unsubscribe(self, packet: UnsubscribePacket) -> None:
        connection = self._connection
        plan = plan_unsubscribe(packet)
        if not connection.permit.admits_unsubscribe(packet):
            connection.send(plan.answer_refused())
            return
        if not connection.epoch and not connection.operations:
            connection.send(plan.answer_unknown())
            return

        def unsubscribed(found: SubscribeReply | None) -> None:
            if found is not None:
                self._answer_when_taken(found, plan.answer(found.reasons))

        FilterParts(connection, plan.commands(connection.client_id), unsubscribed).begin()

    def _answer_when_taken(
        self,
        found: SubscribeReply,
        answer: Suback | Unsuback,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """Answer when every partition that may own such a topic knows; then comes `then`."""
        connection = self._connection

        def taken() -> None:
            connection.send_live(answer)
            then()

        if found.awaited and connection.prg is not None:
            connection.prg.when_taken(found.awaited, taken)
        else:
            taken()
