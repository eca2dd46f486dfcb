"""What leaves for one client: packets staged during a turn, one write at its end, the close."""

from __future__ import annotations

from typing import Final

from clustor.runtime.containment import guarded
from quantum.edge.ports import ConnectionPeer, WirePort
from quantum.protocols.mqtt.codec import (
    Connack,
    Disconnect,
    Packet,
    PeerFault,
    Properties,
    ProtocolVersion,
    ReasonCode,
    encode_packet,
)
from quantum.protocols.mqtt.session.limits import MqttLimits
from quantum.protocols.mqtt.session.mqtt_node import MqttNode
from quantum.protocols.mqtt.session.phase import PLACE, ConnectionPhase
from quantum.protocols.mqtt.session.tenant_sessions import TenantSessions
from quantum.protocols.mqtt.session.terms import ConnectionTerms

_V5: Final = ProtocolVersion.V5
_BEHIND_PIECES_MAX: Final = 8_192


class ClientWire:
    """The bytes' side of a `Connection`, which is the only kind of it."""

    __slots__ = (
        "_behind",
        "_is_behind_long",
        "_out",
        "_subacks_due",
        "client_id",
        "is_v5",
        "last_seen_ms",
        "node",
        "peer",
        "phase",
        "tenant",
        "terms",
        "version",
        "wire",
    )

    def __init__(self, node: MqttNode) -> None:
        self.node = node
        self.phase = ConnectionPhase.NEW
        self.wire: WirePort | None = None
        """None before it is opened, and as soon as nothing may leave any more."""
        self.peer: ConnectionPeer | None = None
        self.version = ProtocolVersion.V311
        self.is_v5 = False
        self.client_id: bytes = b""
        self.tenant: TenantSessions | None = None
        self.terms: ConnectionTerms | None = None
        self.last_seen_ms = 0
        self._out: list[bytes] = []
        self._subacks_due = 0
        """SUBSCRIBEs whose answer is not decided, or waits for other partitions."""
        self._behind: list[bytes] | None = None
        """Messages that leave behind those answers."""
        self._is_behind_long = False

    @property
    def limits(self) -> MqttLimits:
        return self.node.limits

    @property
    def home(self) -> TenantSessions:
        """The client's tenant."""
        assert self.tenant is not None
        return self.tenant

    @property
    def agreed(self) -> ConnectionTerms:
        """What CONNECT asked for and got."""
        assert self.terms is not None
        return self.terms

    @property
    def identity(self) -> str | None:
        """Whom the client's certificate or token names."""
        return None if self.peer is None else self.peer.identity

    @property
    def is_live(self) -> bool:
        return self.phase is ConnectionPhase.LIVE

    @property
    def writable(self) -> bool:
        """Whether the client reads what is sent to it."""
        return self.wire is not None and self.wire.writable

    def now_ms(self) -> int:
        return self.node.now_ms()

    def speak(self, version: ProtocolVersion) -> None:
        """Encode for this version from now on."""
        self.version, self.is_v5 = version, version is _V5

    def send_live(self, packet: Packet) -> None:
        if self.phase is ConnectionPhase.LIVE:
            self.send(packet)

    def send(self, packet: Packet) -> None:
        """Send a packet, shorter if the client asks for that, or end ([MQTT-3.1.2-24])."""
        data = encode_packet(packet, self.version)
        limit = self.terms.packet_bytes_max if self.terms is not None else 0
        if limit and len(data) > limit:
            if isinstance(packet, Disconnect | Connack) and packet.reason_code.is_failure:
                data = encode_packet(type(packet)(reason_code=packet.reason_code), self.version)
            if len(data) > limit:
                self.node.soon(lambda: self.drop("an answer is larger than the client takes"))
                return
        self.stage(data)

    def write_now(self, packet: Packet) -> None:
        self.send(packet)
        self.flush()

    def stage(self, data: bytes) -> None:
        """Let bytes leave at the end of this turn."""
        self.pieces().append(data)

    def pieces(self) -> list[bytes]:
        """Return the list of what leaves at the end of this turn, to append to."""
        if not self._out:
            self.node.dirty(self)
        return self._out

    def delivery_pieces(self) -> list[bytes]:
        """Return the list to append a message to: one that leaves behind a SUBACK that is due.

        A client may be sent what is retained before it is told that it subscribed ([MQTT-3.8.4-2]);
        many are not made for that. A SUBACK that waits for long holds back little.
        """
        if not self._subacks_due:
            return self._out or self.pieces()
        if self._behind is None:
            self._behind, self._is_behind_long = [], False
        elif len(self._behind) >= _BEHIND_PIECES_MAX:
            self.release_deliveries()
            return self.pieces()
        return self._behind

    def suback_due(self) -> None:
        """Let messages wait for the answer to a SUBSCRIBE; each call needs its `suback_left`."""
        self._subacks_due += 1

    def suback_left(self) -> None:
        """Let messages follow the answer, once no other one is due."""
        self._subacks_due -= 1
        assert self._subacks_due >= 0
        if not self._subacks_due:
            self.release_deliveries()

    def check_behind(self) -> None:
        """Let messages leave that have waited for a SUBACK since the last look, a second ago."""
        if self._is_behind_long:
            self.release_deliveries()
        self._is_behind_long = self._behind is not None

    def release_deliveries(self) -> None:
        """Let messages leave that wait for a SUBACK."""
        behind, self._behind = self._behind, None
        if behind:
            self.pieces().extend(behind)

    @guarded(PLACE)
    def flush(self) -> None:
        """Write all that this turn brought, at once."""
        if self._out:
            out, self._out = self._out, []
            if self.wire is not None:
                data = b"".join(out)
                if self.tenant is not None:
                    self.tenant.bytes_out += len(data)
                self.wire.write(data)

    def hold(self) -> None:
        """Stop reading; each call needs its `let_go`."""
        raise NotImplementedError

    def let_go(self) -> None:
        """Read again, once nothing else holds it."""
        raise NotImplementedError

    # What others are told of it.

    def note_refused(self, what: str, why: str, about: bytes = b"") -> None:
        """Tell the audit log what this client may not."""
        target = about.decode(errors="replace")
        who, tenant = self.named()
        self.node.host.note_refused(what, who=who, why=why, target=target, tenant=tenant)

    def note_audit(self, what: str, why: str) -> None:
        """Tell the audit log that this client came, or went."""
        who, _ = self.named()
        self.node.host.note_client(what, why, who, self.home.tenant)

    def count_fault(self, fault: PeerFault) -> None:
        """Count what is wrong with what the client sent, and tell the audit log whose it was."""
        self.node.count_fault(fault, *self.named())
        if self.tenant is not None:
            self.tenant.count_fault(fault)

    def named(self) -> tuple[str, str]:
        """Return who the client is, as far as that is known, and its tenant."""
        if self.tenant is None:
            return "" if self.peer is None else self.peer.address, ""
        client = self.client_id.decode(errors="replace")
        return f"{self.identity or '-'} {client}", self.tenant.name

    # Ends.

    def end_soon(self, reason: ReasonCode, why: str) -> None:
        """Disconnect when the call that noticed it is over."""
        self.node.soon(lambda: self.disconnect(reason, why))

    def disconnect(self, reason: ReasonCode, why: str, reference: str | None = None) -> None:
        """Say why, where the protocol has words for it, and close."""
        if self.phase is ConnectionPhase.CLOSED:
            return
        self.node.meters.disconnects[reason] += 1
        if self.is_v5 and self.phase is ConnectionPhase.LIVE:
            said = Properties(server_reference=reference)
            said.reason_string = why if self.agreed.wants_reasons else None
            self.send(Disconnect(reason, said))
        self.flush()
        self.drop(why)

    def whom(self) -> str:
        """Name the client, for who looks for what went wrong."""
        address = "" if self.peer is None else self.peer.address
        return f"{address} {self.client_id.decode(errors='replace')}"

    def abort(self) -> None:
        """End at once; the session ends when the wire says that it is lost."""
        if self.wire is not None:
            self.wire.abort()

    def drop(self, why: str) -> None:
        """Close without a word."""
        self.node.host.note_end(self.client_id, why)
        wire, self.wire = self.wire, None
        if wire is not None:
            wire.close()
        self.close_session()

    def close_session(self) -> None:
        """Give back all that the connection held; a second call does nothing."""
        raise NotImplementedError
