"""The snapshots of a replica: emitted, sent, installed and collected, one work at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import cast

from clustor.log.log import Log
from clustor.log.steps import Plan
from clustor.log.types import LogIndex
from clustor.raft.fallback import HEARD
from clustor.raft.group import Group
from clustor.raft.output import NoteKind, SnapshotInstall
from clustor.raft.types import ReplicaId
from clustor.replica.emission_clock import EmissionClock
from clustor.replica.emitting import Emitting, Shelf
from clustor.replica.header import header_of
from clustor.replica.installing import Installing
from clustor.replica.jobs import FindGarbage, ReadChunk
from clustor.replica.machine import DeltaMachine, StateMachine
from clustor.replica.stream_fetch import ReadStreams, parts_of
from clustor.replica.transfer import (
    ChunkSent,
    ChunkWanted,
    ManifestSent,
    ManifestWanted,
    StreamPiece,
    StreamsSent,
    StreamsWanted,
    Transfer,
)
from clustor.snapshot.cadence import invalidation
from clustor.snapshot.catalog import Catalog
from clustor.snapshot.errors import CorruptSnapshot
from clustor.snapshot.garbage import plan_forget
from clustor.snapshot.manifest import Manifest, encode_manifest
from clustor.snapshot.types import SnapshotKind

FETCH_PAUSE_MS_MAX = 2_000
COLLECTIONS_PUT_OFF_MAX = 4


class EmissionClause(StrEnum):
    """What keeps a snapshot from being emitted now; the first that holds is named."""

    BUSY = "AnotherIsUnderWay"
    INSTALLING = "InstallingSnapshot"
    NOTHING_NEW = "NothingNewApplied"
    WAITS_FOR_QUORUM = "NewestWaitsForQuorum"  # what it covers is not compacted yet


@dataclass(frozen=True, slots=True)
class _Wanted:
    kind: SnapshotKind
    compacts: bool  # whether the log behind it is to go at once


class ReplicaSnapshots:
    """Between the group, the log and the shelf. Messages gather in `transfers`."""

    def __init__(
        self,
        shelf: Shelf,
        group: Group,
        log: Log,
        installed: Callable[[SnapshotInstall, StateMachine], None],
    ) -> None:
        self._shelf = shelf
        self._group = group
        self._log = log
        self._installed = installed
        self._installing: Installing | None = None
        self._install_waits: SnapshotInstall | None = None
        self._emit_waits: _Wanted | None = None
        self._under_way: _Wanted | None = None
        self.clock: EmissionClock | None = None
        """When time makes a snapshot due; None: it never does."""
        if shelf.settings.cadence is not None:
            self.clock = EmissionClock(
                shelf.settings.cadence, shelf.catalog, self._wall_ms(), shelf.settings.draw
            )
        self.deltas_allowed = False
        """Whether the gate of incremental snapshots is open; who drives the replica says so."""
        self._sent_ms = -FETCH_PAUSE_MS_MAX  # when a peer last asked for a piece
        self._collections_put_off = 0
        self.transfers: list[tuple[ReplicaId, Transfer]] = []

    @property
    def catalog(self) -> Catalog:
        return self._shelf.catalog

    def install_progress(self) -> tuple[int, int]:
        """Return how many chunks an installation lacks, and how many it has; 0 where none runs."""
        return (0, 0) if self._installing is None else self._installing.progress()

    @property
    def has_work(self) -> bool:
        """Whether something of a snapshot waits to begin, to be sent or to be asked for."""
        if self.transfers:
            return True
        if self._shelf.busy:
            return self._installing is not None and self._installing.has_question
        return self._install_waits is not None or self._emit_waits is not None

    # Inputs.

    def tick(self, now_ms: int, machine: StateMachine) -> None:
        if self._installing is not None:
            self._installing.tick(now_ms)
        if self.clock is not None and self._emit_waits is None and not self._shelf.busy:
            self._look_at_clock(self.clock, machine)

    def emit(self) -> None:
        """Ask for a snapshot of the applied state, behind which the log can go."""
        self._emit_waits = _Wanted(SnapshotKind.FULL, compacts=True)

    def hold_log(self, through: LogIndex | None) -> None:
        """Keep every entry above `through`, whatever a snapshot covers; None lets go of it.

        Who asks must let go some day: until then the log grows, and no newer snapshot is emitted.
        """
        self._group.snapshots.hold_through = through

    def _look_at_clock(self, clock: EmissionClock, machine: StateMachine) -> None:
        core = self._group.core
        due = clock.look(
            core.now_ms,
            self._wall_ms(),
            core.applied_index,
            deltas=self.may_emit_deltas(machine),
            valid=self._newest_counts(),
        )
        if due is not None:
            self._emit_waits = _Wanted(due.kind, compacts=False)
        note = clock.take_note()
        if note is not None:
            core.note(
                NoteKind.SNAPSHOT_CADENCE, state=note.chain, late=note.kind, skew_ms=note.skew_ms
            )

    def may_emit_deltas(self, machine: StateMachine) -> bool:
        """Say whether incremental snapshots run here now (clustor §9.1, §14.2)."""
        group = self._group
        return (
            self.deltas_allowed
            and isinstance(machine, DeltaMachine)
            and not group.fallback.asserted
            and group.access.cache in HEARD
        )

    def _newest_counts(self) -> bool:
        newest = self.catalog.newest
        settings = self._shelf.settings
        return newest is None or not invalidation(
            newest.manifest,
            version_id=settings.version_id,
            dek_epoch=settings.keys.dek_epoch,
            trust_cache_valid=True,
        )

    def _wall_ms(self) -> int:
        wall_ms = self._shelf.settings.wall_ms
        return self._group.core.now_ms if wall_ms is None else wall_ms()

    def install(self, install: SnapshotInstall) -> None:
        self._install_waits = install

    def receive(self, sender: ReplicaId, message: Transfer) -> None:
        """Answer a question, or take an answer to the installation under way."""
        match message:
            case ManifestWanted():
                self._send_manifest(sender, message)
            case ChunkWanted():
                self._send_chunk(sender, message)
            case StreamsWanted():
                self._send_streams(sender, message)
            case StreamsSent():
                if self._expects(sender):
                    self._expected.on_streams(message)
            case ManifestSent():
                if self._expects(sender):
                    self._expected.on_manifest(message)
            case ChunkSent():
                if self._expects(sender):
                    self._expected.on_chunk(message)

    def _expects(self, sender: ReplicaId) -> bool:
        return self._installing is not None and self._installing.install.source == sender

    @property
    def _expected(self) -> Installing:
        assert self._installing is not None
        return self._installing

    # Sending.

    def _send_manifest(self, to: ReplicaId, wanted: ManifestWanted) -> None:
        self._sent_ms = self._group.core.now_ms
        held = [s for s in self.catalog.snapshots if s.manifest.base_index == wanted.base_index]
        manifests = self.catalog.chain(held[-1]) if held else ()
        *parents, data = [encode_manifest(each.manifest) for each in manifests] or [b""]
        self.transfers.append((to, ManifestSent(wanted.base_index, data, tuple(parents))))

    def _send_chunk(self, to: ReplicaId, wanted: ChunkWanted) -> None:
        self._sent_ms = self._group.core.now_ms

        def answer(sealed: bytes) -> None:
            sent = ChunkSent(wanted.manifest_id, wanted.chunk_id, sealed)
            self.transfers.append((to, sent))

        def found(sealed: object) -> None:
            assert isinstance(sealed, bytes)
            answer(sealed)

        for snapshot in self.catalog.snapshots:
            if snapshot.record.manifest_id == wanted.manifest_id:
                for chunk in snapshot.manifest.chunks:
                    if chunk.chunk_id == wanted.chunk_id:
                        self._shelf.reader.submit(ReadChunk(chunk), found, lambda _: answer(b""))
                        return
        answer(b"")

    def _send_streams(self, to: ReplicaId, wanted: StreamsWanted) -> None:
        """Read for a peer what its files lack; who reads keeps the files from being deleted."""
        streams = self._shelf.streams
        if streams is None:
            return
        self._sent_ms = self._group.core.now_ms
        parts = parts_of(streams.store, wanted)
        pins = [streams.pin(part.view) for part in parts if part.view is not None]

        def answer(pieces: object) -> None:
            for pin in pins:
                streams.unpin(pin)
            sent = cast("tuple[StreamPiece, ...]", pieces)
            self.transfers.append((to, StreamsSent(wanted.base_index, sent)))

        settings = self._shelf.settings
        job = ReadStreams(parts, settings.keys, settings.stream_config, wanted.bytes_max)
        self._shelf.reader.submit(job, answer, lambda _: answer(()))

    # Work, one at a time; an installation before an emission.

    def advance(self, machine: StateMachine, applied_index: LogIndex) -> None:
        """Begin what waits."""
        if not self._shelf.busy and self._install_waits is not None:
            self._begin_install()
        elif not self._shelf.busy and self._emit_waits is not None:
            self._begin_emission(self._emit_waits, machine, applied_index)
        if self._installing is not None:
            self._installing.advance()
        if self._installing is not None and self._installing.wants:
            self.transfers += self._installing.wants
            self._installing.wants = []

    def _begin_emission(
        self, wanted: _Wanted, machine: StateMachine, applied_index: LogIndex
    ) -> None:
        self._emit_waits = None
        core = self._group.core
        if self.emission_clause(applied_index) is not None:
            self._not_emitted()
            return
        base_term = core.log.term_at(applied_index)
        assert base_term is not None
        self._shelf.busy = True
        self._under_way = wanted
        emitting = Emitting(self._shelf, self._emitted)
        header = header_of(core.hard, applied_index)
        if not emitting.begin(machine, header, base_term, self._wall_ms(), wanted.kind):
            self._shelf.busy = False
            if self.clock is not None:
                self.clock.no_delta()

    def emission_clause(self, applied_index: LogIndex) -> EmissionClause | None:
        """Name what keeps a snapshot of the applied state from being emitted now."""
        if self._shelf.busy:
            return EmissionClause.BUSY
        if self._group.core.installing is not None:
            return EmissionClause.INSTALLING
        newest = self.catalog.newest
        newest_base = newest.manifest.base_index if newest is not None else 0
        if applied_index <= newest_base:
            return EmissionClause.NOTHING_NEW
        # What a snapshot was emitted for comes first: the log behind it waits for the quorum.
        waits = self._group.snapshots.waits_to_compact
        return EmissionClause.WAITS_FOR_QUORUM if waits else None

    def _emitted(self, manifest: Manifest | None) -> None:
        wanted, self._under_way = self._under_way, None
        if manifest is not None:
            compacts = wanted is None or wanted.compacts
            self._group.snapshot_emitted(manifest.base_index, compacts=compacts)
            if self._shelf.streams is not None:
                self._shelf.streams.emitted(manifest.base_index)
            if self.clock is not None:
                self.clock.emitted(manifest)
        else:
            self._not_emitted()
        self._collect()

    def _not_emitted(self) -> None:
        """Let the group ask again when it still wants a snapshot."""
        self._group.snapshot_emitted(self._group.core.log.base_index, compacts=False)
        if self.clock is not None:
            self.clock.failed(self._group.core.now_ms)

    def compact(self, through: LogIndex) -> None:
        """Delete what the group says nobody needs: an authorised snapshot covers it (C5)."""
        plan = self._log.plan_compact(LogIndex(through + 1))
        self._shelf.disk.submit(plan, lambda: None)

    def _begin_install(self) -> None:
        install = self._install_waits
        assert install is not None
        self._install_waits = None
        self._shelf.busy = True
        self._installing = Installing(
            self._shelf, install, lambda: self._plan_log(install), self._install_ended
        )
        self._installing.begin(self._group.core.now_ms)

    def _plan_log(self, install: SnapshotInstall) -> Plan:
        """Plan the log's new start; a suffix that continues the snapshot stays (clustor §9.5)."""
        view = self._group.core.log
        base = install.base_index
        if base <= view.base_index:
            return ()
        if view.term_at(base) == install.base_term:
            return self._log.plan_compact(LogIndex(base + 1))
        return self._log.plan_install(base, install.base_term)

    def _install_ended(self, install: SnapshotInstall, machine: StateMachine | None) -> None:
        self._installing = None
        if machine is not None:
            self._installed(install, machine)
            newest = self.catalog.newest
            if self.clock is not None and newest is not None:
                self.clock.installed(newest.manifest, self._wall_ms())
        self._group.snapshot_installed(install, ok=machine is not None)
        self._collect()

    # Garbage.

    def _collect(self) -> None:
        """Delete what no snapshot needs any more; nothing else begins meanwhile.

        While a peer still fetches, an old snapshot stays, but not for more than a few new ones.
        """
        fetching = self._group.core.now_ms - self._sent_ms < FETCH_PAUSE_MS_MAX
        if fetching and self._collections_put_off < COLLECTIONS_PUT_OFF_MAX:
            self._collections_put_off += 1
            self._shelf.busy = False
            return
        self._collections_put_off = 0
        self._shelf.reader.submit(FindGarbage(self.catalog), self._garbage, self._no_garbage)

    def _garbage(self, plan: object) -> None:
        assert isinstance(plan, tuple)
        self._shelf.disk.submit(plan, self._collected)

    def _collected(self) -> None:
        change = plan_forget(self.catalog)

        def forgotten() -> None:
            self._shelf.catalog = change.after
            self._shelf.busy = False

        self._shelf.disk.submit(change.plan, forgotten)

    def _no_garbage(self, error: Exception) -> None:
        """Leave everything as it is: a damaged manifest is evidence, not garbage."""
        if not isinstance(error, CorruptSnapshot | OSError):
            raise error
        self._shelf.busy = False
