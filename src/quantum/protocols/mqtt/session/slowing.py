"""Publishers are slowed by the subscriber that cannot follow them, before anything else happens.

A clean session's messages wait in its connection. When more than a megabyte waits, whoever
publishes what it wants is left unread, here or on the node that serves the publisher, until
half of it has left. So a subscriber that is slower than its publishers slows them, and is not
closed for it; one that takes nothing at all for half a minute is.

Only clients without subscriptions are left unread: the acknowledgements of one that also reads come
by the same way as its publishes, and its own queue could never become shorter.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from quantum.mesh.tenant import Tenant
from quantum.partition.backpressure import Pausable, Soon, WatermarkLevel
from quantum.partition.leader import PartitionLeader
from quantum.protocols.mqtt.session.partition_sessions import PartitionSessions

SLOW_BYTES_MAX: Final = 1 << 20
"""What may wait for one clean session before its publishers are slowed."""
STUCK_MS_MAX: Final = 30_000
"""A subscriber that holds publishers up and takes nothing for so long is closed."""


class Publisher(Pausable, Protocol):
    """A client that may be left unread because of what it publishes."""

    client_id: bytes
    queued_bytes: int

    @property
    def prg(self) -> PartitionLeader | None: ...


class Subscribers(Protocol):
    """A tenant's clients on this node, as far as they slow each other."""

    @property
    def tenant(self) -> Tenant: ...
    def of_client(self, client_id: bytes) -> PartitionSessions[Any]: ...
    def say_slow(
        self, node: int, prg: int, publisher: bytes, subscriber: bytes, *, slow: bool
    ) -> None: ...


class Subscriber(Protocol):
    """A client that does not keep up."""

    client_id: bytes
    moved_ms: int

    @property
    def home(self) -> Subscribers: ...


class Slowing:
    """Whom one subscriber slows. Made when its queue is too long for the first time."""

    __slots__ = ("_elsewhere", "_homes", "_level", "_subscriber")

    def __init__(self, subscriber: Subscriber) -> None:
        self._subscriber = subscriber
        self._level = WatermarkLevel(SLOW_BYTES_MAX, subscriber.home.tenant.soon)
        self._elsewhere: dict[tuple[int, bytes], int] = {}
        """Publishers that other nodes serve: their partitions and ids, and those nodes."""
        self._homes: dict[bytes, PartitionSessions[Any]] = {}
        """The partitions of publishers that were slowed: each message asks, and a hash costs."""

    @property
    def is_high(self) -> bool:
        return self._level.is_high

    def is_stuck(self, now_ms: int) -> bool:
        """Say whether publishers wait for a subscriber that takes nothing."""
        return self._level.is_high and now_ms - self._subscriber.moved_ms > STUCK_MS_MAX

    def weigh(self, queued_bytes: int) -> None:
        """Take in how much waits for the subscriber."""
        self._level.add(queued_bytes - self._level.amount)
        if self._homes and not self._level.is_high:
            self._homes.clear()
        if self._elsewhere and not self._level.is_high:
            self._let_go_elsewhere()

    def slow_down(self, publisher: bytes) -> None:
        """Leave a publisher unread until less waits, wherever it is served."""
        if not self._level.is_high or not publisher:
            return
        sessions = self._homes.get(publisher)
        if sessions is None:
            sessions = self._homes[publisher] = self._subscriber.home.of_client(publisher)
        prg = sessions.leader
        if prg.leading:
            connection = sessions.connections.get(publisher)
            if connection is not None and only_publishes(connection):
                self._level.hold(connection)
        elif (prg.number, publisher) not in self._elsewhere and prg.leader_node is not None:
            self._elsewhere[prg.number, publisher] = prg.leader_node
            self._say(prg.number, publisher, prg.leader_node, slow=True)

    def holds(self, connection: Pausable) -> bool:
        """Say whether a publisher is left unread because of this subscriber."""
        return self._level.holds(connection)

    def begin_anew(self, node: int) -> None:
        """What was said to a node may be lost: say it again when there is a reason."""
        self._elsewhere = {key: at for key, at in self._elsewhere.items() if at != node}

    def _let_go_elsewhere(self) -> None:
        elsewhere, self._elsewhere = self._elsewhere, {}
        for (number, publisher), node in elsewhere.items():
            self._say(number, publisher, node, slow=False)

    def _say(self, number: int, publisher: bytes, node: int, *, slow: bool) -> None:
        subscriber = self._subscriber
        subscriber.home.say_slow(node, number, publisher, subscriber.client_id, slow=slow)


class SlowedElsewhere:
    """Publishers served here whom subscribers on other nodes slow."""

    __slots__ = ("_held", "_soon")

    def __init__(self, soon: Soon) -> None:
        self._soon = soon
        self._held: dict[tuple[int, bytes], dict[Publisher, bytes]] = {}
        """By the other node and its subscriber."""

    def on_word(self, node: int, subscriber: bytes, connection: Publisher, *, slow: bool) -> None:
        """Take another node's word about a publisher that is connected here."""
        held = self._held.setdefault((node, subscriber), {})
        if slow and connection not in held and only_publishes(connection):
            held[connection] = subscriber
            connection.hold()
        elif not slow and held.pop(connection, None) is not None:
            self._soon(connection.let_go)
        if not held:
            del self._held[node, subscriber]

    def begin_anew(self, node: int) -> None:
        """A node may have said something that was lost: let everybody go, it says so again."""
        for key in [each for each in self._held if each[0] == node]:
            for connection in self._held.pop(key):
                self._soon(connection.let_go)

    def slowed_by(self, connection: Publisher) -> bytes | None:
        """Name the subscriber elsewhere that a publisher waits for."""
        return next((held[connection] for held in self._held.values() if connection in held), None)


def only_publishes(connection: Publisher) -> bool:
    """Say whether nothing that this client sends could make a queue shorter."""
    prg = connection.prg
    if connection.queued_bytes or prg is None:
        return False
    session = prg.broker.state.sessions.get(connection.client_id)
    return session is None or not session.subscriptions
