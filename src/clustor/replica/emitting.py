"""Emission: the machine's state becomes an authorised snapshot, and the log may shrink.

    chunks → manifest → read back → authorised → acknowledged → the quorum is there too → compacted

Each arrow waits for the disk. A crash anywhere leaves the old snapshot or the new one; files of
an emission that did not end are garbage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from typing import cast

from clustor.log.steps import Plan
from clustor.log.types import LogIndex, PartitionId, Term
from clustor.replica.chain import mark
from clustor.replica.disk_queue import DiskQueue
from clustor.replica.header import SnapshotHeader, encode_header
from clustor.replica.jobs import NextChunk, Relist
from clustor.replica.machine import DeltaMachine, DigestsDeltas, DigestsLater, StateMachine
from clustor.replica.reading import DiskReader
from clustor.replica.settings import ReplicaSettings
from clustor.replica.streams import ReplicaStreams
from clustor.snapshot.catalog import Catalog, Relisted, plan_acknowledge, plan_authorize
from clustor.snapshot.emission import Emission, SnapshotRequest, plan_snapshot
from clustor.snapshot.errors import SnapshotFailure
from clustor.snapshot.manifest import Manifest
from clustor.snapshot.types import (
    HexDigest,
    IvSalt,
    SnapshotKind,
    emit_ts_ms,
    hex_digest,
    new_manifest_id,
)


@dataclass(slots=True)
class Shelf:
    """What emission, installation and collection share: the catalog, and one work at a time."""

    settings: ReplicaSettings
    partition_id: PartitionId
    catalog: Catalog
    disk: DiskQueue
    reader: DiskReader
    streams: ReplicaStreams | None = None
    busy: bool = False

    def when_streams_durable(self, index: LogIndex, then: Callable[[], None]) -> None:
        """Go on when the files of the streams are durable through `index`: a snapshot holds none
        of their bytes, and the log may go behind it.
        """
        if self.streams is None:
            then()
        else:
            self.streams.when_durable(index, then)


def state_digest(machine: StateMachine, kind: SnapshotKind) -> HexDigest:
    """The manifest's digest of what was restored last, a snapshot of this kind: compare them."""
    if kind is SnapshotKind.DELTA and isinstance(machine, DigestsDeltas):
        return pane_digest(machine.delta_digest())
    return pane_digest(machine.digest())


def pane_digest(digest: bytes) -> HexDigest:
    return hex_digest(sha256(digest).digest())


@dataclass(frozen=True, slots=True)
class Frozen:
    """A state of one moment: its bytes, and its digest when all of them were taken."""

    content: Iterator[bytes]
    digest: Callable[[], bytes]


def freeze(machine: StateMachine, kind: SnapshotKind, parent_base: int | None) -> Frozen | None:
    """Freeze what a snapshot of this kind holds; None where the machine knows no delta."""
    if kind is SnapshotKind.FULL and isinstance(machine, DigestsLater):
        return Frozen(*machine.frozen())
    if kind is SnapshotKind.DELTA and isinstance(machine, DigestsDeltas):
        found = None if parent_base is None else machine.frozen_delta(parent_base)
        return None if found is None else Frozen(*found)
    digest = machine.digest()
    if kind is SnapshotKind.FULL:
        return Frozen(machine.snapshot(), lambda: digest)
    if parent_base is None or not isinstance(machine, DeltaMachine):
        return None
    content = machine.delta(parent_base)
    return None if content is None else Frozen(content, lambda: digest)


class Authorizing:
    """The last steps of every snapshot, emitted or installed: read back, authorise, acknowledge."""

    def __init__(
        self, shelf: Shelf, done: Callable[[], None], failed: Callable[[Exception], None]
    ) -> None:
        self._shelf = shelf
        self._done = done
        self._failed = failed
        self._since_full_ms = 0

    def begin(self, relist: Relist, now_ms: int) -> None:
        fulls = [s for s in self._shelf.catalog.snapshots if s.record.parent is None]
        if fulls:
            self._since_full_ms = max(0, now_ms - emit_ts_ms(fulls[-1].record.manifest_id))
        self._shelf.reader.submit(relist, self._relisted, self._failed)

    def _relisted(self, found: object) -> None:
        assert isinstance(found, Relisted)
        try:
            change = plan_authorize(self._shelf.catalog, found, since_full_ms=self._since_full_ms)
        except SnapshotFailure as error:
            self._failed(error)
            return
        self._shelf.disk.submit(change.plan, lambda: self._authorized(change.after))

    def _authorized(self, after: Catalog) -> None:
        self._shelf.catalog = after
        change = plan_acknowledge(after)
        self._shelf.disk.submit(change.plan, lambda: self._acknowledged(change.after))

    def _acknowledged(self, after: Catalog) -> None:
        self._shelf.catalog = after
        self._done()


class Emitting:
    """One emission. `ended` is called once: with its manifest if it counts now, or with None."""

    def __init__(self, shelf: Shelf, ended: Callable[[Manifest | None], None]) -> None:
        self._shelf = shelf
        self._ended = ended
        self._emission: Emission | None = None
        self._digest: Callable[[], bytes] = bytes
        self._now_ms = 0

    def begin(
        self,
        machine: StateMachine,
        header: SnapshotHeader,
        base_term: Term,
        now_ms: int,
        kind: SnapshotKind = SnapshotKind.FULL,
    ) -> bool:
        """Freeze the state of this moment and begin to write it; `now_ms` is the wall clock's.

        Returns False, and nothing begins, where the machine knows no delta.
        """
        newest = self._shelf.catalog.newest
        frozen = freeze(machine, kind, newest.manifest.base_index if newest is not None else None)
        if frozen is None:
            return False
        self._digest = frozen.digest
        if self._shelf.streams is not None:
            self._shelf.streams.want_durable(header.base_index)  # while the chunks are written
        mark(machine, header.base_index)
        settings = self._shelf.settings
        self._now_ms = now_ms
        request = SnapshotRequest(
            new_manifest_id(now_ms, settings.entropy(10)),
            IvSalt(settings.entropy(16)),
            kind,
            base_term,
            header.base_index,
            settings.version_id,
            settings.producer_version,
            chunk_bytes=settings.chunk_bytes,
        )
        try:
            self._emission = plan_snapshot(
                self._shelf.catalog,
                request,
                chain((encode_header(header),), frozen.content),
                keys=settings.keys,
                signer=settings.signer,
            )
        except SnapshotFailure as error:
            self._failed(error)
        else:
            self._next_chunk()
        return True

    def _next_chunk(self) -> None:
        """Encode and seal the next chunk beside the loop: the state is frozen, it may take long."""
        assert self._emission is not None
        self._shelf.reader.submit(NextChunk(self._emission), self._sealed, self._failed)

    def _sealed(self, plan: object) -> None:
        emission = self._emission
        assert emission is not None
        if plan is not None:
            self._shelf.disk.submit(cast("Plan", plan), self._next_chunk)
            return
        try:
            last = emission.plan_manifest(self._shelf.catalog, pane_digest(self._digest()))
        except SnapshotFailure as error:  # another became the newest meanwhile
            self._failed(error)
            return
        self._shelf.disk.submit(last, self._written)

    def _written(self) -> None:
        emission = self._emission
        assert emission is not None and emission.manifest is not None
        self._shelf.when_streams_durable(emission.manifest.base_index, self._authorize)

    def _authorize(self) -> None:
        emission = self._emission
        assert emission is not None and emission.manifest is not None
        authorizing = Authorizing(self._shelf, self._authorized, self._failed)
        authorizing.begin(Relist(emission.manifest, emission.generation), self._now_ms)

    def _authorized(self) -> None:
        assert self._emission is not None
        self._ended(self._emission.manifest)

    def _failed(self, error: Exception) -> None:
        del error  # what was written is garbage, and the next emission begins anew
        self._ended(None)
