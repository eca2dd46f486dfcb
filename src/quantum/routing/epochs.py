"""Where a tenant's partitions are, as of one routing epoch, and what to do with other epochs.

The control plane makes an epoch; everybody else only follows it (§2.1.5, routing authority).
`prg` is the specification's word for a partition's Raft group.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from clustor.raft import ReplicaId
from clustor.raft import RoutingEpoch as EpochNumber
from quantum.routing.errors import RoutingMisuse
from quantum.routing.ring import HashRing, PrgIndex
from quantum.types import ClientId, TenantId

REDIRECT_GRACE_MS = 10 * 60 * 1000
"""For how long a superseded route still leads somewhere (§2.1.5)."""
PRGS_PER_TENANT_MAX = 1024  # §11.5; beyond 512 an operator has to approve
SESSIONS_PER_PRG = 50_000
PUBLISHES_PER_SECOND_PER_PRG = 500

Placement: TypeAlias = tuple[ReplicaId, ...]
"""The replicas of one partition; the first is the one that should lead."""


@dataclass(frozen=True, slots=True)
class Superseded:
    """An epoch that was replaced not long ago."""

    epoch: EpochNumber
    at_ms: int


@dataclass(frozen=True, slots=True)
class RoutingEpoch:
    """All that is needed to send a tenant's client or message to its owner.

    Two nodes with equal epochs route every key alike, and no key of one tenant's epoch ever
    leads to a partition of another tenant.
    """

    tenant_id: TenantId
    epoch: EpochNumber
    ring: HashRing
    placements: tuple[Placement, ...]
    """By `PrgIndex`; there are as many as the ring has places."""
    superseded: tuple[Superseded, ...] = ()
    """Older epochs that may still be redirected, the newest last."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.placements) <= PRGS_PER_TENANT_MAX:
            raise RoutingMisuse("partitions of a tenant", count=len(self.placements))
        for prg, replicas in enumerate(self.placements):
            if not replicas or len(set(replicas)) != len(replicas):
                raise RoutingMisuse("a replica twice, or none", prg=prg, replicas=replicas)

    @property
    def prg_count(self) -> int:
        return len(self.placements)

    def session_prg(self, client_id: ClientId) -> PrgIndex:
        """Return the owner of a client's session."""
        return self.ring.session_partition(self.tenant_id, client_id, self.prg_count)

    def topic_prg(self, topic: bytes) -> PrgIndex:
        """Return the owner of a topic."""
        return self.ring.topic_partition(self.tenant_id, topic, self.prg_count)


def plan_prg_count(sessions_max: int, publishes_per_second_max: int, production: bool) -> int:
    """Return how many partitions a tenant of this size gets (§2.1.1, quantum §2)."""
    wanted = max(
        3 if production else 1,
        -(-sessions_max // SESSIONS_PER_PRG),
        -(-publishes_per_second_max // PUBLISHES_PER_SECOND_PER_PRG),
    )
    return min(wanted, PRGS_PER_TENANT_MAX)


def next_epoch(
    current: RoutingEpoch,
    now_ms: int,
    placements: tuple[Placement, ...],
    ring: HashRing | None = None,
) -> RoutingEpoch:
    """Return the epoch that follows, with these placements; a tenant's ring never shrinks.

    Raises `RoutingMisuse` for fewer partitions than before: what they own would have no home.
    """
    if len(placements) < current.prg_count:
        raise RoutingMisuse("a ring grows", before=current.prg_count, after=len(placements))
    recent = [one for one in current.superseded if now_ms - one.at_ms < REDIRECT_GRACE_MS]
    return replace(
        current,
        epoch=EpochNumber(current.epoch + 1),
        ring=ring or current.ring,
        placements=placements,
        superseded=(*recent, Superseded(current.epoch, now_ms)),
    )


@dataclass(frozen=True, slots=True)
class Serve:
    """The caller routed by the epoch in force."""


@dataclass(frozen=True, slots=True)
class Redirect:
    """The caller's epoch was replaced a short while ago: send it on, or tell it where to go."""

    prg: PrgIndex
    replicas: Placement
    epoch: EpochNumber


@dataclass(frozen=True, slots=True)
class RoutingEpochMismatch:
    """Refuse: `PERMANENT_EPOCH` to clients (C10), the facts of clustor's envelope to nodes."""

    observed_epoch: EpochNumber | None
    expected_epoch: EpochNumber
    replicas: Placement
    """Where the owner is now, as a hint for the client."""

    @property
    def refresh_first(self) -> bool:
        """Whether the caller knows more than we do: our own routing is the outdated one."""
        return self.observed_epoch is not None and self.observed_epoch > self.expected_epoch


RouteDecision: TypeAlias = Serve | Redirect | RoutingEpochMismatch


def decide_route(
    routing: RoutingEpoch, observed: EpochNumber | None, owner: PrgIndex, now_ms: int
) -> RouteDecision:
    """Decide about a request whose sender routed by `observed`; `owner` is who owns it now.

    An epoch that was superseded within the last ten minutes is redirected, an older one, an
    unknown one and a missing one are refused. A stale epoch is never served, although the
    partition may still own the key: it may have moved away and come back in between.
    """
    if observed == routing.epoch:
        return Serve()
    replicas = routing.placements[owner]
    for one in routing.superseded:
        # A clock that is still before the change is in its grace; one that stays behind by more
        # than a little fences its node (quantum §6.2).
        if one.epoch == observed and now_ms - one.at_ms < REDIRECT_GRACE_MS:
            return Redirect(owner, replicas, routing.epoch)
    return RoutingEpochMismatch(observed, routing.epoch, replicas)
