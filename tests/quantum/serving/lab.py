"""A broker without a disk, a network or a clock: the real service on groups of one replica.

A group here applies what it is given at the end of a turn. Everything above is what runs in a
node. Time stands still until a test moves it, and after each step nothing is left under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from clustor.replica import Applied, ReplicaOutput, RequestsRefused
from clustor.runtime.group import HostedGroup
from clustor.runtime.node import Node
from quantum.broker import Broker
from quantum.edge.ports import ConnectionPeer
from quantum.node.service import BrokerService
from quantum.protocols.mqtt.session.connection import MqttConnection
from quantum.protocols.mqtt.session.limits import MqttLimits
from quantum.tenants.broker_file import TenantEntry

NODE = 1
TENANT = "dev"
START_MS = 1_000_000
TURNS_MAX = 10_000
_CHECK_TICKS = 60  # more than the service needs to look at every connection


class LabReplica:
    """A group of one: it leads, and what it is given is committed at once."""

    failed: str | None = None
    applying = SimpleNamespace(seconds=())  # nobody has given a clock

    def __init__(self, machine: Broker) -> None:
        self.machine = machine
        self.leads = True
        self.leader_id: int | None = NODE
        self.group = SimpleNamespace(core=SimpleNamespace(hard=SimpleNamespace(term=1)))
        self._index = 0
        self._proposed: list[tuple[int, bytes]] = []
        self._refused: list[tuple[int, bytes]] = []
        self.is_stuck = False  # its disk does not answer

    def propose(self, request: int, command: bytes) -> None:
        self._proposed.append((request, command))

    def refuse(self) -> int:
        """Refuse with the next output what was proposed and not applied; say how much it is."""
        self._refused, self._proposed = self._proposed, []
        return len(self._refused)

    def take(self) -> ReplicaOutput:
        output = ReplicaOutput()
        if self._refused:
            requests = cast("Any", [request for request, _ in self._refused])
            output.replies.append(RequestsRefused(requests, "Busy"))
            self._refused = []
        if self._proposed and not self.is_stuck:
            proposed, self._proposed = self._proposed, []
            self._index += 1
            replies = self.machine.apply_batch(self._index, [each for _, each in proposed])
            requests = cast("Any", [request for request, _ in proposed])
            output.replies.append(Applied(cast("Any", self._index), requests, replies))
        return output


class LabNode:
    """What a service asks of its node."""

    node_id = NODE
    audit = None
    control = None

    def __init__(self) -> None:
        self.clock_ms = START_MS
        self.groups: list[LabGroup] = []
        self.touched: dict[int, None] = {}
        self.is_due = True

    def now_ms(self) -> int:
        return self.clock_ms

    def serve(self, _service: object) -> int:
        return 0

    def host(
        self, partition: int, new_machine: Callable[[], Broker], _service: object, *_rest: object
    ) -> HostedGroup:
        group = LabGroup(partition, LabReplica(new_machine()))
        self.groups.append(group)
        self.is_due = True
        return cast("HostedGroup", group)

    def touch(self, _group: object) -> None:
        self.is_due = True

    def turn_soon(self) -> None:
        self.is_due = True

    flush_soon = turn_soon

    def send_service(self, *_words: object) -> None:
        raise AssertionError("there is no other node")


class LabAdmission:
    """Flow control that a test decides."""

    def __init__(self) -> None:
        self.is_open = True
        self.asked = 0

    def admit(self, _size_bytes: int) -> bool:
        self.asked += 1
        return self.is_open


class LabGroup:
    """What hosts a replica."""

    def __init__(self, partition_id: int, replica: LabReplica) -> None:
        self.partition_id = partition_id
        self.replica = replica
        self.admission = LabAdmission()

    def answer_for(self, call: Callable[[], object]) -> bool:
        """Do something on which the group's word rests; an error is the test's to see."""
        call()
        return True


class LabService(BrokerService):
    """The service, with the lab's clock and the lab's turns."""

    def __init__(self, node: LabNode, limits: MqttLimits) -> None:
        super().__init__(cast("Node", node), limits)
        self._lab_node = node
        self.later: list[Callable[[], None]] = []

    def now_ms(self) -> int:
        return self._lab_node.clock_ms

    def soon(self, call: Callable[[], None]) -> None:
        self.later.append(call)


class Lab:
    """The whole of it. `settle` runs turns until nothing is under way."""

    def __init__(self, limits: MqttLimits | None = None, *, prgs: int = 3) -> None:
        self.node = LabNode()
        self.service = asyncio.run(self._new_service(limits or MqttLimits(), prgs))
        self.settle()

    async def _new_service(self, limits: MqttLimits, prgs: int) -> LabService:
        service = LabService(self.node, limits)
        service.add_tenant(TenantEntry(TENANT, prgs), 0)
        return service

    def settle(self) -> None:
        for _ in range(TURNS_MAX):
            later, self.service.later = self.service.later, []
            for call in later:
                call()
            if not self.node.is_due and not later:
                return
            self._turn()
        raise AssertionError("never settles")

    def _turn(self) -> None:
        self.node.is_due = False
        self.service.prepare()
        for group in self.node.groups:
            self.service.on_output(cast("HostedGroup", group), group.replica.take())
        self.service.flush()

    def advance(self, seconds: float) -> None:
        """Let time pass, and let everything that is due happen."""
        self.node.clock_ms += int(seconds * 1000)
        for _ in range(_CHECK_TICKS):
            self.service.on_tick()
            self.settle()

    def lead(self, *, leads: bool) -> None:
        """Let every partition have its leader here, in a new term, or none anywhere."""
        for group in self.node.groups:
            replica = group.replica
            replica.leads, replica.leader_id = leads, NODE if leads else None
            replica.group.core.hard.term += leads
        self.node.is_due = True
        self.settle()

    def dial(self) -> LabLine:
        """Open a connection."""
        return LabLine(self)

    def crash(self, line: LabLine) -> None:
        """Cut a client's network."""
        line.handler.lost()
        self.settle()


class LabLine:
    """A connection between a client and the lab: a wire for the one, a line for the other."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self.handler: MqttConnection = lab.service.mqtt.new_connection()
        self._is_open = False
        self.received = bytearray()
        self.is_closed = False
        self.writable = True

    # The client's side.

    def send(self, data: bytes) -> None:
        if not self._is_open:
            self._is_open = True
            self.handler.opened(self, ConnectionPeer("tcp", "lab", TENANT))
        if not self.is_closed:
            self.handler.received(data)
        self._lab.settle()

    def receive(self, count: int) -> bytes:
        """Return so many bytes, or fewer if the server closed or has no more to say."""
        data = bytes(self.received[:count])
        del self.received[:count]
        return data

    def cut(self) -> None:
        self.is_closed = True
        self._lab.crash(self)

    def drain(self) -> None:
        """Begin to read again."""
        self.writable = True
        self.handler.writable_again()
        self._lab.settle()

    # The broker's side.

    def write(self, data: bytes) -> None:
        assert not self.is_closed, "nothing is written behind a close"
        self.received += data

    def close(self) -> None:
        self.is_closed = True
        self._lab.service.soon(self.handler.lost)

    def abort(self) -> None:
        self.close()

    def pause_reading(self) -> None:
        """Not needed here."""

    def resume_reading(self) -> None:
        """Not needed here."""
