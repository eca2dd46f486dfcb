"""One MQTT client: its packets become commands, and what is decided becomes its packets.

It lives on the node that leads the partition of the client's session, whatever node the client
reached. It decides what the standard lets a server decide without a log; everything that must
survive goes through its partition. Nothing here is awaited: answers come as calls.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import msgspec

from quantum.broker import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    Attach,
    Attached,
    Delivery,
    Detach,
    Message,
    Outbound,
    Subscribe,
    Subscribed,
    SubscriptionSpec,
    Target,
    Unsubscribe,
    WillSpec,
    encode_command,
    encode_record,
)
from quantum.broker.message import RETAIN
from quantum.broker.receiving import REFUSED
from quantum.broker.types import NEVER_EXPIRES, PacketId
from quantum.edge.ports import Peer, Wire
from quantum.mqtt import (
    NO_PROPERTIES,
    Auth,
    Connack,
    Connect,
    Direction,
    Disconnect,
    MalformedPacket,
    Packet,
    PacketReader,
    PeerFault,
    Pingreq,
    Properties,
    PropertyScope,
    ProtocolVersion,
    ProtocolViolation,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    Suback,
    Unsuback,
    UnsupportedProtocol,
    check_topic_name,
    connect_return_code,
    decode_packet,
    encode_packet,
    encode_properties,
    has_too_many_levels,
    is_text,
    parse_shared,
)
from quantum.mqtt import Subscribe as SubscribePacket
from quantum.mqtt import Unsubscribe as UnsubscribePacket
from quantum.mqtt.hot import PINGREQ as PINGREQ_BYTE
from quantum.mqtt.hot import PUBACK as PUBACK_BYTE
from quantum.mqtt.hot import PUBCOMP as PUBCOMP_BYTE
from quantum.mqtt.hot import PUBREC as PUBREC_BYTE
from quantum.mqtt.hot import PUBREL as PUBREL_BYTE
from quantum.mqtt.hot import SLOW, encode_ack, encode_acks, scan
from quantum.mqtt.primitives import encode_variable
from quantum.serving.delivery import Outgoing, property_block
from quantum.serving.publishing import ACK_BYTES, Run

if TYPE_CHECKING:
    from quantum.serving.limits import MqttLimits
    from quantum.serving.prg import Completion, Prg
    from quantum.serving.relay import RelayEntry
    from quantum.serving.service import BrokerService
    from quantum.serving.tenant import Tenant

_V5: Final = ProtocolVersion.V5
_PINGRESP: Final = b"\xd0\x00"
_UPPER_HALF: Final = 0x8000
_FIRST_PACKET_ID, _LAST_PACKET_ID = 0x8000, 0xFFFF
_GRACE: Final = 1.5
_NEVER_MS: Final = 1 << 62
_decode_attached = msgspec.msgpack.Decoder(Attached).decode
_decode_subscribed = msgspec.msgpack.Decoder(Subscribed).decode


class Phase(IntEnum):
    """Where a connection is."""

    NEW = 0  # no CONNECT yet
    ROUTING = 1  # CONNECT is here; who serves it is not known yet
    RELAYED = 2  # another node serves it
    ATTACHING = 3  # its session is being looked up
    LIVE = 4
    CLOSED = 5


class Connection:
    """A handler for the listeners; see the module."""

    __slots__ = (
        "_aliases_in",
        "_aliases_out",
        "_answers",
        "_attachment",
        "_client_aliases_max",
        "_client_packet_max",
        "_connect",
        "_deadline_ms",
        "_early",
        "_ended",
        "_expiry_seconds",
        "_gracefully",
        "_keep_alive_ms",
        "_open_publishes",
        "_operations",
        "_out",
        "_outbound",
        "_peer",
        "_reader",
        "_received",
        "_relay",
        "_service",
        "_stalled",
        "_taking_over",
        "_version",
        "_wants_problems",
        "_wire",
        "client_id",
        "epoch",
        "last_seen_ms",
        "phase",
        "prg",
        "tenant",
    )

    def __init__(self, service: BrokerService) -> None:
        self._service = service
        self.phase = Phase.NEW
        limits = service.limits
        self._reader = PacketReader(limits.packet_bytes_max, limits.connect_bytes_max)
        self._wire: Wire | None = None
        self._peer: Peer | None = None
        self._relay: RelayEntry | None = None
        self.tenant: Tenant | None = None
        self.prg: Prg | None = None
        self._connect: Connect | None = None
        self._version = ProtocolVersion.V311
        self.client_id: bytes = b""
        self.epoch = 0
        """The epoch of the session in the log; 0 while only this connection knows it."""
        self._attachment = 0
        self._expiry_seconds = 0
        self._keep_alive_ms = 0
        self.last_seen_ms = 0
        self._deadline_ms = _NEVER_MS
        self._early: list[bytes] | None = None  # what came before the session was attached
        self._out: list[bytes] = []
        self._answers: deque[Run] | None = None
        self._open_publishes = 0
        self._received: dict[int, Run | None] | None = None  # QoS 2 publishes, by packet id
        self._outbound: Outbound | None = None
        self._stalled: list[tuple[Delivery, bool]] | None = None
        self._aliases_in: dict[int, bytes] | None = None
        self._aliases_out: dict[bytes, int] | None = None
        self._client_aliases_max = 0
        self._client_packet_max = 0
        self._operations = 0  # commands about this session that are on their way
        self._ended = False
        self._gracefully = False
        self._taking_over = False
        self._wants_problems = True

    # What the listener calls.

    def opened(self, wire: Wire, peer: Peer) -> None:
        self._wire, self._peer = wire, peer
        self.last_seen_ms = self._service.tick_ms
        self._deadline_ms = self.last_seen_ms + self._service.limits.connect_wait_ms
        self._service.joined(self)

    def received(self, data: bytes) -> None:
        self.last_seen_ms = self._service.tick_ms
        if self._relay is not None:
            self._relay.received(data)
        elif self.phase is Phase.LIVE:
            self._reader.receive(data)
            self._pull()
        elif self.phase is Phase.NEW:
            self._reader.receive(data)
            self._pull_first()
        elif self.phase is not Phase.CLOSED:
            self._hold(data)

    def _hold(self, data: bytes) -> None:
        """Keep what a client sends before its CONNACK; a client in good faith sends little."""
        self._reader.receive(data)
        if self._reader.buffered_bytes > self._service.limits.packet_bytes_max:
            self.disconnect(ReasonCode.PACKET_TOO_LARGE, "too much before CONNACK")

    def writable_again(self) -> None:
        if self._relay is not None:
            self._relay.report()
        elif self.phase is Phase.LIVE:
            self._send_more()
            self._service.dirty(self)

    def lost(self) -> None:
        if self._relay is not None:
            self._relay.lost()
            self._relay = None
        self._wire = None
        self._close_session()

    # The first packet.

    def _pull_first(self) -> None:
        try:
            taken = self._reader.next_packet()
            if taken is None:
                return
            first_byte, body = taken
            if first_byte >> 4 != 1:
                self._drop("the first packet is no CONNECT")
                return
            packet = decode_packet(
                first_byte, body, ProtocolVersion.V311, direction=Direction.TO_SERVER
            )
            assert isinstance(packet, Connect)
        except UnsupportedProtocol as fault:
            self._refuse_protocol(fault)
            return
        except PeerFault as fault:
            self._service.count_fault(fault)
            if fault.version is _V5:
                self._version = _V5
                self._write_now(Connack(False, fault.reason_code))  # noqa: FBT003
            self._drop(fault.reason)
            return
        self._on_connect(packet, first_byte, body)

    def _refuse_protocol(self, fault: UnsupportedProtocol) -> None:
        self._service.count_fault(fault)
        if fault.protocol_name in (b"MQTT", b"MQIsdp"):
            if fault.level > 4:
                self._version = _V5
            self._write_now(Connack(False, fault.reason_code))  # noqa: FBT003
        self._drop(fault.reason)

    def _on_connect(self, connect: Connect, first_byte: int, body: bytes) -> None:
        self._connect, self._version = connect, connect.version
        self.client_id = connect.client_id.encode()
        peer = self._peer
        assert peer is not None
        tenant = self._service.tenants.get(peer.tenant)
        if tenant is None:
            self._refuse(ReasonCode.NOT_AUTHORIZED, "no such tenant")
            return
        self.tenant = tenant
        if not self._check_connect(connect):
            return
        self._early = [bytes((first_byte,)) + encode_variable(len(body)) + body]
        self.phase = Phase.ROUTING
        self._route()

    def _check_connect(self, connect: Connect) -> bool:
        if not connect.client_id:
            if connect.version is not _V5 and not connect.clean_start:
                self._refuse(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "no client id")
                return False
            self.client_id = self._service.draw_client_id()
        if connect.properties.authentication_method is not None:
            self._refuse(ReasonCode.BAD_AUTHENTICATION_METHOD, "unknown authentication method")
            return False
        return True

    def _route(self) -> None:
        """Go to where the session runs, or wait until somebody runs it."""
        if self.phase is not Phase.ROUTING or self._wire is None:
            return
        assert self.tenant is not None
        prg = self.tenant.session_prg(self.client_id)
        node = prg.leader_node
        if prg.leading:
            self.prg = prg
            self._attach(prg)
        elif node is not None and not self._service.is_local(node) and not self._is_relayed:
            self._relay_to(node)
        else:
            self.tenant.when_led(prg.number, self._route)

    @property
    def _is_relayed(self) -> bool:
        """Whether another node sent this connection here: it is not sent on."""
        return self._taking_over

    def arrived(self, client_id: bytes) -> None:
        """Note that another node relayed this connection, with the id it assigned."""
        self._taking_over = True
        if client_id:
            self.client_id = client_id

    def _relay_to(self, node: int) -> None:
        assert self._wire is not None and self._peer is not None and self._early is not None
        self.phase = Phase.RELAYED
        data = b"".join(self._early) + self._reader.take_all()
        self._early = None
        assigned = b"" if self._connect is not None and self._connect.client_id else self.client_id
        self._relay = self._service.open_relay(self._wire, self._peer, node, assigned, data)
        self._deadline_ms = _NEVER_MS

    # The session.

    def _attach(self, prg: Prg) -> None:
        connect = self._connect
        assert connect is not None
        self._early = None
        self.phase = Phase.ATTACHING
        older = prg.connections.get(self.client_id)
        if older is not None:
            older.taken_over()
        prg.connections[self.client_id] = self
        self._settle(connect)
        session = prg.broker.state.sessions.get(self.client_id)
        busy = self.client_id in prg.busy_clients
        if session is None and not busy and self._expiry_seconds == 0 and connect.will is None:
            self._begin(present=False)
            return
        will = self._will_spec(connect)
        window = min(connect.properties.receive_maximum or 0xFFFF, self._limits.in_flight_max)
        command = Attach(
            prg.now_ms(), self.client_id, connect.clean_start, self._expiry_seconds, window, will
        )
        self._command(encode_command(command), self._attached)

    def _settle(self, connect: Connect) -> None:
        """Work out what CONNECT asked for."""
        properties, limits = connect.properties, self._limits
        if connect.version is _V5:
            wanted = properties.session_expiry_interval or 0
            self._expiry_seconds = min(wanted, limits.session_expiry_seconds_max)
        elif not connect.clean_start:
            self._expiry_seconds = limits.session_expiry_seconds_default
        keep_alive = connect.keep_alive
        if connect.version is _V5 or keep_alive:
            cap = limits.keep_alive_seconds_max
            if cap < 65_535 and (keep_alive == 0 or keep_alive > cap):
                keep_alive = cap
        self._keep_alive_ms = int(keep_alive * 1000 * _GRACE)
        self._client_aliases_max = properties.topic_alias_maximum or 0
        self._client_packet_max = properties.maximum_packet_size or 0
        self._wants_problems = properties.request_problem_information is not False

    def _will_spec(self, connect: Connect) -> WillSpec | None:
        will = connect.will
        if will is None:
            return None
        properties = will.properties
        record = encode_record(
            will.topic,
            will.payload,
            will.qos | (RETAIN if will.retain else 0),
            _forwardable(properties),
            1000 * (properties.message_expiry_interval or 0),  # counts from when it is said
            self.client_id,
            0,
            0,
        )
        return WillSpec(record, properties.will_delay_interval or 0)

    def _attached(self, reply: bytes | None) -> None:
        if reply is None:
            self._refuse(ReasonCode.SERVER_UNAVAILABLE, "the session's partition has no leader")
            return
        attached = _decode_attached(reply)
        self.epoch, self._attachment = attached.epoch, attached.attachment
        if self.phase is Phase.ATTACHING:
            self._begin(present=attached.present)

    def _begin(self, *, present: bool) -> None:
        """Say that the session is there, and go on with what the client already sent."""
        connect = self._connect
        assert connect is not None
        self._connect = None
        self.phase = Phase.LIVE
        self._deadline_ms = _NEVER_MS
        self._send(Connack(present, ReasonCode.SUCCESS, self._announce(connect)))
        if self._reader.buffered_bytes:
            self._pull()

    def _announce(self, connect: Connect) -> Properties:
        if self._version is not _V5:
            return NO_PROPERTIES
        limits = self._limits
        asked = connect.properties.session_expiry_interval or 0
        keep_alive = int(self._keep_alive_ms / 1000 / _GRACE)
        return Properties(
            receive_maximum=limits.receive_maximum,
            topic_alias_maximum=limits.topic_alias_maximum,
            maximum_packet_size=limits.packet_bytes_max,
            session_expiry_interval=(
                self._expiry_seconds if asked != self._expiry_seconds else None
            ),
            server_keep_alive=keep_alive if keep_alive != connect.keep_alive else None,
            assigned_client_identifier=(
                None if connect.client_id else self.client_id.decode("ascii")
            ),
        )

    @property
    def _limits(self) -> MqttLimits:
        return self._service.limits

    def _command(self, command: bytes, completion: Completion) -> None:
        """Log something about this session; the partition knows that it is not settled."""
        prg = self.prg
        assert prg is not None
        client_id, busy = self.client_id, prg.busy_clients
        busy[client_id] = busy.get(client_id, 0) + 1
        self._operations += 1

        def completed(reply: bytes | None) -> None:
            self._operations -= 1
            left = busy.get(client_id, 1) - 1
            if left > 0:
                busy[client_id] = left
            else:
                busy.pop(client_id, None)
            completion(reply)
            if self._ended and self._operations == 0:
                self._detach()

        prg.propose(command, completed)

    def taken_over(self) -> None:
        """Another connection has the client's id (MQTT-3.1.4-3)."""
        self.disconnect(ReasonCode.SESSION_TAKEN_OVER, "session taken over", keeps_place=True)

    def partition_moved(self, why: str) -> None:
        """The partition is led elsewhere: the client finds its session there (C10)."""
        self.epoch = 0
        self.prg = None
        if self.phase is Phase.ATTACHING or self._connect is not None:
            self._refuse(ReasonCode.SERVER_UNAVAILABLE, why)
        else:
            self.disconnect(ReasonCode.SERVER_MOVED, why)

    def session_ended(self, epoch: int, reason: str) -> None:
        """The session of this connection is no more."""
        if self.epoch == epoch and self.phase is Phase.LIVE:
            self.disconnect(ReasonCode.ADMINISTRATIVE_ACTION, reason)

    # Ends.

    def disconnect(self, reason: ReasonCode, why: str, *, keeps_place: bool = False) -> None:
        """Say why, where the protocol has words for it, and close."""
        if self.phase is Phase.CLOSED:
            return
        if self._version is _V5 and self.phase is Phase.LIVE:
            text = Properties(reason_string=why) if self._wants_problems else NO_PROPERTIES
            self._send(Disconnect(reason, text))
        self.flush()
        self._drop(why, keeps_place=keeps_place)

    def _drop(self, why: str, *, keeps_place: bool = False) -> None:
        """Close without a word."""
        self._service.note_end(self.client_id, why)
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()
        self._close_session(keeps_place=keeps_place)

    def _refuse(self, reason: ReasonCode, why: str) -> None:
        """Answer CONNECT with a refusal (MQTT-3.2.2-7)."""
        if self._version is _V5 or connect_return_code(reason) is not None:
            text = Properties(reason_string=why) if self._version is _V5 else NO_PROPERTIES
            self._write_now(Connack(False, reason, text))  # noqa: FBT003
        self._drop(why)

    def _close_session(self, *, keeps_place: bool = False) -> None:
        if self.phase is Phase.CLOSED:
            return
        self.phase = Phase.CLOSED
        self._service.left(self)
        prg = self.prg
        if prg is not None and not keeps_place and prg.connections.get(self.client_id) is self:
            del prg.connections[self.client_id]
        self._ended = True
        if self._operations == 0:
            self._detach()

    def _detach(self) -> None:
        """Let the log know that the connection is gone, if it knows the session."""
        prg, epoch = self.prg, self.epoch
        self.epoch = 0
        if prg is None or not epoch or not prg.leading:
            return
        expiry = self._expiry_seconds if self._gracefully else None
        command = Detach(
            prg.now_ms(), self.client_id, epoch, self._gracefully, expiry, self._attachment
        )
        client_id, busy = self.client_id, prg.busy_clients
        busy[client_id] = busy.get(client_id, 0) + 1

        def detached(_reply: bytes | None) -> None:
            left = busy.get(client_id, 1) - 1
            if left > 0:
                busy[client_id] = left
            else:
                busy.pop(client_id, None)

        prg.propose(encode_command(command), detached)

    def check_time(self, now_ms: int) -> None:
        """Close what was silent too long, or waits too long for a leader."""
        if now_ms >= self._deadline_ms:
            self._deadline_ms = _NEVER_MS
            if self._connect is not None:
                self._refuse(ReasonCode.SERVER_UNAVAILABLE, "no leader in time")
            else:
                self._drop("no CONNECT in time")
        elif 0 < self._keep_alive_ms < now_ms - self.last_seen_ms and self._relay is None:
            self.disconnect(ReasonCode.KEEP_ALIVE_TIMEOUT, "keep alive timeout")

    # Packets.

    def _pull(self) -> None:
        """Take every whole packet that is here."""
        is_v5 = self._version is _V5
        reader = self._reader
        try:
            while self.phase is Phase.LIVE:
                window = reader.window()
                if window is None:
                    return
                buffer, start = window
                rows, end = scan(buffer, start, reader.packet_bytes_max, is_v5)
                reader.consume(end)
                self._on_rows(buffer, rows)
        except PeerFault as fault:
            self._service.count_fault(fault)
            self.disconnect(fault.reason_code, fault.reason)

    def _on_rows(self, buffer: bytes, rows: list[tuple[int, int, int, int, int, int, int]]) -> None:
        tenant, client_id, epoch = self.tenant, self.client_id, self.epoch
        assert tenant is not None
        owners = tenant._owners
        records: list[bytes] = []
        packet_ids: list[int] = []
        run_owner: Prg | None = None
        for first, packet_id, start, topic_at, topic_end, payload_at, end in rows:
            if 0x32 <= first < 0x36 or 0x3A <= first < 0x3E:  # QoS 1, or QoS 2
                topic = buffer[topic_at:topic_end]
                owner = owners.get(topic)
                if owner is None:
                    owner = self._owner_of(topic)
                qos = first >> 1 & 3
                if qos == 2 or owner is None:
                    if records and run_owner is not None:
                        self._add_run(run_owner, PUBACK_BYTE, records, packet_ids)
                        records, packet_ids, run_owner = [], [], None
                    if owner is None:
                        self._refuse_publish(qos, packet_id)
                    else:
                        self._on_publish_2(
                            owner, topic, buffer[payload_at:end], first & 1, packet_id
                        )
                    continue
                if owner is not run_owner:
                    if records and run_owner is not None:
                        self._add_run(run_owner, PUBACK_BYTE, records, packet_ids)
                        records, packet_ids = [], []
                    run_owner = owner
                records.append(
                    encode_record(
                        topic,
                        buffer[payload_at:end],
                        1 | (RETAIN if first & 1 else 0),
                        b"",
                        0,
                        client_id,
                        epoch,
                        packet_id,
                    )
                )
                packet_ids.append(packet_id)
                continue
            if records and run_owner is not None:
                self._add_run(run_owner, PUBACK_BYTE, records, packet_ids)
                records, packet_ids, run_owner = [], [], None
            if first in (0x30, 0x31):
                self._on_publish_0(buffer[topic_at:topic_end], buffer[payload_at:end], first & 1)
            elif first == PUBACK_BYTE:
                self._on_puback(packet_id)
            elif first == PUBREC_BYTE:
                self._on_pubrec(packet_id)
            elif first == PUBREL_BYTE:
                self._on_pubrel(packet_id)
            elif first == PUBCOMP_BYTE:
                self._on_pubcomp(packet_id)
            elif first == PINGREQ_BYTE:
                self._stage(_PINGRESP)
            else:
                assert first == SLOW
                self._on_packet(
                    decode_packet(
                        buffer[start],
                        buffer[payload_at:end],
                        self._version,
                        direction=Direction.TO_SERVER,
                    )
                )
            if self.phase is not Phase.LIVE:
                return
        if records and run_owner is not None:
            self._add_run(run_owner, PUBACK_BYTE, records, packet_ids)

    def _owner_of(self, topic: bytes) -> Prg | None:
        """Return who owns a topic that is new here; None for one that is too deep.

        Raises MalformedPacket for one that is ill-formed.
        """
        check_topic_name(topic)
        if has_too_many_levels(topic) or topic.startswith(b"$SYS/"):
            return None
        assert self.tenant is not None
        return self.tenant.owner(topic)

    def _add_run(self, owner: Prg, kind: int, records: list[bytes], packet_ids: list[int]) -> None:
        """Send publishes into the log, and let their answers wait in order."""
        run = Run(self, encode_acks(kind, packet_ids), len(records))
        self._wait_for(run)
        prg = self.prg
        assert prg is not None
        if owner is prg:
            prg.publish(run, records)
        else:
            prg.forward(owner.number, run, records)

    def _wait_for(self, run: Run) -> None:
        if self._answers is None:
            self._answers = deque()
        self._answers.append(run)
        self._open_publishes += run.count
        if self._version is _V5 and self._open_publishes > self._limits.receive_maximum:
            raise ProtocolViolation(
                ReasonCode.RECEIVE_MAXIMUM_EXCEEDED, "more open publishes than allowed"
            )

    def release_answers(self) -> None:
        """Let the answers leave whose turn it is."""
        answers = self._answers
        if answers is None or self.phase is Phase.CLOSED:
            return
        while answers and answers[0].done:
            run = answers.popleft()
            self._open_publishes -= run.count
            if run.acks:
                self._stage(run.acks if run.refused is None else self._refused_acks(run))
            if run.acks[:1] == b"\x50":
                self._pubrec_left(run)
        if self._outbound is None and not answers:
            self._answers = None

    def _pubrec_left(self, run: Run) -> None:
        """A PUBREC left: its packet id is held until PUBREL, unless the publish was refused."""
        if self._received is None:
            return
        packet_id = int.from_bytes(run.acks[2:4], "big")
        if run.refused is not None:
            self._received.pop(packet_id, None)
        elif packet_id in self._received:
            self._received[packet_id] = None

    def _refused_acks(self, run: Run) -> bytes:
        """Say which of a run's publishes were refused; before MQTT 5 there are no words for it."""
        if self._version is not _V5:
            self._service.soon(
                lambda: self.disconnect(ReasonCode.QUOTA_EXCEEDED, "a publish was refused")
            )
            return b""
        reasons = dict(run.refused or ())
        pieces = []
        for number in range(run.count):
            ack = run.acks[number * ACK_BYTES : (number + 1) * ACK_BYTES]
            reason = reasons.get(number, 0)
            if reason:
                ack = bytes((ack[0], 3)) + ack[2:] + bytes((reason,))
            pieces.append(ack)
        return b"".join(pieces)

    def _refuse_publish(self, qos: int, packet_id: int) -> None:
        """Refuse a topic that cannot be published to."""
        kind = PUBACK_BYTE if qos == 1 else PUBREC_BYTE
        run = Run(self, encode_ack(kind, packet_id), 1)
        self._wait_for(run)
        run.done = True
        if self._version is _V5:
            run.refused = [(0, ReasonCode.TOPIC_NAME_INVALID)]
        self.release_answers()

    def _on_publish_0(self, topic: bytes, payload: bytes, retain: int) -> None:
        owner = self._owner_of(topic)
        if owner is None:
            return
        self._publish_0(owner, self._message(topic, payload, 0, retain != 0, b"", 0, 0))

    def _publish_0(self, owner: Prg, message: Message) -> None:
        assert self.prg is not None and self.tenant is not None
        if not message.retain:
            self.tenant.publish_unlogged(message)
            return
        run = Run(self, b"", 1)  # what is retained is logged
        if owner is self.prg:
            self.prg.publish(run, [message.record])
        else:
            self.prg.forward(owner.number, run, [message.record])

    def _message(  # noqa: PLR0917  # hot: positional
        self,
        topic: bytes,
        payload: bytes,
        qos: int,
        retain: bool,  # hot: positional
        properties: bytes,
        expires_at_ms: int,
        packet_id: int,
    ) -> Message:
        return Message(
            topic,
            payload,
            qos,
            retain,
            properties,
            expires_at_ms,
            self.client_id,
            self.epoch,
            packet_id,
        )

    def _on_publish_2(
        self, owner: Prg, topic: bytes, payload: bytes, retain: int, packet_id: int
    ) -> None:
        message = self._message(topic, payload, 2, retain != 0, b"", 0, packet_id)
        self._publish_2(owner, message)

    def _publish_2(self, owner: Prg, message: Message) -> None:
        """Take a QoS 2 publish, once."""
        packet_id = message.packet_id
        received = self._received
        if received is None:
            received = self._received = {}
        if packet_id in received:
            if received[packet_id] is None:  # its PUBREC left already, and is sent again
                self._stage(encode_ack(PUBREC_BYTE, packet_id))
            return
        run = Run(self, encode_ack(PUBREC_BYTE, packet_id), 1)
        received[packet_id] = run
        self._wait_for(run)
        prg = self.prg
        assert prg is not None
        if self._expiry_seconds and self.epoch:
            prg.publish_once(self, packet_id, message.record)
        elif owner is prg:
            prg.publish(run, [message.record])
        else:
            prg.forward(owner.number, run, [message.record])

    def answer_pubrec(self, packet_id: int, reason: int) -> None:
        """A QoS 2 publish of a kept session is where it belongs, or was refused."""
        run = self._received.get(packet_id) if self._received is not None else None
        if run is None:
            if not reason:
                if self._received is not None:
                    self._received[packet_id] = None
                self._stage(encode_ack(PUBREC_BYTE, packet_id))
            return
        if reason:
            run.refuse(0, reason)
        run.finish()

    def _on_pubrel(self, packet_id: int) -> None:
        if self._expiry_seconds and self.epoch:
            assert self.prg is not None
            if self._received is not None:
                self._received.pop(packet_id, None)
            self.prg.release(self, packet_id)
            return
        found = self._received is not None and packet_id in self._received
        if found and self._received is not None:
            del self._received[packet_id]
        reason = 0 if found else ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
        self.send_pubcomp(packet_id, reason)

    def send_pubcomp(self, packet_id: int, reason: int) -> None:
        if self.phase is Phase.LIVE:
            if reason and self._version is _V5:
                self._send(Pubcomp(PacketId(packet_id), ReasonCode(reason)))  # type: ignore[arg-type]
            else:
                self._stage(encode_ack(PUBCOMP_BYTE, packet_id))

    # What the client says of what it got.

    def _on_puback(self, packet_id: int) -> None:
        if packet_id < _UPPER_HALF:
            self._acknowledge(PUBACK, packet_id)
        elif self._outbound is not None and self._outbound.on_puback(PacketId(packet_id)):
            self._grow()
            self._send_more()

    def _on_pubrec(self, packet_id: int) -> None:
        if packet_id < _UPPER_HALF:
            self._acknowledge(PUBREC, packet_id)
        elif self._outbound is not None and self._outbound.on_pubrec(PacketId(packet_id)):
            self.send_pubrel(packet_id)
        elif self._version is _V5:
            reason = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
            self._send(Pubrel(packet_id, reason))  # type: ignore[arg-type]
        else:
            self.send_pubrel(packet_id)

    def _on_pubcomp(self, packet_id: int) -> None:
        if packet_id < _UPPER_HALF:
            self._acknowledge(PUBCOMP, packet_id)
        elif self._outbound is not None and self._outbound.on_pubcomp(PacketId(packet_id)):
            self._grow()
            self._send_more()

    def _acknowledge(self, kind: int, packet_id: int) -> None:
        if self.prg is not None and self.epoch:
            self.prg.acknowledge(self.client_id, kind, packet_id)
        elif kind == PUBREC:
            self.send_pubrel(packet_id)

    def _on_negative(self, packet: Puback | Pubrec) -> None:
        """The client refused a message: the exchange is over (MQTT 5, 4.3.3)."""
        if packet.packet_id < _UPPER_HALF:
            self._acknowledge(REFUSED, packet.packet_id)
        elif self._outbound is not None and self._outbound.on_refused(PacketId(packet.packet_id)):
            self._send_more()

    # The less frequent packets.

    def _on_packet(self, packet: Packet) -> None:
        match packet:
            case Publish():
                self._on_publish(packet)
            case SubscribePacket():
                self._on_subscribe(packet)
            case UnsubscribePacket():
                self._on_unsubscribe(packet)
            case Pingreq():
                self._stage(_PINGRESP)
            case Disconnect():
                self._on_disconnect(packet)
            case Puback() | Pubrec() if packet.reason_code.is_failure:
                self._on_negative(packet)
            case Puback():
                self._on_puback(packet.packet_id)
            case Pubrec():
                self._on_pubrec(packet.packet_id)
            case Pubrel():
                self._on_pubrel(packet.packet_id)
            case Pubcomp():
                self._on_pubcomp(packet.packet_id)
            case Auth():
                raise ProtocolViolation(
                    ReasonCode.PROTOCOL_ERROR, "AUTH without an authentication method"
                )
            case _:
                raise ProtocolViolation(ReasonCode.PROTOCOL_ERROR, "a packet out of place")

    def _on_publish(self, packet: Publish) -> None:
        """Take a PUBLISH that has properties, or is odd in another way."""
        topic = self._resolve_alias(packet)
        owner = self._owner_of(topic)
        if owner is None:
            if packet.qos:
                self._refuse_publish(packet.qos, packet.packet_id)
            return
        properties = packet.properties
        if properties.payload_format_indicator == 1 and not is_text(packet.payload):
            self._refuse_payload(packet)
            return
        expires_at_ms = 0
        if properties.message_expiry_interval is not None:
            expires_at_ms = self._service.now_ms() + 1000 * properties.message_expiry_interval
        message = self._message(
            topic,
            packet.payload,
            packet.qos,
            packet.retain,
            _forwardable(properties),
            expires_at_ms,
            packet.packet_id,
        )
        if packet.qos == 0:
            self._publish_0(owner, message)
        elif packet.qos == 1:
            self._add_run(owner, PUBACK_BYTE, [message.record], [packet.packet_id])
        else:
            self._publish_2(owner, message)

    def _resolve_alias(self, packet: Publish) -> bytes:
        alias = packet.properties.topic_alias
        if alias is None:
            if not packet.topic:
                raise ProtocolViolation(ReasonCode.PROTOCOL_ERROR, "no topic and no topic alias")
            return packet.topic
        if alias > self._limits.topic_alias_maximum:
            raise ProtocolViolation(ReasonCode.TOPIC_ALIAS_INVALID, "topic alias too large")
        if self._aliases_in is None:
            self._aliases_in = {}
        if packet.topic:
            self._aliases_in[alias] = packet.topic
            return packet.topic
        topic = self._aliases_in.get(alias)
        if topic is None:
            raise ProtocolViolation(ReasonCode.PROTOCOL_ERROR, "unknown topic alias")
        return topic

    def _refuse_payload(self, packet: Publish) -> None:
        if packet.qos == 0:
            raise MalformedPacket(ReasonCode.PAYLOAD_FORMAT_INVALID, "the payload is no UTF-8")
        kind = PUBACK_BYTE if packet.qos == 1 else PUBREC_BYTE
        run = Run(self, encode_ack(kind, packet.packet_id), 1)
        run.refused, run.done = [(0, ReasonCode.PAYLOAD_FORMAT_INVALID)], True
        self._wait_for(run)
        self.release_answers()

    def _on_subscribe(self, packet: SubscribePacket) -> None:
        assert self.prg is not None
        identifiers = packet.properties.subscription_identifiers
        identifier = identifiers[0] if identifiers else 0
        specs: list[SubscriptionSpec] = []
        codes: list[int | None] = []
        for line in packet.subscriptions:
            if has_too_many_levels(line.topic_filter):
                codes.append(ReasonCode.TOPIC_FILTER_INVALID)
                continue
            shared = (
                parse_shared(line.topic_filter)
                if self._version is not ProtocolVersion.V31
                else None
            )
            codes.append(None)
            specs.append(
                SubscriptionSpec(
                    shared.topic_filter if shared else line.topic_filter,
                    line.qos,
                    line.no_local,
                    line.retain_as_published,
                    int(line.retain_handling),
                    identifier,
                    shared.share_name if shared else b"",
                )
            )
        packet_id = packet.packet_id

        def subscribed(reply: bytes | None) -> None:
            if reply is not None:
                self._on_subscribed(packet_id, codes, reply)

        command = Subscribe(self.prg.now_ms(), self.client_id, self.epoch, specs)
        self._command(encode_command(command), subscribed)

    def _on_subscribed(self, packet_id: int, codes: list[int | None], reply: bytes) -> None:
        found = _decode_subscribed(reply)
        if not self.epoch and found.epoch:
            self.epoch, self._attachment = found.epoch, found.attachment
        granted = iter(found.reasons)
        reasons = tuple(ReasonCode(next(granted) if code is None else code) for code in codes)
        answer = Suback(packet_id, reasons)  # type: ignore[arg-type]
        self._answer_when_taken(found, answer)

    def _answer_when_taken(self, found: Subscribed, answer: Suback | Unsuback) -> None:
        if not found.awaited or self.prg is None:
            self._send_live(answer)
        else:
            self.prg.when_taken(found.awaited, lambda: self._send_live(answer))

    def _on_unsubscribe(self, packet: UnsubscribePacket) -> None:
        assert self.prg is not None
        packet_id = packet.packet_id
        if not self.epoch and not self._operations:
            gone = (ReasonCode.NO_SUBSCRIPTION_EXISTED,) * len(packet.topic_filters)
            self._send(Unsuback(packet_id, gone))
            return

        def unsubscribed(reply: bytes | None) -> None:
            if reply is not None:
                found = _decode_subscribed(reply)
                reasons = tuple(ReasonCode(reason) for reason in found.reasons)
                self._answer_when_taken(found, Unsuback(packet_id, reasons))

        command = Unsubscribe(
            self.prg.now_ms(), self.client_id, self.epoch, list(packet.topic_filters)
        )
        self._command(encode_command(command), unsubscribed)

    def _on_disconnect(self, packet: Disconnect) -> None:
        expiry = packet.properties.session_expiry_interval
        if expiry is not None:
            if expiry and not self._expiry_seconds:
                raise ProtocolViolation(
                    ReasonCode.PROTOCOL_ERROR, "the session expiry interval was zero"
                )
            self._expiry_seconds = (
                expiry
                if expiry == NEVER_EXPIRES
                else min(expiry, self._limits.session_expiry_seconds_max)
            )
        self._gracefully = packet.reason_code is not ReasonCode.DISCONNECT_WITH_WILL_MESSAGE
        self._drop("disconnected by the client")

    # Towards the client.

    def deliver_to(self, target: Target, outgoing: Outgoing) -> None:
        """Deliver a message that a subscription of this client wants."""
        message = outgoing.message
        if target.no_local and message.client_id == self.client_id:
            rest = target.for_publisher()
            if rest is None:
                return
            target = rest
        qos = message.qos if message.qos < target.qos else target.qos
        retain = message.retain and target.retain_as_published
        self.deliver(outgoing, qos, retain, target.identifiers)

    def deliver(
        self,
        outgoing: Outgoing,
        qos: int,
        retain: bool,  # hot: positional
        identifiers: tuple[int, ...],
    ) -> None:
        """Deliver a message that only this connection keeps."""
        if self.phase is not Phase.LIVE:
            return
        if qos == 0:
            if self._wire is not None and self._wire.writable:
                self._encode(outgoing, 0x30 | retain, 0, identifiers)
            else:
                self._service.dropped += 1
            return
        outbound = self._outbound
        if outbound is None:
            outbound = self._outbound = self._new_outbound()
        delivery = Delivery(outgoing.message, qos, retain, identifiers)
        if outbound.push(delivery):
            self._encode(outgoing, 0x30 | qos << 1 | retain, delivery.packet_id, identifiers)
        elif outbound.weight > self._limits.queue_bytes_max:
            self.disconnect(ReasonCode.QUOTA_EXCEEDED, "the client does not keep up")

    def _new_outbound(self) -> Outbound:
        return Outbound(
            min(self._limits.in_flight_first, self._window_max),
            _FIRST_PACKET_ID,
            _LAST_PACKET_ID,
        )

    @property
    def _window_max(self) -> int:
        return self._limits.in_flight_max

    def _grow(self) -> None:
        """Let more be in flight to a client that keeps up (C13)."""
        outbound = self._outbound
        if outbound is not None and outbound.window < self._window_max:
            outbound.window += 1

    def _send_more(self) -> None:
        outbound = self._outbound
        if outbound is None or not outbound.queue or self._wire is None:
            return
        if not self._wire.writable:
            return
        for delivery in outbound.take_ready(self._service.now_ms()):
            self._encode_delivery(delivery, again=False)

    def send_kept(self, delivery: Delivery, *, again: bool) -> None:
        """Send a message that the machine keeps for this client."""
        if self.phase is Phase.LIVE:
            self._encode_delivery(delivery, again=again)

    def _encode_delivery(self, delivery: Delivery, *, again: bool) -> None:
        first = 0x30 | delivery.qos << 1 | delivery.retain | (8 if again and delivery.qos else 0)
        self._encode(Outgoing(delivery.message), first, delivery.packet_id, delivery.identifiers)

    def _encode(
        self, outgoing: Outgoing, first: int, packet_id: int, identifiers: tuple[int, ...]
    ) -> None:
        if self._version is not _V5:
            if not self._out:
                self._service.dirty(self)
            outgoing.plain().append_to(self._out, first, packet_id)
        elif identifiers or self._client_aliases_max or self._client_packet_max:
            self._encode_own(outgoing.message, first, packet_id, identifiers)
        else:
            if not self._out:
                self._service.dirty(self)
            shared = outgoing.with_properties(self._service.now_ms())
            shared.append_to(self._out, first, packet_id)

    def _encode_own(
        self, message: Message, first: int, packet_id: int, identifiers: tuple[int, ...]
    ) -> None:
        """Encode a copy that is this client's alone: identifiers, an alias, a size to respect."""
        topic, alias = message.topic, 0
        if self._client_aliases_max:
            topic, alias = self._alias_for(topic)
        block = property_block(message, self._service.now_ms(), identifiers, alias)
        body = len(topic).to_bytes(2, "big") + topic
        if first & 6:
            body += packet_id.to_bytes(2, "big")
        length = len(body) + len(block) + len(message.payload)
        head = bytes((first,)) + encode_variable(length)
        if self._client_packet_max and len(head) + length > self._client_packet_max:
            self._too_large(first, packet_id)
            return
        self._stage(b"".join((head, body, block, message.payload)))

    def _alias_for(self, topic: bytes) -> tuple[bytes, int]:
        """Name a topic by a number once the client knows which (MQTT 5, 3.3.2.3.4)."""
        aliases = self._aliases_out
        if aliases is None:
            aliases = self._aliases_out = {}
        alias = aliases.get(topic)
        if alias is not None:
            return b"", alias
        if len(aliases) < self._client_aliases_max:
            alias = aliases[topic] = len(aliases) + 1
            return topic, alias
        return topic, 0

    def _too_large(self, first: int, packet_id: int) -> None:
        """Leave out what the client cannot take, as if it had it (MQTT-3.1.2-25)."""
        self._service.dropped += 1
        if not first & 6:
            return
        if packet_id < _UPPER_HALF:
            self._acknowledge(REFUSED, packet_id)
        elif self._outbound is not None:
            self._outbound.on_refused(PacketId(packet_id))

    def send_pubrel(self, packet_id: int) -> None:
        if self.phase is Phase.LIVE:
            self._stage(encode_ack(PUBREL_BYTE, packet_id))

    def _send_live(self, packet: Packet) -> None:
        if self.phase is Phase.LIVE:
            self._send(packet)

    def _send(self, packet: Packet) -> None:
        self._stage(encode_packet(packet, self._version))

    def _write_now(self, packet: Packet) -> None:
        self._send(packet)
        self.flush()

    def _stage(self, data: bytes) -> None:
        if not self._out:
            self._service.dirty(self)
        self._out.append(data)

    def flush(self) -> None:
        """Write all that this turn brought, at once."""
        if self._out:
            out, self._out = self._out, []
            if self._wire is not None:
                self._wire.write(b"".join(out))


def _forwardable(properties: Properties) -> bytes:
    """Encode the properties that travel with a message, without those of one hop."""
    if properties is NO_PROPERTIES:
        return b""
    kept = replace(
        properties,
        topic_alias=None,
        message_expiry_interval=None,
        subscription_identifiers=(),
        will_delay_interval=None,
    )
    block = encode_properties(kept, PropertyScope.PUBLISH)
    at = 0
    while block[at] > 127:
        at += 1
    return block[at + 1 :]
