"""Group-Fsync: the predicate of clustor §9.3 clause by clause, and its limits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clustor.log.group_fsync import (
    Batcher,
    FsyncBatch,
    GroupFsyncClause,
    GroupFsyncConditions,
    GroupFsyncLimits,
    group_fsync_clause,
)
from clustor.log.types import DurabilityMode, IoWriterMode

FINE = GroupFsyncConditions(
    strict_fallback=False,
    cache_fresh=True,
    now_ms=1_000,
    downgrade_backoff_deadline_ms=1_000,
    voter_modes=(IoWriterMode.FIXED_URING, IoWriterMode.REGISTERED_URING, IoWriterMode.FIXED_URING),
    device_latency_violations_in_window=2,
    group_fsync_quarantine=False,
)
BLOCKED = (IoWriterMode.FIXED_URING, IoWriterMode.BLOCKING, IoWriterMode.FIXED_URING)

CLAUSES = {
    "everything holds": (FINE, GroupFsyncClause.NONE),
    "strict fallback": (replace(FINE, strict_fallback=True), GroupFsyncClause.STRICT_FALLBACK),
    "cache not fresh": (replace(FINE, cache_fresh=False), GroupFsyncClause.CACHE_NOT_FRESH),
    "in backoff": (replace(FINE, now_ms=999), GroupFsyncClause.DOWNGRADE_BACKOFF),
    "one voter blocks": (replace(FINE, voter_modes=BLOCKED), GroupFsyncClause.BLOCKING_WRITER),
    "slow device": (
        replace(FINE, device_latency_violations_in_window=3),
        GroupFsyncClause.DEVICE_LATENCY,
    ),
    "incident": (replace(FINE, group_fsync_quarantine=True), GroupFsyncClause.QUARANTINED),
}


@pytest.mark.parametrize(("conditions", "clause"), CLAUSES.values(), ids=CLAUSES.keys())
def test_the_predicate_names_the_clause_that_fails(
    conditions: GroupFsyncConditions, clause: GroupFsyncClause
) -> None:
    assert group_fsync_clause(conditions) is clause


def grouped() -> Batcher:
    batcher = Batcher()
    batcher.mode = DurabilityMode.GROUP_FSYNC
    return batcher


def test_strict_never_waits() -> None:
    batcher = Batcher()
    assert not batcher.must_write(5)
    batcher.add(1, 5)
    assert batcher.must_write(5)


def test_a_group_waits_for_its_age_or_its_bytes() -> None:
    batcher = grouped()
    batcher.add(100, 10)
    assert not batcher.must_write(14)
    assert batcher.must_write(15)
    batcher.add(64 << 10, 11)
    assert batcher.must_write(11)
    assert batcher.take(11) == FsyncBatch((64 << 10) + 100, waited_ms=1)
    assert batcher.deadline_ms() is None


def test_what_is_in_flight_holds_the_next_batch_back() -> None:
    batcher = Batcher(GroupFsyncLimits(inflight_bytes_max=10))
    batcher.add(10, 0)
    taken = batcher.take(0)
    batcher.add(1, 0)
    assert not batcher.must_write(100)
    batcher.written(taken)
    assert batcher.must_write(100)
