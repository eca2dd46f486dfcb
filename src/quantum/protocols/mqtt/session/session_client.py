"""One client as the partition of its session knows it: commands to the log, messages from it."""

from __future__ import annotations

from typing import Final

from clustor.runtime.containment import end_alone
from quantum.broker import (
    PUBREC,
    Delivery,
    Detach,
    RouteTarget,
    SubscribeReply,
    encode_command,
)
from quantum.partition.batches import PublishBatch
from quantum.partition.leader import PartitionLeader
from quantum.partition.ports import Completion
from quantum.partition.reasons import RefusalReason
from quantum.protocols.mqtt.codec import Connack, PacketReader, ReasonCode
from quantum.protocols.mqtt.codec.hot import PUBCOMP as PUBCOMP_BYTE
from quantum.protocols.mqtt.codec.hot import PUBREL as PUBREL_BYTE
from quantum.protocols.mqtt.codec.hot import encode_ack
from quantum.protocols.mqtt.reasons import LOST, REFUSALS
from quantum.protocols.mqtt.session.authentication import AuthenticationAccepted, Talk
from quantum.protocols.mqtt.session.client_wire import ClientWire
from quantum.protocols.mqtt.session.deliver_out import Outward, answer_stray_pubrec
from quantum.protocols.mqtt.session.delivery import Outgoing
from quantum.protocols.mqtt.session.mqtt_node import MqttNode
from quantum.protocols.mqtt.session.partition_sessions import PartitionSessions
from quantum.protocols.mqtt.session.permit import Permit
from quantum.protocols.mqtt.session.phase import PLACE, ConnectionPhase
from quantum.protocols.mqtt.session.relay_memory import RelayMemory
from quantum.protocols.mqtt.session.slowing import Slowing
from quantum.protocols.mqtt.session.tenant_sessions import TenantClient
from quantum.protocols.mqtt.session.terms import ConnectionTerms
from quantum.tenancy import WHOLE, ClientAccess
from quantum.tenants.binding import disbelief

_GRACE: Final = 1.5
NEVER_MS: Final = 1 << 62


class SessionClient(ClientWire):
    """The session's side of a `Connection`, which is the only kind of it."""

    __slots__ = (
        "_auth_epoch",
        "_ended",
        "_ends_ms",
        "_holds",
        "_is_paused",
        "_keep_alive_ms",
        "_permit",
        "attachment",
        "by_us",
        "entered",
        "epoch",
        "expiry_seconds",
        "gracefully",
        "moved_ms",
        "new_expiry_seconds",
        "operations",
        "outward",
        "prg",
        "queued_bytes",
        "reader",
        "sessions",
        "slowing",
        "talk",
        "withholds",
    )

    def __init__(self, node: MqttNode) -> None:
        super().__init__(node)
        self.reader = PacketReader(node.limits.packet_bytes_max, node.limits.connect_bytes_max)
        self.sessions: PartitionSessions[TenantClient] | None = None
        """Those of its session's partition, where that is known."""
        self.prg: PartitionLeader | None = None
        """The leader of the same partition, at hand."""
        self._permit: Permit | None = None
        self.talk: Talk | None = None
        """The method by which the client authenticates, where its CONNECT named one."""
        self._keep_alive_ms = 0
        self._ends_ms = NEVER_MS
        """When the client's authentication ends, in Unix milliseconds."""
        self._auth_epoch: int | None = None  # of the token it came by (quantumqtt §10.4)
        self.entered = False
        """Whether it is counted among its tenant's connections."""
        self._holds = 0  # for how many reasons it is not read
        self._is_paused = False
        self.epoch = 0
        """The epoch of the session in the log; 0 while only this connection knows it."""
        self.attachment = 0
        self.expiry_seconds = 0
        self.new_expiry_seconds: int | None = None
        """What DISCONNECT made of it."""
        self.outward: Outward | None = None
        self.operations = 0
        """Commands about this session that are on their way."""
        self._ended = False
        self.gracefully = False
        """Whether its will is not wanted."""
        self.by_us = False
        """Whether the connection ended and the client did not: its will waits (C23)."""
        self.queued_bytes = 0
        """What waits here for a client that does not keep up."""
        self.moved_ms = 0
        """When something of that last left, or began to wait."""
        self.slowing: Slowing | None = None
        """Whom it slows; None: it kept up so far."""
        self.withholds: ClientAccess | None = None
        """The access rules that each message to it has to pass; None: none denies any."""

    # What was agreed on, and under which rules.

    def accept_terms(self, terms: ConnectionTerms) -> None:
        """Keep to what was agreed on."""
        self.terms = terms
        self.expiry_seconds = terms.expiry_seconds
        self._keep_alive_ms = int(terms.keep_alive_seconds * 1000 * _GRACE)

    def believe(self, verdict: AuthenticationAccepted) -> None:
        """Note for how long the client is who it says it is."""
        self._ends_ms = NEVER_MS if verdict.ends_ms is None else verdict.ends_ms
        self._auth_epoch = verdict.auth_epoch

    def disbelief(self, *, awaits_token: bool = False) -> str | None:
        """Say why the client is not its tenant's; None: it is."""
        home = self.home
        assert self.peer is not None
        shared = home.guard.is_shared
        return disbelief(self.peer, home.name, shared=shared, awaits_token=awaits_token)

    @property
    def permit(self) -> Permit:
        """What the client may do."""
        assert self._permit is not None
        return self._permit

    def draw_permit(self) -> Permit:
        """Go on under the rules that the tenant has now."""
        self._permit = Permit(self)
        self.withholds = self._permit.withholds
        return self._permit

    # Reading.

    @property
    def is_held(self) -> bool:
        """Whether it is left unread, for whatever reason."""
        return self._holds > 0

    def hold(self) -> None:
        self._holds += 1
        if not self._is_paused and self.wire is not None:
            self._is_paused = True
            self.wire.pause_reading()

    def let_go(self) -> None:
        self._holds -= 1
        if self._holds or self.phase is not ConnectionPhase.LIVE:
            return
        self.last_seen_ms = self.node.tick_ms  # its silence was ours
        if self.reader.buffered_bytes:
            self.pull()
        if not self._holds and self.wire is not None:
            self._is_paused = False
            self.wire.resume_reading()

    def pull(self) -> None:
        """Take the whole packets that are here, as far as they belong into this turn."""
        raise NotImplementedError

    # What its parts let it do; `Connection` does it.

    def expelled(self, why: str) -> None:
        """End a client that is believed no more; its will is not said (§10.3)."""
        raise NotImplementedError

    def become_live(self, connack: Connack) -> None:
        """Say that the session is there, and go on with what the client already sent."""
        raise NotImplementedError

    def become_relayed(
        self,
        prg: PartitionLeader,
        node: int,
        assigned: bytes,
        data: bytes,
        memory: RelayMemory | None,
    ) -> None:
        """Let another node serve the client; `data` is all that it sent."""
        raise NotImplementedError

    def attach_to(self, sessions: PartitionSessions[TenantClient]) -> None:
        """Be the connection of the client's session from now on."""
        raise NotImplementedError

    def answer_pubrec(self, packet_id: int, refusal: RefusalReason | None) -> None:
        """A QoS 2 publish of a session in the log is where it belongs, or was refused."""
        raise NotImplementedError

    def give_back(self, why: str) -> None:
        """Leave a client without an answer to the node that it came by: it asks elsewhere."""
        raise NotImplementedError

    # What became of its publishes.

    def batch_finished(self) -> None:
        """Let the answers to publishes leave whose turn it is."""
        raise NotImplementedError

    def batch_refused(self, batch: PublishBatch, number: int, reason: RefusalReason) -> None:
        """Note that one of its publishes was refused; the connection may end with that (§11.2)."""
        words = REFUSALS[reason]
        if words.ends:
            self.end_soon(words.code, words.ends)
        self.node.meters.refuse("PUBLISH", words.code)
        if batch.refused is None:
            batch.refused = []
        batch.refused.append((number, words.code))

    def batch_lost(self) -> None:
        """End: a publish can never be answered, and the client sends it all again."""
        self.end_soon(LOST.code, LOST.ends)

    # Its session.

    def join(self, sessions: PartitionSessions[TenantClient] | None) -> None:
        """Belong to a partition from now on; None: to none."""
        self.sessions = sessions
        self.prg = None if sessions is None else sessions.leader

    @property
    def window(self) -> int:
        """How many messages the machine may have in flight; `Outward` decides how many leave."""
        return min(self.agreed.receive_maximum, self.limits.in_flight_max)

    @property
    def outlives(self) -> bool:
        """Whether the session is in the log and outlives this connection."""
        return self.expiry_seconds > 0 and self.epoch > 0

    def command(self, command: bytes, completion: Completion) -> None:
        """Log something about this session; the partition knows that it is not settled."""
        sessions = self.sessions
        assert sessions is not None
        self.operations += 1
        settled = sessions.unsettle(self.client_id)

        def completed(reply: bytes | None) -> None:
            self.operations -= 1
            settled()
            try:
                completion(reply)
            except Exception as error:  # noqa: BLE001  # of this client, not of the partition
                end_alone(PLACE, self, error)
            if self._ended and self.operations == 0:
                self._detach()

        sessions.leader.propose(command, completed)

    def learn_session(self, found: SubscribeReply) -> None:
        """A first subscription made a session of what only this connection knew."""
        if not self.epoch and found.epoch:
            self.epoch, self.attachment = found.epoch, found.attachment

    def session_ended(self, epoch: int, reason: str) -> None:
        """The session of this connection is no more."""
        if self.epoch == epoch and self.phase is ConnectionPhase.LIVE:
            self.disconnect(ReasonCode.ADMINISTRATIVE_ACTION, reason)

    def broken_by_us(self) -> None:
        """Note that the connection ends, and the client perhaps does not (C23)."""
        self.by_us = True

    def leave_partition(self) -> None:
        """Be no more the connection of the session."""
        if self.sessions is not None:
            self.sessions.forget(self.client_id, self)

    def end_session(self) -> None:
        """Leave the partition, when all that is on its way there is settled."""
        self.leave_partition()
        self._ended = True
        if self.operations == 0:
            self._detach()

    def _detach(self) -> None:
        """Let the log know that the connection is gone, if it knows the session."""
        sessions, epoch = self.sessions, self.epoch
        self.epoch = 0
        if sessions is None or not epoch or not sessions.leader.leading:
            return
        prg = sessions.leader
        command = Detach(
            prg.now_ms(),
            self.client_id,
            epoch,
            self.gracefully,
            self.new_expiry_seconds,
            self.attachment,
            self.outward.unsent_from() if self.outward is not None else 0,
            self.by_us,
        )
        settled = sessions.unsettle(self.client_id)
        prg.propose(encode_command(command), lambda _reply: settled())

    # Messages for the client.

    def deliver_to(self, target: RouteTarget, outgoing: Outgoing) -> None:
        """Deliver a message that a subscription of this client wants."""
        message = outgoing.message
        if target.no_local and message.client_id == self.client_id:
            rest = target.for_publisher()
            if rest is None:
                return
            target = rest
        qos = message.qos if message.qos < target.qos else target.qos
        retain = 1 if message.retain and target.retain_as_published else 0
        if self.phase is ConnectionPhase.LIVE:
            outward = self.outward or self._sender()
            outward.deliver(outgoing, qos, retain, target.identifiers)

    def deliver(
        self, outgoing: Outgoing, qos: int, retain: int, identifiers: tuple[int, ...]
    ) -> None:
        """Deliver a message that only this connection keeps."""
        if self.phase is ConnectionPhase.LIVE:
            self._sender().deliver(outgoing, qos, retain, identifiers)

    def send_kept(self, delivery: Delivery, *, again: bool) -> None:
        """Send a message that the machine keeps for this client."""
        if self.phase is ConnectionPhase.LIVE:
            self._sender().send_kept(delivery, again=again)

    def _sender(self) -> Outward:
        if self.outward is None:
            self.outward = Outward(self, self.agreed)
        return self.outward

    def send_pubrel(self, packet_id: int) -> None:
        if self.phase is ConnectionPhase.LIVE:
            self.stage(encode_ack(PUBREL_BYTE, packet_id))

    def send_pubcomp(self, packet_id: int) -> None:
        if self.phase is ConnectionPhase.LIVE:
            self.stage(encode_ack(PUBCOMP_BYTE, packet_id))

    def acknowledge(self, kind: int, packet_id: int) -> None:
        """Log what the client said of a message that the machine keeps."""
        if self.sessions is not None and self.epoch:
            self.sessions.acknowledge(self.client_id, kind, packet_id)
        elif kind == PUBREC:
            answer_stray_pubrec(self, packet_id)

    def kept_utilization(self) -> int:
        """How full the queue is that the machine keeps for this client, in thousandths."""
        if self.prg is None:
            return 0
        state = self.prg.broker.state
        session = state.sessions.get(self.client_id)
        if session is None:
            return 0
        return WHOLE * len(session.outbound) // state.settings.queue_messages_max

    def note_queued(self, queued_bytes: int) -> None:
        """Say how much waits here for the client."""
        if queued_bytes != self.queued_bytes:
            if queued_bytes < self.queued_bytes or not self.queued_bytes:
                self.moved_ms = self.node.tick_ms
            self.home.queued.add(queued_bytes - self.queued_bytes)
            self.queued_bytes = queued_bytes
            if self.slowing is not None:
                self.slowing.weigh(queued_bytes)

    def slow_down(self, publisher: bytes) -> None:
        """Let the client whose message waits here wait, too."""
        if self.slowing is None:
            self.slowing = Slowing(self)
            self.slowing.weigh(self.queued_bytes)
        self.slowing.slow_down(publisher)

    def count_dropped(self) -> None:
        self.node.dropped += 1
        self.home.dropped += 1
