"""What is read of each group at a scrape, and how many groups become few series (§13.1).

By default every series is a sum, a maximum, or a number of groups in a state, so that a scrape
of ten thousand groups is as long as one of ten. `detail` gives a few series for each group, as
many groups as fit, and says how many were left off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from clustor.telemetry.exposition import (
    MetricFamily,
    MetricKind,
    by_label,
    counter,
    gauge,
    histogram,
    labels,
)
from clustor.telemetry.meters import NodeMeters

SCHEMA_VERSION: Final = 1
DETAIL_BYTES_MAX: Final = 2 << 20
_DETAIL_OVERHEAD_BYTES: Final = 16 << 10


@dataclass(slots=True)
class GroupReading:
    """One group on one node; numbers are sums unless their comment says otherwise."""

    partition_id: int
    role: str = "Follower"
    term: int = 0
    is_failed: bool = False
    is_leaderless: bool = False
    commit_index: int = 0
    applied_index: int = 0
    durable_index: int = 0
    last_index: int = 0
    log_bytes: int = 0
    syncs: int = 0
    unanswered: int = 0
    # The read gate and strict fallback.
    failed_clause: str = "None"
    strict_fallback_state: str = "Healthy"
    strict_fallback_pending_entries: int = 0
    blocks_read_index: bool = False  # it leads, and its latch refuses linearizable reads
    strict_only_runtime_ms: int = 0  # the longest
    gate_blocked: Mapping[str, int] = field(default_factory=dict)
    cache_state: str = "Expired"
    cache_age_ms: int = 0  # the oldest
    lease_state: str = "Disabled"
    clock_guard_alarm: bool = False
    observers_allowed: bool = False
    can_read_snapshot: bool = False
    # Durability.
    durability_mode: str = "STRICT"
    durability_status: str = "Configured"
    io_writer_mode: str = "BLOCKING"
    device_stalled: bool = False
    write_age_ms: int = 0  # the oldest
    # Flow, of leaders.
    lag_bytes: int = 0  # of the slowest voter; the worst
    lag_ms: int = 0  # the worst
    lag_class: str = "None"
    credit_share: float = 1.0  # the lowest
    credit_hint: str = "Recover"
    ingest_status: str = "Healthy"
    throttle_reason: str = ""
    refused_total: int = 0
    pid_auto_tune_state: str = "Disabled"
    pid_auto_tune_adjust_total: int = 0
    # Snapshots.
    snapshot_base_index: int = 0
    delta_chain_length: int = 0  # the longest
    delta_emit_skew_ms: int = 0  # of the latest delta; the worst
    delta_chain_state: str = "Healthy"
    snapshot_age_ms: int = 0  # of the newest that misses something; the oldest
    is_installing: bool = False
    install_chunks_missing: int = 0
    install_chunks: int = 0


class Totals:
    """Readings, added up one by one; a scrape may pause between two of them."""

    def __init__(self) -> None:
        self.groups = 0
        self._states: dict[str, Counter[str]] = {each[1]: Counter() for each in _BY_STATE}
        self._sums: Counter[str] = Counter()
        self._most: dict[str, float] = dict.fromkeys((each[1] for each in _MOST), 0)
        self._gate_blocked: Counter[str] = Counter()
        self._credit_share = 1.0

    def add(self, reading: GroupReading) -> None:
        """Take one group in."""
        self.groups += 1
        for _, attribute, _, _ in _BY_STATE:
            value = getattr(reading, attribute)
            if value:
                self._states[attribute][value] += 1
        sums = self._sums
        for _, attribute, _, _ in _SUMS:
            value = getattr(reading, attribute)
            if value:
                sums[attribute] += value
        most = self._most
        for _, attribute, _ in _MOST:
            value = getattr(reading, attribute)
            most[attribute] = max(most[attribute], value)
        if reading.gate_blocked:
            self._gate_blocked.update(reading.gate_blocked)
        self._credit_share = min(self._credit_share, reading.credit_share)

    def families(self) -> Iterator[MetricFamily]:
        """Give what was added up."""
        yield gauge("clustor.raft.groups", self.groups, "Groups that this node hosts")
        for name, attribute, label, text in _BY_STATE:
            yield by_label(MetricKind.GAUGE, name, label, self._states[attribute], text)
        for name, attribute, kind, text in _SUMS:
            yield MetricFamily(name, kind, text, [("", self._sums[attribute])])
        for name, attribute, text in _MOST:
            yield gauge(name, self._most[attribute], text)
        yield gauge(
            "clustor.flow.credit_share_min", self._credit_share, "Least share of credits given"
        )
        yield by_label(
            MetricKind.COUNTER,
            "clustor.raft.strict_fallback_gate_blocked_total",
            "operation",
            self._gate_blocked,
            "What strict fallback refused",
        )
        ready = self._sums["can_read_snapshot"] / self.groups if self.groups else 1.0
        yield gauge("clustor.snapshot.only_ready_ratio", ready, "Groups that serve snapshot reads")


_BY_STATE: Final = (
    ("clustor.raft.role", "role", "role", "Groups by this node's role"),
    (
        "clustor.raft.read_gate_failed_clause",
        "failed_clause",
        "clause",
        "Groups by what shuts the read gate",
    ),
    (
        "clustor.raft.strict_fallback_state",
        "strict_fallback_state",
        "state",
        "Groups by strict fallback",
    ),
    (
        "clustor.raft.lease_gate_runtime_state",
        "lease_state",
        "state",
        "Groups by whether leases run",
    ),
    (
        "clustor.snapshot.delta_chain_state",
        "delta_chain_state",
        "state",
        "Groups by how their chain of snapshots stands",
    ),
    (
        "clustor.controlplane.cache_state",
        "cache_state",
        "state",
        "Groups by the age of the control plane's word",
    ),
    (
        "clustor.wal.durability_mode",
        "durability_mode",
        "mode",
        "Groups by durability mode",
    ),
    (
        "clustor.wal.durability_status_code",
        "durability_status",
        "code",
        "Groups by whether Strict is forced",
    ),
    (
        "clustor.wal.io_writer_mode_gate_state",
        "io_writer_mode",
        "mode",
        "Groups by how the disk writes",
    ),
    ("clustor.flow.lag_class", "lag_class", "class", "Led groups by their slowest follower"),
    ("clustor.flow.credit_hint", "credit_hint", "hint", "Led groups by the hint they give"),
    (
        "clustor.flow.ingest_status_code",
        "ingest_status",
        "code",
        "Led groups by whether they take writes",
    ),
    (
        "clustor.flow.throttle_reason",
        "throttle_reason",
        "reason",
        "Led groups that are slowed, by why",
    ),
    (
        "clustor.flow.pid_auto_tune_state",
        "pid_auto_tune_state",
        "state",
        "Groups by their tuner",
    ),
)
_SUMS: Final = (
    (
        "clustor.raft.groups_failed",
        "is_failed",
        MetricKind.GAUGE,
        "Groups whose replica has stopped",
    ),
    (
        "clustor.raft.groups_leaderless",
        "is_leaderless",
        MetricKind.GAUGE,
        "Groups that nobody leads",
    ),
    ("clustor.raft.commits_total", "commit_index", MetricKind.COUNTER, "Committed entries"),
    ("clustor.raft.applies_total", "applied_index", MetricKind.COUNTER, "Applied entries"),
    ("clustor.raft.unanswered_requests", "unanswered", MetricKind.GAUGE, "Requests under way"),
    (
        "clustor.raft.clock_guard_alarm",
        "clock_guard_alarm",
        MetricKind.GAUGE,
        "Groups with an alarm",
    ),
    (
        "clustor.raft.observer_capability_state",
        "observers_allowed",
        MetricKind.GAUGE,
        "Groups that admit observers",
    ),
    (
        "clustor.raft.strict_fallback_blocking_read_index",
        "blocks_read_index",
        MetricKind.GAUGE,
        "Groups led here whose latch refuses ReadIndex",
    ),
    (
        "clustor.raft.strict_fallback_pending_entries",
        "strict_fallback_pending_entries",
        MetricKind.GAUGE,
        "Entries since the latch was set",
    ),
    ("clustor.wal.log_bytes", "log_bytes", MetricKind.GAUGE, "Bytes behind the newest compaction"),
    ("clustor.wal.syncs_total", "syncs", MetricKind.COUNTER, "Syncs done"),
    ("clustor.wal.device_stalled", "device_stalled", MetricKind.GAUGE, "Groups on a stalled disk"),
    ("clustor.flow.refused_total", "refused_total", MetricKind.COUNTER, "Commands without credits"),
    (
        "clustor.flow.pid_auto_tune_adjust_total",
        "pid_auto_tune_adjust_total",
        MetricKind.COUNTER,
        "Gains changed",
    ),
    ("clustor.snapshot.installing", "is_installing", MetricKind.GAUGE, "Snapshots being installed"),
    (
        "clustor.snapshot.install_chunks_missing",
        "install_chunks_missing",
        MetricKind.GAUGE,
        "Chunks of them that did not come yet",
    ),
    (
        "clustor.snapshot.install_chunks",
        "install_chunks",
        MetricKind.GAUGE,
        "Chunks that they have",
    ),
    (
        "clustor.wal.durability_fence_active",
        "is_failed",
        MetricKind.GAUGE,
        "Groups whose log takes no writes any more",
    ),
    (
        "clustor.snapshot.groups_readable",
        "can_read_snapshot",
        MetricKind.GAUGE,
        "Groups that serve snapshot reads",
    ),
)
_MOST: Final = (
    ("clustor.controlplane.cache_age_ms", "cache_age_ms", "Age of the oldest word"),
    (
        "clustor.controlplane.strict_only_runtime_ms",
        "strict_only_runtime_ms",
        "Longest forced Strict running",
    ),
    ("clustor.wal.write_age_ms", "write_age_ms", "Age of the oldest write under way"),
    ("clustor.flow.follower_lag_bytes", "lag_bytes", "Lag of the slowest follower"),
    ("clustor.flow.follower_lag_ms", "lag_ms", "The same, in time"),
    ("clustor.snapshot.delta_chain_length", "delta_chain_length", "Longest chain of deltas"),
    (
        "clustor.snapshot.delta_emit_skew_ms",
        "delta_emit_skew_ms",
        "By how much the latest delta missed its target",
    ),
    (
        "clustor.snapshot.age_ms",
        "snapshot_age_ms",
        "Age of the oldest newest snapshot that misses something",
    ),
)


def meter_families(meters: NodeMeters) -> Iterator[MetricFamily]:
    """Give what the node itself has counted."""
    yield histogram(
        "clustor.wal.fsync_latency_ms", meters.fsync_latency_ms, "Time of one sync, milliseconds"
    )
    yield histogram(
        "clustor.raft.commit_latency_ms",
        meters.commit_latency_ms,
        "From a leader's append to a quorum's fsync, milliseconds",
    )
    yield histogram(
        "clustor.flow.apply_batch_latency_ms",
        meters.apply_batch_latency_ms,
        "Time to apply one batch, milliseconds",
    )
    yield histogram(
        "clustor.snapshot.transfer_seconds", meters.transfer_seconds, "Time to install a snapshot"
    )
    yield histogram("clustor.raft.batch_requests", meters.batch_requests, "Requests in one entry")
    yield counter("clustor.raft.batches_total", meters.batches, "Entries answered")
    yield counter("clustor.raft.requests_total", meters.requests, "Requests answered")
    yield counter("clustor.raft.elections_won_total", meters.elections_won, "Terms begun here")
    yield counter("clustor.raft.elections_lost_total", meters.elections_lost, "Campaigns lost")
    yield counter("clustor.raft.step_downs_total", meters.step_downs, "Terms given up here")
    for name, label, values, text in (
        ("clustor.raft.role_changes_total", "role", meters.role_changes, "Changes of role"),
        ("clustor.raft.refused_total", "reason", meters.refused, "Requests refused by the group"),
        ("clustor.raft.notes_total", "kind", meters.notes, "What groups found worth a note"),
    ):
        yield by_label(MetricKind.COUNTER, name, label, values, text)


_DETAIL: Final[tuple[tuple[str, MetricKind, str, Callable[[GroupReading], float]], ...]] = (
    ("clustor.raft.group_leads", MetricKind.GAUGE, "1 on the leader", lambda g: g.role == "Leader"),
    (
        "clustor.raft.group_leaderless",
        MetricKind.GAUGE,
        "1: nobody leads",
        lambda g: g.is_leaderless,
    ),
    ("clustor.raft.group_term", MetricKind.GAUGE, "Term", lambda g: g.term),
    ("clustor.raft.group_commit_index", MetricKind.GAUGE, "Committed", lambda g: g.commit_index),
    ("clustor.raft.group_applied_index", MetricKind.GAUGE, "Applied", lambda g: g.applied_index),
    (
        "clustor.wal.group_durable_index",
        MetricKind.GAUGE,
        "Durable here",
        lambda g: g.durable_index,
    ),
    (
        "clustor.flow.group_lag_bytes",
        MetricKind.GAUGE,
        "Slowest follower's lag",
        lambda g: g.lag_bytes,
    ),
    (
        "clustor.flow.group_credit_share",
        MetricKind.GAUGE,
        "Credits given",
        lambda g: g.credit_share,
    ),
)


def detail_families(
    readings: Iterable[GroupReading], left_off: int = 0, *, bytes_max: int = DETAIL_BYTES_MAX
) -> list[MetricFamily]:
    """Give series for each group, for as many as fit; the last family counts those left off.

    `left_off` were left off before.
    """
    families = [MetricFamily(name, kind, text) for name, kind, text, _ in _DETAIL]
    room = bytes_max - _DETAIL_OVERHEAD_BYTES
    for reading in readings:
        values = [int(v) if (v := each(reading)) == int(v) else v for *_, each in _DETAIL]
        label = labels(partition=str(reading.partition_id))
        room -= sum(
            len(family.name) + len(label) + len(str(value)) + 4
            for family, value in zip(families, values, strict=True)
        )
        if room < 0:
            left_off += 1
            continue
        for family, value in zip(families, values, strict=True):
            family.series.append((label, value))
    text = "Groups without series here: ask again with &after=<the last partition>"
    return [*families, gauge("metrics.detail_groups_left_off", left_off, text)]


def schema_families(git_sha: str, version: str) -> Iterator[MetricFamily]:
    """Give what every scrape begins with (§13.1)."""
    yield gauge("metrics.schema_version", SCHEMA_VERSION, "Version of these names")
    yield by_label(
        MetricKind.GAUGE, "metrics.build_git_sha", "git_sha", {git_sha: 1}, "What runs here"
    )
    about = "Version, commit, Python and whether it is compiled"
    yield by_label(MetricKind.GAUGE, "metrics.build_version", "version", {version: 1}, about)
