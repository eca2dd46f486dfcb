"""Placements of partitions, the rings that route to them, and the epochs of both."""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from clustor.control.draft import Draft, Refuse
from clustor.control.objects import ControlObject, key_of
from clustor.control.types import Count, Digest, ModeName, Name, RefusalCode
from clustor.kv import Key
from clustor.raft.membership import Membership, membership_digest
from clustor.raft.types import ReplicaId

REDIRECT_GRACE_MS: Final = 600_000  # quantumqtt §2.1.5


class Members(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    voters: tuple[Count, ...]
    learners: tuple[Count, ...] = ()
    observers: tuple[Count, ...] = ()

    @property
    def all(self) -> tuple[int, ...]:
        return (*self.voters, *self.learners, *self.observers)

    def ordered(self) -> Members:
        return Members(
            voters=tuple(sorted(self.voters)),
            learners=tuple(sorted(self.learners)),
            observers=tuple(sorted(self.observers)),
        )


class Placement(ControlObject, frozen=True, kw_only=True):
    """A partition's manifest: its members, and the epochs that fence them."""

    PREFIX: ClassVar[str] = "placement/"
    partition_id: Count
    tenant_id: Name | None
    members: Members
    load: Count  # that each member carries
    routing_epoch: Count
    placement_digest: Digest
    utilization: Count  # of the fullest member, in millionths, as the preflight found it
    survivable: bool
    profile: Name
    durability_mode: ModeName = ModeName.STRICT
    durability_mode_epoch: Count = 0
    follower_read_snapshot_capability: bool = False
    override_ref: Name | None = None
    previous: Members | None = None  # while a move is not recorded: what a rollback goes back to
    founders: tuple[Count, ...] | msgspec.UnsetType = msgspec.UNSET  # from the first move on
    rolled_back: bool = False

    def key(self) -> Key:
        return key_of(Placement, self.partition_id)

    @property
    def founding(self) -> tuple[int, ...]:
        """With which voters the group began: the same for ever, on every node."""
        known = self.founders
        return self.members.voters if isinstance(known, msgspec.UnsetType) else known

    @property
    def occupied(self) -> frozenset[int]:
        """The nodes that carry the partition; during a move those of both sides."""
        before = self.previous.all if self.previous is not None else ()
        return frozenset(self.members.all) | frozenset(before)


class RoutingMap(ControlObject, frozen=True, kw_only=True):
    """A tenant's ring: its partitions by slot. One epoch counts every change to them.

    The hash is jump consistent hashing over XXH3 with this seed (ruling C9). Until
    `redirect_until` the epoch before this one is redirected, then refused (quantumqtt §2.1.5).
    """

    PREFIX: ClassVar[str] = "routing/"
    tenant_id: str
    routing_epoch: Count
    partitions: tuple[Count, ...] = ()
    hash_version: Count = 1
    hash_seed: Count = 0
    redirect_until: Count = 0
    sizes: tuple[Count, ...] | msgspec.UnsetType = msgspec.UNSET  # of its rings, once it grew

    def key(self) -> Key:
        return key_of(RoutingMap, self.tenant_id)

    @property
    def grown(self) -> tuple[int, ...]:
        """The size of each ring, the newest last; () where there is none."""
        if isinstance(self.sizes, msgspec.UnsetType):
            return (len(self.partitions),) if self.partitions else ()
        return self.sizes

    def sizes_with(self, partitions: tuple[int, ...]) -> tuple[int, ...] | msgspec.UnsetType:
        """Return the sizes when this ring becomes that one; one that is no growth begins anew."""
        if partitions == self.partitions:
            return self.sizes
        grows = self.partitions and partitions[: len(self.partitions)] == self.partitions
        return (*self.grown, len(partitions)) if grows else msgspec.UNSET


SYSTEM: Final = "_system"  # the ring of partitions that have no tenant; no tenant has this name


class MembershipRecord(ControlObject, frozen=True, kw_only=True):
    """What the control plane confirms of a membership (clustor §9.9): the MembershipAck."""

    PREFIX: ClassVar[str] = "membership/"
    partition_id: Count
    routing_epoch: Count
    membership_digest: Digest
    durability_mode_epoch: Count
    proof_term: Count
    proof_index: Count
    recorded_at: Count

    def key(self) -> Key:
        return key_of(MembershipRecord, self.partition_id)


def ring_of(draft: Draft, tenant_id: str | None) -> RoutingMap:
    ring = tenant_id if tenant_id is not None else SYSTEM
    return draft.find(RoutingMap, ring) or RoutingMap(tenant_id=ring, routing_epoch=0)


def advance_ring(draft: Draft, tenant_id: str | None) -> None:
    ring = ring_of(draft, tenant_id)
    draft.put(
        msgspec.structs.replace(
            ring,
            routing_epoch=ring.routing_epoch + 1,
            redirect_until=draft.now_ms + REDIRECT_GRACE_MS,
        )
    )


def require_epoch(held: int, expected: int) -> None:
    if held != expected:
        raise Refuse(
            RefusalCode.ROUTING_EPOCH_MISMATCH, "another epoch stands", observed=expected, held=held
        )


def digest_of(members: Members) -> bytes:
    """Digest members as the group itself does."""
    return membership_digest(
        Membership(
            voters=frozenset(map(ReplicaId, members.voters)),
            learners=frozenset(map(ReplicaId, members.learners)),
            observers=frozenset(map(ReplicaId, members.observers)),
        )
    )


def voters_of(placement: Placement) -> tuple[int, ...]:
    """Return who may lead the partition: during a move, the voters before it too."""
    previous = placement.previous.voters if placement.previous is not None else ()
    return (*placement.members.voters, *previous)
