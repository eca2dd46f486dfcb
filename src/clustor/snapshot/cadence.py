"""Cadence: when the next snapshot is due, which kind, and in what state the delta chain is.

Clustor §9.5 and §10.7 tell two things apart. A *target* is an aim: missing it by more than 25 %
is `GracefulCatchup` and a note, never a change of mode. A *bound* (the operator's if set, else
the profile's) is a promise: exceeding it without an emission orphans the chain, which takes no
delta until a full snapshot is emitted and is whole again once a delta follows in time.

A partition with nothing new since its newest snapshot owes none: emitting the same state again
protects nothing. Only an invalidation (its key epoch ends, say) makes one due regardless.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from clustor.log.types import DekEpoch, LogIndex
from clustor.snapshot.emission import DELTA_CHAIN_MAX_DEFAULT, EMIT_VERSION
from clustor.snapshot.errors import SnapshotMisuse
from clustor.snapshot.manifest import Manifest
from clustor.snapshot.types import InvalidationReason, SnapshotKind, emit_ts_ms

_GRACE_NUMERATOR: Final = 5  # a target is missed when 5/4 of it have passed
_GRACE_DENOMINATOR: Final = 4
_NO_INDEX: Final = LogIndex(0)


class DeltaChainState(StrEnum):
    HEALTHY = "Healthy"
    GRACEFUL_CATCHUP = "GracefulCatchup"
    ORPHANED = "Orphaned"


class DueReason(StrEnum):
    FIRST = "First"  # there is no snapshot yet
    INVALIDATED = "Invalidated"
    ORPHANED = "Orphaned"
    LOG_BYTES = "LogBytes"
    FOLLOWER_LAG = "FollowerLag"
    PERIOD_BOUND = "PeriodBound"
    CHAIN_MAX = "ChainMax"
    PERIOD_TARGET = "PeriodTarget"


@dataclass(frozen=True, slots=True)
class CadenceProfile:
    """The `snapshot.*` parameters of a profile.

    The text names no hard bounds and no longest chain. Chosen: ten minutes and two minutes,
    twice the slowest cadence that a product on this core asks for (quantumqtt §5.3: five minutes
    and one), and 32 deltas, which keeps a restore at a few times the reading of a full one.
    """

    log_bytes_target: int = 512 * 2**20
    follower_lag_bytes: int = 64 * 2**20
    full_emit_period_ms_target: int = 30_000
    full_emit_period_ms_hard: int = 600_000
    full_emit_period_ms_operator: int | None = None
    delta_emit_period_ms_target: int = 10_000
    delta_emit_period_ms_hard: int = 120_000
    delta_emit_period_ms_operator: int | None = None
    delta_chain_max: int = DELTA_CHAIN_MAX_DEFAULT

    def __post_init__(self) -> None:
        for kind in ("full", "delta"):
            hard: int = getattr(self, f"{kind}_emit_period_ms_hard")
            for name in ("operator", "target"):
                period: int | None = getattr(self, f"{kind}_emit_period_ms_{name}")
                if period is not None and not 0 < period <= hard:
                    raise SnapshotMisuse(
                        "a period exceeds its hard bound", kind=kind, name=name, period=period
                    )

    @property
    def full_bound_ms(self) -> int:
        return self.full_emit_period_ms_operator or self.full_emit_period_ms_hard

    @property
    def delta_bound_ms(self) -> int:
        return self.delta_emit_period_ms_operator or self.delta_emit_period_ms_hard


@dataclass(frozen=True, slots=True)
class CadenceState:
    """What the cadence remembers. All times are wall-clock milliseconds, as in manifest ids."""

    full_ms: int | None = None  # emission of the last full snapshot
    delta_ms: int | None = None  # emission of the last delta since then
    base_index: LogIndex = _NO_INDEX  # of the newest snapshot
    delta_chain_length: int = 0
    chain: DeltaChainState = DeltaChainState.HEALTHY
    full_required: bool = False  # the chain takes no delta before the next full snapshot

    @property
    def last_ms(self) -> int | None:
        """The last emission of either kind: what the delta cadence counts from."""
        return self.full_ms if self.delta_ms is None else self.delta_ms


@dataclass(frozen=True, slots=True)
class CadenceInputs:
    """What the cadence looks at."""

    now_ms: int
    applied_index: LogIndex
    log_bytes: int = 0  # in the log since the newest full snapshot's base
    follower_lag_bytes: int = 0  # of the slowest follower
    invalidated: bool = False  # `invalidation` found a reason against the newest snapshot
    incrementals_paused: bool = False  # cache Stale or Expired, strict fallback, or the gate is off


@dataclass(frozen=True, slots=True)
class SnapshotDue:
    kind: SnapshotKind
    reason: DueReason


@dataclass(frozen=True, slots=True)
class CadenceNote:
    """A change of the chain's state, for telemetry; `skew_ms` is by how much the aim was missed."""

    chain: DeltaChainState
    kind: SnapshotKind
    skew_ms: int


@dataclass(frozen=True, slots=True)
class CadenceVerdict:
    state: CadenceState
    due: SnapshotDue | None
    note: CadenceNote | None


def observe(state: CadenceState, profile: CadenceProfile, inputs: CadenceInputs) -> CadenceVerdict:
    """Look at the clock and the log, and say what is due."""
    if state.full_ms is None:
        first = SnapshotDue(SnapshotKind.FULL, DueReason.FIRST)
        return CadenceVerdict(state, first if inputs.applied_index > 0 else None, None)
    if inputs.invalidated:
        state = replace(state, full_required=True)
        return CadenceVerdict(state, SnapshotDue(SnapshotKind.FULL, DueReason.INVALIDATED), None)
    if inputs.applied_index <= state.base_index:
        return CadenceVerdict(state, None, None)
    after, note = _judge(state, profile, inputs)
    return CadenceVerdict(after, _due(after, profile, inputs), note)


def _judge(
    state: CadenceState, profile: CadenceProfile, inputs: CadenceInputs
) -> tuple[CadenceState, CadenceNote | None]:
    """Move the chain's state: a bound counts before a target, and an orphan stays one."""
    full_age, delta_age = _ages(state, inputs.now_ms)
    orphaned = DeltaChainState.ORPHANED
    if full_age > profile.full_bound_ms:
        note = CadenceNote(orphaned, SnapshotKind.FULL, full_age - profile.full_bound_ms)
    elif delta_age > profile.delta_bound_ms and not inputs.incrementals_paused:
        note = CadenceNote(orphaned, SnapshotKind.DELTA, delta_age - profile.delta_bound_ms)
    else:
        if inputs.incrementals_paused:
            delta_age = 0  # what may not be emitted is not late
        return _judge_targets(state, profile, full_age, delta_age)
    if state.chain is orphaned and state.full_required:
        return state, None
    return replace(state, chain=orphaned, full_required=True), note


def _judge_targets(
    state: CadenceState, profile: CadenceProfile, full_age: int, delta_age: int
) -> tuple[CadenceState, CadenceNote | None]:
    if state.chain is DeltaChainState.ORPHANED:
        return state, None
    late = DeltaChainState.GRACEFUL_CATCHUP
    note: CadenceNote | None = None
    if _misses(delta_age, profile.delta_emit_period_ms_target):
        skew = delta_age - profile.delta_emit_period_ms_target
        note = CadenceNote(late, SnapshotKind.DELTA, skew)
    elif _misses(full_age, profile.full_emit_period_ms_target):
        note = CadenceNote(late, SnapshotKind.FULL, full_age - profile.full_emit_period_ms_target)
    chain = DeltaChainState.HEALTHY if note is None else late
    return replace(state, chain=chain), note if state.chain is not chain else None


def _misses(age_ms: int, target_ms: int) -> bool:
    return age_ms * _GRACE_DENOMINATOR > target_ms * _GRACE_NUMERATOR


def _ages(state: CadenceState, now_ms: int) -> tuple[int, int]:
    """Return the time since the last full and since the last emission; a clock set back gives 0."""
    assert state.full_ms is not None and state.last_ms is not None
    return max(0, now_ms - state.full_ms), max(0, now_ms - state.last_ms)


def _due(state: CadenceState, profile: CadenceProfile, inputs: CadenceInputs) -> SnapshotDue | None:
    full_age, delta_age = _ages(state, inputs.now_ms)
    orphaned = state.chain is DeltaChainState.ORPHANED
    full_reasons = (
        (DueReason.ORPHANED, state.full_required and orphaned),
        (DueReason.INVALIDATED, state.full_required),
        (DueReason.LOG_BYTES, inputs.log_bytes >= profile.log_bytes_target),
        (DueReason.FOLLOWER_LAG, inputs.follower_lag_bytes >= profile.follower_lag_bytes),
        (DueReason.PERIOD_BOUND, full_age >= profile.full_bound_ms),
        (DueReason.PERIOD_TARGET, full_age >= profile.full_emit_period_ms_target),
    )
    for reason, holds in full_reasons:
        if holds:
            return SnapshotDue(SnapshotKind.FULL, reason)
    if inputs.incrementals_paused or delta_age < profile.delta_emit_period_ms_target:
        return None
    if state.delta_chain_length >= profile.delta_chain_max:
        return SnapshotDue(SnapshotKind.FULL, DueReason.CHAIN_MAX)
    bound = delta_age >= profile.delta_bound_ms
    reason = DueReason.PERIOD_BOUND if bound else DueReason.PERIOD_TARGET
    return SnapshotDue(SnapshotKind.DELTA, reason)


def on_emitted(state: CadenceState, profile: CadenceProfile, manifest: Manifest) -> CadenceState:
    """Take a snapshot into account that has been authorised."""
    at_ms = emit_ts_ms(manifest.manifest_id)
    newest = replace(
        state, base_index=manifest.base_index, delta_chain_length=manifest.delta_chain_length
    )
    if manifest.snapshot_kind is SnapshotKind.FULL:
        # An orphaned chain stays so until a delta follows in time (clustor §9.5).
        return replace(newest, full_ms=at_ms, delta_ms=None, full_required=False)
    # A delta that was under way when the bound passed still counts; the full one stays due.
    in_time = state.last_ms is not None and at_ms - state.last_ms <= profile.delta_bound_ms
    resumes = in_time and not state.full_required
    chain = DeltaChainState.HEALTHY if resumes else state.chain
    return replace(newest, delta_ms=at_ms, chain=chain)


def invalidation(
    manifest: Manifest,
    *,
    version_id: int,
    dek_epoch: DekEpoch,
    trust_cache_valid: bool,
    delta_chain_max: int = DELTA_CHAIN_MAX_DEFAULT,
) -> InvalidationReason | None:
    """Say why this snapshot no longer counts: `snapshot_{full,delta}_invalidated` (clustor §11.1).

    A snapshot of an older key epoch can still be read for two days; then its key is gone. It is
    invalid at once, so that a new one exists long before.
    """
    reasons = (
        (InvalidationReason.INVALID_TRUST_CACHE, not trust_cache_valid),
        (InvalidationReason.SCHEMA_BUMP, manifest.version_id != version_id),
        (InvalidationReason.EMIT_VERSION_CHANGE, manifest.emit_version != EMIT_VERSION),
        (InvalidationReason.DEK_EPOCH_ROLLOVER, manifest.encryption.dek_epoch != dek_epoch),
        (InvalidationReason.DELTA_CHAIN_VIOLATION, manifest.delta_chain_length > delta_chain_max),
    )
    return next((reason for reason, holds in reasons if holds), None)
