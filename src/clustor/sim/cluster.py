"""A whole cluster in one thread: the production replicas on simulated disks, network and clocks.

Everything random comes from generators that the seed alone decides, and everything that happens
goes through one timeline, so a scenario is a whole run. Nothing here knows what is right: that
is the judge's business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from xxhash import xxh3_128

from clustor.kv import KvLimits, KvMachine, StoreId
from clustor.log.keys import KeyRing
from clustor.log.types import DekEpoch, MacEpoch
from clustor.raft.membership import Membership
from clustor.raft.messages import Message
from clustor.raft.types import ReplicaId
from clustor.replica import StateMachine
from clustor.replica.transfer import Transfer
from clustor.sim.chance import generator
from clustor.sim.clients import Clients
from clustor.sim.control_plane import FakeControlPlane
from clustor.sim.disk import SimDisk
from clustor.sim.driver import TICK, Crowd, ReplicaDriver, SimNode
from clustor.sim.envelope import decode_envelope, encode_envelope
from clustor.sim.injection import Injection
from clustor.sim.judge import GroupJudge
from clustor.sim.network import Arrival, Network, NodeId
from clustor.sim.recording import WatchedMachine
from clustor.sim.scenario import MS, Scenario
from clustor.sim.small_limits import small_profile
from clustor.sim.timeline import Microseconds, Timeline

_LIMITS = KvLimits(events_max=64)
_SIGNER = Ed25519PrivateKey.from_private_bytes(b"simulated snapshot manifest key!")


class SimCluster:
    """The nodes, and everything between them."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.timeline = Timeline[Arrival | Callable[[], None]]()
        self.network = Network(self._rng("network"), self.timeline, link=scenario.link)
        self.profile = small_profile(scenario.snapshot_log_bytes)
        self.signer = _SIGNER
        self.keys = KeyRing()
        self.keys.add_mac(MacEpoch(1), b"M" * 32)
        self.keys.add_dek(DekEpoch(1), b"\x01" * 32)
        self.counts: Counter[str] = Counter()
        self._trace = xxh3_128()
        self.judges = [self._new_judge(group) for group in range(scenario.groups)]
        ids = [ReplicaId(n) for n in range(1, scenario.size + scenario.spares + 1)]
        voters = ids[: scenario.size]
        self.nodes = {id_: self._make_node(id_) for id_ in ids}
        self.controls = [
            FakeControlPlane(self, group, set(voters), self._rng(f"control {group}"))
            for group in range(scenario.groups)
        ]
        self.crowd = self._new_crowd()
        self.injection = Injection(self, scenario)
        bootstrap = Membership(voters=frozenset(voters))
        for node in self.nodes.values():
            for seat in node.seats:
                seat.create(bootstrap if node.id in bootstrap.voters else None)
            self.later(node.rng.randint(0, TICK), self._ticking(node))

    def _rng(self, name: str) -> Random:
        return generator(name, self.scenario.seed)

    # What the groups are for: here a key-value store; others say otherwise.

    def _new_judge(self, group: int) -> GroupJudge:
        return GroupJudge(group)

    def _new_crowd(self) -> Crowd:
        return Clients(self, self.scenario, self._rng("clients"))

    def new_machine(self, group: int, judge: GroupJudge) -> StateMachine:
        """Make the machine of one replica, under the judge's eyes."""
        return WatchedMachine(KvMachine(StoreId(b"group" + bytes([group])), _LIMITS), judge)

    def _make_node(self, replica_id: ReplicaId) -> SimNode:
        node = SimNode(self, replica_id, self._rng(f"node {replica_id}"))
        node.offset_ms = node.rng.randint(0, 500)
        node.rate_ppm = node.rng.choice((0, 0, 200, -200))
        reorder = self.scenario.reorder_directory_ops
        for group, judge in enumerate(self.judges):
            node.seats.append(
                ReplicaDriver(
                    self,
                    node,
                    group,
                    judge,
                    SimDisk(reorder_directory_ops=reorder),
                    SimDisk(reorder_directory_ops=reorder),
                    self._rng(f"seat {replica_id} {group}"),
                )
            )
        return node

    # Time.

    def later(self, delay: int, action: Callable[[], None]) -> None:
        self.timeline.schedule(Microseconds(self.timeline.now + delay), action)

    def run_until(self, end: Microseconds) -> None:
        while (at := self.timeline.next_at()) is not None and at <= end:
            event = self.timeline.take_next()
            if isinstance(event, Arrival):
                self._arrive(event)
            elif event is not None:
                event()

    def _ticking(self, node: SimNode) -> Callable[[], None]:
        def tick() -> None:
            # A process that hung ticks before it reads what came meanwhile: the worst order.
            hung = node.hangs_until - self.timeline.now
            if hung > 0:
                self.later(hung, tick)
                return
            if node.up:
                node.tick()
            self.later(TICK, tick)

        return tick

    def trace(self, *facts: object) -> None:
        """Let something be part of the course of events."""
        self._trace.update(repr((self.timeline.now, facts)).encode())

    def trace_hash(self) -> str:
        """Return what stands for the whole course: equal scenarios have equal hashes."""
        whole = self._trace.copy()
        whole.update(self.network.trace_digest())
        return whole.hexdigest()

    def count(self, name: str) -> None:
        self.counts[name] += 1

    # Messages.

    def send(self, seat: ReplicaDriver, to: ReplicaId, message: Message | Transfer) -> None:
        payload = encode_envelope(seat.group, message)
        self.network.send(NodeId(seat.replica_id), NodeId(to), payload)

    def _arrive(self, arrival: Arrival) -> None:
        node = self.nodes.get(ReplicaId(arrival.destination))
        hung = 0 if node is None else node.hangs_until - self.timeline.now
        if hung > 0:
            self.later(hung + 1, lambda: self._arrive(arrival))
            return
        if not self.network.take_arrival(arrival) or node is None or not node.up:
            return
        group, message = decode_envelope(arrival.payload)
        seat = node.seats[group]
        if seat.replica is None:
            return
        if isinstance(message, Transfer):
            seat.replica.receive_transfer(ReplicaId(arrival.source), message)
        else:
            seat.replica.receive(message)
        seat.turn()

    # Lives.

    def stop(self, node: SimNode, *, power_lost: bool) -> None:
        """End every process of a node."""
        node.up = False
        node.life += 1
        self.crowd.on_stop(node)
        self.trace("stop", node.id, power_lost)
        for seat in node.seats:
            if seat.replica is not None:
                seat.stop(power_lost=power_lost)

    def start(self, node: SimNode) -> None:
        if node.up:
            return
        node.up = True
        self.trace("start", node.id)
        self.crowd.on_start(node)
        for seat in node.seats:
            seat.start()

    def restart_later(self, node: SimNode, *, power_lost: bool, delay: int | None = None) -> None:
        """Stop a node now and start it after a while; all its groups go with it."""
        self.later(0, lambda: self.stop_if_up(node, power_lost=power_lost))
        wait = node.rng.randint(20 * MS, 600 * MS) if delay is None else delay
        self.later(wait, lambda: self.start(node))

    def stop_if_up(self, node: SimNode, *, power_lost: bool) -> None:
        if node.up:
            self.stop(node, power_lost=power_lost)

    def leader(self, group: int) -> ReplicaDriver | None:
        """Return the seat that leads the newest term, as far as anyone believes it."""
        seats = [node.seats[group] for node in self.nodes.values()]
        leading = [seat for seat in seats if seat.replica is not None and seat.replica.leads]
        return max(leading, key=lambda seat: seat.running.group.core.hard.term, default=None)
