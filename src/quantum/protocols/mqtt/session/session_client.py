"""One client as the partition of its session knows it: commands to the log, messages from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clustor.runtime.containment import end_alone
from quantum.broker import (
    PUBREC,
    Delivery,
    Detach,
    Subscribed,
    Target,
    encode_command,
)
from quantum.protocols.mqtt.codec import ReasonCode
from quantum.protocols.mqtt.codec.hot import PUBCOMP as PUBCOMP_BYTE
from quantum.protocols.mqtt.codec.hot import PUBREL as PUBREL_BYTE
from quantum.protocols.mqtt.codec.hot import encode_ack
from quantum.protocols.mqtt.session.client_wire import PLACE, ClientWire
from quantum.protocols.mqtt.session.deliver_out import Outward, answer_stray_pubrec
from quantum.protocols.mqtt.session.delivery import Outgoing
from quantum.protocols.mqtt.session.phase import Phase
from quantum.protocols.mqtt.session.slowing import Slowing
from quantum.tenancy.credits import WHOLE

if TYPE_CHECKING:
    from quantum.node.service import BrokerService
    from quantum.node.tenant import Tenant
    from quantum.partition.leader import Completion, Prg
    from quantum.tenancy import ClientAccess


class SessionClient(ClientWire):
    """The session's side of a `Connection`, which is the only kind of it."""

    __slots__ = (
        "_ended",
        "attachment",
        "by_us",
        "epoch",
        "expiry_seconds",
        "gracefully",
        "moved_ms",
        "new_expiry_seconds",
        "operations",
        "outward",
        "prg",
        "queued_bytes",
        "slowing",
        "withholds",
    )

    def __init__(self, service: BrokerService) -> None:
        super().__init__(service)
        self.prg: Prg | None = None
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

    @property
    def home(self) -> Tenant:
        """The client's tenant."""
        assert self.tenant is not None
        return self.tenant

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
        prg = self.prg
        assert prg is not None
        self.operations += 1
        settled = prg.unsettle(self.client_id)

        def completed(reply: bytes | None) -> None:
            self.operations -= 1
            settled()
            try:
                completion(reply)
            except Exception as error:  # noqa: BLE001  # of this client, not of the partition
                end_alone(PLACE, self, error)
            if self._ended and self.operations == 0:
                self._detach()

        prg.propose(command, completed)

    def learn_session(self, found: Subscribed) -> None:
        """A first subscription made a session of what only this connection knew."""
        if not self.epoch and found.epoch:
            self.epoch, self.attachment = found.epoch, found.attachment

    def session_ended(self, epoch: int, reason: str) -> None:
        """The session of this connection is no more."""
        if self.epoch == epoch and self.phase is Phase.LIVE:
            self.disconnect(ReasonCode.ADMINISTRATIVE_ACTION, reason)

    def broken_by_us(self) -> None:
        """Note that the connection ends, and the client perhaps does not (C23)."""
        self.by_us = True

    def end_session(self) -> None:
        """Leave the partition, when all that is on its way there is settled."""
        prg = self.prg
        if prg is not None and prg.connections.get(self.client_id) is self:
            del prg.connections[self.client_id]
        self._ended = True
        if self.operations == 0:
            self._detach()

    def _detach(self) -> None:
        """Let the log know that the connection is gone, if it knows the session."""
        prg, epoch = self.prg, self.epoch
        self.epoch = 0
        if prg is None or not epoch or not prg.leading:
            return
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
        settled = prg.unsettle(self.client_id)
        prg.propose(encode_command(command), lambda _reply: settled())

    # Messages for the client.

    def deliver_to(self, target: Target, outgoing: Outgoing) -> None:
        """Deliver a message that a subscription of this client wants."""
        message = outgoing.message
        if target.no_local and message.client_id == self.client_id:
            rest = target.for_publisher()
            if rest is None:
                return
            target = rest
        qos = message.qos if message.qos < target.qos else target.qos
        retain = 1 if message.retain and target.retain_as_published else 0
        self.deliver(outgoing, qos, retain, target.identifiers)

    def deliver(
        self, outgoing: Outgoing, qos: int, retain: int, identifiers: tuple[int, ...]
    ) -> None:
        """Deliver a message that only this connection keeps."""
        if self.phase is Phase.LIVE:
            self._sender().deliver(outgoing, qos, retain, identifiers)

    def send_kept(self, delivery: Delivery, *, again: bool) -> None:
        """Send a message that the machine keeps for this client."""
        if self.phase is Phase.LIVE:
            self._sender().send_kept(delivery, again=again)

    def _sender(self) -> Outward:
        if self.outward is None:
            self.outward = Outward(self, self.agreed)
        return self.outward

    def send_pubrel(self, packet_id: int) -> None:
        if self.phase is Phase.LIVE:
            self.stage(encode_ack(PUBREL_BYTE, packet_id))

    def send_pubcomp(self, packet_id: int) -> None:
        if self.phase is Phase.LIVE:
            self.stage(encode_ack(PUBCOMP_BYTE, packet_id))

    def acknowledge(self, kind: int, packet_id: int) -> None:
        """Log what the client said of a message that the machine keeps."""
        if self.prg is not None and self.epoch:
            self.prg.acknowledge(self.client_id, kind, packet_id)
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
                self.moved_ms = self.service.tick_ms
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
        self.service.dropped += 1
        self.home.dropped += 1
