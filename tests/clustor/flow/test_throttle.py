"""The envelope: every reason, its hints, its order and its bounds."""

from __future__ import annotations

import json

import pytest

from clustor.flow import (
    LATENCY_GAINS,
    CreditHint,
    Credits,
    DurabilityStatus,
    IdPage,
    IngestStatus,
    LagNumbers,
    LagWatch,
    ThrottleEnvelope,
    ThrottleReason,
    hint_for,
    ingest_status,
    page_ids,
    retry_after_ms,
)
from clustor.log.types import DurabilityModeEpoch, PartitionId

MIB = 1 << 20


def _envelope(reason: ThrottleReason, blocking: IdPage) -> ThrottleEnvelope:
    return ThrottleEnvelope(
        generated_at=1_700_000_000_000,
        partition_id=PartitionId(7),
        routing_epoch=3,
        durability_mode_epoch=DurabilityModeEpoch(2),
        reason=reason,
        credit_hint=CreditHint.HOLD,
        retry_after_ms=250,
        backlog_entries=10,
        backlog_bytes=1 << 40,
        entry_credits=0,
        byte_credits=-5,
        lag_duration_ms=900,
        ingest_status_code=IngestStatus.TRANSIENT_BACKPRESSURE,
        durability_status_code=DurabilityStatus.STRICT_ONLY,
        decision_trace_id="trace",
        blocking=blocking,
    )


def test_the_eight_reasons_of_the_specification() -> None:
    assert [str(reason) for reason in ThrottleReason] == [
        "ApplyBudget",
        "WALDevice",
        "FollowerLag",
        "DiskSoft",
        "DiskHard",
        "TenantQuota",
        "FrameAlignment",
        "SnapshotImport",
    ]


@pytest.mark.parametrize("reason", ThrottleReason)
def test_wide_integers_are_strings_and_members_are_sorted(reason: ThrottleReason) -> None:
    encoded = _envelope(reason, page_ids(["b", "a"])).encode()
    members = json.loads(encoded)
    assert list(members) == sorted(members)
    assert members["reason"] == reason
    assert members["backlog_bytes"] == str(1 << 40)
    assert members["ids"] == ["a", "b"]
    assert "continuation_token" not in members


def test_ids_are_sorted_cut_at_32_and_can_be_continued() -> None:
    ids = [f"replica-{number:03d}" for number in range(70, 0, -1)]
    first = page_ids(ids)
    assert (len(first.ids), first.truncated_ids_count) == (32, 38)
    second = page_ids(ids, first.continuation_token)
    third = page_ids(ids, second.continuation_token)
    assert [*first.ids, *second.ids, *third.ids] == sorted(ids)
    assert third.continuation_token is None


def test_the_largest_envelope_is_within_32_kib() -> None:
    page = page_ids([f"{number:04d}" + "\u20ac" * 5_000 for number in range(100)])
    assert len(_envelope(ThrottleReason.DISK_HARD, page).encode()) <= 32 * 1024


def test_hints_and_status_follow_credits_and_lag() -> None:
    credits_, watch = Credits(LATENCY_GAINS), LagWatch(LagNumbers())
    calm = watch.sample(0, 0)
    assert hint_for(credits_, calm) is CreditHint.RECOVER
    assert ingest_status(credits_, calm) is IngestStatus.HEALTHY
    behind = watch.sample(10 * MIB, 1)
    assert hint_for(credits_, behind) is CreditHint.HOLD
    structural = watch.sample(300 * MIB, 2)
    assert hint_for(credits_, structural) is CreditHint.SHED
    assert retry_after_ms(structural) == 1_000 and retry_after_ms(calm) == 250
    credits_.admit(4096, 1)
    assert ingest_status(credits_, calm) is IngestStatus.TRANSIENT_BACKPRESSURE
    watch.structural_hard_block = True
    assert ingest_status(credits_, watch.sample(0, 3)) is IngestStatus.BLOCKED
