"""Which Raft group a partition is: the same number on every node, for ever."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from clustor.log.types import PartitionId

if TYPE_CHECKING:
    from quantum.node.broker_file import TenantEntry

FIRST_PARTITION: Final = 1_000
PRGS_PER_TENANT_MAX: Final = 1_024


def group_of(tenant_ordinal: int, prg: int) -> PartitionId:
    """Return the group of a tenant's partition; the KV groups are below the first."""
    assert 0 <= prg < PRGS_PER_TENANT_MAX
    return PartitionId(FIRST_PARTITION + tenant_ordinal * PRGS_PER_TENANT_MAX + prg)


class Seat(NamedTuple):
    """The group of one partition, and the voters with which it begins; none: the founders."""

    partition: PartitionId
    voters: tuple[int, ...] = ()


def seats_of(entry: TenantEntry, ordinal: int) -> tuple[Seat, ...]:
    """Return the groups of a tenant of `broker.json`."""
    numbers = range(entry.prg_count)
    return tuple(Seat(group_of(ordinal, number), entry.voters(number)) for number in numbers)


def grown_seats(held: Sequence[Seat], entry: TenantEntry) -> tuple[Seat, ...]:
    """Return the groups of a ring that grew: their numbers go on behind the first one's."""
    first = held[0].partition
    fresh = range(len(held), entry.prg_count)
    grown = (Seat(PartitionId(first + number), entry.voters(number)) for number in fresh)
    return (*held, *grown)
