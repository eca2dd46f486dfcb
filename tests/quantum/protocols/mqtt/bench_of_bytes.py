"""The whole server side of MQTT connections with nothing around it: bytes in, bytes out.

Everything between the bytes and the machine is what a node runs: the adapter, its connections, the
tenant, the partition's leader and its families. There is no loop, no socket, no node and no disk:
the group at the bottom applies to a real machine what it is given, and time moves when told to.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from clustor.control.command_gates import CommandGate
from clustor.replica import Applied, ReplicaOutput
from clustor.runtime.group import HostedGroup
from quantum.broker import Broker, BrokerSettings
from quantum.edge.ports import ConnectionPeer, Transport, WirePort
from quantum.mesh.link import Said
from quantum.mesh.relay import RelayEntry
from quantum.mesh.tenant import Tenant
from quantum.partition.leader import PartitionLeader
from quantum.protocols.mqtt.session.adapter import MqttAdapter
from quantum.protocols.mqtt.session.limits import MqttLimits
from quantum.routing.ring import HashRing
from quantum.tenants.recent import Recent
from quantum.types import ClientId, TenantId

NODE = 1
TENANT = "dev"
TURNS_MAX = 1_000


class FakeGroup:
    """A group of one voter whose log is a list, and which is durable at once."""

    def __init__(self, machine: Broker) -> None:
        self.machine = machine
        self.leads = True
        self.leader_id: int | None = NODE
        self.failed: str | None = None
        self.group = SimpleNamespace(core=SimpleNamespace(hard=SimpleNamespace(term=1)))
        self.replica = self
        self.admission = SimpleNamespace(admit=lambda _size: True)
        self.partition_id = 1_000
        self.is_stuck = False
        """Whether its disk does not answer: nothing is durable until it does."""
        self._index = 0
        self._proposed: list[tuple[int, bytes]] = []

    def propose(self, request: int, command: bytes) -> None:
        self._proposed.append((request, command))

    @property
    def has_work(self) -> bool:
        return bool(self._proposed) and not self.is_stuck

    def take(self) -> ReplicaOutput:
        output = ReplicaOutput()
        if self.has_work:
            proposed, self._proposed = self._proposed, []
            self._index += 1
            replies = self.machine.apply_batch(self._index, [each for _, each in proposed])
            requests = cast("Any", [request for request, _ in proposed])
            output.replies.append(Applied(cast("Any", self._index), requests, replies))
        return output


class Bench:
    """What a node would be to the adapter, the tenant and the partition; see the module."""

    def __init__(self, limits: MqttLimits | None = None) -> None:
        self.clock = 1_000_000
        self.tick_ms = self.clock
        self.draining = False
        self.uptime_seconds = 0
        self.recent = Recent(self.now_ms)
        self.refused: list[str] = []
        self._later: list[Callable[[], None]] = []
        self._touched: dict[PartitionLeader, None] = {}
        self._turn_due = True
        ring, name = HashRing(), TenantId(TENANT)
        settings = BrokerSettings(
            0,
            1,
            lambda topic, count: ring.topic_partition(name, topic, count),
            lambda client_id, count: ring.session_partition(name, ClientId(client_id), count),
        )
        self.group = FakeGroup(Broker(settings))
        self.adapter = MqttAdapter(self, limits or MqttLimits(), bytes)
        tenant = Tenant(TENANT, self, ring)
        self.tenants = {TENANT: tenant}
        self.adapter.host_tenant(tenant)
        self.leader = PartitionLeader(tenant, 0, cast("HostedGroup", self.group))
        tenant.prgs.append(self.leader)
        tenant.prg_count = 1
        self.adapter.host_partition(self.leader)
        self.settle()

    def settle(self) -> None:
        """Take turns until nothing is under way."""
        for _ in range(TURNS_MAX):
            later, self._later = self._later, []
            for call in later:
                call()
            if not (later or self._touched or self._turn_due or self.group.has_work):
                return
            self._turn_due = False
            while self._touched:
                touched, self._touched = self._touched, {}
                for prg in touched:
                    prg.prepare()
            self.leader.on_output(self.group.take())
            self.adapter.flush()
        raise AssertionError("never settles")

    def wait(self, seconds: int) -> None:
        """Let time pass, and all that is due happen."""
        self.clock += 1_000 * seconds
        self.tick_ms = self.clock
        for _ in range(60):  # more than the adapter needs to look at every connection
            self.leader.on_tick()
            self.tenants[TENANT].on_tick()
            self.adapter.on_tick(self.tick_ms)
            self.settle()

    def dial(self) -> Line:
        return Line(self)

    # What is asked of a node.

    def now_ms(self) -> int:
        return self.clock

    def clock_ms(self) -> int:
        return self.clock

    def soon(self, call: Callable[[], None]) -> None:
        self._later.append(call)

    def turn_soon(self) -> None:
        self._turn_due = True

    def touch(self, prg: PartitionLeader) -> None:
        self._touched[prg] = None

    def is_local(self, node: int | None) -> bool:
        return node == NODE

    def reaches(self, _node: int) -> bool:
        return False

    def reference(self, _node: int | None, _transport: Transport) -> str | None:
        return None

    def knows(self, _node: int, _gate: CommandGate) -> bool:
        return True

    def members_know(self, _prg: PartitionLeader, _gate: CommandGate) -> bool:
        return True

    def knows_full_queues(self, _prg: PartitionLeader) -> bool:
        return True

    stream_files = None

    def knows_topics(self, _prg: PartitionLeader) -> bool:
        return True

    def gate_for(self, _prg: PartitionLeader) -> None:
        return None

    def find_partition(self, _life: str, number: int) -> PartitionLeader | None:
        return self.leader if number == 0 else None

    def say(self, _node: int, _said: Said, _size: int) -> None:
        raise AssertionError("there is no other node")

    def open_relay(self, *_all: Any) -> RelayEntry:
        raise AssertionError("there is no other node")

    def note_refused(
        self, what: str, *, who: str, why: str, target: str = "", tenant: str = ""
    ) -> None:
        self.refused.append(what)

    def note_client(self, what: str, why: str, who: str, tenant: Tenant) -> None:
        """Nobody audits here."""

    def note_end(self, client_id: bytes, why: str) -> None:
        """Nobody asks why here."""

    def tell_full(self, prg: PartitionLeader, session: bytes) -> None:
        """Nobody is told here."""


class Line(WirePort):
    """One connection: bytes to the server, and all that it says to them."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._handler = bench.adapter.new_connection()
        self._is_open = False
        self._said = bytearray()
        self.is_closed = False

    def say(self, data: bytes) -> bytes:
        """Send bytes, let everything happen, and return what the server said since the last."""
        if not self._is_open:
            self._is_open = True
            self._handler.opened(self, ConnectionPeer("tcp", "bench", TENANT))
        self._handler.received(data)
        self._bench.settle()
        return self.hear()

    def hear(self) -> bytes:
        said, self._said = bytes(self._said), bytearray()
        return said

    def cut(self) -> None:
        """Let the network break."""
        self.is_closed = True
        self._handler.lost()
        self._bench.settle()

    # The server's side.

    def write(self, data: bytes) -> None:
        assert not self.is_closed, "nothing is written behind a close"
        self._said += data

    @property
    def writable(self) -> bool:
        return True

    def close(self) -> None:
        self.is_closed = True
        self._bench.soon(self._handler.lost)

    def abort(self) -> None:
        self.close()

    def pause_reading(self) -> None:
        """What a test says, it says anyway."""

    def resume_reading(self) -> None:
        """What a test says, it says anyway."""
