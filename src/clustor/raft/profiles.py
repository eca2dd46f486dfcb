"""Profiles: the numbers of clustor, frozen, each with the section that it comes from."""

from __future__ import annotations

from dataclasses import dataclass

from clustor.raft.errors import UnsafeProfile

KIB = 1 << 10
MIB = 1 << 20
RPC_BODY_BYTES_MAX = 4 * MIB
MESSAGE_OVERHEAD_BYTES = 4 * KIB  # the headers of a message and of its one entry, generously


@dataclass(frozen=True, slots=True)
class LeaseNumbers:
    """§10.2. Leases are not built: `gap_max` is 0. The inequality is checked all the same."""

    duration_ms: int = 60
    rtt_margin_ms: int = 20
    clock_skew_bound_ms: int = 5
    gap_max: int = 0


@dataclass(frozen=True, slots=True)
class MembershipNumbers:
    """§9.9."""

    utilization_max: float = 0.70
    catchup_slack_bytes: int = 4 * MIB
    catchup_index_slack: int = 1024
    catchup_timeout_ms: int = 120_000
    catchup_needs_both: bool = False
    finalize_window: int = 64
    lag_bytes_max: int = 64 * MIB
    lag_duration_max_ms: int = 30_000
    rollback_grace_ms: int = 3_000


@dataclass(frozen=True, slots=True)
class FallbackNumbers:
    """§9.1."""

    local_only_demote_ms: int = 14_400_000
    recampaign_backoff_ms: int = 60_000
    recampaign_jitter_ms: int = 15_000
    no_leader_grace_ms: int = 120_000


@dataclass(frozen=True, slots=True)
class ControlPlaneNumbers:
    """§6.3, §14.2, and C7's rhythm of publication."""

    cache_fresh_ms: int = 60_000
    cache_grace_ms: int = 300_000
    durability_proof_ttl_ms: int = 43_200_000
    proof_publish_period_ms: int = 1_000


@dataclass(frozen=True, slots=True)
class DeviceNumbers:
    """§10.1. The bound itself is the operator's; this is its default."""

    latency_max_ms: float = 100.0
    violations_to_stall: int = 3
    average_window_ms: int = 500
    recovery_ratio: float = 0.8
    samples_to_recover: int = 5


@dataclass(frozen=True, slots=True)
class GroupFsyncNumbers:
    """§9.3, per partition but for `node_inflight_bytes_max`."""

    batch_bytes_max: int = 64 * KIB
    batch_ms_max: int = 5
    inflight_bytes_max: int = 4 * MIB
    node_inflight_bytes_max: int = 64 * MIB
    overrun_limit: int = 2
    backoff_first_ms: int = 1_000
    backoff_max_ms: int = 900_000
    violations_max: int = 3


@dataclass(frozen=True, slots=True)
class ReplicationNumbers:
    """How much may be under way; messages stay below the 4 MiB body of §8.1."""

    message_bytes_max: int = 1 * MIB
    inflight_messages_max: int = 64
    inflight_bytes_max: int = 16 * MIB
    uncommitted_bytes_max: int = 64 * MIB
    fetch_bytes_max: int = 1 * MIB
    snapshot_bytes_per_second_max: int = 128 * MIB
    observer_share: float = 0.1
    snapshot_log_bytes_target: int = 512 * MIB
    snapshot_lag_bytes: int = 64 * MIB
    snapshot_retry_ms: int = 1_000


@dataclass(frozen=True, slots=True)
class Profile:
    """One of the five profiles of §5.2. Construction refuses numbers that contradict."""

    name: str
    election_timeout_ms: tuple[int, int] = (150, 300)
    wan_election_timeout_ms: tuple[int, int] = (300, 600)
    # While a replica was never led; None: as ever. See `Election.draw_deadline`.
    first_election_timeout_ms: tuple[int, int] | None = None
    heartbeat_ms: int = 50
    high_rtt_ms: int = 150
    high_rtt_heartbeats: int = 3
    min_leader_term_ms: int = 750
    frame_body_bytes_max: int = 1 * MIB
    follower_read_revoke_ms: int = 100
    skew_step_down_ms: int = 500
    idempotency_keys_max: int = 65_536
    allows_group_fsync: bool = True
    allows_pre_durable: bool = False
    lease: LeaseNumbers = LeaseNumbers()
    membership: MembershipNumbers = MembershipNumbers()
    fallback: FallbackNumbers = FallbackNumbers()
    control_plane: ControlPlaneNumbers = ControlPlaneNumbers()
    device: DeviceNumbers = DeviceNumbers()
    group_fsync: GroupFsyncNumbers = GroupFsyncNumbers()
    replication: ReplicationNumbers = ReplicationNumbers()

    @property
    def payload_bytes_max(self) -> int:
        """The largest payload: it fits a frame, and alone in a message it fits a body (§8.1)."""
        return min(self.frame_body_bytes_max, RPC_BODY_BYTES_MAX - MESSAGE_OVERHEAD_BYTES)

    def __post_init__(self) -> None:
        low, high = self.election_timeout_ms
        if not 0 < self.heartbeat_ms < low <= high:
            raise UnsafeProfile("heartbeats must be shorter than elections", profile=self.name)
        if self.lease.gap_max:
            raise UnsafeProfile("leases are not built", profile=self.name)
        if not lease_inequality_holds(self):
            raise UnsafeProfile("the lease outlives an election", profile=self.name)
        if self.replication.message_bytes_max > RPC_BODY_BYTES_MAX - MESSAGE_OVERHEAD_BYTES:
            raise UnsafeProfile("a message is larger than a body may be", profile=self.name)


def lease_inequality_holds(profile: Profile) -> bool:
    """§10.2: a lease must have ended before any election can begin."""
    lease = profile.lease
    needed = lease.duration_ms + lease.rtt_margin_ms + lease.clock_skew_bound_ms
    return needed + profile.heartbeat_ms < profile.election_timeout_ms[0]


CONSISTENCY_PROFILE = Profile("ConsistencyProfile", allows_group_fsync=False)
THROUGHPUT = Profile("Throughput", frame_body_bytes_max=4 * MIB, allows_pre_durable=True)
WAN = Profile(
    "WAN",
    election_timeout_ms=(300, 600),
    high_rtt_ms=350,
    frame_body_bytes_max=4 * MIB,
    lease=LeaseNumbers(duration_ms=150, rtt_margin_ms=50, clock_skew_bound_ms=20),
    fallback=FallbackNumbers(local_only_demote_ms=21_600_000),
    control_plane=ControlPlaneNumbers(durability_proof_ttl_ms=86_400_000),
)
ZFS = Profile("ZFS", allows_group_fsync=False)  # the filesystem already batches its own syncs
AGGREGATOR = Profile("Aggregator", frame_body_bytes_max=4 * MIB)

PROFILES = {
    profile.name: profile for profile in (CONSISTENCY_PROFILE, THROUGHPUT, WAN, ZFS, AGGREGATOR)
}
