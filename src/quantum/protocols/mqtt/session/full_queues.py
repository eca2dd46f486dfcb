"""C24: a full queue of a lasting session blocks the publishes that it should get, gently.

Who publishes what a full session wants is left unread, before anything of it is logged, until
there is room. An MQTT 5 client that waited `block_ms_max` is told 0x97 then; an older one, which
has no words for it, is not closed for it within its keep-alive. Everybody else is read on.

What was logged before the queue was full, and finds it full, is refused by the machine as ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from quantum.mesh.tenant import Tenant
from quantum.protocols.mqtt.codec.hot import SLOW, Row
from quantum.protocols.mqtt.session.partition_sessions import PartitionSessions
from quantum.protocols.mqtt.session.slowing import Publisher, only_publishes


class BlockedPublisher(Publisher, Protocol):
    """A publisher that may have to wait for a full queue."""

    passes_full: bool

    @property
    def block_ms_max(self) -> int | None: ...
    @property
    def is_live(self) -> bool: ...
    def full_queue(self, sessions: PartitionSessions[Any], session: bytes) -> None:
        """Tell people that this client waits for a session's queue."""


class Sessions(Protocol):
    """A tenant's sessions on this node."""

    tenant: Tenant
    sessions: list[PartitionSessions[Any]]


@dataclass(slots=True)
class _Waits:
    """A publisher that is left unread."""

    sessions: PartitionSessions[Any]
    session: bytes
    since_ms: int


class FullQueues:
    """The full sessions of one tenant, as far as this node's replicas know, and who waits."""

    __slots__ = ("_crowded", "_home", "_waiting", "told")

    def __init__(self, home: Sessions) -> None:
        self._home = home
        self._crowded: list[PartitionSessions[Any]] = []
        self._waiting: dict[BlockedPublisher, _Waits] = {}
        self.told: dict[bytes, None] = {}
        """Sessions that hold publishers up, and of which somebody was told."""

    @property
    def is_any(self) -> bool:
        """Whether some session is full: only then a publish has to be looked at."""
        return bool(self._crowded)

    def holder(self, topic: bytes) -> tuple[PartitionSessions[Any], bytes] | None:
        """Name the session without room that a topic's messages are for; None: there is none."""
        for sessions in self._crowded:
            routes = sessions.leader.broker.state.routes
            if routes.full:
                for target in routes.route(topic).kept:
                    if target.client_id in routes.full:
                        return sessions, target.client_id
        return None

    def open_rows(
        self, connection: BlockedPublisher, buffer: bytes, rows: list[Row], end: int
    ) -> tuple[list[Row], int]:
        """Cut off the first publish that must wait, with all behind it: it stays unread."""
        for number, row in enumerate(rows):
            topic = _topic(buffer, row)
            found = self.holder(topic) if topic else None
            if found is not None and self._may_wait(connection, *found):
                if connection.passes_full:
                    connection.passes_full = False  # all that waited with it has waited enough
                    return rows, end
                self._wait(connection, *found)
                return rows[:number], row[2]
        return rows, end

    def _may_wait(
        self, connection: BlockedPublisher, sessions: PartitionSessions[Any], session: bytes
    ) -> bool:
        """Two that read and publish must not wait for each other, nor one for itself."""
        is_away = sessions.leader.leading and session not in sessions.connections
        return session != connection.client_id and (is_away or only_publishes(connection))

    def _wait(
        self, connection: BlockedPublisher, sessions: PartitionSessions[Any], session: bytes
    ) -> None:
        if connection in self._waiting:
            return
        self._waiting[connection] = _Waits(sessions, session, self._home.tenant.tick_ms)
        connection.hold()
        if session not in self.told:
            self.told[session] = None
            connection.full_queue(sessions, session)

    def held_up_by(self, connection: BlockedPublisher) -> bytes | None:
        """Name the session that a publisher waits for."""
        waits = self._waiting.get(connection)
        return None if waits is None else waits.session

    def __len__(self) -> int:
        return len(self._waiting)

    def on_tick(self, now_ms: int) -> None:
        """Look which sessions are full; read on who has room, or has waited long enough."""
        sessions = self._home.sessions
        self._crowded = [each for each in sessions if each.leader.broker.state.routes.full]
        for connection, waits in list(self._waiting.items()):
            is_full = waits.session in waits.sessions.leader.broker.state.routes.full
            patient_ms = connection.block_ms_max
            is_late = patient_ms is not None and now_ms - waits.since_ms > patient_ms
            if connection.is_live and is_full and not is_late:
                continue
            del self._waiting[connection]
            connection.passes_full = is_full and is_late
            connection.let_go()
        if self.told and not self._waiting:
            self.told.clear()


def _topic(buffer: bytes, row: Row) -> bytes:
    """Return the topic of a publish above QoS 0; empty for whatever else, and for an alias."""
    first, _, start, topic_at, topic_end, body, _ = row
    if first == SLOW:
        first = buffer[start]
        topic_at = body + 2
        topic_end = topic_at + int.from_bytes(buffer[body : body + 2], "big")
    return buffer[topic_at:topic_end] if first >> 4 == 3 and first & 6 else b""
