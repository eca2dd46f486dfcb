"""The specifications' tables, cell by cell, and that what runs decides by them."""

from __future__ import annotations

from itertools import chain, combinations, product

import pytest

from clustor.control import (
    AUTH_MATRIX,
    KINDS,
    MODE_TRUTH_TABLE,
    READ_AVAILABILITY,
    REASON_OF_CLAUSE,
    UNAVAILABLE_PRIORITY,
    AuthColumn,
    AuthFacts,
    AuthOperation,
    AuthRule,
    CacheFreshness,
    GateReader,
    RbacRule,
    ReadRule,
    SnapshotReadRule,
    WriteRule,
    auth_column,
    call_refusal,
    decide_auth,
    rbac_rule,
    refresh_delay_ms,
    remaining_grace_ms,
    unavailable_reason,
)
from clustor.log.group_fsync import GroupFsyncClause, GroupFsyncConditions, group_fsync_clause
from clustor.log.types import IoWriterMode, LogIndex
from clustor.raft.control_plane import CacheState, ControlPlaneUpdate, ControlPlaneView
from clustor.raft.fallback import FallbackFacts, blocking_reason
from clustor.raft.profiles import ControlPlaneNumbers
from clustor.raft.reads import (
    FailedClause,
    ReadRefusal,
    follower_clause,
    refusal_for,
    standing_clause,
)
from clustor.raft.types import CommitVisibility

FRESH, CACHED, STALE, EXPIRED = CacheState

# Clustor §14.2: mode truth table. (cache, writes, ReadIndex/leases, snapshot-only reads)

NOT_FRESH, GONE = ReadRefusal.CACHE_NOT_FRESH, ReadRefusal.CACHE_EXPIRED
NEEDED = ReadRefusal.NEEDED_FOR_READ_INDEX
APPLIED, BEFORE = SnapshotReadRule
SECTION_14_2 = [
    (FRESH, WriteRule.CONFIGURED, None, APPLIED),
    (CACHED, WriteRule.CONFIGURED, None, APPLIED),
    (STALE, WriteRule.STRICT, NOT_FRESH, APPLIED),
    (EXPIRED, WriteRule.STRICT, GONE, BEFORE),
]


@pytest.mark.parametrize(("cache", "writes", "read_index", "snapshot"), SECTION_14_2)
def test_section_14_2_mode_truth_table(
    cache: CacheState,
    writes: WriteRule,
    read_index: ReadRefusal | None,
    snapshot: SnapshotReadRule,
) -> None:
    row = MODE_TRUTH_TABLE[cache]
    assert (row.writes, row.read_index, row.snapshot_reads) == (writes, read_index, snapshot)


@pytest.mark.parametrize(
    ("cache", "admin", "grants", "kept", "incremental", "warning"),
    [
        (FRESH, True, True, True, True, False),
        (CACHED, True, False, True, True, True),
        (STALE, True, False, False, False, True),
        (EXPIRED, False, False, False, False, True),
    ],
)
def test_section_14_2_allowed_operations(
    cache: CacheState, admin: bool, grants: bool, kept: bool, incremental: bool, warning: bool
) -> None:
    row = MODE_TRUTH_TABLE[cache]
    assert row.admin_calls is admin
    assert row.capability_grants is grants
    assert row.capabilities_kept is kept
    assert row.incremental_snapshots is incremental
    assert row.cache_warning is warning


@pytest.mark.parametrize("cache", CacheState)
def test_section_14_2_is_what_a_group_does(cache: CacheState) -> None:
    """A leader with a matching proof: the cache alone decides."""
    row = MODE_TRUTH_TABLE[cache]
    facts = FallbackFacts(
        cache,
        leads=True,
        proof_matches=True,
        proof_expired=False,
        proof_conflict=False,
        key_epoch_replay=False,
    )
    latched = blocking_reason(facts) != "None"
    assert latched == row.forces_strict_fallback == (row.writes is WriteRule.STRICT)
    clause = standing_clause(
        cache, strict_fallback=latched, visibility=CommitVisibility.DURABLE_ONLY
    )
    refusal = None if clause is FailedClause.NONE else refusal_for(clause)
    assert refusal == row.read_index
    follower = follower_clause(
        capability=True,
        cache_state=cache,
        strict_fallback=latched,
        local_wal_durable_index=LogIndex(1),
        applied_index_floor=LogIndex(1),
    )
    assert (follower is None) == row.capabilities_kept


# Clustor §10.3: read availability.

SECTION_10_3 = [
    (GateReader.LEADER_LINEARIZABLE, ReadRule.WHEN_GATE_PASSES, ReadRule.NEEDED_FOR_READ_INDEX),
    (GateReader.LEADER_SNAPSHOT_ONLY, ReadRule.CLAMPED, ReadRule.CLAMPED),
    (GateReader.FOLLOWER_SNAPSHOT_ONLY, ReadRule.WITH_CAPABILITY, ReadRule.CAPABILITY_REVOKED),
    (GateReader.OBSERVER_STREAM, ReadRule.WHILE_FRESH, ReadRule.OBSERVER_REVOKED),
]


@pytest.mark.parametrize(("reader", "normal", "fallback"), SECTION_10_3)
def test_section_10_3_read_availability(
    reader: GateReader, normal: ReadRule, fallback: ReadRule
) -> None:
    assert READ_AVAILABILITY[reader, False] is normal
    assert READ_AVAILABILITY[reader, True] is fallback
    assert len(READ_AVAILABILITY) == 2 * len(GateReader)


# Clustor §5.1: the order of reasons.


def test_section_5_1_priority_order() -> None:
    assert [reason.value for reason in UNAVAILABLE_PRIORITY] == [
        "CacheExpired",
        "CacheNotFresh",
        "NeededForReadIndex",
    ]


@pytest.mark.parametrize("clause", [each for each in FailedClause if each.value != "None"])
def test_section_10_3_each_clause_has_its_reason(clause: FailedClause) -> None:
    assert unavailable_reason([clause]) is REASON_OF_CLAUSE[clause] is refusal_for(clause)


def test_section_5_1_of_several_clauses_the_first_reason_in_order_is_given() -> None:
    clauses = list(REASON_OF_CLAUSE)
    subsets = chain.from_iterable(combinations(clauses, n) for n in range(1, len(clauses) + 1))
    for subset in subsets:
        expected = min(UNAVAILABLE_PRIORITY.index(REASON_OF_CLAUSE[each]) for each in subset)
        assert unavailable_reason(subset) is UNAVAILABLE_PRIORITY[expected]
    assert unavailable_reason([]) is None
    assert unavailable_reason([FailedClause.NONE]) is None


# Quantumqtt §10.6.

OP, R = AuthOperation, AuthRule
SECTION_10_6 = [
    (OP.SESSION_START, R.ALLOWED, R.FAIL_CLOSED, R.READ_FREE_ONLY),
    (OP.RE_AUTHENTICATION, R.ALLOWED, R.FAIL_CLOSED, R.FAIL_CLOSED),
    (OP.TOKEN_INTROSPECTION, R.ALLOWED, R.FAIL_CLOSED, R.FAIL_CLOSED),
    (OP.ACL_EVALUATION, R.ALLOWED, R.FAIL_CLOSED, R.FAIL_CLOSED),
    (OP.GATED_READ, R.READ_GATE, R.FAIL_CLOSED, R.FAIL_CLOSED),
    (OP.ROTATION, R.WHEN_FRESH, R.FAIL_CLOSED, R.FAIL_CLOSED),
]


@pytest.mark.parametrize(("operation", "alive", "expired", "fallback"), SECTION_10_6)
def test_section_10_6_auth_matrix(
    operation: AuthOperation, alive: AuthRule, expired: AuthRule, fallback: AuthRule
) -> None:
    assert AUTH_MATRIX[operation] == {
        AuthColumn.NOT_EXPIRED: alive,
        AuthColumn.EXPIRED: expired,
        AuthColumn.STRICT_FALLBACK: fallback,
    }
    assert len(AUTH_MATRIX) == len(AuthOperation) == len(SECTION_10_6)


DECISIONS = [
    # operation, cache, fallback, gate, reads state, refusal
    (OP.SESSION_START, FRESH, False, False, True, None),
    (OP.SESSION_START, STALE, True, False, False, None),
    (OP.SESSION_START, STALE, True, False, True, NOT_FRESH),
    (OP.SESSION_START, FRESH, True, False, True, NEEDED),
    (OP.SESSION_START, EXPIRED, True, False, False, GONE),
    (OP.RE_AUTHENTICATION, CACHED, False, True, True, None),
    (OP.RE_AUTHENTICATION, CACHED, True, True, True, NEEDED),
    (OP.TOKEN_INTROSPECTION, EXPIRED, True, False, True, GONE),
    (OP.ACL_EVALUATION, CACHED, False, False, True, None),
    (OP.ACL_EVALUATION, FRESH, True, False, True, NEEDED),
    (OP.GATED_READ, FRESH, False, True, True, None),
    (OP.GATED_READ, FRESH, False, False, True, NEEDED),
    (OP.GATED_READ, STALE, True, False, True, NOT_FRESH),
    (OP.ROTATION, FRESH, False, True, True, None),
    (OP.ROTATION, CACHED, False, True, True, NOT_FRESH),
    (OP.ROTATION, FRESH, True, True, True, NEEDED),
    (OP.ROTATION, EXPIRED, True, True, True, GONE),
]


@pytest.mark.parametrize(("operation", "cache", "fallback", "gate", "reads", "refusal"), DECISIONS)
def test_section_10_6_decisions(
    operation: AuthOperation,
    cache: CacheState,
    fallback: bool,
    gate: bool,
    reads: bool,
    refusal: ReadRefusal | None,
) -> None:
    facts = AuthFacts(cache, fallback, read_gate_passes=gate, reads_state=reads)
    assert decide_auth(operation, facts) == refusal


@pytest.mark.parametrize("operation", AuthOperation)
def test_section_10_6_expired_fails_closed_whatever_else_holds(operation: AuthOperation) -> None:
    for fallback, gate, reads in product([False, True], repeat=3):
        facts = AuthFacts(EXPIRED, fallback, read_gate_passes=gate, reads_state=reads)
        assert auth_column(facts) is AuthColumn.EXPIRED
        assert decide_auth(operation, facts) is GONE


# Clustor §9.3: the Group-Fsync predicate, all 64 cells.


@pytest.mark.parametrize("cell", list(product([True, False], repeat=6)))
def test_section_9_3_group_fsync_predicate(cell: tuple[bool, ...]) -> None:
    calm, fresh, waited, writers, quick, clear = cell
    conditions = GroupFsyncConditions(
        strict_fallback=not calm,
        cache_fresh=fresh,
        now_ms=100,
        downgrade_backoff_deadline_ms=100 if waited else 101,
        voter_modes=[
            IoWriterMode.FIXED_URING,
            IoWriterMode.REGISTERED_URING if writers else IoWriterMode.BLOCKING,
        ],
        device_latency_violations_in_window=2 if quick else 3,
        group_fsync_quarantine=not clear,
    )
    by_the_group = (GroupFsyncClause.PROFILE, GroupFsyncClause.FEATURE_GATE)
    not_here = (GroupFsyncClause.NONE, *by_the_group)
    order = [each for each in GroupFsyncClause if each not in not_here]
    failed = [clause for clause, holds in zip(order, cell, strict=True) if not holds]
    expected = failed[0] if failed else GroupFsyncClause.NONE
    assert group_fsync_clause(conditions) is expected


# Calls, by the age of the cache (clustor §14.2, quantumqtt §§8.7, 15.3, 19.2).

CALLS = {
    CacheFreshness.FRESH: (None, NOT_FRESH, NOT_FRESH, GONE),
    CacheFreshness.NOT_EXPIRED: (None, None, None, GONE),
    CacheFreshness.ANY: (None, None, None, None),
}


@pytest.mark.parametrize("freshness", CacheFreshness)
def test_calls_by_the_age_of_the_cache(freshness: CacheFreshness) -> None:
    assert tuple(call_refusal(freshness, cache) for cache in CacheState) == CALLS[freshness]


def test_what_ends_an_outage_needs_no_fresh_cache_and_what_reloads_security_does() -> None:
    by_name = {kind.name: kind.freshness for kind in KINDS}
    for name in ("PublishProofs", "RecordMembership", "ReportNode", "ClearProofConflict"):
        assert by_name[name] is CacheFreshness.ANY, name
    for name in ("CommitFence", "PromoteRegion", "SetAcls", "SetQuotas", "SetTrust", "RegisterKey"):
        assert by_name[name] is CacheFreshness.FRESH, name
    assert by_name["CreateTenant"] is CacheFreshness.NOT_EXPIRED


# Clustor §12.3.


@pytest.mark.parametrize(
    ("age_ms", "rule"),
    [
        (0, RbacRule.AVAILABLE),
        (60_000, RbacRule.AVAILABLE),
        (60_001, RbacRule.READS_ONLY),
        (120_000, RbacRule.READS_ONLY),
        (120_001, RbacRule.UNAVAILABLE),
    ],
)
def test_section_12_3_rbac_refresh_and_grace(age_ms: int, rule: RbacRule) -> None:
    assert rbac_rule(age_ms) is rule


# Clustor §14.2: the refresh loop.


@pytest.mark.parametrize(
    ("age_ms", "state", "delay_ms"),
    [
        (0, FRESH, 5_000),
        (60_000, FRESH, 5_000),
        (60_001, CACHED, 5_000),
        (150_000, CACHED, 5_000),
        (150_001, STALE, 2_500),
        (280_000, STALE, 2_500),
        (280_008, STALE, 2_499),
        (292_000, STALE, 1_000),
        (299_999, STALE, 100),
        (300_000, EXPIRED, 1_000),
        (2**63, EXPIRED, 1_000),
    ],
)
def test_section_14_2_refresh_loop(age_ms: int, state: CacheState, delay_ms: int) -> None:
    numbers = ControlPlaneNumbers()
    view = ControlPlaneView(numbers)
    view.update(ControlPlaneUpdate(), 0)
    assert view.cache_state(age_ms) is state
    assert refresh_delay_ms(state, age_ms, numbers) == delay_ms
    assert remaining_grace_ms(age_ms, numbers) == max(0, 300_000 - age_ms)


def test_section_14_2_a_short_grace_shortens_the_delay_of_cached() -> None:
    numbers = ControlPlaneNumbers(cache_fresh_ms=1_000, cache_grace_ms=8_000)
    assert refresh_delay_ms(CACHED, 2_000, numbers) == 1_500
