"""What all AMQP clients of one node share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from quantum.model.records import RecordReaders, RecordWriter
from quantum.protocols.amqp.session.partition_queues import BodySource
from quantum.protocols.amqp.session.tenant_queues import TenantQueues
from quantum.protocols.amqp.session.topic_port import TopicPort
from quantum.protocols.ports import Host
from quantum.tenants.passwords import Passwords

_LOOK_TICKS: Final = 10  # half a second


@dataclass(frozen=True, slots=True)
class AmqpLimits:
    """What AMQP clients may ask for."""

    frame_bytes_max: int = 65_536
    channel_max: int = 255
    handle_max: int = 1_023
    message_bytes_max: int = 16 << 20
    idle_time_out_ms: int = 30_000
    pending_bytes_max: int = 16 << 20
    """What one connection may have on its way to the log before it is left unread."""


class StagedAmqpConnection(Protocol):
    def flush(self) -> None: ...
    def check_time(self, now_ms: int) -> None: ...


class AmqpNode:
    """All AMQP clients of one node."""

    def __init__(
        self, host: Host, limits: AmqpLimits, passwords: Passwords, entropy: Callable[[int], bytes]
    ) -> None:
        self.host = host
        self.limits = limits
        self.passwords = passwords
        self.entropy = entropy
        self.tenants: dict[str, TenantQueues] = {}
        """The clients of each tenant, by its name."""
        self.bodies: BodySource | None = None
        """Where bodies are read; None: nowhere yet."""
        self.readers: RecordReaders = {}
        """How batches of streams are read that other protocols brought."""
        self.writer: RecordWriter | None = None
        """Who makes batches of streams; None: nobody yet."""
        self.topics: TopicPort | None = None
        """Who keeps sessions for links to topics; None: nobody yet."""
        self._dirty: dict[StagedAmqpConnection, None] = {}
        self._clients: dict[StagedAmqpConnection, None] = {}
        self._round = 0
        self.faults: dict[str, int] = {}
        """How often peers broke the protocol, by the condition that they were told."""

    @property
    def connections(self) -> int:
        return len(self._clients)

    def dirty(self, connection: StagedAmqpConnection) -> None:
        """Let a connection be written at the end of this turn."""
        if not self._dirty:
            self.host.turn_soon()
        self._dirty[connection] = None

    def flush(self) -> None:
        while self._dirty:
            dirty, self._dirty = self._dirty, {}
            for connection in dirty:
                connection.flush()

    def on_tick(self, now_ms: int) -> None:
        """Look at everybody's time, twice a second."""
        if self.topics is not None:
            self.topics.on_tick(now_ms)
        self._round = (self._round + 1) % _LOOK_TICKS
        if self._round == 0:
            for connection in list(self._clients):
                connection.check_time(now_ms)

    def joined(self, connection: StagedAmqpConnection) -> None:
        self._clients[connection] = None

    def left(self, connection: StagedAmqpConnection) -> None:
        self._clients.pop(connection, None)
        self._dirty.pop(connection, None)

    def count_fault(self, condition: str, who: str, why: str, tenant: str) -> None:
        self.faults[condition] = self.faults.get(condition, 0) + 1
        self.host.note_refused("AmqpFault", who=who, why=f"{condition}: {why}", tenant=tenant)
