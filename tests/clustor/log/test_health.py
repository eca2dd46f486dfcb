"""Quarantine and repair: every change of state is legal or refused (clustor §9.4)."""

from __future__ import annotations

import pytest

from clustor.log.errors import (
    AuthenticationFailed,
    ChecksumMismatch,
    LogError,
    LogFenced,
    LogMisuse,
    MissingFile,
)
from clustor.log.health import PartitionHealth, PartitionState, QuarantineReason


def test_a_failed_crc_is_tried_three_times_with_growing_pauses_then_quarantined() -> None:
    health = PartitionHealth()
    pauses = []
    for _ in range(3):
        health.on_fault(ChecksumMismatch("damaged"), now_ms=100)
        assert health.state is PartitionState.NEEDS_REPAIR
        assert health.retry_at_ms is not None
        pauses.append(health.retry_at_ms - 100)
    assert pauses == [1_000, 2_000, 4_000]
    health.on_fault(ChecksumMismatch("damaged"), now_ms=200)
    assert health.state is PartitionState.QUARANTINE
    assert health.why is not None and health.why.since_ms == 200
    assert health.retry_at_ms is None


@pytest.mark.parametrize("fault", [AuthenticationFailed("x"), MissingFile("x"), LogFenced("x")])
def test_anything_else_is_quarantined_at_once(fault: LogError) -> None:
    health = PartitionHealth()
    health.on_fault(fault, now_ms=7)
    assert health.state is PartitionState.QUARANTINE
    assert not health.accepts_writes
    assert not health.exports_snapshots


def test_a_repaired_log_starts_its_count_anew() -> None:
    health = PartitionHealth()
    for _ in range(3):
        health.on_fault(ChecksumMismatch("damaged"), now_ms=0)
        health.on_repaired()
    assert health.state is PartitionState.HEALTHY
    health.on_fault(ChecksumMismatch("damaged"), now_ms=0)
    assert health.retry_at_ms == 1_000


def test_quarantine_is_left_through_repair_and_an_acknowledgement_only() -> None:
    health = PartitionHealth()
    health.quarantine(QuarantineReason.ADMINISTRATIVE, 5, "paused")
    assert health.exports_snapshots
    for illegal in (health.on_repaired, health.on_quarantine_cleared):
        with pytest.raises(LogMisuse):
            illegal()
    health.enter_repair_mode()
    health.on_quarantine_cleared()
    assert health.accepts_writes
    assert health.why is None


def test_a_decommissioned_partition_never_comes_back() -> None:
    health = PartitionHealth()
    health.quarantine(QuarantineReason.INTEGRITY, 5, "bad")
    health.decommission()
    for illegal in (health.enter_repair_mode, health.on_repaired, health.decommission):
        with pytest.raises(LogMisuse):
            illegal()
    health.on_fault(AuthenticationFailed("x"), 6)
    assert health.state is PartitionState.DECOMMISSIONED


def test_the_first_reason_stays() -> None:
    health = PartitionHealth()
    health.quarantine(QuarantineReason.APPLY_FAULT, 5, "first")
    health.quarantine(QuarantineReason.INTEGRITY, 9, "second")
    assert health.why is not None and health.why.detail == "first"
