"""Which Raft group a partition is: the same number on every node, for ever."""

from __future__ import annotations

from typing import Final

from clustor.log.types import PartitionId

FIRST_PARTITION: Final = 1_000
PRGS_PER_TENANT_MAX: Final = 1_024


def group_of(tenant_ordinal: int, prg: int) -> PartitionId:
    """Return the group of a tenant's partition; the KV groups are below the first."""
    assert 0 <= prg < PRGS_PER_TENANT_MAX
    return PartitionId(FIRST_PARTITION + tenant_ordinal * PRGS_PER_TENANT_MAX + prg)
