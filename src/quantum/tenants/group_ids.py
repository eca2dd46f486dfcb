"""Which Raft group a partition is: the same number on every node, for ever."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from clustor.log.types import PartitionId
from quantum.tenants.broker_file import TenantEntry

FIRST_PARTITION: Final = 1_000
PRGS_PER_TENANT_MAX: Final = 1_024


def group_of(tenant_ordinal: int, prg: int) -> PartitionId:
    """Return the group of a tenant's partition; the KV groups are below the first."""
    assert 0 <= prg < PRGS_PER_TENANT_MAX
    return PartitionId(FIRST_PARTITION + tenant_ordinal * PRGS_PER_TENANT_MAX + prg)


class GroupPlacement(NamedTuple):
    """The group of one partition, and the voters with which it begins; none: the founders."""

    partition: PartitionId
    voters: tuple[int, ...] = ()


def placements_of(entry: TenantEntry, ordinal: int) -> tuple[GroupPlacement, ...]:
    """Return the groups of a tenant of `broker.json`."""
    return tuple(
        GroupPlacement(group_of(ordinal, number), entry.voters(number))
        for number in range(entry.prg_count)
    )


def grown_placements(
    held: Sequence[GroupPlacement], entry: TenantEntry
) -> tuple[GroupPlacement, ...]:
    """Return the groups of a ring that grew: their numbers go on behind the first one's."""
    first = held[0].partition
    fresh = range(len(held), entry.prg_count)
    grown = (GroupPlacement(PartitionId(first + number), entry.voters(number)) for number in fresh)
    return (*held, *grown)
