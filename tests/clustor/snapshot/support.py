"""What the snapshot tests share: keys, a toy state, and a driver that carries plans out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import settings

from clustor.log.keys import KeyRing
from clustor.log.steps import FileName, Plan, Storage
from clustor.log.types import DekEpoch, LogIndex, PartitionId, Term
from clustor.sim.disk import SimDisk
from clustor.snapshot.catalog import (
    Catalog,
    CatalogChange,
    open_catalog,
    plan_acknowledge,
    plan_authorize,
    read_content,
    relist,
    settle_catalog,
)
from clustor.snapshot.emission import Emission, SnapshotRequest, plan_snapshot
from clustor.snapshot.importer import SnapshotImport, StoreChunk, plan_finish_import
from clustor.snapshot.layout import chunk_file
from clustor.snapshot.manifest import Manifest
from clustor.snapshot.types import IvSalt, ManifestId, SnapshotKind, new_manifest_id

PARTITION = PartitionId(7)
SIGNER = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
TRUSTED = (SIGNER.public_key(),)
State = dict[str, str]

patient = settings(deadline=None, max_examples=60, database=None)
"""A loaded machine is no reason for a property to fail."""


def key_ring(*epochs: int) -> KeyRing:
    ring = KeyRing()
    for epoch in epochs or (3,):
        ring.add_dek(DekEpoch(epoch), bytes([epoch]) * 32)
    return ring


KEYS = key_ring()


def manifest_id(number: int, at_ms: int = 1_700_000_000_000) -> ManifestId:
    return new_manifest_id(at_ms + number, number.to_bytes(10, "big"))


def salt(number: int) -> IvSalt:
    return IvSalt(hashlib.sha256(b"salt %d" % number).digest()[:16])


def request(
    number: int,
    index: int,
    kind: SnapshotKind = SnapshotKind.FULL,
    *,
    term: int = 1,
    chunk_bytes: int = 64,
) -> SnapshotRequest:
    return SnapshotRequest(
        manifest_id=manifest_id(number),
        iv_salt=salt(number),
        kind=kind,
        base_term=Term(term),
        base_index=LogIndex(index),
        version_id=12,
        producer_version="test",
        chunk_bytes=chunk_bytes,
    )


def lines(state: State) -> Iterator[bytes]:
    """A content: one JSON line per key; a delta has only the keys that changed."""
    for item in sorted(state.items()):
        yield json.dumps(item).encode() + b"\n"


def rebuilt(storage: Storage, catalog: Catalog, keys: KeyRing = KEYS) -> State:
    """Restore the newest snapshot, as a product would: deltas over the full one."""
    state: State = {}
    for each in () if catalog.newest is None else catalog.chain(catalog.newest):
        content = b"".join(read_content(storage, each.manifest, keys, catalog.partition))
        state.update(json.loads(line) for line in content.splitlines())
    return state


@dataclass
class Replica:
    """A disk and its catalog; `run` is the dull loop that carries plans out."""

    disk: SimDisk = field(default_factory=SimDisk)
    keys: KeyRing = field(default_factory=key_ring)
    written: Manifest = field(init=False)
    generation: int = field(init=False)

    def __post_init__(self) -> None:
        self.catalog = open_catalog(self.disk, PARTITION)
        self.settle()

    def settle(self) -> None:
        change = settle_catalog(self.catalog)
        self.disk.execute(change.plan)
        self.catalog = change.after

    def begin(self, wanted: SnapshotRequest, content: State) -> Emission:
        return plan_snapshot(self.catalog, wanted, lines(content), keys=self.keys, signer=SIGNER)

    def write_plans(self, wanted: SnapshotRequest, content: State) -> Iterator[Plan]:
        """Yield the plans that write a snapshot's files; carry each out before the next."""
        emission = self.begin(wanted, content)
        yield from emission
        yield emission.plan_manifest(self.catalog)
        assert emission.manifest is not None
        self.written, self.generation = emission.manifest, emission.generation

    def authorize_plans(self) -> Iterator[Plan]:
        """Yield the plans that make what was written authoritative."""
        proof = relist(self.disk, self.written, self.generation)
        change = plan_authorize(self.catalog, proof, since_full_ms=0)
        yield change.plan
        change = plan_acknowledge(change.after)
        yield change.plan
        self.catalog = change.after

    def emission_plans(self, wanted: SnapshotRequest, content: State) -> Iterator[Plan]:
        yield from self.write_plans(wanted, content)
        yield from self.authorize_plans()

    def import_plans(self, coming: SnapshotImport, source: Storage) -> Iterator[Plan]:
        """Yield the plans of an import from a peer that answers at once and correctly."""
        yield coming.plan
        for chunk in coming.take_wanted(0, limit=1000):
            sealed = source.read(chunk_file(chunk.chunk_id), 0, 2**20)
            outcome = coming.on_chunk(chunk.chunk_id, sealed, now_ms=0, jitter=0)
            assert isinstance(outcome, StoreChunk)
            yield outcome.plan
            coming.on_chunk_stored(chunk.chunk_id)
        coming.on_restored(coming.manifest.ap_pane_digest, coming.manifest.dedup_shards)
        yield coming.plan_install(self.catalog)
        self.written, self.generation = coming.manifest, coming.generation
        yield from self.authorize_plans()
        yield plan_finish_import()

    def run(self, plans: Iterator[Plan]) -> None:
        for plan in plans:
            self.disk.execute(plan)

    def write(self, wanted: SnapshotRequest, content: State) -> Manifest:
        self.run(self.write_plans(wanted, content))
        return self.written

    def emit(self, wanted: SnapshotRequest, content: State) -> Manifest:
        self.run(self.emission_plans(wanted, content))
        return self.written

    def adopt(self, change: CatalogChange) -> None:
        self.disk.execute(change.plan)
        self.catalog = change.after

    def reopened(self) -> Replica:
        return Replica(self.disk.copy(), self.keys)

    def state(self) -> State:
        return rebuilt(self.disk, self.catalog, self.keys)


def all_files(replica: Replica) -> list[FileName]:
    found: list[FileName] = []
    pending = ["snapshot"]
    while pending:
        path = pending.pop()
        try:
            pending += [f"{path}/{name}" for name in replica.disk.names(path)]
        except NotADirectoryError:
            found.append(FileName(path))
    return sorted(found)
