"""One AMQP connection: bytes to the engine, its events to links, and what they say back as bytes.

It stays where it came in; each link finds the leader of its queue. Whatever a client does ends its
link, its session or its connection, as the standard says, and nobody else's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from quantum.edge.ports import ConnectionPeer, WirePort
from quantum.protocols.amqp.engine import (
    AcceptedOutcome,
    AmqpConnection,
    AmqpConnectionFailed,
    AmqpLink,
    AmqpSession,
    AttachReceived,
    BeginReceived,
    CloseReceived,
    Condition,
    ConnectionState,
    DeclareReceived,
    DeliveryAborted,
    DeliveryReceived,
    DeliveryState,
    DetachReceived,
    DischargeReceived,
    DispositionReceived,
    EndReceived,
    EngineSettings,
    ErrorValue,
    FlowReceived,
    LinkFailed,
    LinkState,
    OpenReceived,
    OutgoingDelivery,
    SaslInitReceived,
    SaslResponseReceived,
    SenderDispositionReceived,
    SessionFailed,
    SessionState,
    WindowOpened,
)
from quantum.protocols.amqp.engine.types import SaslCode
from quantum.protocols.amqp.session.amqp_node import AmqpNode
from quantum.protocols.amqp.session.attaching import LinkMaker
from quantum.protocols.amqp.session.client_port import LinkEnd
from quantum.protocols.amqp.session.message_head import sender_mark
from quantum.protocols.amqp.session.sasl import (
    ANONYMOUS,
    EXTERNAL,
    allows_nobody,
    mechanisms_for,
    read_plain,
)
from quantum.protocols.amqp.session.tenant_queues import TenantQueues
from quantum.protocols.amqp.session.transactions import Transactions
from quantum.tenancy import Operation, ResourceKind
from quantum.tenants.binding import disbelief, needs_list
from quantum.tenants.passwords import IDENTITY_PREFIX

_CAPABILITIES: Final = ("ANONYMOUS-RELAY", "sole-connection-for-container")
_CONTAINER_CHARS_MAX: Final = 256


class AmqpClient:
    """The server's side of one client (`quantum.edge.ports.Handler`)."""

    def __init__(self, node: AmqpNode) -> None:
        self.node = node
        self.identity: str | None = None
        self.container = ""
        self.mark = b""
        self._wire: WirePort | None = None
        self.peer: ConnectionPeer | None = None
        self._home: TenantQueues | None = None
        self._engine: AmqpConnection | None = None
        self._transactions: Transactions | None = None
        self._maker = LinkMaker(self)
        self.links: dict[AmqpLink, LinkEnd] = {}
        self._settled: dict[AmqpSession, list[tuple[int, DeliveryState]]] = {}
        self._pending_bytes = 0
        self._is_paused = False
        self._entered = False
        self._on: dict[type, Callable[[Any], None]] = {
            SaslInitReceived: self._on_sasl_init,
            SaslResponseReceived: self._on_sasl_response,
            OpenReceived: self._on_open,
            CloseReceived: self._on_close,
            AmqpConnectionFailed: self._on_connection_failed,
            BeginReceived: lambda event: event.session.begin(),
            EndReceived: self._on_end,
            SessionFailed: self._on_session_failed,
            AttachReceived: self._maker.on_attach,
            DetachReceived: self._on_detach,
            LinkFailed: self._on_link_failed,
            FlowReceived: self._on_flow,
            WindowOpened: self._on_window,
            DeliveryReceived: self._on_delivery,
            DeliveryAborted: lambda _event: None,
            DeclareReceived: self._on_declare,
            DischargeReceived: self._on_discharge,
            DispositionReceived: self._on_disposition,
            SenderDispositionReceived: lambda _event: None,
        }

    # What a listener calls.

    def opened(self, wire: WirePort, peer: ConnectionPeer) -> None:
        self._wire, self.peer = wire, peer
        home = self.node.tenants.get(peer.tenant)
        if home is None or home.tenant.shut or not home.queues:
            wire.close()
            return
        self._home = home
        self.identity = peer.identity
        limits, passwords = self.node.limits, self.node.passwords
        mechanisms = mechanisms_for(peer, passwords, home.name)
        is_free = peer.identity is not None or allows_nobody(peer, passwords)
        self._engine = AmqpConnection(
            EngineSettings(
                f"quantum-{home.name}",
                frame_bytes_max=limits.frame_bytes_max,
                channel_max=limits.channel_max,
                handle_max=limits.handle_max,
                idle_time_out_ms=limits.idle_time_out_ms,
                message_bytes_max=limits.message_bytes_max,
                mechanisms=mechanisms,
                sasl_required=not is_free,
            )
        )
        self._transactions = Transactions(home, self.node.entropy, self.settle_later)
        self.node.joined(self)

    def received(self, data: bytes) -> None:
        if self._engine is not None:
            self._engine.receive_data(data)
            self._pull()

    def _pull(self) -> None:
        engine = self._engine
        while engine is not None and (event := engine.next_event()) is not None:
            self._on[type(event)](event)
            engine = self._engine
        self.touch()

    def writable_again(self) -> None:
        for end in list(self.links.values()):
            end.pump()

    def lost(self) -> None:
        self._drop_links(failed=True)
        self._leave()
        self._engine = self._wire = None

    def expelled(self, why: str) -> None:
        """Say why and close: its certificate is believed no more."""
        self.sent_away(why)
        self.flush()

    def whom(self) -> str:
        """Name the client, for people."""
        return self.peer.address if self.peer is not None else "nobody"

    def abort(self) -> None:
        """End at once."""
        if self._wire is not None:
            self._wire.abort()

    # What links ask for (`ClientPort`).

    @property
    def home(self) -> TenantQueues:
        assert self._home is not None
        return self._home

    @property
    def is_live(self) -> bool:
        engine = self._engine
        return engine is not None and engine.state is ConnectionState.OPENED

    @property
    def writable(self) -> bool:
        return self._wire is not None and self._wire.writable

    def touch(self) -> None:
        if self._wire is not None:
            self.node.dirty(self)

    def settle_later(self, session: AmqpSession, number: int, state: DeliveryState) -> None:
        self._settled.setdefault(session, []).append((number, state))
        self.touch()

    def count_pending(self, size: int) -> None:
        self._pending_bytes += size
        most, wire = self.node.limits.pending_bytes_max, self._wire
        if wire is None:
            return
        if not self._is_paused and self._pending_bytes > most:
            self._is_paused = True
            wire.pause_reading()
        elif self._is_paused and self._pending_bytes <= most // 2:
            self._is_paused = False
            wire.resume_reading()

    def may(self, operation: Operation, kind: ResourceKind, name: bytes) -> bool:
        """Say whether the tenant's rules allow something to this client."""
        home = self.home
        lists = needs_list(self.peer, shared=home.guard.is_shared)
        decision = home.guard.may(
            self.identity,
            operation,
            kind,
            name,
            client_id=self.container.encode(),
            needs_list=lists,
        )
        if not decision.allowed:
            what = f"{operation.value.upper()}_REFUSED"
            home.guard.note(what, self.container.encode(), self.identity, name)
        return decision.allowed

    def may_send(self, queue: bytes) -> bool:
        return self.may(Operation.PRODUCE, ResourceKind.QUEUE, queue)

    def draw(self, count: int) -> bytes:
        return self.node.entropy(count)

    # Writing.

    def flush(self) -> None:
        """Write what this turn brought."""
        engine, wire = self._engine, self._wire
        if engine is None or wire is None:
            return
        if self._settled:
            self._tell_settled()
        data = engine.data_to_send()
        if data:
            wire.write(data)
        if engine.is_over:
            self._engine = None
            wire.close()

    def _tell_settled(self) -> None:
        settled, self._settled = self._settled, {}
        for session, rows in settled.items():
            if session.state is not SessionState.MAPPED:
                continue
            accepted = []
            for number, state in rows:
                if number not in session.incoming:
                    continue
                if isinstance(state, AcceptedOutcome):
                    accepted.append(number)
                else:
                    session.settle([number], state)
            if accepted:
                session.settle(accepted, AcceptedOutcome())

    # Who it is.

    def _on_sasl_init(self, event: SaslInitReceived) -> None:
        engine, peer = self._engine, self.peer
        assert engine is not None and peer is not None
        is_shown = event.mechanism == EXTERNAL and peer.identity is not None
        if is_shown or event.mechanism == ANONYMOUS:
            engine.sasl_outcome(SaslCode.OK)
        elif event.initial_response is None:
            engine.sasl_challenge(b"")
        else:
            self._judge(event.initial_response)

    def _on_sasl_response(self, event: SaslResponseReceived) -> None:
        self._judge(event.response)

    def _judge(self, response: bytes) -> None:
        """Let a password be checked beside the loop; what is pipelined waits for it."""
        engine, peer, home = self._engine, self.peer, self.home
        assert engine is not None and peer is not None
        found, passwords = read_plain(response), self.node.passwords
        if found is None:
            self._refuse_sasl("a PLAIN response that is none")
            return
        name, password = found
        if allows_nobody(peer, passwords) and not passwords.has_users(home.name):
            engine.sasl_outcome(SaslCode.OK)
            return

        def judged(is_right: bool) -> None:
            if self._engine is not engine or engine.is_over:
                return
            if is_right:
                self.identity = IDENTITY_PREFIX + name
                engine.sasl_outcome(SaslCode.OK)
            else:
                self._refuse_sasl("no such user, or another password")
            self._pull()

        if not passwords.judge(home.name, name, password, judged):
            engine.sasl_outcome(SaslCode.SYS_TEMP)

    def _refuse_sasl(self, why: str) -> None:
        assert self._engine is not None
        self.node.host.note_refused(
            "ConnectRefused", who=self.whom(), why=why, tenant=self.home.name
        )
        self._engine.sasl_outcome(SaslCode.AUTH)

    # The connection.

    def _on_open(self, event: OpenReceived) -> None:
        engine = self._engine
        assert engine is not None
        self.container = event.open.container_id[:_CONTAINER_CHARS_MAX]
        self.mark = sender_mark(self.container)
        refused = self._refuse_open()
        engine.open(offered_capabilities=_CAPABILITIES, properties={"product": "Quantum"})
        if refused is not None:
            engine.close(refused)
            return
        self._entered = True
        self.home.clients.add(self)

    def _refuse_open(self) -> ErrorValue | None:
        home, peer = self.home, self.peer
        assert peer is not None
        why = disbelief(peer, home.name, shared=home.guard.is_shared)
        if home.tenant.shut or why is not None:
            return ErrorValue(Condition.UNAUTHORIZED_ACCESS, why or home.tenant.shut)
        if not home.guard.may_connect(self.identity, self.container.encode()):
            home.guard.note("CONNECT_REFUSED", self.container.encode(), self.identity)
            why = "the rules of the tenant let it not connect"
            return ErrorValue(Condition.UNAUTHORIZED_ACCESS, why)
        if self.node.host.draining:
            return ErrorValue(Condition.CONNECTION_FORCED, "this node is being drained")
        if not home.guard.enter(self.node.host.tick_ms):
            return ErrorValue(Condition.RESOURCE_LIMIT_EXCEEDED, "too many connections")
        return None

    def _on_close(self, _event: CloseReceived) -> None:
        self._drop_links(failed=False)
        engine = self._engine
        if engine is not None and engine.state is not ConnectionState.END:
            engine.close()

    def _on_connection_failed(self, event: AmqpConnectionFailed) -> None:
        fault = event.fault
        tenant = self.home.name
        self.node.count_fault(fault.condition, self.whom(), fault.reason, tenant)
        self._drop_links(failed=True)

    def _leave(self) -> None:
        self.node.left(self)
        if self._entered:
            self._entered = False
            self.home.clients.discard(self)
            self.home.guard.leave(self.node.host.tick_ms)

    def policy_changed(self) -> None:
        """Go on under the rules that are in force now, or go."""
        home = self.home
        is_user = self.identity is not None and self.identity.startswith(IDENTITY_PREFIX)
        if is_user and not self.node.passwords.is_user(home.name, self.identity or ""):
            self.sent_away("its user is gone")
        elif not home.guard.may_connect(self.identity, self.container.encode()):
            self.sent_away("the rules of the tenant let it not connect")
        else:
            self._maker.judge_again()

    def sent_away(self, why: str) -> None:
        if self.is_live and self._engine is not None:
            self._drop_links(failed=False)
            self._engine.close(ErrorValue(Condition.CONNECTION_FORCED, why))
            self.touch()

    def check_time(self, now_ms: int) -> None:
        """Send a heartbeat if one is due; end a silent client."""
        if self._engine is not None:
            self._engine.on_time(now_ms / 1000)
            self._pull()
        if self._transactions is not None:
            self._transactions.on_tick(now_ms)

    def on_tick(self) -> None:
        for end in list(self.links.values()):
            end.on_tick()

    # Sessions and links.

    def _drop_links(self, *, failed: bool) -> None:
        links, self.links = self.links, {}
        for end in links.values():
            end.closed(failed=failed)
        self._maker.closed(list(links))

    def _on_end(self, event: EndReceived) -> None:
        self._drop_session(event.session)
        if event.session.state is SessionState.END_RECEIVED:
            event.session.end()

    def _on_session_failed(self, event: SessionFailed) -> None:
        fault = event.fault
        self.node.count_fault(fault.condition, self.whom(), fault.reason, self.home.name)
        self._drop_session(event.session)

    def _drop_session(self, session: AmqpSession) -> None:
        for link in [each for each in self.links if each.session is session]:
            self._drop_link(link)

    def _on_detach(self, event: DetachReceived) -> None:
        self._drop_link(event.link, is_closed=event.closed)
        if event.link.state is LinkState.DETACH_RECEIVED:
            event.link.detach(closed=event.closed)

    def _on_link_failed(self, event: LinkFailed) -> None:
        fault = event.fault
        self.node.count_fault(fault.condition, self.whom(), fault.reason, self.home.name)
        self._drop_link(event.link)

    def _drop_link(self, link: AmqpLink, *, is_closed: bool = False) -> None:
        end = self.links.pop(link, None)
        if end is not None:
            end.closed(failed=False)
        self.transactions.link_closed(link)
        self._maker.closed([link], is_ended=is_closed)

    def _on_flow(self, event: FlowReceived) -> None:
        end = self.links.get(event.link)
        if end is not None:
            end.on_flow()

    def _on_window(self, event: WindowOpened) -> None:
        for link, end in list(self.links.items()):
            if link.session is event.session:
                end.pump()

    def _on_delivery(self, event: DeliveryReceived) -> None:
        end = self.links.get(event.link)
        if end is not None:
            end.on_delivery(event)

    def _on_disposition(self, event: DispositionReceived) -> None:
        by_link: dict[AmqpLink, list[OutgoingDelivery]] = {}
        for delivery in event.deliveries:
            by_link.setdefault(delivery.link, []).append(delivery)
        for link, deliveries in by_link.items():
            end = self.links.get(link)
            if end is not None:
                end.on_disposition(deliveries, event.state, settled=event.settled)

    # Transactions.

    @property
    def transactions(self) -> Transactions:
        assert self._transactions is not None
        return self._transactions

    def _on_declare(self, event: DeclareReceived) -> None:
        self.transactions.on_declare(event)

    def _on_discharge(self, event: DischargeReceived) -> None:
        self.transactions.on_discharge(event)
