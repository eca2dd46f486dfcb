"""What one client publishes: each message once into the log, each answer in its turn."""

from __future__ import annotations

from collections import deque
from typing import Final

from quantum.broker import Message
from quantum.broker.message import BEFORE_V5, BEGINS, FROM_V5, mark_record
from quantum.partition.batches import PublishBatch
from quantum.partition.leader import PartitionLeader
from quantum.partition.reasons import RefusalReason
from quantum.protocols.mqtt.codec import (
    MalformedPacket,
    ProtocolViolation,
    Publish,
    ReasonCode,
    check_topic_name,
    has_too_many_levels,
    is_text,
)
from quantum.protocols.mqtt.codec.hot import PUBACK, PUBCOMP, PUBREC, encode_ack, encode_acks
from quantum.protocols.mqtt.session.delivery import forwardable
from quantum.protocols.mqtt.session.receipt_batch import MakeBatch, batch_maker
from quantum.protocols.mqtt.session.session_client import SessionClient
from quantum.protocols.mqtt.session.terms import is_bridge_state

ACK_BYTES: Final = 4
THROTTLED_MS: Final = 100
"""For how long a publisher is left unread whose tenant stores more than its quota (§11.2)."""
_RESERVED: Final = b"$"


class _Exchange:
    """A QoS 2 publish that is not released. `batch` is None once its PUBREC has left."""

    __slots__ = ("batch", "fingerprint", "is_released", "repeats")

    def __init__(self, batch: PublishBatch | None, payload: bytes = b"") -> None:
        self.batch = batch
        self.fingerprint = hash(payload)  # 65,535 whole payloads would be too much to hold
        self.repeats = 0  # how often the same came again without the DUP flag
        self.is_released = False  # its PUBREL came before its PUBREC had left


class PublishIn:
    """The publishes of one connection. Made when the first one comes."""

    __slots__ = (
        "_aliases",
        "_answers",
        "_begun",
        "_connection",
        "_exchanges",
        "_is_over",
        "_logged_0",
        "_open",
    )
    # `_open` counts publishes without an answer, `_exchanges` those of QoS 2 without a PUBREL.

    def __init__(self, connection: SessionClient) -> None:
        self._connection = connection
        self._answers: deque[PublishBatch] = deque()
        self._begun: set[tuple[PartitionLeader | None, int]] = set()
        """Where publishes went, at which QoS: the first one of each is marked as that."""
        self._logged_0: dict[PartitionLeader, PublishBatch] = {}
        """The last QoS 0 publish for each partition that went through its log."""
        self._is_over = False  # a publish was refused, and there are no words for it
        self._open = 0
        self._exchanges: dict[int, _Exchange] = {}
        self._aliases: dict[int, bytes] = {}

    # QoS 1 comes in batches, which the connection collects.

    def add_batch(
        self,
        owner: PartitionLeader,
        records: list[bytes],
        packet_ids: list[int],
        topics: list[bytes],
        make: MakeBatch | None = None,
    ) -> None:
        """Send QoS 1 publishes into the log, and let their answers wait in order."""
        self._connection.node.meters.publishes_in[1] += len(records)
        acks = encode_acks(PUBACK, packet_ids)
        batch = PublishBatch(self._connection, acks, len(records)) if make is None else make(acks)
        if self._connection.is_v5 and owner.leading:
            sessions = self._connection.home.sessions[owner.number]
            unwanted = {topic for topic in set(topics) if not sessions.is_wanted(topic)}
            if unwanted:
                batch.refused = [
                    (number, ReasonCode.NO_MATCHING_SUBSCRIBERS)
                    for number, topic in enumerate(topics)
                    if topic in unwanted
                ]
        self._wait_for(batch)
        if (owner, 1) not in self._begun:
            records[0] = self._begin(owner, 1, records[0])
        self._log(owner, batch, records)

    def _begin(self, owner: PartitionLeader | None, qos: int, record: bytes) -> bytes:
        """Mark the first publish of its way; None: the way of what is logged with its session."""
        if (owner, qos) in self._begun or self._connection.is_v5:
            return record
        self._begun.add((owner, qos))
        return mark_record(record, BEGINS)

    def ring_grew(self, fresh: list[PartitionLeader]) -> None:
        """What goes to these partitions goes on what went to others: it does not begin anew.

        A publish before it may have been refused where its topic was; what follows that one is
        refused where the topic is now, until the client's next connection (`turned_away`).
        """
        self._begun |= {(prg, qos) for prg in fresh for qos in (1, 2)}

    def _log(self, owner: PartitionLeader, batch: PublishBatch, records: list[bytes]) -> None:
        prg = self._connection.prg
        assert prg is not None
        meters = self._connection.node.meters
        if owner is prg:
            meters.local += batch.count
            prg.publish(batch, records)
        else:
            meters.forwarded += batch.count
            prg.forward(owner.number, batch, records)
        self._pace(prg, owner)

    def _pace(self, prg: PartitionLeader, owner: PartitionLeader) -> None:
        """Stop reading where too much waits for a log, or for subscribers that do not keep up."""
        connection = self._connection
        for each in (prg, owner):
            if each.backlog.is_high:
                each.backlog.hold(connection)
        home = connection.home
        if (owner.is_over_quota or prg.is_over_quota) and not connection.is_held:
            home.tenant.rest(connection, connection.node.tick_ms + THROTTLED_MS)
        queued = home.queued
        # Who has a queue of its own is read in any case: its acknowledgements make it shorter.
        if queued.is_high and not connection.queued_bytes:
            queued.hold(connection)

    def _wait_for(self, batch: PublishBatch) -> None:
        self._answers.append(batch)
        connection = self._connection
        batch.began_ms = connection.node.clock_ms()
        if batch.token[0] != PUBREC:
            self._open += batch.count
        if connection.is_v5 and self.unanswered > connection.limits.receive_maximum:
            raise ProtocolViolation(
                ReasonCode.RECEIVE_MAXIMUM_EXCEEDED, "more open publishes than allowed"
            )

    @property
    def unanswered(self) -> int:
        """How many publishes have no answer yet, or no end."""
        return self._open + len(self._exchanges)

    def release_answers(self) -> None:
        """Let the answers leave whose turn it is ([MQTT-4.6.0-2], [MQTT-4.6.0-3])."""
        answers = self._answers
        while answers and answers[0].done and not self._is_over:
            batch = answers.popleft()
            self._connection.node.meters.note_answered(batch.began_ms, batch.count)
            self._connection.stage(
                batch.token if batch.refused is None else self._answers_with_reasons(batch)
            )
            if batch.token[0] == PUBREC:
                self._pubrec_left(batch)
            else:
                self._open -= batch.count

    def _answers_with_reasons(self, batch: PublishBatch) -> bytes:
        """Say which publishes were refused; before MQTT 5 there are no words for it."""
        acks: bytes = batch.token
        reasons = dict(batch.refused or ())
        if not self._connection.is_v5:
            if any(reason >= ReasonCode.UNSPECIFIED_ERROR for reason in reasons.values()):
                self._is_over = True  # what follows is sent again with it, in its order
                self._connection.end_soon(ReasonCode.QUOTA_EXCEEDED, "a publish was refused")
                return b""
            return acks
        pieces = []
        for number in range(batch.count):
            ack = acks[number * ACK_BYTES : (number + 1) * ACK_BYTES]
            reason = reasons.get(number, 0)
            pieces.append(bytes((ack[0], 3)) + ack[2:] + bytes((reason,)) if reason else ack)
        return b"".join(pieces)

    def _pubrec_left(self, batch: PublishBatch) -> None:
        """Hold the packet id until PUBREL, unless the publish was refused."""
        packet_id = int.from_bytes(batch.token[2:4], "big")
        exchange = self._exchanges.get(packet_id)
        if exchange is not None:
            exchange.batch = None
            refused = batch.refused is not None and batch.refused[0][1] >= 0x80
            if exchange.is_released:
                self.release(packet_id)
            elif refused:
                del self._exchanges[packet_id]

    def _answer_now(self, qos: int, packet_id: int, reason: int) -> None:
        """Answer a publish that goes nowhere, in its turn."""
        if reason >= ReasonCode.UNSPECIFIED_ERROR:
            self._connection.node.meters.refuse("PUBLISH", reason)
        answer = encode_ack(PUBACK if qos == 1 else PUBREC, packet_id)
        batch = PublishBatch(self._connection, answer, 1)
        batch.done = True
        if reason and self._connection.is_v5:
            batch.refused = [(0, reason)]
        self._wait_for(batch)
        self.release_answers()

    # Topics.

    def owner_of(self, topic: bytes) -> PartitionLeader | None:
        """Return who owns a topic that is new here; None for one that nobody may publish to.

        Raises MalformedPacket for one that is ill-formed.
        """
        check_topic_name(topic)
        if topic.startswith(_RESERVED) and topic.startswith((b"$SYS", b"$share")):
            return None
        if has_too_many_levels(topic, self._connection.limits.topic_levels_max):
            return None
        return self._connection.permit.owner(topic)

    def refuse(self, qos: int, packet_id: int, reason: ReasonCode) -> None:
        """Answer a publish that is not carried out."""
        if qos:
            self._answer_now(qos, packet_id, reason)

    def refuse_publish(self, packet: Publish, reason: ReasonCode) -> None:
        """The same, for one that may name its topic for later ones."""
        self._resolve_alias(packet)
        self.refuse(packet.qos, packet.packet_id, reason)

    def refuse_topic(self, topic: bytes, qos: int, packet_id: int) -> None:
        """Refuse a publish to a topic that is the server's own, forbidden, or too deep."""
        levels_max = self._connection.limits.topic_levels_max
        if is_bridge_state(topic):
            reason = 0  # bridges report on themselves there; nobody listens
        elif topic.startswith(_RESERVED) or not has_too_many_levels(topic, levels_max):
            reason = int(ReasonCode.NOT_AUTHORIZED)
        elif qos and not self._connection.is_v5:
            # An acknowledgement would be a promise, and before MQTT 5 there is no other word.
            why = "the topic has too many levels"
            raise ProtocolViolation(ReasonCode.TOPIC_NAME_INVALID, why, limit=levels_max)
        else:
            reason = int(ReasonCode.TOPIC_NAME_INVALID)
        if qos:
            self._answer_now(qos, packet_id, reason)

    # One by one.

    def on_publish_0(self, topic: bytes, payload: bytes, retain: int) -> None:
        """Take a QoS 0 publish without properties."""
        owner = self.owner_of(topic)
        if owner is not None:
            self._publish_0(owner, self._message(topic, payload, 0, retain, b"", 0, 0))

    def _publish_0(self, owner: PartitionLeader, message: Message) -> None:
        self._connection.node.meters.publishes_in[0] += 1
        before = self._logged_0.get(owner)
        if message.retain or (before is not None and not before.done):
            # What is retained is logged, and what follows it waits there for its turn.
            batch = self._logged_0[owner] = PublishBatch(self._connection, b"", 1)
            self._log(owner, batch, [message.record])
        else:
            self._connection.home.publish_unlogged(message)

    def on_publish_2(
        self, owner: PartitionLeader, topic: bytes, payload: bytes, first_byte: int, packet_id: int
    ) -> None:
        """Take a QoS 2 publish without properties."""
        message = self._message(topic, payload, 2, first_byte & 1, b"", 0, packet_id)
        self._publish_2(owner, message, is_repeat=first_byte & 8 != 0)

    def _publish_2(
        self,
        owner: PartitionLeader,
        message: Message,
        *,
        is_repeat: bool,
        make: MakeBatch | None = None,
    ) -> None:
        packet_id = message.packet_id
        exchange = self._exchanges.get(packet_id)
        if exchange is not None:
            self._on_repeat(exchange, message, is_repeat=is_repeat)
            return
        connection = self._connection
        connection.node.meters.publishes_in[2] += 1
        ack = encode_ack(PUBREC, packet_id)
        batch = PublishBatch(connection, ack, 1) if make is None else make(ack)
        self._exchanges[packet_id] = _Exchange(batch, message.payload)
        self._wait_for(batch)
        if connection.outlives:
            assert connection.sessions is not None and connection.prg is not None
            record = self._begin(None, 2, self._record(message))
            connection.sessions.publish_once(connection, packet_id, record)
            self._pace(connection.prg, owner)
        else:
            self._log(owner, batch, [self._begin(owner, 2, self._record(message))])

    def _record(self, message: Message) -> bytes:
        return message.record_with(FROM_V5 if self._connection.is_v5 else BEFORE_V5)

    def _on_repeat(self, exchange: _Exchange, message: Message, *, is_repeat: bool) -> None:
        """A packet id comes again before it was released: the message is here already.

        Once without the DUP flag is forgiven; a client that goes on has lost count.
        """
        if not is_repeat:
            fingerprint = hash(message.payload)
            exchange.repeats = exchange.repeats + 1 if fingerprint == exchange.fingerprint else 0
            exchange.fingerprint = fingerprint
            if exchange.repeats > 1:
                raise ProtocolViolation(ReasonCode.PROTOCOL_ERROR, "packet identifier in use")
        if exchange.batch is None:
            self._connection.stage(encode_ack(PUBREC, message.packet_id))

    def on_pubrec(self, packet_id: int, refusal: RefusalReason | None) -> None:
        """A QoS 2 publish of a session in the log is where it belongs, or was refused."""
        exchange = self._exchanges.get(packet_id)
        if exchange is None or exchange.batch is None:
            return  # the client asks again after a reconnect, or was answered already
        if refusal is not None:
            exchange.batch.refuse(0, refusal)
        exchange.batch.finish()

    def defers_release(self, packet_id: int) -> bool:
        """Say whether a PUBREL came early: then it counts when the PUBREC has left.

        A client may send both at once. Released before it is taken, the publish would have no
        answer any more, and all that waits for its turn behind it neither.
        """
        exchange = self._exchanges.get(packet_id)
        if exchange is None or exchange.batch is None:
            return False
        exchange.is_released = True
        return True

    def release(self, packet_id: int) -> None:
        """Forget a packet id, and say so when the log does."""
        self._exchanges.pop(packet_id, None)
        connection = self._connection
        if connection.outlives:
            assert connection.sessions is not None
            connection.sessions.release(connection, packet_id)
        else:
            connection.stage(encode_ack(PUBCOMP, packet_id))

    def on_publish(self, packet: Publish) -> None:
        """Take a PUBLISH that has properties, or is odd in another way."""
        topic = self._resolve_alias(packet)
        connection, properties = self._connection, packet.properties
        traces, trace = connection.node.traces, None
        if traces is not None:
            trace = traces.begin_publish(
                packet, topic, connection.client_id, connection.epoch, connection.home.name
            )
        owner = self.owner_of(topic)
        if trace is not None:
            trace.authorised(owner, connection.prg)
            properties = trace.properties
        if owner is None:
            self.refuse_topic(topic, packet.qos, packet.packet_id)
            return
        if properties.payload_format_indicator == 1 and not is_text(packet.payload):
            if trace is not None:
                trace.finish(f"0x{ReasonCode.PAYLOAD_FORMAT_INVALID:02x}")
            self._refuse_payload(packet)
            return
        expires_at_ms = 0
        if properties.message_expiry_interval is not None:
            expires_at_ms = connection.now_ms() + 1000 * properties.message_expiry_interval
        message = self._message(
            topic,
            packet.payload,
            packet.qos,
            packet.retain,
            forwardable(properties),
            expires_at_ms,
            packet.packet_id,
        )
        make = batch_maker(connection, packet, message, owner, trace)
        if packet.qos == 0:
            self._publish_0(owner, message)
            if trace is not None:
                trace.finish()
        elif packet.qos == 1:
            self.add_batch(owner, [self._record(message)], [packet.packet_id], [topic], make)
        else:
            self._publish_2(owner, message, is_repeat=packet.dup, make=make)

    def _resolve_alias(self, packet: Publish) -> bytes:
        alias = packet.properties.topic_alias
        if alias is None:
            if not packet.topic:
                raise ProtocolViolation(ReasonCode.PROTOCOL_ERROR, "no topic and no topic alias")
            return packet.topic
        if alias > self._connection.limits.topic_alias_maximum:
            raise ProtocolViolation(ReasonCode.TOPIC_ALIAS_INVALID, "topic alias too large")
        if packet.topic:
            self._aliases[alias] = packet.topic
            return packet.topic
        topic = self._aliases.get(alias)
        if topic is None:
            raise ProtocolViolation(ReasonCode.PROTOCOL_ERROR, "unknown topic alias")
        return topic

    def _refuse_payload(self, packet: Publish) -> None:
        reason = ReasonCode.PAYLOAD_FORMAT_INVALID
        if packet.qos == 0:
            raise MalformedPacket(reason, "the payload is no UTF-8")
        self._answer_now(packet.qos, packet.packet_id, reason)

    def _message(  # noqa: PLR0917  # hot: positional
        self,
        topic: bytes,
        payload: bytes,
        qos: int,
        retain: int,
        properties: bytes,
        expires_at_ms: int,
        packet_id: int,
    ) -> Message:
        connection = self._connection
        return Message(
            topic,
            payload,
            qos,
            retain != 0,
            properties,
            expires_at_ms,
            connection.client_id,
            connection.epoch,
            packet_id,
        )
