"""What all Kafka clients of one node share: limits, counts, addresses, and the node behind them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from typing import Final, Protocol

from quantum.edge.ports import ConnectionPeer
from quantum.model.records import RecordReaders
from quantum.protocols.kafka.codec import BatchRefused, KafkaError
from quantum.protocols.kafka.session.kafka_tenant import TenantKafka
from quantum.protocols.kafka.session.limits import KafkaLimits
from quantum.protocols.ports import Host
from quantum.tenants.passwords import Passwords
from quantum.tenants.tenant_records import TenantRecords
from quantum.tenants.token_keys import TokenKeys

_CHECK_SLICES: Final = 50
"""Each connection's time is looked at once in so many ticks: half a second."""
_FAULTS_KEPT_MAX: Final = 256


class StagedKafkaConnection(Protocol):
    """A connection that is written once a turn, and whose time runs."""

    def flush(self) -> None: ...
    def check_time(self, now_ms: int) -> None: ...


class Cancellable(Protocol):
    """Something that is due at a time, unless it is over before."""

    @property
    def is_over(self) -> bool: ...

    def due(self) -> None: ...


Addresses = Mapping[int, tuple[str, int]]
"""Where each node serves Kafka's clients."""


class KafkaNode:
    """All Kafka clients of one node."""

    def __init__(self, host: Host, limits: KafkaLimits, entropy: Callable[[int], bytes]) -> None:
        self.host = host
        self.limits = limits
        self.entropy = entropy
        self.tenants: dict[str, TenantKafka] = {}
        """By name."""
        self.node_id = 1
        """This node, as the cluster numbers it."""
        self.cluster_id = "quantum"
        self.addresses: dict[str, Addresses] = {"tcp": {}, "tls": {}}
        """By transport: clients go on in the way they came."""
        self.passwords: Passwords | None = None
        self.token_keys: TokenKeys | None = None
        self.records: TenantRecords | None = None
        """Where users, rules and quotas are changed; None: there is no control plane."""
        self.decoy_secret = entropy(32)
        self.readers: RecordReaders = {}
        """Who reads batches that other protocols brought."""
        self.connections = 0
        self.requests = 0
        self.bytes_in = self.bytes_out = 0
        self.faults: dict[str, int] = {}
        """What clients did wrong, by the sentence for it."""
        self._dirty: dict[StagedKafkaConnection, None] = {}
        self._slices: list[set[StagedKafkaConnection]] = [set() for _ in range(_CHECK_SLICES)]
        self._next_slice = 0
        self._deadlines: list[tuple[int, int, Cancellable]] = []
        self._deadline_count = 0

    # Turns and time.

    @property
    def tick_ms(self) -> int:
        return self.host.tick_ms

    def dirty(self, connection: StagedKafkaConnection) -> None:
        """Let a connection be written at the end of this turn."""
        if not self._dirty:
            self.host.turn_soon()
        self._dirty[connection] = None

    def flush(self) -> None:
        """Write to every client that something is there for, once."""
        if self._dirty:
            dirty, self._dirty = self._dirty, {}
            for connection in dirty:
                connection.flush()

    def at(self, due_ms: int, what: Cancellable) -> None:
        """Call something at a time of the loop's clock, unless it is over by then."""
        self._deadline_count += 1
        heappush(self._deadlines, (due_ms, self._deadline_count, what))

    def on_tick(self, now_ms: int) -> None:
        """Let due things happen, and look at some of the connections' time."""
        while self._deadlines and (
            self._deadlines[0][0] <= now_ms or self._deadlines[0][2].is_over
        ):
            what = heappop(self._deadlines)[2]
            if not what.is_over:
                what.due()
        for tenant in list(self.tenants.values()):
            tenant.look(now_ms)
        self._next_slice = (self._next_slice + 1) % _CHECK_SLICES
        for connection in list(self._slices[self._next_slice]):
            connection.check_time(now_ms)

    # Who is here.

    def joined(self, connection: StagedKafkaConnection) -> None:
        self.connections += 1
        self._slices[id(connection) // 16 % _CHECK_SLICES].add(connection)

    def left(self, connection: StagedKafkaConnection) -> None:
        self.connections -= 1
        self._slices[id(connection) // 16 % _CHECK_SLICES].discard(connection)
        self._dirty.pop(connection, None)

    def count_fault(self, fault: KafkaError, who: str, tenant: str) -> None:
        """Count what a client did wrong, and tell the audit log."""
        if fault.reason in self.faults or len(self.faults) < _FAULTS_KEPT_MAX:
            self.faults[fault.reason] = self.faults.get(fault.reason, 0) + 1
        self.host.note_refused("MalformedRequest", who=who, why=str(fault), tenant=tenant)

    def count_batch(self, refused: BatchRefused) -> None:
        """Count a batch that is not stored; its producer is told why."""
        if refused.reason in self.faults or len(self.faults) < _FAULTS_KEPT_MAX:
            self.faults[refused.reason] = self.faults.get(refused.reason, 0) + 1

    # Where nodes are.

    def brokers(self, peer: ConnectionPeer) -> list[tuple[int, str, int]]:
        """Return (node, host, port) of every node, as this client can reach them."""
        rows = self.addresses.get(peer.transport, {})
        return [(node, *self._shown(peer, rows, node)) for node in sorted(rows)]

    def broker(self, peer: ConnectionPeer, node: int | None) -> tuple[str, int] | None:
        """Return where a client reaches one node; None where nobody knows."""
        rows = self.addresses.get(peer.transport, {})
        return None if node is None or node not in rows else self._shown(peer, rows, node)

    def _shown(self, peer: ConnectionPeer, rows: Addresses, node: int) -> tuple[str, int]:
        """A server name leads to a tenant: who came by one goes on by it, on the same machine."""
        host, port = rows[node]
        own = rows.get(self.node_id)
        if peer.server_name and own is not None and own[0] == host:
            return peer.server_name, port
        return host, port
