"""Mend a damaged partition with what the log still proves.

The log holds the newest entries of every partition. Where it reaches back to the damage, the
partition is cut there and recovery applies the rest again; where it does not, nothing is changed
and the partition stays as `verify_partition` classified it, for another replica to fill.
"""

from __future__ import annotations

import msgspec

from clustor.log.keys import KeyRing
from clustor.log.log import Log
from clustor.log.reader import read_entries
from clustor.log.steps import Delete, Plan, Storage
from clustor.segmented.config import SegmentedConfig
from clustor.segmented.errors import UnknownPartition
from clustor.segmented.group import rows_of
from clustor.segmented.metadata import PartitionChange, PartitionMeta, SegmentMeta
from clustor.segmented.recovery import open_store
from clustor.segmented.runs import (
    FILE_HEADER_BYTES,
    RUN_HEAD_BYTES,
    decode_run_head,
    index_file,
    part_file,
)
from clustor.segmented.verify import Damage


def plan_repair(
    storage: Storage, keys: KeyRing, config: SegmentedConfig, log: Log, damage: Damage
) -> Plan | None:
    """Plan to cut a partition at its damage; None where the log does not reach back to it.

    For a store that nobody has open. Carry the plan out, then recover the group.
    """
    opened = open_store(storage, keys, config)
    if opened is None or damage.partition not in opened.image.partitions:
        raise UnknownPartition("no such partition", partition=damage.partition)
    proven_from = _proven_from(storage, keys, log, damage)
    if proven_from is None:
        return None
    known = opened.image.partitions[damage.partition]
    kept = [at for at in (_cut(storage, damage, at) for at in known.ordered()) if at is not None]
    removed = sorted(known.segments.keys() - {segment.file_seq for segment in kept})
    raft_index = min(opened.image.durable_raft_index, proven_from - 1)
    plan = opened.store.plan_rewrite(raft_index, [_change(known, damage, kept, removed)])
    deletions = [Delete(part_file(damage.partition, file_seq)) for file_seq in removed]
    indices = [Delete(index_file(damage.partition, file_seq)) for file_seq in known.segments]
    return (*opened.plan, *plan.steps, *deletions, *indices)


def _proven_from(storage: Storage, keys: KeyRing, log: Log, damage: Damage) -> int | None:
    """Return the raft index of the entry that holds the first lost index."""
    base = log.entries.base_index
    for entry in read_entries(storage, keys, log.entries, base + 1, log.durable_index):
        for partition, first, count, _, _ in rows_of(entry):
            if partition == damage.partition and first + count > damage.first_index:
                return entry.index if first <= damage.first_index else None
    return None


def _cut(storage: Storage, damage: Damage, segment: SegmentMeta) -> SegmentMeta | None:
    """Return what is left of a file below the damage, None for nothing."""
    if segment.next_index <= damage.first_index:
        return segment
    if segment.first_index >= damage.first_index:
        return None
    name = part_file(damage.partition, segment.file_seq)
    offset, newest = FILE_HEADER_BYTES, segment.max_timestamp
    while True:
        head = decode_run_head(storage.read(name, offset, RUN_HEAD_BYTES))
        offset += RUN_HEAD_BYTES + head.sealed_bytes
        if head.next_index == damage.first_index:
            break
    return msgspec.structs.replace(
        segment, next_index=damage.first_index, size_bytes=offset, max_timestamp=newest
    )


def _change(
    known: PartitionMeta, damage: Damage, kept: list[SegmentMeta], removed: list[int]
) -> PartitionChange:
    return PartitionChange(
        partition=damage.partition,
        start_index=min(known.start_index, damage.first_index),
        next_index=damage.first_index,
        quorum_next=min(known.quorum_next, damage.first_index),
        clean_next=min(known.clean_next, damage.first_index),
        segments=tuple(kept),
        removed=tuple(removed),
    )
