"""A partition's log applied again, without its node: what a replica would know at an index.

Reads only. Equal logs give equal digests, on every node and at every time (quantumqtt §21).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from clustor.log.keys import KeyRing
from clustor.log.reader import LogReader
from clustor.log.types import EntryKind, PartitionId
from clustor.replica import decode_batch
from clustor.replica.chain import restore_newest
from clustor.runtime.development import node_directory
from clustor.runtime.disk import DirectoryStorage
from clustor.runtime.keys.store import KEYS_DIRECTORY, load_keyring
from clustor.runtime.pki.identity import NodeId
from clustor.snapshot.catalog import open_catalog
from quantum.broker import Broker
from quantum.tenants.broker_file import TenantEntry, read_broker_file
from quantum.tenants.group_ids import group_of
from quantum.tenants.partition_settings import broker_settings

_ALL: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class ReplayedHistory:
    """What one replica's log makes of one partition."""

    node: int
    tenant: str
    partition: int
    snapshot_index: int
    index: int
    commands: int
    digest: str


def replay_directory(
    root: Path, to_index: int | None, progress: Callable[[ReplayedHistory], None]
) -> list[ReplayedHistory]:
    """Replay every broker partition of every node below a cluster's or a broker's directory.

    Raises LogError, SnapshotError and NodeError where something cannot be read or believed.
    """
    found: list[ReplayedHistory] = []
    tenants = read_broker_file(root).tenants
    node = 1
    while (directory := node_directory(root, NodeId(node))).is_dir():
        keys = load_keyring(directory / KEYS_DIRECTORY)
        for ordinal, tenant in enumerate(tenants):
            for number in range(tenant.prg_count):
                state = directory / "state" / str(group_of(ordinal, number))
                if state.is_dir():
                    replayed = _replay(state, keys, node, tenant, ordinal, number, to_index)
                    progress(replayed)
                    found.append(replayed)
        node += 1
    return found


def _replay(  # noqa: PLR0917  # all of it names one replica
    state: Path,
    keys: KeyRing,
    node: int,
    tenant: TenantEntry,
    ordinal: int,
    number: int,
    to_index: int | None,
) -> ReplayedHistory:
    partition_id = group_of(ordinal, number)
    storage = DirectoryStorage(state)
    try:
        broker = Broker(broker_settings(tenant, number))
        base = _restore(storage, partition_id, keys, broker)
        commands, last = 0, base
        reader = LogReader.open(storage, keys, lambda _: None)
        for entry in reader.entries(base + 1):
            if entry.index > (_ALL if to_index is None else to_index):
                break
            last = entry.index
            if entry.kind is EntryKind.DATA:
                batch = decode_batch(entry.payload)
                broker.apply_batch(entry.index, batch)
                commands += len(batch)
    finally:
        storage.close()
    return ReplayedHistory(node, tenant.name, number, base, last, commands, broker.digest().hex())


def _restore(
    storage: DirectoryStorage, partition_id: PartitionId, keys: KeyRing, broker: Broker
) -> int:
    catalog = open_catalog(storage, partition_id)
    if catalog.newest is None:
        return 0
    header = restore_newest(broker, storage, catalog, keys)
    return 0 if header is None else int(header.base_index)
