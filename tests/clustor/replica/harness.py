"""A handful of replicas on simulated disks, moved by hand: nothing happens by itself.

Messages wait in `mail` and disk work in each node's queue until the test lets them through, so
that a test can stop between any two of them. `settle` lets everything through.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from clustor.kv import Key, KvMachine, Put, StoreId, encode_command
from clustor.log.config import LogConfig
from clustor.log.types import IoWriterMode, LogId, PartitionId
from clustor.raft.control_plane import ControlPlaneUpdate, VerifiedProof
from clustor.raft.membership import Membership
from clustor.raft.messages import Message
from clustor.raft.profiles import CONSISTENCY_PROFILE, Profile
from clustor.raft.types import DurabilityTuple, ReplicaId
from clustor.replica import (
    DiskWork,
    Home,
    NodeInflight,
    Outcome,
    ReadOutcome,
    Replica,
    ReplicaOutput,
    ReplicaSettings,
    RequestId,
    Transfer,
)
from clustor.sim.disk import SimDisk
from clustor.snapshot.cadence import CadenceProfile
from tests.clustor.log.harness import SMALL as SMALL_LOG
from tests.clustor.log.harness import new_keys

PARTITION = PartitionId(7)
SIGNER = Ed25519PrivateKey.from_private_bytes(b"s" * 32)
STORE = StoreId(b"0123456789abcdef")
TICK_MS = 10


def put(key: str, value: str) -> bytes:
    return encode_command(Put(Key(key.encode()), value.encode()))


@dataclass
class Node:
    """One replica, its disks, and what it wanted and was not given yet."""

    id: ReplicaId
    disk: SimDisk = field(default_factory=SimDisk)
    home: SimDisk = field(default_factory=SimDisk)
    replica: Replica | None = None
    works: deque[DiskWork] = field(default_factory=deque)
    outcomes: list[Outcome] = field(default_factory=list)
    reads: list[ReadOutcome] = field(default_factory=list)
    outputs: list[ReplicaOutput] = field(default_factory=list)

    @property
    def up(self) -> Replica:
        assert self.replica is not None
        return self.replica


class Cluster:
    """Replicas 1 to `size` of one group."""

    def __init__(
        self,
        size: int,
        *,
        seed: int = 0,
        profile: Profile = CONSISTENCY_PROFILE,
        log_config: LogConfig = SMALL_LOG,
        spares: int = 0,
        chunk_bytes: int = 256,
        io_writer_mode: IoWriterMode = IoWriterMode.BLOCKING,
        cadence: CadenceProfile | None = None,
    ) -> None:
        self.rng = Random(seed)
        self.profile = profile
        self.log_config = log_config
        self.chunk_bytes = chunk_bytes
        self.io_writer_mode = io_writer_mode
        self.cadence = cadence
        self.deltas_allowed = cadence is not None
        self.node_inflight = NodeInflight()
        self.keys = new_keys()
        self.now_ms = 1_000
        self.mail: deque[tuple[ReplicaId, ReplicaId, Message | Transfer]] = deque()
        self.proof: DurabilityTuple | None = None
        self.cut_off: set[ReplicaId] = set()
        self.control_is_down = False
        ids = [ReplicaId(n) for n in range(1, size + spares + 1)]
        self.bootstrap = Membership(voters=frozenset(ids[:size]))
        self.nodes = {replica_id: Node(replica_id) for replica_id in ids}
        for node in self.nodes.values():
            self.create(node)
        self.settle()

    def settings(self) -> ReplicaSettings:
        return ReplicaSettings(
            profile=self.profile,
            keys=self.keys,
            new_machine=lambda: KvMachine(STORE),
            draw=Random(self.rng.random()).randint,
            entropy=self.rng.randbytes,
            signer=SIGNER,
            trusted_keys=(SIGNER.public_key(),),
            log_config=self.log_config,
            chunk_bytes=self.chunk_bytes,
            io_writer_mode=self.io_writer_mode,
            node_inflight=self.node_inflight,
            cadence=self.cadence,
        )

    def create(self, node: Node) -> None:
        node.replica = Replica.create(
            self.settings(),
            node.disk,
            node.home,
            replica_id=node.id,
            partition_id=PARTITION,
            log_id=LogId(self.rng.randbytes(16)),
            bootstrap=self.bootstrap if node.id in self.bootstrap.voters else None,
            now_ms=self.now_ms,
        )
        node.up.snapshots.deltas_allowed = self.deltas_allowed
        self.turn(node)

    def open(self, node: Node) -> None:
        node.replica = Replica.open(self.settings(), node.disk, node.home, now_ms=self.now_ms)
        node.up.snapshots.deltas_allowed = self.deltas_allowed
        self.turn(node)

    def crash(self, node: Node) -> None:
        """Lose power: what was not synced may be gone."""
        node.replica = None
        node.works.clear()
        node.disk = node.disk.random_crash(self.rng)
        node.home = node.home.random_crash(self.rng)

    # Moving

    def turn(self, node: Node) -> None:
        """Take what a replica wants, and queue it."""
        output = node.up.take()
        node.outputs.append(output)
        node.works += output.disk
        self.mail += ((node.id, to, message) for to, message in output.messages)
        self.mail += ((node.id, to, message) for to, message in output.transfers)
        node.outcomes += output.replies
        node.reads += output.reads
        node.up.catch_up()
        if output.publish_proof is not None and not self.control_is_down:
            self.proof = output.publish_proof
            self.tell(node)
        for read in output.disk_reads:
            try:
                found = read.job.run(node.disk)
            except Exception as error:  # noqa: BLE001  # whatever it is, it is handed back
                node.up.disk_read_failed(read.token, error)
            else:
                node.up.disk_read(read.token, found)
        for work in output.stream_disk:  # a lane of their own: nobody waits for it here
            node.disk.execute(work.plan)
            node.up.stream_disk_done(work.token)
        was_answered = output.publish_proof and not self.control_is_down
        if output.disk_reads or output.stream_disk or was_answered:
            self.turn(node)

    def tell(self, node: Node) -> None:
        """Let the control plane speak to a replica."""
        if self.control_is_down:
            return
        proof = VerifiedProof(self.proof, 0) if self.proof is not None else None
        node.up.control_plane(ControlPlaneUpdate(proof=proof))

    def work(self, node: Node) -> None:
        """Carry out the oldest plan of a node."""
        work = node.works.popleft()
        disk = node.disk if work.home is Home.PARTITION else node.home
        disk.execute(work.plan)
        node.up.disk_done(work.token, 1.0)
        self.turn(node)

    def deliver(self) -> None:
        """Let the oldest message arrive."""
        sender, to, message = self.mail.popleft()
        node = self.nodes.get(to)
        if node is None or node.replica is None or {sender, to} & self.cut_off:
            return
        if isinstance(message, Transfer):
            node.up.receive_transfer(sender, message)
        else:
            node.up.receive(message)
        self.turn(node)

    def settle(self) -> None:
        """Carry out and deliver until nothing is left to do."""
        for _ in range(100_000):
            busy = [node for node in self.nodes.values() if node.replica and node.works]
            if not busy and not self.mail:
                return
            for node in busy:
                self.work(node)
            if self.mail:
                self.deliver()
        raise AssertionError("the cluster never comes to rest")

    def run(self, duration_ms: int) -> None:
        """Let time pass, and let everything through."""
        for _ in range(duration_ms // TICK_MS):
            self.now_ms += TICK_MS
            for node in self.nodes.values():
                if node.replica is not None:
                    self.tell(node)
                    node.up.tick(self.now_ms)
                    self.turn(node)
            self.settle()

    def leader(self) -> Node:
        """Return the one that leads, after waiting for one."""
        for _ in range(200):
            leaders = [
                n
                for n in self.nodes.values()
                if n.replica and n.up.leads and n.id not in self.cut_off
            ]
            newest = max(leaders, key=lambda n: n.up.group.core.hard.term, default=None)
            if newest is not None and newest.up.applied_index >= newest.up.group.core.term_start:
                return newest
            self.run(TICK_MS)
        raise AssertionError("no leader")

    def propose(self, node: Node, *commands: tuple[int, bytes]) -> None:
        for request_id, command in commands:
            node.up.propose(RequestId(request_id), command)
        self.turn(node)
