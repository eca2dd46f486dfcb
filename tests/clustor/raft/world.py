"""A cluster of groups in one thread: simulated disks, network, control plane, and faults.

Everything random comes from one seeded generator, so that a seed is a whole run. The world
carries out the outputs of each group as a runtime would; what is right is judged in
`checkers.py`, which looks at disks and answers, never at a group's own opinion of itself.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from clustor.log.types import (
    DurabilityModeEpoch,
)
from clustor.raft.control_plane import ControlPlaneUpdate, VerifiedProof
from clustor.raft.errors import DataLost
from clustor.raft.group import Group
from clustor.raft.hard_state import MembershipAck
from clustor.raft.leadership import ProposalAccepted
from clustor.raft.membership import Membership
from clustor.raft.messages import Message
from clustor.raft.output import (
    Output,
)
from clustor.raft.profiles import (
    THROUGHPUT,
    MembershipNumbers,
    Profile,
    ReplicationNumbers,
)
from clustor.raft.reads import ReadKind, ReadRequest
from clustor.raft.types import (
    DurabilityTuple,
    ReadId,
    ReplicaId,
    ReplicaIdentity,
    RoutingEpoch,
)
from tests.clustor.raft.checkers import Checker
from tests.clustor.raft.nodes import Node

TICK_MS = 20

SMALL = replace(
    THROUGHPUT,
    membership=MembershipNumbers(
        catchup_index_slack=8,
        catchup_slack_bytes=512,
        catchup_timeout_ms=3_000,
        finalize_window=6,
        lag_duration_max_ms=2_000,
        rollback_grace_ms=500,
    ),
    replication=ReplicationNumbers(
        message_bytes_max=400,
        inflight_messages_max=4,
        inflight_bytes_max=1200,
        fetch_bytes_max=400,
        snapshot_log_bytes_target=1_500,
        snapshot_retry_ms=300,
    ),
)
"""The profile with limits so small that a short run meets all of them."""


@dataclass
class Faults:
    """What goes wrong, each as a chance."""

    loss: float = 0.0
    duplicate: float = 0.0
    delay_ms: int = 3
    slow_disk: float = 0.0
    crash: float = 0.0  # per node and second
    partition: float = 0.0  # per second
    stall: float = 0.0  # of a disk, per node and second
    pause: float = 0.0  # of a process, per node and second
    change: float = 0.0  # membership changes per second
    transfer: float = 0.0  # per second
    toggle: float = 0.0  # durability modes, per second
    outage: float = 0.0  # of the control plane, per second
    wipe: bool = False
    damage: bool = False

    @staticmethod
    def drawn(rng: random.Random) -> Faults:
        def some(most: float) -> float:
            return rng.choice((0.0, most / 4, most))

        harm = rng.choice(("none", "none", "wipe", "damage"))
        return Faults(
            loss=some(0.2),
            duplicate=some(0.15),
            delay_ms=rng.choice((2, 10, 60)),
            slow_disk=some(0.3),
            crash=some(0.5),
            partition=some(1.0),
            stall=some(0.2),
            pause=some(0.3),
            change=some(1.0),
            transfer=some(0.7),
            toggle=some(0.7),
            outage=some(0.3),
            wipe=harm == "wipe",
            damage=harm == "damage",
        )


class World:
    """The nodes, the network between them, the clock, the control plane and the clients."""

    def __init__(
        self,
        rng: random.Random,
        size: int,
        faults: Faults | None = None,
        *,
        spares: int = 0,
        profile: Profile = SMALL,
        group_class: type[Group] = Group,
    ) -> None:
        self.rng = rng
        self.faults = faults or Faults()
        self.profile = profile
        self.group_class = group_class
        self.now = 0
        self._events: list[tuple[int, int, Node | None, int, Callable[[], None]]] = []
        self._count = 0
        self.blocked: set[tuple[ReplicaId, ReplicaId]] = set()
        self.checker = Checker(self)
        ids = [ReplicaId(n) for n in range(1, size + spares + 1)]
        self.nodes = {replica_id: Node(self, replica_id) for replica_id in ids}
        self.control = FakeControlPlane(self)
        self.proposals = 0
        self.reads = 0
        first = Membership(voters=frozenset(ids[:size]))
        for replica_id in ids:
            if replica_id in first.voters:
                self.nodes[replica_id].bootstrap = first
            self.nodes[replica_id].start()
            self._tick_forever(self.nodes[replica_id])

    def make_group(self, identity: ReplicaIdentity, **kwargs: object) -> Group:
        draw = random.Random(self.rng.random()).randint
        return self.group_class.start(identity, self.profile, draw, **kwargs)  # type: ignore[arg-type]  # the keywords of start, passed through

    # Time.

    def later(self, delay_ms: int, node: Node | None, action: Callable[[], None]) -> None:
        """Do something later, unless the node it belongs to has died by then."""
        self._count += 1
        life = node.life if node is not None else 0
        heapq.heappush(self._events, (self.now + delay_ms, self._count, node, life, action))

    def run(self, duration_ms: int) -> None:
        end = self.now + duration_ms
        while self._events and self._events[0][0] <= end:
            self.now, _, node, life, action = heapq.heappop(self._events)
            if node is None:
                action()
            elif node.up and node.life == life:
                action()
                node.turn()
        self.now = end

    def _tick_forever(self, node: Node) -> None:
        def tick() -> None:
            if node.group is not None and self.now >= node.paused_until:
                node.group.tick(self.now)
                node.turn()
            self.later(TICK_MS, None, tick)

        self.later(self.rng.randint(0, TICK_MS), None, tick)

    # Network.

    def send(self, sender: ReplicaId, to: ReplicaId, message: Message) -> None:
        if to not in self.nodes:
            return
        faults, rng = self.faults, self.rng
        for _ in range(2 if rng.random() < faults.duplicate else 1):
            if rng.random() >= faults.loss:
                self.later(
                    rng.randint(1, faults.delay_ms), None, lambda: self._arrive(sender, to, message)
                )

    def _arrive(self, sender: ReplicaId, to: ReplicaId, message: Message) -> None:
        node = self.nodes[to]
        if self.now < node.paused_until:
            late = node.paused_until - self.now
            self.later(late, None, lambda: self._arrive(sender, to, message))
        elif node.group is not None and (sender, to) not in self.blocked:
            node.group.receive(message)
            node.turn()

    def isolate(self, side: set[ReplicaId]) -> None:
        """Cut the network in two, both ways."""
        others = set(self.nodes) - side
        self.blocked = {(a, b) for a in side for b in others} | {
            (b, a) for a in side for b in others
        }

    # What the outside hears.

    def on_output(self, node: Node, output: Output) -> None:
        if output.publish_proof is not None:
            self.control.publish(node, output.publish_proof)
        if output.record_membership is not None:
            self.control.record_membership(output.record_membership)

    # Clients.

    def leader(self) -> Node | None:
        """Return the leader of the highest term, as a client would find it."""
        leading = [n for n in self.nodes.values() if n.group is not None and n.group.core.leads]
        return max(leading, key=lambda n: n.group.core.hard.term if n.group else 0, default=None)

    def leaders(self) -> list[Node]:
        return [n for n in self.nodes.values() if n.group is not None and n.group.core.leads]

    def propose(self, count: int = 1) -> None:
        for node in self.leaders():
            if self.now < node.paused_until:
                continue
            group = node.group
            assert group is not None
            payloads = [b"%d" % (self.proposals + n) for n in range(count)]
            self.proposals += count
            answer = group.propose(payloads)
            if isinstance(answer, ProposalAccepted):
                self.checker.on_accepted(node, answer, payloads)
            node.turn()

    def read(self) -> None:
        for node in self.leaders():
            if self.now < node.paused_until:
                continue
            self.reads += 1
            read_id = ReadId(self.reads)
            self.checker.on_read(read_id)
            assert node.group is not None
            node.group.read(ReadRequest(read_id, ReadKind.READ_INDEX, self.now + 500))
            node.turn()

    # Recovery.

    def heal(self) -> None:
        """End every fault and start every node that is down."""
        self.faults = Faults()
        self.blocked = set()
        self.control.down = False
        for node in self.nodes.values():
            node.stalled_until = node.paused_until = 0
            if not node.up:
                self.restart(node)

    def restart(self, node: Node) -> None:
        if node.wiped and node.disk.hard is None and node.disk.holds_data:
            try:
                node.start()
            except DataLost:
                node.start(rejoin_epoch=self.control.routing_epoch)
            else:
                raise AssertionError("an empty disk was taken for a new replica")
        else:
            node.start()


class FakeControlPlane:
    """The port's other side: remembers the highest proof, counts epochs, can be down."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.down = False
        self.proof: DurabilityTuple | None = None
        self.proof_ms = 0
        self.routing_epoch = RoutingEpoch(0)
        self.mode_epoch = DurabilityModeEpoch(0)
        self.ack: MembershipAck | None = None
        world.later(1, None, self._refresh)

    def publish(self, node: Node, proven: DurabilityTuple) -> None:
        def arrive() -> None:
            if not self.down and (self.proof is None or proven.rank() > self.proof.rank()):
                self.proof, self.proof_ms = proven, self.world.now
                self.tell(node)

        self.world.later(self.world.rng.randint(2, 20), None, arrive)

    def record_membership(self, membership: MembershipAck) -> None:
        if not self.down and (
            self.ack is None or membership.routing_epoch >= self.ack.routing_epoch
        ):
            self.ack = membership

    def tell(self, node: Node) -> None:
        if node.group is None:
            return
        proof = None
        if self.proof is not None:
            proof = VerifiedProof(self.proof, self.world.now - self.proof_ms)
        node.group.control_plane(ControlPlaneUpdate(proof=proof))
        if self.ack is not None:
            node.group.membership_acknowledged(self.ack)
        node.turn()

    def _refresh(self) -> None:
        if not self.down:
            for node in self.world.nodes.values():
                self.tell(node)
        self.world.later(100, None, self._refresh)
