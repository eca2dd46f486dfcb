"""The cadence of clustor §9.5 and §10.7: targets, bounds, triggers, and the chain's state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustor.log.types import DekEpoch, LogIndex
from clustor.snapshot.cadence import (
    CadenceInputs,
    CadenceNote,
    CadenceProfile,
    CadenceState,
    DeltaChainState,
    DueReason,
    SnapshotDue,
    invalidation,
    observe,
    on_emitted,
)
from clustor.snapshot.errors import SnapshotMisuse
from clustor.snapshot.manifest import Manifest
from clustor.snapshot.types import InvalidationReason, SnapshotKind, new_manifest_id
from tests.clustor.snapshot.support import Replica, patient, request

FULL, DELTA = SnapshotKind.FULL, SnapshotKind.DELTA
HEALTHY = DeltaChainState.HEALTHY
CATCHUP = DeltaChainState.GRACEFUL_CATCHUP
ORPHANED = DeltaChainState.ORPHANED
PROFILE = CadenceProfile()
START_MS = 1_000_000
RUNNING = CadenceState(full_ms=START_MS, base_index=LogIndex(100))
SAMPLE = Replica().emit(request(1, 100), {})


def emitted(kind: SnapshotKind, at_ms: int, index: int, length: int = 0) -> Manifest:
    return msgspec.structs.replace(
        SAMPLE,
        manifest_id=new_manifest_id(at_ms, bytes(10)),
        snapshot_kind=kind,
        base_index=LogIndex(index),
        delta_chain_length=length,
    )


def at(after_ms: int, **changes: Any) -> CadenceInputs:
    return replace(CadenceInputs(START_MS + after_ms, LogIndex(200)), **changes)


def test_the_numbers_of_the_text() -> None:
    assert PROFILE.log_bytes_target == 512 * 2**20
    assert PROFILE.follower_lag_bytes == 64 * 2**20
    assert PROFILE.full_emit_period_ms_target == 30_000
    assert PROFILE.delta_emit_period_ms_target == 10_000


@pytest.mark.parametrize(
    "wrong",
    [
        {"full_emit_period_ms_operator": 600_001},
        {"delta_emit_period_ms_operator": 120_001},
        {"delta_emit_period_ms_target": 120_001},
        {"full_emit_period_ms_operator": 0},
    ],
)
def test_no_period_exceeds_its_hard_bound(wrong: dict[str, int]) -> None:
    with pytest.raises(SnapshotMisuse):
        CadenceProfile(**wrong)


def test_the_first_snapshot_is_due_with_the_first_entry() -> None:
    nothing = CadenceInputs(START_MS, LogIndex(0))
    assert observe(CadenceState(), PROFILE, nothing).due is None
    some = CadenceInputs(START_MS, LogIndex(1))
    assert observe(CadenceState(), PROFILE, some).due == SnapshotDue(FULL, DueReason.FIRST)


DUE: dict[str, tuple[CadenceInputs, SnapshotDue | None]] = {
    "too early": (at(9_999), None),
    "delta target": (at(10_000), SnapshotDue(DELTA, DueReason.PERIOD_TARGET)),
    "full target": (at(30_000), SnapshotDue(FULL, DueReason.PERIOD_TARGET)),
    "full bound": (at(600_000), SnapshotDue(FULL, DueReason.ORPHANED)),
    "log bytes short": (at(1, log_bytes=512 * 2**20 - 1), None),
    "log bytes": (at(1, log_bytes=512 * 2**20), SnapshotDue(FULL, DueReason.LOG_BYTES)),
    "lag short": (at(1, follower_lag_bytes=64 * 2**20 - 1), None),
    "lag": (at(1, follower_lag_bytes=64 * 2**20), SnapshotDue(FULL, DueReason.FOLLOWER_LAG)),
    "nothing new": (at(10**9, applied_index=LogIndex(100), log_bytes=2**40), None),
    "nothing new, but invalidated": (
        at(0, applied_index=LogIndex(100), invalidated=True),
        SnapshotDue(FULL, DueReason.INVALIDATED),
    ),
    "incrementals paused": (at(10_000, incrementals_paused=True), None),
    "paused, full goes on": (
        at(30_000, incrementals_paused=True),
        SnapshotDue(FULL, DueReason.PERIOD_TARGET),
    ),
    "a clock set back": (at(-50_000), None),
}


@pytest.mark.parametrize(("inputs", "due"), DUE.values(), ids=DUE.keys())
def test_what_is_due(inputs: CadenceInputs, due: SnapshotDue | None) -> None:
    assert observe(RUNNING, PROFILE, inputs).due == due


def test_a_full_chain_asks_for_a_full_snapshot() -> None:
    longest = replace(RUNNING, delta_chain_length=PROFILE.delta_chain_max, delta_ms=START_MS)
    assert observe(longest, PROFILE, at(10_000)).due == SnapshotDue(FULL, DueReason.CHAIN_MAX)


def test_the_operators_bound_makes_a_full_snapshot_due_exactly_when_it_is_reached() -> None:
    tight = CadenceProfile(full_emit_period_ms_operator=20_000)
    state = replace(RUNNING, delta_ms=START_MS + 19_000)
    assert observe(state, tight, at(19_999)).due is None
    reached = observe(state, tight, at(20_000))
    assert reached.due == SnapshotDue(FULL, DueReason.PERIOD_BOUND)
    assert reached.state.chain is HEALTHY


@pytest.mark.parametrize(
    ("after_ms", "chain", "skew_ms"),
    [(12_500, HEALTHY, None), (12_501, CATCHUP, 2_501), (120_000, CATCHUP, 110_000),
     (120_001, ORPHANED, 1)],
)  # fmt: skip
def test_a_missed_target_is_a_note_and_a_missed_bound_orphans(
    after_ms: int, chain: DeltaChainState, skew_ms: int | None
) -> None:
    verdict = observe(RUNNING, PROFILE, at(after_ms))
    assert verdict.state.chain is chain
    note = None if skew_ms is None else CadenceNote(chain, DELTA, skew_ms)
    assert verdict.note == note
    assert verdict.state.full_required is (chain is ORPHANED)
    assert observe(verdict.state, PROFILE, at(after_ms)).note is None  # told once


def test_deltas_that_may_not_be_emitted_are_not_late() -> None:
    slow = replace(PROFILE, full_emit_period_ms_target=300_000)
    paused = observe(RUNNING, slow, at(130_000, incrementals_paused=True))
    assert (paused.state.chain, paused.due, paused.note) == (HEALTHY, None, None)
    assert observe(RUNNING, slow, at(130_000)).state.chain is DeltaChainState.ORPHANED


def test_a_missed_full_target_is_graceful_and_its_bound_orphans() -> None:
    busy = replace(RUNNING, delta_ms=START_MS + 37_000)
    assert observe(busy, PROFILE, at(37_500)).state.chain is HEALTHY
    late = observe(busy, PROFILE, at(37_501))
    assert late.note == CadenceNote(CATCHUP, FULL, 7_501)
    busy = replace(RUNNING, delta_ms=START_MS + 599_000)
    assert observe(busy, PROFILE, at(600_000)).state.chain is CATCHUP
    gone = observe(busy, PROFILE, at(600_001))
    assert gone.note == CadenceNote(ORPHANED, FULL, 1)
    assert gone.due == SnapshotDue(FULL, DueReason.ORPHANED)


def test_the_operators_delta_bound_counts_instead_of_the_profiles() -> None:
    tight = CadenceProfile(delta_emit_period_ms_operator=15_000)
    assert observe(RUNNING, tight, at(15_000)).state.chain is CATCHUP
    assert observe(RUNNING, tight, at(15_001)).state.chain is ORPHANED


def test_catching_up_ends_with_the_emission() -> None:
    late = observe(RUNNING, PROFILE, at(20_000)).state
    assert late.chain is CATCHUP
    caught_up = on_emitted(late, PROFILE, emitted(DELTA, START_MS + 20_000, 150, 1))
    assert (caught_up.chain, caught_up.delta_chain_length) == (HEALTHY, 1)
    assert observe(caught_up, PROFILE, at(20_001)).due is None


def test_an_orphan_takes_a_full_snapshot_and_then_a_delta_in_time() -> None:
    orphan = observe(RUNNING, PROFILE, at(120_001)).state
    full = on_emitted(orphan, PROFILE, emitted(FULL, START_MS + 130_000, 200))
    assert (full.chain, full.full_required) == (ORPHANED, False)
    waiting = observe(full, PROFILE, at(140_000, applied_index=LogIndex(300)))
    assert waiting.due == SnapshotDue(DELTA, DueReason.PERIOD_TARGET)
    assert waiting.state.chain is ORPHANED
    whole = on_emitted(waiting.state, PROFILE, emitted(DELTA, START_MS + 140_000, 300, 1))
    assert whole.chain is HEALTHY


def test_a_delta_that_was_under_way_when_the_bound_passed_heals_nothing() -> None:
    orphan = observe(RUNNING, PROFILE, at(120_001)).state
    after = on_emitted(orphan, PROFILE, emitted(DELTA, START_MS + 110_000, 150, 1))
    assert (after.chain, after.full_required) == (ORPHANED, True)
    due = observe(after, PROFILE, at(121_000)).due
    assert due == SnapshotDue(FULL, DueReason.ORPHANED)


def test_the_delta_cadence_counts_from_the_id_of_the_one_before() -> None:
    state = on_emitted(RUNNING, PROFILE, emitted(DELTA, START_MS + 8_000, 150, 1))
    assert observe(state, PROFILE, at(17_999)).due is None
    assert observe(state, PROFILE, at(18_000)).due == SnapshotDue(DELTA, DueReason.PERIOD_TARGET)


@patient
@given(st.lists(st.tuples(st.integers(0, 90_000), st.booleans()), max_size=40))
def test_a_target_alone_never_orphans_and_an_orphan_never_gets_a_delta(
    turns: list[tuple[int, bool]],
) -> None:
    state, now_ms, index, length = RUNNING, START_MS, 100, 0
    for pause_ms, willing in turns:
        now_ms, index = now_ms + pause_ms, index + 1
        before = state
        verdict = observe(state, PROFILE, CadenceInputs(now_ms, LogIndex(index)))
        state = verdict.state
        if state.chain is ORPHANED and before.chain is not ORPHANED:
            assert before.full_ms is not None and before.last_ms is not None
            over_full = now_ms - before.full_ms > PROFILE.full_bound_ms
            assert over_full or now_ms - before.last_ms > PROFILE.delta_bound_ms
        if verdict.due is None:
            continue
        assert verdict.due.kind is FULL or not state.full_required
        if willing:
            length = 0 if verdict.due.kind is FULL else length + 1
            assert length <= PROFILE.delta_chain_max
            state = on_emitted(state, PROFILE, emitted(verdict.due.kind, now_ms, index, length))
            assert observe(state, PROFILE, CadenceInputs(now_ms, LogIndex(index))).due is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"trust_cache_valid": False}, InvalidationReason.INVALID_TRUST_CACHE),
        ({"version_id": 13}, InvalidationReason.SCHEMA_BUMP),
        ({"dek_epoch": DekEpoch(4)}, InvalidationReason.DEK_EPOCH_ROLLOVER),
    ],
)
def test_what_invalidates_a_snapshot(
    change: dict[str, Any], reason: InvalidationReason | None
) -> None:
    good: dict[str, Any] = {"version_id": 12, "dek_epoch": DekEpoch(3), "trust_cache_valid": True}
    assert invalidation(SAMPLE, **{**good, **change}) is reason


def test_an_emit_version_and_a_chain_too_long_invalidate_too() -> None:
    good: dict[str, Any] = {"version_id": 12, "dek_epoch": DekEpoch(3), "trust_cache_valid": True}
    newer = msgspec.structs.replace(SAMPLE, emit_version=2)
    assert invalidation(newer, **good) is InvalidationReason.EMIT_VERSION_CHANGE
    longer = msgspec.structs.replace(SAMPLE, delta_chain_length=33)
    assert invalidation(longer, **good) is InvalidationReason.DELTA_CHAIN_VIOLATION
