"""Limits so small that a short run meets all of them: of the log, streams, groups and snapshots."""

from __future__ import annotations

from dataclasses import replace

from clustor.log.config import LogConfig
from clustor.raft.profiles import (
    CONSISTENCY_PROFILE,
    ControlPlaneNumbers,
    MembershipNumbers,
    Profile,
    ReplicationNumbers,
)
from clustor.snapshot.cadence import CadenceProfile
from clustor.streams import StreamConfig

LOG_CONFIG = LogConfig(
    segment_bytes=4096,
    reservation_blocks=4,
    zero_ahead_bytes=512,
    fs_block_bytes=512,
    ledger_zero_ahead_bytes=256,
    ledger_rewrite_bytes=2048,
)

STREAM_CONFIG = StreamConfig(
    segment_bytes=900,
    run_bytes=200,
    index_interval_bytes=300,
    metadata_rewrite_bytes=1_500,
    flush_bytes=400,
    checkpoint_bytes=1_500,
    checkpoint_ms=300,
    checkpoint_partitions=3,
    writers_max=2,
    window_partition_bytes=300,
    fetch_bytes=300,
    fetch_partitions=2,
)


def small_profile(snapshot_log_bytes: int) -> Profile:
    """A profile whose limits are so small that a short run meets all of them."""
    return replace(
        CONSISTENCY_PROFILE,
        membership=MembershipNumbers(
            catchup_index_slack=8,
            catchup_slack_bytes=512,
            catchup_timeout_ms=3_000,
            finalize_window=4,
            lag_duration_max_ms=2_000,
            rollback_grace_ms=500,
        ),
        control_plane=ControlPlaneNumbers(
            cache_fresh_ms=1_000,
            cache_grace_ms=4_000,
            durability_proof_ttl_ms=20_000,
            proof_publish_period_ms=200,
        ),
        replication=ReplicationNumbers(
            message_bytes_max=1_000,
            inflight_messages_max=8,
            inflight_bytes_max=4_000,
            fetch_bytes_max=1_000,
            snapshot_log_bytes_target=snapshot_log_bytes,
            snapshot_retry_ms=300,
        ),
    )


def small_cadence(delta_ms: int) -> CadenceProfile | None:
    """How often a run emits snapshots; None where it emits no deltas."""
    if not delta_ms:
        return None
    return CadenceProfile(
        full_emit_period_ms_target=5 * delta_ms,
        full_emit_period_ms_hard=20 * delta_ms,
        delta_emit_period_ms_target=delta_ms,
        delta_emit_period_ms_hard=4 * delta_ms,
        delta_chain_max=4,
    )
