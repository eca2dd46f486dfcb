"""What links to topics ask of their node: sessions of the broker, whoever leads them.

AMQP has no table of subscriptions of its own. Who receives from a topic has a session of the
broker, as an MQTT client has one; who sends to topics publishes by one. Both outlive their
leaders: what had no answer is said again, and counts once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from quantum.edge.ports import ConnectionPeer
from quantum.model.records import Record
from quantum.protocols.amqp.engine import Condition, ErrorValue

PublishDone: TypeAlias = Callable[[ErrorValue | None], None]
"""Called when the log has a publish, or with why it has not; FATE_UNKNOWN: nobody knows."""
FATE_UNKNOWN: Final = ErrorValue(
    Condition.DETACH_FORCED, "no leader answered in time: what was not settled may count or not"
)


@dataclass(frozen=True, slots=True)
class TopicPerson:
    """For whom a session is kept: the rules know it by its container."""

    peer: ConnectionPeer
    container: str


@dataclass(frozen=True, slots=True)
class TopicPublish:
    """A message for a topic."""

    topic: bytes
    record: Record
    retain: bool
    is_text: bool


@dataclass(frozen=True, slots=True)
class TopicWish:
    """What a receiver wants."""

    filter: bytes
    session: str
    """The last part of its session's name: who comes back with it has what waited."""
    share: bytes = b""
    """The group that has each message once together; empty: it is alone."""
    keep_seconds: int = 0
    """For how long the session is kept when its receiver is away; 0: not at all."""


@dataclass(slots=True)
class TopicDelivery:
    """A message on its way to a receiver."""

    number: int
    record: Record
    retain: bool
    is_text: bool
    is_durable: bool
    failures: int = 0


class TopicPublisher(Protocol):
    """The way of one connection to topics."""

    def publish(self, message: TopicPublish, done: PublishDone) -> None: ...
    def close(self) -> None:
        """Let go of it; what has no answer yet may count or not."""


class TopicReceiver(Protocol):
    """A receiver's link, as its session knows it."""

    def ready(self) -> None:
        """The broker has the subscription."""

    def arrived(self) -> None:
        """There is something to take, or an answer to `probe` came."""

    def failed(self, error: ErrorValue) -> None:
        """It is over: the broker said so, or nobody led it in time."""


class TopicSubscription(Protocol):
    """A receiver's session, as its link knows it."""

    @property
    def is_drained(self) -> bool:
        """Whether nothing came since `probe` was called, and its answer did."""
        ...

    def take(self) -> TopicDelivery | None:
        """Take the next message; it is held until it is settled."""
        ...

    def give_back(self, delivery: TopicDelivery) -> None:
        """Let a message be the next one to be taken, again."""

    def settle(self, number: int) -> None:
        """Let the broker forget a message."""

    def probe(self) -> None:
        """Ask whether something is on its way."""

    def close(self, *, ends: bool) -> None:
        """Leave; `ends`: the session is not wanted any more."""


class TopicPort(Protocol):
    """How a node keeps sessions for AMQP's links."""

    def publisher(self, person: TopicPerson) -> TopicPublisher: ...
    def subscribe(
        self, person: TopicPerson, wish: TopicWish, receiver: TopicReceiver
    ) -> TopicSubscription: ...
    def filters_of(self, person: TopicPerson, session: str) -> list[bytes] | None:
        """Return what a session is subscribed to, as this node's replica knows; None: no such."""
        ...

    def forget(self, person: TopicPerson, session: str) -> None:
        """End a session that nobody is connected with."""

    def on_tick(self, now_ms: int) -> None: ...
