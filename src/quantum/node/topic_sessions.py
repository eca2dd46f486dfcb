"""The sessions that this node keeps for AMQP's links to topics (`TopicPort`)."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final, Protocol

from quantum.node.topic_publishing import ConnectionPublisher
from quantum.node.topic_session import SessionTerms, TopicSession
from quantum.node.topic_sharing import SharedSubscription
from quantum.node.topic_subscribing import SubscribingSession
from quantum.protocols.amqp.engine import ErrorValue
from quantum.protocols.amqp.session.topic_port import TopicPerson, TopicReceiver, TopicWish
from quantum.protocols.mqtt.codec import Connack, Packet
from quantum.tenants.session_names import name_session

if TYPE_CHECKING:
    from quantum.node.service import BrokerService

_DRAWS_MAX: Final = 10_000
"""Names are drawn until one belongs to the wanted partition; of 1,024 none is missed so often."""


class TickedSession(Protocol):
    """What has something to do as time passes, until it is over."""

    @property
    def is_over(self) -> bool: ...
    def on_tick(self, now_ms: int) -> None: ...


class TopicSessions:
    """All of them, of all tenants."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service
        self._sessions: set[TickedSession] = set()

    def publisher(self, person: TopicPerson) -> ConnectionPublisher:
        return ConnectionPublisher(self._service, person, self._draw, self._sessions.add)

    def subscribe(
        self, person: TopicPerson, wish: TopicWish, receiver: TopicReceiver
    ) -> SubscribingSession | SharedSubscription:
        found: SubscribingSession | SharedSubscription
        client_id = _name(person, wish.session)
        others = self.filters_of(person, wish.session) or []
        found = own = SubscribingSession(
            self._service, person, wish, client_id, receiver, others=others
        )
        if wish.share and wish.keep_seconds:
            found = SharedSubscription(self._service, person, wish, own, receiver)
        self._sessions.add(found)
        return found

    def filters_of(self, person: TopicPerson, session: str) -> list[bytes] | None:
        tenant = self._service.tenants.get(person.peer.tenant)
        if tenant is None:
            return None
        client_id = _name(person, session).encode()
        found = tenant.session_prg(client_id).broker.state.sessions.get(client_id)
        return None if found is None else list(found.subscriptions)

    def forget(self, person: TopicPerson, session: str) -> None:
        self._sessions.add(_Ending(self._service, person, _name(person, session)).session)

    def on_tick(self, now_ms: int) -> None:
        for session in list(self._sessions):
            session.on_tick(now_ms)
            if session.is_over:
                self._sessions.discard(session)

    def _draw(self, person: TopicPerson, prg: int) -> str:
        """Name a session that lives in a partition: what it publishes there is logged once."""
        tenant = self._service.tenants[person.peer.tenant]
        drawn = self._service.mqtt.draw_client_id().decode()
        for number in range(_DRAWS_MAX):
            name = _name(person, f"{drawn}-{number}")
            if tenant.session_prg(name.encode()).number == prg:
                return name
        return _name(person, drawn)  # passed on between partitions, as any client's publishes are


class _Ending:
    """Ends a session (`SessionUser`): it is taken, and left for good."""

    def __init__(self, service: BrokerService, person: TopicPerson, client_id: str) -> None:
        terms = SessionTerms(client_id, 1, 1, resumes=True)
        self.session = TopicSession(service, person.peer, terms, self)
        self.session.leave(0)

    def began(self, connack: Connack) -> None:
        """It is left already."""

    def heard(self, packet: Packet, size: int) -> None:
        """What waited is not wanted."""

    def failed(self, error: ErrorValue) -> None:
        """It expires."""


def _name(person: TopicPerson, session: str) -> str:
    container = person.container
    if not container.isprintable():
        container = blake2b(container.encode(errors="replace"), digest_size=16).hexdigest()
    return name_session(container, session)
