"""The predicates of §9.1–§10.3, clause by clause."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clustor.log.types import DurabilityModeEpoch, IoWriterMode, LogIndex, SegmentSeq, Term
from clustor.raft.control_plane import (
    CacheState,
    ControlPlaneUpdate,
    ControlPlaneView,
    VerifiedProof,
)
from clustor.raft.device import DeviceLatency
from clustor.raft.errors import UnsafeProfile
from clustor.raft.fallback import (
    BlockingReason,
    FallbackFacts,
    FallbackState,
    GatedOperation,
    StrictFallback,
    blocking_reason,
)
from clustor.raft.group_fsync import GroupFsyncBudget, GroupFsyncState, can_enable_group_fsync
from clustor.raft.profiles import (
    AGGREGATOR,
    CONSISTENCY_PROFILE,
    PROFILES,
    THROUGHPUT,
    WAN,
    ZFS,
    ControlPlaneNumbers,
    DeviceNumbers,
    FallbackNumbers,
    GroupFsyncNumbers,
    LeaseNumbers,
    lease_inequality_holds,
)
from clustor.raft.reads import (
    FailedClause,
    ReadGateState,
    ReadRefusal,
    read_gate_predicate,
    refusal_for,
)
from clustor.raft.types import CommitVisibility, DurabilityTuple


def tuple_at(index: int, term: int = 1, segment: int = 1, epoch: int = 0) -> DurabilityTuple:
    return DurabilityTuple(
        Term(term),
        LogIndex(index),
        SegmentSeq(segment),
        IoWriterMode.FIXED_URING,
        DurabilityModeEpoch(epoch),
    )


# The read gate.

OPEN = ReadGateState(
    cache_state=CacheState.FRESH,
    strict_fallback=False,
    commit_visibility=CommitVisibility.DURABLE_ONLY,
    controlplane_proof_tuple=tuple_at(5),
    last_quorum_fsynced_tuple=tuple_at(5),
    wal_committed_index=LogIndex(5),
    raft_commit_index=LogIndex(5),
)
CLAUSES: list[tuple[dict[str, Any], FailedClause, ReadRefusal]] = [
    (
        {"cache_state": CacheState.EXPIRED},
        FailedClause.CONTROL_PLANE_CACHE_EXPIRED,
        ReadRefusal.CACHE_EXPIRED,
    ),
    (
        {"cache_state": CacheState.STALE},
        FailedClause.CONTROL_PLANE_CACHE_STALE,
        ReadRefusal.CACHE_NOT_FRESH,
    ),
    (
        {"strict_fallback": True},
        FailedClause.STRICT_FALLBACK,
        ReadRefusal.NEEDED_FOR_READ_INDEX,
    ),
    (
        {"commit_visibility": CommitVisibility.COMMIT_ALLOWS_PRE_DURABLE},
        FailedClause.COMMIT_VISIBILITY,
        ReadRefusal.NEEDED_FOR_READ_INDEX,
    ),
    (
        {"controlplane_proof_tuple": tuple_at(5, segment=2)},
        FailedClause.CONTROL_PLANE_PROOF_MISMATCH,
        ReadRefusal.NEEDED_FOR_READ_INDEX,
    ),
    (
        {"wal_committed_index": LogIndex(4)},
        FailedClause.INDEX_INEQUALITY,
        ReadRefusal.NEEDED_FOR_READ_INDEX,
    ),
]


def test_an_open_gate_fails_no_clause_and_cached_is_fresh_enough() -> None:
    assert read_gate_predicate(OPEN) is FailedClause.NONE
    assert read_gate_predicate(replace(OPEN, cache_state=CacheState.CACHED)) is FailedClause.NONE


@pytest.mark.parametrize(("change", "clause", "refusal"), CLAUSES)
def test_each_clause_is_named_and_mapped(
    change: dict[str, Any], clause: FailedClause, refusal: ReadRefusal
) -> None:
    assert read_gate_predicate(replace(OPEN, **change)) is clause
    assert refusal_for(clause) is refusal


def test_the_first_clause_in_order_is_the_one_that_is_named() -> None:
    for position, (_, clause, _) in enumerate(CLAUSES):
        state = OPEN
        for change, _, _ in reversed(CLAUSES[position:]):
            state = replace(state, **change)
        assert read_gate_predicate(state) is clause


def test_no_proof_at_all_is_a_mismatch_even_where_nothing_is_durable() -> None:
    bare = replace(OPEN, controlplane_proof_tuple=None, last_quorum_fsynced_tuple=None)
    assert read_gate_predicate(bare) is FailedClause.CONTROL_PLANE_PROOF_MISMATCH


# The control plane's cache.


@pytest.mark.parametrize(
    ("age_ms", "state"),
    [
        (0, CacheState.FRESH),
        (60_000, CacheState.FRESH),
        (60_001, CacheState.CACHED),
        (150_000, CacheState.CACHED),
        (150_001, CacheState.STALE),
        (299_999, CacheState.STALE),
        (300_000, CacheState.EXPIRED),
    ],
)
def test_cache_states_by_age(age_ms: int, state: CacheState) -> None:
    view = ControlPlaneView(ControlPlaneNumbers())
    view.update(ControlPlaneUpdate(cache_age_ms=age_ms), now_ms=1_000_000)
    assert view.cache_state(1_000_000) is state
    view.update(ControlPlaneUpdate(), now_ms=1_000_000)
    assert view.cache_state(1_000_000 + age_ms) is state, "it ages by our own ticks"


def test_what_was_never_heard_is_expired() -> None:
    assert ControlPlaneView(ControlPlaneNumbers()).cache_state(0) is CacheState.EXPIRED


def test_only_a_higher_proof_replaces_one() -> None:
    view = ControlPlaneView(ControlPlaneNumbers())
    for index in (5, 3, 7):
        view.update(ControlPlaneUpdate(proof=VerifiedProof(tuple_at(index), 0)), 0)
    assert view.proof == tuple_at(7)
    assert not view.conflict


def test_two_proofs_of_one_index_conflict_until_reconciled() -> None:
    view = ControlPlaneView(ControlPlaneNumbers())
    assert not view.update(ControlPlaneUpdate(proof=VerifiedProof(tuple_at(5), 0)), 0)
    assert view.update(ControlPlaneUpdate(proof=VerifiedProof(tuple_at(5, segment=2), 0)), 0)
    assert view.conflict
    view.update(ControlPlaneUpdate(proof=VerifiedProof(tuple_at(9), 0)), 0)
    assert view.conflict, "a newer proof does not mend it"
    view.reconcile()
    assert (view.conflict, view.proof) == (False, None)


def test_a_proof_expires_after_its_time() -> None:
    view = ControlPlaneView(ControlPlaneNumbers())
    view.update(ControlPlaneUpdate(proof=VerifiedProof(tuple_at(5), 1_000)), 1_000)
    assert not view.proof_expired(43_200_000)
    assert view.proof_expired(43_200_001)


# Strict fallback.

HEALTHY = FallbackFacts(
    CacheState.FRESH,
    leads=True,
    proof_matches=True,
    proof_expired=False,
    proof_conflict=False,
    key_epoch_replay=False,
)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, BlockingReason.NONE),
        ({"cache_state": CacheState.CACHED}, BlockingReason.NONE),
        ({"cache_state": CacheState.STALE}, BlockingReason.CACHE_STALE),
        ({"cache_state": CacheState.EXPIRED}, BlockingReason.CACHE_EXPIRED),
        ({"proof_matches": False}, BlockingReason.PROOF_MISSING),
        ({"proof_expired": True}, BlockingReason.PROOF_EXPIRED),
        ({"proof_conflict": True}, BlockingReason.PROOF_CONFLICT),
        ({"key_epoch_replay": True}, BlockingReason.KEY_EPOCH_REPLAY),
        ({"leads": False, "proof_matches": False}, BlockingReason.NONE),
    ],
)
def test_what_sets_the_latch(change: dict[str, Any], reason: BlockingReason) -> None:
    assert blocking_reason(replace(HEALTHY, **change)) is reason


def _fallback() -> StrictFallback:
    return StrictFallback(FallbackNumbers(), lambda low, high: high)


def test_states_and_decision_epochs() -> None:
    fallback = _fallback()
    assert fallback.asserted, "nothing was heard: fail closed"
    seen = []
    changes: list[dict[str, Any]] = [
        {"proof_matches": False},
        {"cache_state": CacheState.STALE},
        {"proof_expired": True},
        {},
        {},
    ]
    for now, change in enumerate(changes):
        fallback.decide(replace(HEALTHY, **change), now)
        seen.append((fallback.state, fallback.decision_epoch))
    assert seen == [
        (FallbackState.LOCAL_ONLY, 1),
        (FallbackState.LOCAL_ONLY, 2),
        (FallbackState.PROOF_PUBLISHED, 3),
        (FallbackState.HEALTHY, 4),
        (FallbackState.HEALTHY, 4),
    ]


def test_pending_entries_and_refusals_are_counted_until_the_latch_clears() -> None:
    fallback = _fallback()
    fallback.decide(replace(HEALTHY, proof_matches=False), 0)
    fallback.pending_entries = 7
    assert fallback.refuse(GatedOperation.GROUP_FSYNC)
    fallback.decide(HEALTHY, 1)
    assert fallback.pending_entries == 0
    assert not fallback.refuse(GatedOperation.GROUP_FSYNC)
    assert fallback.gate_blocked[GatedOperation.GROUP_FSYNC] == 1


def test_local_only_demotes_after_its_bound_unless_renewed() -> None:
    fallback = _fallback()
    local = replace(HEALTHY, proof_matches=False)
    fallback.decide(local, 0)
    assert not fallback.must_demote(14_400_000)
    assert fallback.must_demote(14_400_001)
    fallback.renew(14_400_001)
    assert not fallback.must_demote(20_000_000)
    fallback.decide(HEALTHY, 20_000_000)
    assert not fallback.must_demote(99_000_000)


def test_an_outage_demotes_a_leader_whose_proof_was_published_before_it() -> None:
    """§9.1: "When a ControlPlaneRaft outage exceeds …, the leader must explicitly step down"."""
    fallback = _fallback()
    fallback.decide(HEALTHY, 0)
    fallback.decide(replace(HEALTHY, cache_state=CacheState.STALE), 10)
    fallback.decide(replace(HEALTHY, cache_state=CacheState.EXPIRED), 20)
    assert not fallback.must_demote(14_400_010)
    assert fallback.must_demote(14_400_011)


def test_the_bar_needs_the_control_plane_a_newer_proof_and_the_backoff() -> None:
    fallback = _fallback()
    fallback.bar(tuple_at(5), now_ms=0)
    assert fallback.barred_until_ms == 75_000
    assert not fallback.may_campaign(80_000, last_leader_ms=79_000)
    fresh = CacheState.FRESH
    assert not fallback.try_unbar(tuple_at(6), fresh, 74_999)
    assert not fallback.try_unbar(tuple_at(5), fresh, 75_000)
    assert not fallback.try_unbar(tuple_at(6), CacheState.STALE, 75_000)
    assert fallback.try_unbar(tuple_at(6), fresh, 75_000)
    assert fallback.may_campaign(75_000, last_leader_ms=74_000)


def test_the_hatch_opens_without_a_leader_and_closes_with_one() -> None:
    fallback = _fallback()
    fallback.bar(None, now_ms=0)
    assert not fallback.may_campaign(119_999, last_leader_ms=0)
    assert fallback.may_campaign(120_000, last_leader_ms=0)
    fallback.leader_seen()
    assert fallback.barred and not fallback.may_campaign(120_001, last_leader_ms=120_000)


# Group-Fsync.

GROUP_OK = GroupFsyncState(
    strict_fallback=False,
    cache_state=CacheState.FRESH,
    now_ms=100,
    downgrade_backoff_deadline_ms=100,
    voter_io_modes=[IoWriterMode.FIXED_URING],
    device_latency_violations_in_window=2,
    incident_flags=frozenset(),
)


@pytest.mark.parametrize(
    ("change", "allowed"),
    [
        ({}, True),
        ({"strict_fallback": True}, False),
        ({"cache_state": CacheState.CACHED}, False),
        ({"now_ms": 99}, False),
        ({"voter_io_modes": [IoWriterMode.REGISTERED_URING, IoWriterMode.FIXED_URING]}, True),
        ({"voter_io_modes": [IoWriterMode.FIXED_URING, IoWriterMode.BLOCKING]}, False),
        ({"voter_io_modes": [IoWriterMode.FIXED_URING, None]}, False),
        ({"device_latency_violations_in_window": 3}, False),
        ({"incident_flags": {"GroupFsyncQuarantine"}}, False),
    ],
)
def test_when_group_fsync_may_be_enabled(change: dict[str, Any], allowed: bool) -> None:
    assert can_enable_group_fsync(replace(GROUP_OK, **change), GroupFsyncNumbers()) is allowed


def test_group_fsync_limits_and_back_off() -> None:
    budget = GroupFsyncBudget(GroupFsyncNumbers())
    kib = 1024
    assert budget.batch_is_full(64 * kib, 0) and budget.batch_is_full(1, 5)
    assert not budget.batch_is_full(64 * kib - 1, 4)
    assert budget.may_queue(4096 * kib, 65_536 * kib)
    assert not budget.may_queue(4096 * kib + 1, 0) and not budget.may_queue(0, 65_536 * kib + 1)
    assert not budget.overran(0)
    budget.kept()
    assert not budget.overran(0)
    assert budget.overran(0)
    assert budget.downgrade_backoff_deadline_ms == 1_000
    for _ in range(40):
        budget.overran(0)
    assert budget.downgrade_backoff_deadline_ms == 900_000


# Device, leases, profiles.


def test_three_slow_samples_in_a_row_stall_and_five_calm_ones_recover() -> None:
    device = DeviceLatency(DeviceNumbers(latency_max_ms=10, average_window_ms=1))
    changes = [
        (now * 10, device.stalled)
        for now, latency in enumerate((11, 11, 9, 11, 11, 11, *(7.9,) * 4, 8.0, *(7.9,) * 5))
        if device.sample(latency, now * 10)
    ]
    assert changes == [(50, True), (150, False)], "8.0 is not below 80 % of 10"


def test_a_moving_average_above_the_bound_is_a_stall_too() -> None:
    device = DeviceLatency(DeviceNumbers(latency_max_ms=10))
    for now, latency in enumerate((25, 9, 25, 9)):
        device.sample(latency, now * 10)
    assert device.stalled


def test_the_profiles_numbers() -> None:
    assert set(PROFILES) == {"ConsistencyProfile", "Throughput", "WAN", "ZFS", "Aggregator"}
    for profile in (CONSISTENCY_PROFILE, THROUGHPUT, ZFS, AGGREGATOR):
        assert profile.election_timeout_ms == (150, 300)
        assert profile.fallback.local_only_demote_ms == 14_400_000
    assert (WAN.election_timeout_ms, WAN.high_rtt_ms) == ((300, 600), 350)
    assert WAN.fallback.local_only_demote_ms == 21_600_000
    for profile in PROFILES.values():
        assert (profile.heartbeat_ms, profile.min_leader_term_ms) == (50, 750)
        assert profile.lease.gap_max == 0, "leases are off"
        assert lease_inequality_holds(profile)
        assert profile.membership.catchup_timeout_ms == 120_000
        assert profile.membership.finalize_window == 64


def test_a_profile_that_breaks_an_inequality_cannot_be_made() -> None:
    with pytest.raises(UnsafeProfile):
        replace(CONSISTENCY_PROFILE, lease=LeaseNumbers(duration_ms=75))
    with pytest.raises(UnsafeProfile, match="not built"):
        replace(CONSISTENCY_PROFILE, lease=LeaseNumbers(gap_max=1))
    with pytest.raises(UnsafeProfile):
        replace(CONSISTENCY_PROFILE, heartbeat_ms=150)
