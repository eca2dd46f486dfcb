"""Publishers are slowed by the subscriber that cannot follow them, before anything else happens.

A clean session's messages wait in its connection. When more than a megabyte waits, whoever
publishes what it wants is left unread, here or on the node that serves the publisher, until
half of it has left. So a subscriber that is slower than its publishers slows them, and is not
closed for it; one that takes nothing at all for half a minute is.

Only clients without subscriptions are left unread: the acknowledgements of one that also reads come
by the same way as its publishes, and its own queue could never become shorter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from quantum.partition.backpressure import Level

if TYPE_CHECKING:
    from quantum.node.tenant import Tenant
    from quantum.partition.leader import Prg
    from quantum.protocols.mqtt.session.connection import Connection
    from quantum.protocols.mqtt.session.session_client import SessionClient

SLOW_BYTES_MAX: Final = 1 << 20
"""What may wait for one clean session before its publishers are slowed."""
STUCK_MS_MAX: Final = 30_000
"""A subscriber that holds publishers up and takes nothing for so long is closed."""


class Slowing:
    """Whom one subscriber slows. Made when its queue is too long for the first time."""

    __slots__ = ("_elsewhere", "_homes", "_level", "_subscriber")

    def __init__(self, subscriber: SessionClient) -> None:
        self._subscriber = subscriber
        self._level = Level(SLOW_BYTES_MAX, subscriber.home.soon)
        self._elsewhere: dict[tuple[int, bytes], int] = {}
        """Publishers that other nodes serve: their partitions and ids, and those nodes."""
        self._homes: dict[bytes, Prg] = {}
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
        prg = self._homes.get(publisher)
        if prg is None:
            prg = self._homes[publisher] = self._subscriber.home.session_prg(publisher)
        if prg.leading:
            connection = prg.connections.get(publisher)
            if connection is not None and only_publishes(connection):
                self._level.hold(connection)
        elif (prg.number, publisher) not in self._elsewhere and prg.leader_node is not None:
            self._elsewhere[prg.number, publisher] = prg.leader_node
            self._say(prg.number, publisher, prg.leader_node, slow=True)

    def holds(self, connection: Connection) -> bool:
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

    __slots__ = ("_held", "_tenant")

    def __init__(self, tenant: Tenant) -> None:
        self._tenant = tenant
        self._held: dict[tuple[int, bytes], dict[Connection, bytes]] = {}
        """By the other node and its subscriber."""

    def on_word(self, node: int, subscriber: bytes, connection: Connection, *, slow: bool) -> None:
        """Take another node's word about a publisher that is connected here."""
        held = self._held.setdefault((node, subscriber), {})
        if slow and connection not in held and only_publishes(connection):
            held[connection] = subscriber
            connection.hold()
        elif not slow and held.pop(connection, None) is not None:
            self._tenant.soon(connection.let_go)
        if not held:
            del self._held[node, subscriber]

    def begin_anew(self, node: int) -> None:
        """A node may have said something that was lost: let everybody go, it says so again."""
        for key in [each for each in self._held if each[0] == node]:
            for connection in self._held.pop(key):
                self._tenant.soon(connection.let_go)

    def slowed_by(self, connection: Connection) -> bytes | None:
        """Name the subscriber elsewhere that a publisher waits for."""
        return next((held[connection] for held in self._held.values() if connection in held), None)


def only_publishes(connection: Connection) -> bool:
    """Say whether nothing that this client sends could make a queue shorter."""
    prg = connection.prg
    if connection.queued_bytes or prg is None:
        return False
    session = prg.broker.state.sessions.get(connection.client_id)
    return session is None or not session.subscriptions
