"""Making a replica that begins with a state that was: a restored one, not an empty one.

What stands afterwards is what an installed snapshot leaves behind when a crash comes right after
its authorisation; the replica's next opening moves its log there by itself. The identity comes
last: without it there is no replica, and the same can be done again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from clustor.log.config import LogConfig
from clustor.log.keys import KeyRing
from clustor.log.ledger import LedgerIdentity
from clustor.log.log import create_log
from clustor.log.steps import Plan
from clustor.log.types import (
    DurabilityMode,
    DurabilityModeEpoch,
    IoWriterMode,
    LogId,
    LogIndex,
    PartitionId,
    Term,
)
from clustor.raft.hard_state import HardState, MembershipAck
from clustor.raft.membership import Membership, membership_digest
from clustor.raft.types import ReplicaId, ReplicaIdentity, RoutingEpoch
from clustor.replica.documents import plan_hard_state, plan_identity
from clustor.replica.emitting import pane_digest
from clustor.replica.header import SnapshotHeader, encode_header
from clustor.replica.machine import StateMachine
from clustor.runtime.disk.blocking import BlockingDisk
from clustor.runtime.disk.storage import DirectoryStorage
from clustor.snapshot.authorization import AuthorizationLog, root_hash
from clustor.snapshot.catalog import Catalog, plan_acknowledge, plan_authorize, relist
from clustor.snapshot.emission import SnapshotRequest, plan_snapshot
from clustor.snapshot.types import IvSalt, SnapshotKind, new_manifest_id
from clustor.streams.changes import StreamChange, StreamExtent
from clustor.streams.config import StreamConfig
from clustor.streams.opening import create_store
from clustor.streams.plans import StreamPlan
from clustor.streams.store import StreamStore
from clustor.streams.types import StoreId

_PRODUCER = "restore"


@dataclass(frozen=True, slots=True)
class ReplicaSeed:
    """A state, the entry after which it stood, and who decides about what follows it."""

    partition_id: PartitionId
    machine: StateMachine
    base_index: LogIndex
    base_term: Term
    voters: frozenset[ReplicaId]


@dataclass(frozen=True, slots=True)
class ReplicaPlace:
    """Where a new replica stands, and with which keys it seals."""

    replica_id: ReplicaId
    keys: KeyRing
    signer: Ed25519PrivateKey
    state: Path
    identity: Path
    segment_bytes: int


class ReplicaSeeding:
    """A new replica under way: its streams are fed first, then its state is written.

    Raises DiskError, LogError and SnapshotFailure. Whoever makes one closes it.
    """

    def __init__(self, partition: PartitionId, place: ReplicaPlace, *, keeps_streams: bool) -> None:
        self._place = place
        for directory in (place.state, place.identity):
            directory.mkdir(parents=True, mode=0o700, exist_ok=True)
        self._disk = BlockingDisk()
        self._home = self._disk.open_partition(place.state)
        self._node = self._disk.open_partition(place.identity)
        self._streams: StreamStore | None = None
        if keeps_streams:
            opened = create_store(partition, StoreId(os.urandom(16)), place.keys, StreamConfig())
            self._streams = opened.store
            self._disk.execute(self._home, opened.plan)

    def close(self) -> None:
        self._disk.close()

    # Streams.

    def begin(self, raft_index: int, extents: Iterable[StreamExtent]) -> None:
        """Take note which partitions there are behind an entry; none of their records comes."""
        for extent in extents:
            self._store.define_as(raft_index, extent.partition, None, raft_index)
            self._store.skip_to(raft_index, extent.partition, extent.next)
        self._store.applied(raft_index)

    def feed(self, raft_index: int, changes: Iterable[StreamChange]) -> None:
        """Take what an entry changed; what fills the memory is written."""
        store = self._store
        for change in changes:
            store.take(raft_index, change)
        store.applied(raft_index)
        if store.tail_bytes >= store.config.flush_bytes:
            self._carry_out(store.plan_flush())

    @property
    def _store(self) -> StreamStore:
        assert self._streams is not None, "a machine without streams changes none"
        return self._streams

    def _carry_out(self, plan: StreamPlan) -> None:
        self._disk.execute(self._home, plan.steps)
        self._store.stored(plan.receipt)

    # The state.

    def finish(self, seed: ReplicaSeed, now_ms: int) -> None:
        """Make the streams durable, and write the state behind them; the identity comes last."""
        disk, home, place = self._disk, self._home, self._place
        if self._streams is not None:
            self._streams.applied(seed.base_index)
            self._carry_out(self._streams.plan_checkpoint())
        own = ReplicaIdentity(
            place.replica_id, seed.partition_id, LogId(os.urandom(16)), holds_data=True
        )
        disk.execute(home, _beginnings(seed, own, place))
        catalog = _no_snapshots(seed.partition_id)
        emission = plan_snapshot(
            catalog, _request(seed, now_ms), _content(seed), keys=place.keys, signer=place.signer
        )
        for plan in emission:
            disk.execute(home, plan)
        disk.execute(home, emission.plan_manifest(catalog, pane_digest(seed.machine.digest())))
        assert emission.manifest is not None
        storage = DirectoryStorage(place.state)
        try:
            written = relist(storage, emission.manifest, emission.generation)
        finally:
            storage.close()
        authorized = plan_authorize(catalog, written, since_full_ms=0)
        disk.execute(home, authorized.plan)
        disk.execute(home, plan_acknowledge(authorized.after).plan)
        disk.execute(self._node, plan_identity(own))


def _beginnings(seed: ReplicaSeed, own: ReplicaIdentity, place: ReplicaPlace) -> Plan:
    """Plan an empty log of a term that was."""
    members = Membership(voters=seed.voters)
    ack = MembershipAck(RoutingEpoch(0), membership_digest(members), DurabilityModeEpoch(0))
    hard = HardState(term=seed.base_term, membership=members, membership_ack=ack)
    _, create = create_log(
        LedgerIdentity(seed.partition_id, own.log_id),
        place.keys,
        LogConfig(segment_bytes=place.segment_bytes),
        IoWriterMode.BLOCKING,
    )
    return (*plan_hard_state(hard), *create)


def _content(seed: ReplicaSeed) -> chain[bytes]:
    header = SnapshotHeader(
        seed.base_index,
        Membership(voters=seed.voters),
        LogIndex(0),
        RoutingEpoch(0),
        DurabilityMode.STRICT,
        DurabilityModeEpoch(0),
    )
    content: Iterable[bytes] = seed.machine.snapshot()
    return chain((encode_header(header),), content)


def _request(seed: ReplicaSeed, now_ms: int) -> SnapshotRequest:
    return SnapshotRequest(
        new_manifest_id(now_ms, os.urandom(10)),
        IvSalt(os.urandom(16)),
        SnapshotKind.FULL,
        seed.base_term,
        seed.base_index,
        1,
        _PRODUCER,
    )


def _no_snapshots(partition: PartitionId) -> Catalog:
    return Catalog(AuthorizationLog(partition, (), (), root_hash(partition), file_exists=False), ())
