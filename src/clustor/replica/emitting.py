"""Emission: the machine's state becomes an authorised snapshot, and the log may shrink.

    chunks → manifest → read back → authorised → acknowledged → the quorum is there too → compacted

Each arrow waits for the disk. A crash anywhere leaves the old snapshot or the new one; files of
an emission that did not end are garbage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain

from clustor.log.types import LogIndex, PartitionId, Term
from clustor.replica.disk_queue import DiskQueue
from clustor.replica.header import SnapshotHeader, encode_header
from clustor.replica.jobs import Relist
from clustor.replica.machine import StateMachine
from clustor.replica.reading import Reader
from clustor.replica.settings import ReplicaSettings
from clustor.snapshot.catalog import Catalog, Relisted, plan_acknowledge, plan_authorize
from clustor.snapshot.emission import Emission, SnapshotRequest, plan_snapshot
from clustor.snapshot.errors import SnapshotError
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
    reader: Reader
    busy: bool = False


def state_digest(machine: StateMachine) -> HexDigest:
    """The manifest's digest of the state: whoever restores it compares."""
    return hex_digest(sha256(machine.digest()).digest())


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
        newest = self._shelf.catalog.newest
        if newest is not None:
            self._since_full_ms = max(0, now_ms - emit_ts_ms(newest.record.manifest_id))
        self._shelf.reader.submit(relist, self._relisted, self._failed)

    def _relisted(self, found: object) -> None:
        assert isinstance(found, Relisted)
        try:
            change = plan_authorize(self._shelf.catalog, found, since_full_ms=self._since_full_ms)
        except SnapshotError as error:
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
    """One emission. `ended` is called once: with its base if it counts now, or with None."""

    def __init__(self, shelf: Shelf, ended: Callable[[LogIndex | None], None]) -> None:
        self._shelf = shelf
        self._ended = ended
        self._emission: Emission | None = None
        self._base_index = LogIndex(0)
        self._now_ms = 0

    def begin(
        self, machine: StateMachine, header: SnapshotHeader, base_term: Term, now_ms: int
    ) -> None:
        """Freeze the state of this moment and begin to write it."""
        settings = self._shelf.settings
        self._base_index, self._now_ms = header.base_index, now_ms
        request = SnapshotRequest(
            new_manifest_id(now_ms, settings.entropy(10)),
            IvSalt(settings.entropy(16)),
            SnapshotKind.FULL,
            base_term,
            header.base_index,
            settings.version_id,
            settings.producer_version,
            ap_pane_digest=state_digest(machine),
            chunk_bytes=settings.chunk_bytes,
        )
        content = chain((encode_header(header),), machine.snapshot())
        try:
            self._emission = plan_snapshot(
                self._shelf.catalog, request, content, keys=settings.keys, signer=settings.signer
            )
        except SnapshotError:
            self._ended(None)
            return
        self._next_chunk()

    def _next_chunk(self) -> None:
        emission = self._emission
        assert emission is not None
        plan = next(emission, None)
        if plan is not None:
            self._shelf.disk.submit(plan, self._next_chunk)
        else:
            self._shelf.disk.submit(emission.plan_manifest(self._shelf.catalog), self._written)

    def _written(self) -> None:
        emission = self._emission
        assert emission is not None and emission.manifest is not None
        authorizing = Authorizing(self._shelf, self._authorized, self._failed)
        authorizing.begin(Relist(emission.manifest, emission.generation), self._now_ms)

    def _authorized(self) -> None:
        self._ended(self._base_index)

    def _failed(self, error: Exception) -> None:
        del error  # what was written is garbage, and the next emission begins anew
        self._ended(None)
