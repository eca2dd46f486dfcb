"""Generated exchanges between proton as the client and the engine as the server, byte by byte.

The seed is the whole exchange. After each step the bytes travel until nobody has any left, in
pieces that the seed chooses, and then both sides are asked for their states: they must agree.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import proton

from quantum.protocols.amqp.engine import (
    AcceptedOutcome,
    AmqpConnection,
    AmqpConnectionFailed,
    AmqpLink,
    AmqpSession,
    AttachReceived,
    BeginReceived,
    CloseReceived,
    ConnectionState,
    DeliveryAborted,
    DeliveryReceived,
    DetachReceived,
    DispositionReceived,
    EndReceived,
    EngineSettings,
    ErrorValue,
    Event,
    LinkFailed,
    LinkRole,
    LinkState,
    ModifiedOutcome,
    OpenReceived,
    ReceiverSettleMode,
    RejectedOutcome,
    ReleasedOutcome,
    SaslCode,
    SaslInitReceived,
    SenderDispositionReceived,
    SenderSettleMode,
    SessionFailed,
    SessionState,
)

ACTIVE = proton.Endpoint.LOCAL_ACTIVE | proton.Endpoint.REMOTE_ACTIVE
OUTCOMES: dict[int, Any] = {
    proton.Delivery.ACCEPTED: AcceptedOutcome(),
    proton.Delivery.REJECTED: RejectedOutcome(ErrorValue("test:rejected", "no")),
    proton.Delivery.RELEASED: ReleasedOutcome(),
    proton.Delivery.MODIFIED: ModifiedOutcome(delivery_failed=True, undeliverable_here=False),
}
CODE_OF = {
    AcceptedOutcome: 0x24,
    RejectedOutcome: 0x25,
    ReleasedOutcome: 0x26,
    ModifiedOutcome: 0x27,
}


@dataclass
class Pair:
    """A link as both sides have it, and what was sent over it."""

    name: str
    client: Any
    server: AmqpLink | None = None
    sent: dict[bytes, bytes] = field(default_factory=dict)
    received: dict[bytes, bytes] = field(default_factory=dict)
    told: dict[bytes, int] = field(default_factory=dict)
    """What the receiving side said of a delivery, by tag."""
    heard: dict[bytes, int] = field(default_factory=dict)
    unsettled: dict[bytes, Any] = field(default_factory=dict)
    """Deliveries that the receiving side has and did not settle."""
    own: dict[bytes, Any] = field(default_factory=dict)
    """Deliveries that the client sent and did not settle."""
    is_detached: bool = False
    is_refused: bool = False


class Exchange:
    """One exchange; `run` raises AssertionError where the two sides differ."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.log: list[str] = []
        mechanisms = rng.choice([(), ("ANONYMOUS",), ("PLAIN", "ANONYMOUS")])
        self.server = AmqpConnection(
            EngineSettings(
                "server",
                frame_bytes_max=rng.choice([512, 700, 4096, 65_536]),
                channel_max=rng.choice([1, 3, 100]),
                incoming_window=rng.choice([1, 2, 7, 100]),
                idle_time_out_ms=rng.choice([None, 10_000]),
                mechanisms=mechanisms,
            )
        )
        self.client = proton.Connection()
        self.client.container = "client"
        self.transport = proton.Transport()
        self.transport.max_frame_size = rng.choice([512, 1024, 16_384])
        if mechanisms:
            self.transport.sasl().allowed_mechs("ANONYMOUS")
        self.transport.bind(self.client)
        self.sessions: list[tuple[Any, AmqpSession]] = []
        self.begun: list[AmqpSession] = []
        self.pairs: dict[str, Pair] = {}
        self.faults: list[object] = []
        self.refusing: set[str] = set()
        self.count = 0

    # Bytes.

    def pump(self) -> None:
        """Let the bytes travel until there are none."""
        while True:
            moved = self._to_server()
            self._serve()
            moved = self._to_client() or moved
            if not moved:
                return

    def _to_server(self) -> bool:
        pending = self.transport.pending()
        if pending <= 0:
            return False
        data = bytes(self.transport.peek(pending) or b"")
        self.transport.pop(len(data))
        while data:
            size = self.rng.choice([1, 7, 100, len(data)]) if len(data) < 400 else len(data)
            self.server.receive_data(data[:size])
            data = data[size:]
            if self.rng.random() < 0.3:
                self._serve()
        return True

    def _to_client(self) -> bool:
        data = self.server.data_to_send()
        if not data:
            return False
        while data:
            room = min(self.transport.capacity(), self.rng.choice([50, len(data)]))
            if room <= 0:
                return False
            self.transport.push(data[:room])
            data = data[room:]
        return True

    def _serve(self) -> None:
        while (event := self.server.next_event()) is not None:
            self._on_event(event)

    def _on_event(self, event: Event) -> None:
        match event:
            case SaslInitReceived():
                self.server.sasl_outcome(SaslCode.OK)
            case OpenReceived():
                assert event.open.container_id == "client"
                self.server.open()
            case BeginReceived():
                event.session.begin()
                self.begun.append(event.session)
            case EndReceived():
                if event.session.state is SessionState.END_RECEIVED:
                    event.session.end()
            case CloseReceived():
                if not self.server.is_over:
                    self.server.close()
            case AttachReceived():
                self._on_attach(event)
            case DetachReceived():
                if event.link.state is LinkState.DETACH_RECEIVED:
                    event.link.detach(closed=event.closed)
            case DeliveryReceived():
                self._on_delivery(event)
            case DispositionReceived():
                for each in event.deliveries:
                    pair = self.pairs[each.link.name]
                    if event.state is not None:
                        pair.heard[each.tag] = CODE_OF[type(event.state)]
                    if not event.settled and event.state is not None:
                        event.session.settle_sent([each.delivery_id], event.state)
            case SenderDispositionReceived():
                self._on_sender_settled(event)
            case DeliveryAborted():
                self.pairs[event.link.name].sent.pop(event.tag, None)
            case AmqpConnectionFailed() | SessionFailed() | LinkFailed():
                self.faults.append(event)
            case _:
                pass

    def _on_attach(self, event: AttachReceived) -> None:
        pair = self.pairs[event.attach.name]
        pair.server = event.link
        if event.attach.name in self.refusing:
            event.link.refuse(ErrorValue("amqp:not-found", "there is no such node"))
            pair.is_detached = pair.is_refused = True
        else:
            event.link.attach()

    def _on_delivery(self, event: DeliveryReceived) -> None:
        pair = self.pairs[event.link.name]
        pair.received[event.tag] = event.payload
        if not event.settled:
            pair.unsettled[event.tag] = event.delivery_id

    def _on_sender_settled(self, event: SenderDispositionReceived) -> None:
        for pair in self.pairs.values():
            for tag, number in list(pair.unsettled.items()):
                is_ours = pair.server is not None and pair.server.session is event.session
                if is_ours and number in event.delivery_ids and event.settled:
                    del pair.unsettled[tag]

    # Steps.

    def run(self, steps: int = 30) -> None:
        self.client.open()
        self.pump()
        assert self.server.state is ConnectionState.OPENED
        assert self.client.state & ACTIVE == ACTIVE
        opening = [Exchange.begin, *[Exchange.attach] * self.rng.choice([1, 2, 4])]
        for step in opening + [self.rng.choice(STEPS) for _ in range(steps)]:
            self.log.append(step.__name__)
            step(self)
            if self.rng.random() < 0.8:
                self.pump()
                self.agree()
        self.pump()
        self.agree()
        self._close()

    def _close(self) -> None:
        if self.rng.random() < 0.5 and not self._withheld(None):
            self.client.close()
        else:
            self.server.close(self.rng.choice([None, ErrorValue("amqp:connection:forced")]))
        self.pump()
        if not self.client.state & proton.Endpoint.LOCAL_CLOSED:
            self.client.close()
            self.pump()
        assert self.server.is_over
        assert self.server.state is ConnectionState.END
        both = proton.Endpoint.LOCAL_CLOSED | proton.Endpoint.REMOTE_CLOSED
        assert self.client.state & both == both

    def begin(self) -> None:
        limit = min(self.server.settings.channel_max, 3)
        if len(self.sessions) > limit:
            return
        session = self.client.session()
        if self.rng.random() < 0.4:
            session.incoming_capacity = self.transport.max_frame_size * self.rng.choice([2, 5, 50])
        session.open()
        before = len(self.begun)
        self.pump()
        assert len(self.begun) == before + 1
        self.sessions.append((session, self.begun[-1]))

    def attach(self) -> None:
        if not self.sessions or len(self.pairs) > 12:
            return
        session, _ = self.rng.choice(self.sessions)
        name = f"link-{len(self.pairs)}"
        is_sender = self.rng.random() < 0.5
        link = session.sender(name) if is_sender else session.receiver(name)
        link.source.address = link.target.address = "queue"
        link.snd_settle_mode = self.rng.choice([0, 1, 2])
        link.rcv_settle_mode = self.rng.choice([0, 0, 1])
        self.pairs[name] = Pair(name, link)
        if self.rng.random() < 0.1:
            self.refusing.add(name)
        link.open()

    def _living(self, role: LinkRole) -> list[Pair]:
        """Pairs attached on both sides in which the server has this role."""
        return [
            pair
            for pair in self.pairs.values()
            if pair.server is not None
            and pair.server.role is role
            and pair.server.state is LinkState.ATTACHED
            and not pair.is_detached
            and pair.client.state & ACTIVE == ACTIVE
        ]

    def grant(self) -> None:
        for pair in self._living(LinkRole.RECEIVER)[:3]:
            assert pair.server is not None
            pair.server.grant(self.rng.choice([0, 1, 5, 50]), drain=self.rng.random() < 0.1)

    def client_sends(self) -> None:
        for pair in self._living(LinkRole.RECEIVER):
            if pair.client.credit <= 0:
                continue
            tag, body = self._fresh()
            delivery = pair.client.delivery(tag.decode())
            pair.client.stream(body)
            mode = pair.client.snd_settle_mode
            if mode == 1 or (mode == 2 and self.rng.random() < 0.4):
                delivery.settle()
            else:
                pair.own[tag] = delivery
            pair.client.advance()
            pair.sent[tag] = body

    def _fresh(self) -> tuple[bytes, bytes]:
        self.count += 1
        size = self.rng.choice([0, 1, 100, 600, 3000])
        return b"t%d" % self.count, self.rng.randbytes(size)

    def client_drained(self) -> None:
        for pair in self._living(LinkRole.RECEIVER):
            # In the middle of a delivery proton forgets to tell it; in debt it counts backwards.
            if not pair.client.queued and pair.client.credit > 0:
                pair.client.drained()

    def server_settles(self) -> None:
        for pair in self._living(LinkRole.RECEIVER):
            assert pair.server is not None
            chosen = [tag for tag in pair.unsettled if self.rng.random() < 0.7]
            if not chosen:
                continue
            code = self.rng.choice(list(OUTCOMES))
            numbers = [pair.unsettled[tag] for tag in chosen]
            pair.server.session.settle(numbers, OUTCOMES[code])
            is_second = pair.server.rcv_settle_mode is ReceiverSettleMode.SECOND
            for tag in chosen:
                pair.told[tag] = code
                if not is_second:
                    del pair.unsettled[tag]

    def client_grants(self) -> None:
        for pair in self._living(LinkRole.SENDER)[:3]:
            if self.rng.random() < 0.15:
                pair.client.drain(self.rng.choice([1, 5]))
            else:
                pair.client.flow(self.rng.choice([1, 5, 50]))

    def server_sends(self) -> None:
        for pair in self._living(LinkRole.SENDER):
            assert pair.server is not None
            for _ in range(self.rng.choice([1, 2, 5])):
                if pair.server.credit <= pair.server.waiting:
                    assert not pair.server.is_sendable
                    break
                tag, body = self._fresh()
                mode = pair.server.snd_settle_mode
                settled = mode is SenderSettleMode.SETTLED or (
                    mode is SenderSettleMode.MIXED and self.rng.random() < 0.4
                )
                pair.server.send(tag, body, settled=settled)
                pair.sent[tag] = body

    def server_drained(self) -> None:
        for pair in self._living(LinkRole.SENDER):
            if pair.server is not None and pair.server.drain and not pair.server.waiting:
                pair.server.drained()

    def client_receives(self) -> None:
        for pair in self._living(LinkRole.SENDER):
            self._receive(pair)

    def _receive(self, pair: Pair) -> None:
        while (delivery := pair.client.current) is not None:
            if delivery.partial:
                break
            tag = delivery.tag.encode()
            pair.received[tag] = pair.client.recv(delivery.pending) or b""
            pair.client.advance()
            if not delivery.settled:
                pair.unsettled[tag] = delivery
            else:
                delivery.settle()

    def client_settles(self) -> None:
        for pair in self._living(LinkRole.SENDER):
            for tag, delivery in list(pair.unsettled.items()):
                if self.rng.random() < 0.3:
                    continue
                code = self.rng.choice(list(OUTCOMES))
                if tag not in pair.told:
                    delivery.update(code)
                    pair.told[tag] = code
                if pair.client.rcv_settle_mode == 0 or delivery.settled:
                    delivery.settle()
                    del pair.unsettled[tag]

    def client_sender_settles(self) -> None:
        """Settle at the client what the server gave an outcome."""
        for pair in self._living(LinkRole.RECEIVER):
            for tag, delivery in list(pair.own.items()):
                if delivery.remote_state in OUTCOMES:
                    pair.heard[tag] = delivery.remote_state
                    delivery.settle()
                    del pair.own[tag]

    def detach(self) -> None:
        pairs = self._living(LinkRole.SENDER) + self._living(LinkRole.RECEIVER)
        if not pairs or self.rng.random() < 0.6:
            return
        pair = self.rng.choice(pairs)
        pair.is_detached = True
        assert pair.server is not None
        if self.rng.random() < 0.5 and not pair.client.queued:
            pair.client.close()
        else:
            pair.server.detach(closed=True)
            self.pump()
            pair.client.close()

    def end(self) -> None:
        if not self.sessions or self.rng.random() < 0.8:
            return
        self.pump()
        session, ours = self.sessions.pop(self.rng.randrange(len(self.sessions)))
        for pair in self.pairs.values():
            if pair.server is not None and pair.server.session is ours:
                pair.is_detached = True
        if self.rng.random() < 0.5 and not self._withheld(ours):
            session.close()
        else:
            ours.end()
            self.pump()
            session.close()
        self.pump()
        assert ours.state is SessionState.UNMAPPED

    def _withheld(self, session: AmqpSession | None) -> bool:
        """Say whether proton holds deliveries for want of credit: it says no goodbye then."""
        return any(
            pair.client.queued
            for pair in self.pairs.values()
            if pair.server is not None and session in (None, pair.server.session)
        )

    # What must agree whenever no byte is on its way.

    def agree(self) -> None:
        assert not self.faults, self.faults
        assert self.transport.condition is None, self.transport.condition
        for session, ours in self.sessions:
            assert session.state & ACTIVE == ACTIVE
            assert ours.state is SessionState.MAPPED
        for pair in self.pairs.values():
            self._agree_on(pair)

    def _agree_on(self, pair: Pair) -> None:
        server = pair.server
        assert server is not None
        if pair.is_detached:
            if pair.is_refused:
                assert server.state in (LinkState.DETACH_SENT, LinkState.DETACHED)
                assert pair.client.state & proton.Endpoint.REMOTE_CLOSED
                return
            assert server.state is LinkState.DETACHED, server.state
            return
        assert server.state is LinkState.ATTACHED
        assert pair.client.state & ACTIVE == ACTIVE
        if server.role is LinkRole.RECEIVER:
            self._agree_on_incoming(pair, server)
        else:
            self._agree_on_outgoing(pair, server)

    def _agree_on_incoming(self, pair: Pair, server: AmqpLink) -> None:
        # Credit that was taken back while a delivery was on its way is a debt to proton, none
        # here; what proton has queued and not sent then stays there.
        assert server.credit == max(0, pair.client.credit)
        assert pair.client.queued or pair.received == pair.sent
        session = server.session
        mine = {found[1] for found in session.incoming.values() if found[0] is server}
        assert mine == set(pair.unsettled)
        for tag, delivery in pair.own.items():
            assert int(delivery.remote_state or 0) == pair.told.get(tag, 0)

    def _agree_on_outgoing(self, pair: Pair, server: AmqpLink) -> None:
        self._receive(pair)
        if server.session.has_room and not server.waiting:
            assert pair.received == pair.sent
        # A delivery that is not whole counts here, and there once it is taken.
        assert server.credit == pair.client.credit - pair.client.queued
        session = server.session
        mine = {each.tag for each in session.outgoing.values() if each.link is server}
        for tag in mine:
            assert tag in pair.sent
        for tag, code in pair.heard.items():
            assert pair.told[tag] == code


_OFTEN = [Exchange.attach, Exchange.grant, Exchange.server_settles]
_OFTEN += [Exchange.client_grants, Exchange.client_settles]
STEPS = [
    Exchange.begin,
    *_OFTEN * 2,
    *[Exchange.client_sends, Exchange.server_sends] * 3,
    Exchange.client_drained,
    Exchange.server_drained,
    Exchange.client_sender_settles,
    Exchange.client_receives,
    Exchange.detach,
    Exchange.end,
]
