"""Leases: reads without a quorum round. Implemented, checked, and off (`lease_gap_max=0`)."""

from __future__ import annotations

from collections.abc import Callable

from clustor.raft.membership import Configuration
from clustor.raft.profiles import LeaseNumbers
from clustor.raft.types import ReplicaId


def lease_holds(
    numbers: LeaseNumbers,
    config: Configuration,
    answered_ms: Callable[[ReplicaId], int],
    *,
    now_ms: int,
    commit_gap: int,
    clock_guard_alarm: bool,
) -> bool:
    """Say whether a leader may still answer from its lease.

    The lease runs from the moment at which the newest message that a quorum answered was
    *sent*; the skew bound is taken off, so that a fast clock elsewhere ends it no earlier.
    """
    if numbers.gap_max <= 0 or clock_guard_alarm or commit_gap > numbers.gap_max:
        return False
    start_ms = config.reached(lambda member: max(0, answered_ms(member) + 1)) - 1
    return start_ms >= 0 and now_ms < start_ms + numbers.duration_ms - numbers.clock_skew_bound_ms
