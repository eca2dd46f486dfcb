"""When the next snapshot is due by time, and how the chain of deltas stands (clustor §9.5)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from clustor.log.types import LogIndex
from clustor.raft.types import Draw
from clustor.snapshot.cadence import (
    CadenceInputs,
    CadenceNote,
    CadenceProfile,
    CadenceState,
    DeltaChainState,
    SnapshotDue,
    observe,
    on_emitted,
)
from clustor.snapshot.catalog import Catalog
from clustor.snapshot.manifest import Manifest
from clustor.snapshot.types import SnapshotKind, emit_ts_ms

LOOK_MS: Final = 250
RETRY_MS: Final = 10_000
"""An emission that failed is not begun again at once: a full disk would be kept busy by it."""


class EmissionClock:
    """The cadence of one replica. Times are the wall clock's, as in manifest ids."""

    def __init__(self, profile: CadenceProfile, catalog: Catalog, now_ms: int, draw: Draw) -> None:
        self.profile = profile
        # Groups that open together are not all due together.
        spread_ms = draw(0, profile.full_emit_period_ms_target // 2)
        self.state = CadenceState(full_ms=now_ms - spread_ms)
        for snapshot in catalog.snapshots:
            self.state = on_emitted(self.state, profile, snapshot.manifest)
        self.delta_emit_skew_ms = 0
        """By how much the last delta missed its target."""
        self.note: CadenceNote | None = None
        self._undone: LogIndex | None = None  # the base that the machine has no delta from
        self._look_due_ms = 0

    @property
    def chain(self) -> DeltaChainState:
        return self.state.chain

    def look(
        self, now_ms: int, wall_ms: int, applied_index: LogIndex, *, deltas: bool, valid: bool
    ) -> SnapshotDue | None:
        """Say what is due; `deltas`: they may be emitted now, `valid`: the newest one counts."""
        if now_ms < self._look_due_ms:
            return None
        self._look_due_ms = now_ms + LOOK_MS
        inputs = CadenceInputs(
            now_ms=wall_ms,
            applied_index=applied_index,
            invalidated=not valid,
            incrementals_paused=not deltas,
        )
        verdict = observe(self.state, self.profile, inputs)
        self.state, self.note = verdict.state, verdict.note or self.note
        due = verdict.due
        is_delta = due is not None and due.kind is SnapshotKind.DELTA
        if is_delta and self.state.base_index == self._undone:
            return None  # its bound makes a full one due, some day
        return due

    def take_note(self) -> CadenceNote | None:
        """Return the last change of the chain's state, once."""
        note, self.note = self.note, None
        return note

    def emitted(self, manifest: Manifest) -> None:
        """Take in a snapshot that counts now, emitted here or installed."""
        at_ms, last_ms = emit_ts_ms(manifest.manifest_id), self.state.last_ms
        if manifest.snapshot_kind is SnapshotKind.DELTA and last_ms is not None:
            late_ms = at_ms - last_ms - self.profile.delta_emit_period_ms_target
            self.delta_emit_skew_ms = max(0, late_ms)
        self.state = on_emitted(self.state, self.profile, manifest)

    def installed(self, manifest: Manifest, wall_ms: int) -> None:
        """Take in a peer's snapshot: whatever its own clock said, it is new here now."""
        self.state = replace(on_emitted(self.state, self.profile, manifest), full_ms=wall_ms)

    def no_delta(self) -> None:
        """Take in that the machine does not know what changed since the newest snapshot."""
        self._undone = self.state.base_index

    def failed(self, now_ms: int) -> None:
        self._look_due_ms = now_ms + RETRY_MS
