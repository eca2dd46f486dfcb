"""One scrape: every group is read, a few at a time, so that no turn of the loop waits for it."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from clustor.control.gates import MODE_TRUTH_TABLE
from clustor.flow import hint_for, ingest_status
from clustor.raft.reads import read_gate_predicate
from clustor.runtime.build import build
from clustor.runtime.containment import contained
from clustor.runtime.errors import NodeError
from clustor.runtime.group import HostedGroup
from clustor.runtime.pki.certificate_files import load_certificate
from clustor.runtime.pki.identity import CERTIFICATE_FILE
from clustor.runtime.telemetry.why import durability_status
from clustor.telemetry import (
    GroupReading,
    MetricFamily,
    MetricKind,
    NodeMeters,
    Totals,
    by_label,
    counter,
    gauge,
    meter_families,
    schema_families,
)
from clustor.telemetry.exposition import histogram
from clustor.wall_clock import wall_clock_ms

if TYPE_CHECKING:
    from clustor.runtime.node import Node

GROUPS_PER_STEP: Final = 64
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class Gate(Protocol):
    """What of a port's gate is shown."""

    turned_away: int

    @property
    def present(self) -> int: ...
    @property
    def half_open(self) -> int: ...


Source: TypeAlias = Callable[[], Iterator[MetricFamily | None]]
"""Gives families; None is a good moment to let others have the loop."""


@dataclass(slots=True)
class Detail:
    """Which groups get series of their own, and their readings."""

    after: int
    limit: int
    readings: list[GroupReading] = field(default_factory=list)

    left_off: int = 0

    def take(self, reading: GroupReading) -> None:
        """Keep a reading if it is wanted and there is room for it."""
        if reading.partition_id <= self.after:
            return
        if len(self.readings) < self.limit:
            self.readings.append(reading)
        else:
            self.left_off += 1


def scrape(
    node: Node, meters: NodeMeters, sources: list[Source], detail: Detail | None
) -> Iterator[MetricFamily | None]:
    """Give all families but the detail; the readings for that are left in it."""
    yield from schema_families(build().commit, build().label)
    yield from meter_families(meters)
    totals = Totals()
    groups = sorted(node.groups.values(), key=lambda each: each.partition_id)
    for number, group in enumerate(groups):
        reading = reading_of(group)
        totals.add(reading)
        if detail is not None:
            detail.take(reading)
        if number % GROUPS_PER_STEP == 0:
            yield None
    yield from totals.families()
    yield from node_families(node)
    yield from process_families()
    for source in sources:
        yield from source()


def reading_of(hosted: HostedGroup) -> GroupReading:
    """Read one group."""
    replica = hosted.replica
    group, core = replica.group, replica.group.core
    access, fallback, log = group.access, group.fallback, core.log
    newest = replica.catalog.newest
    reading = GroupReading(
        int(hosted.partition_id),
        role=str(core.role),
        term=core.hard.term,
        is_failed=replica.failed is not None,
        is_leaderless=core.leader_id is None,
        commit_index=core.commit_index,
        applied_index=replica.applied_index,
        durable_index=core.local_wal_durable_index,
        last_index=log.last_index,
        log_bytes=log.bytes_total - log.bytes_through(log.base_index),
        syncs=hosted.syncs,
        unanswered=replica.backlog()[0],
        failed_clause=str(read_gate_predicate(access.gate_state())),
        strict_fallback_state=str(fallback.state),
        strict_fallback_pending_entries=fallback.pending_entries,
        blocks_read_index=core.leads and fallback.asserted,
        strict_only_runtime_ms=_strict_only_ms(hosted),
        gate_blocked={str(name): count for name, count in fallback.gate_blocked.items()},
        cache_state=str(access.cache),
        cache_age_ms=access.control.cache_age_ms(core.now_ms) or 0,
        clock_guard_alarm=access.clock_guard_alarm,
        observers_allowed=group.replication.observers_allowed,
        can_read_snapshot=core.leads or access.follower_clause() is None,
        durability_mode=core.durability_mode().name,
        io_writer_mode=replica.log.io_writer_mode.name,
        device_stalled=core.device_stalled,
        write_age_ms=group.durability.oldest_write_age_ms(),
        snapshot_base_index=newest.manifest.base_index if newest is not None else 0,
        delta_chain_length=newest.manifest.delta_chain_length if newest is not None else 0,
        is_installing=core.installing is not None,
    )
    _read_cadence(hosted, reading)
    if reading.is_installing:
        reading.install_chunks_missing, reading.install_chunks = (
            replica.snapshots.install_progress()
        )
    if replica.leads:
        _read_flow(hosted, reading)
    else:
        reading.lag_class = reading.credit_hint = reading.ingest_status = ""
    return reading


def _strict_only_ms(hosted: HostedGroup) -> int:
    core = hosted.replica.group.core
    since_ms = hosted.replica.group.fallback.local_only_since_ms
    return 0 if since_ms is None else core.now_ms - since_ms


def _read_cadence(hosted: HostedGroup, reading: GroupReading) -> None:
    clock = hosted.replica.snapshots.clock
    if clock is None:
        return
    reading.delta_emit_skew_ms = clock.delta_emit_skew_ms
    reading.delta_chain_state = str(clock.chain)
    last_ms = clock.state.last_ms
    if last_ms is not None and hosted.replica.applied_index > clock.state.base_index:
        reading.snapshot_age_ms = max(0, wall_clock_ms() - last_ms)


def _read_flow(hosted: HostedGroup, reading: GroupReading) -> None:
    admission = hosted.admission
    lags = admission.lags().values()
    reading.lag_bytes = max((lag.lag_bytes for lag in lags), default=0)
    reading.lag_ms = max((lag.lag_ms for lag in lags), default=0)
    reading.lag_class = str(admission.verdict.lag_class)
    reading.credit_share = round(admission.credits.pid.fraction * admission.verdict.credit_scale, 4)
    reading.credit_hint = str(hint_for(admission.credits, admission.verdict))
    reading.ingest_status = str(ingest_status(admission.credits, admission.verdict))
    reading.throttle_reason = str(admission.reason or "")
    reading.refused_total = admission.refused_total
    reading.pid_auto_tune_state = str(admission.tuner.state)
    reading.pid_auto_tune_adjust_total = admission.tuner.adjust_total
    reading.durability_status = str(durability_status(hosted))


def node_families(node: Node) -> Iterator[MetricFamily]:
    """Give what belongs to the node as a whole: its peers, its disk, its keys."""
    connected = len(node.transport.connected())
    peers = len(node.cluster.nodes) - 1
    yield gauge("clustor.raft.transport_pool_connected", connected, "Peers with a connection")
    yield gauge("clustor.raft.transport_pool_size", peers, "Peers that there are")
    for group in islice(node.groups.values(), 1):
        try:
            room = os.statvfs(group.directory)
        except OSError:
            return
        yield gauge("clustor.wal.disk_free_bytes", room.f_bavail * room.f_frsize, "Room left")
        yield gauge("clustor.wal.disk_total_bytes", room.f_blocks * room.f_frsize, "Whole disk")
    yield from _loop_families(node)
    if node.disk_checked is not None:
        found = len(node.disk_checked.findings)
        yield gauge("clustor.wal.disk_findings", found, "What is wrong with the disk: see /status")
    yield from _certificate(node)
    yield from _control(node)
    yield by_label(
        MetricKind.COUNTER,
        "clustor.node.errors_contained_total",
        "place",
        contained.counts,
        "Errors of our own that ended one connection, task or group, and nothing else",
    )
    keys = node.settings.keys
    yield gauge("clustor.security.dek_epoch", keys.dek_epoch, "Key epoch that encrypts")
    yield gauge("clustor.security.mac_epoch", keys.mac_epoch, "Key epoch that seals segments")


def gate_families(gates: Mapping[str, Gate]) -> Iterator[MetricFamily]:
    """Give how full the ports are that are not the clients': by their names."""
    for name, kind, text, values in (
        ("connections", MetricKind.GAUGE, "Connections", {n: g.present for n, g in gates.items()}),
        (
            "half_open",
            MetricKind.GAUGE,
            "Of them: nobody knows yet whose",
            {n: g.half_open for n, g in gates.items()},
        ),
        (
            "turned_away_total",
            MetricKind.COUNTER,
            "Went because there were too many",
            {n: g.turned_away for n, g in gates.items()},
        ),
    ):
        yield by_label(kind, f"clustor.node.port_{name}", "port", values, text)


def _loop_families(node: Node) -> Iterator[MetricFamily]:
    """Give how late the loop is; none of it is the device's (C19, C20)."""
    watch = node.loop_watch
    yield histogram("clustor.loop.lag_ms", watch.lag_ms, "How late ticks came, milliseconds")
    yield counter("clustor.loop.turns_total", watch.turns, "Times that groups were asked to speak")
    sent, heard = node.transport.frames_sent, node.transport.frames_received
    yield counter("clustor.peers.frames_sent_total", sent, "Frames written to other nodes")
    yield counter("clustor.peers.frames_received_total", heard, "Frames read from other nodes")
    gap = round(watch.longest_gap_ms, 1)
    yield gauge("clustor.loop.longest_gap_ms", gap, "Longest time between two ticks")
    yield by_label(
        MetricKind.COUNTER,
        "clustor.loop.slow_callbacks_total",
        "callback",
        watch.slow_callbacks,
        "Callbacks that took more than 20 ms",
    )
    yield histogram(
        "clustor.wal.queue_ms", watch.disk_queue_ms, "Wait behind other plans, milliseconds"
    )
    yield histogram(
        "clustor.wal.seen_late_ms",
        watch.disk_seen_late_ms,
        "Work of the loop before it looked at what the disk had done, milliseconds",
    )
    lateness = watch.lateness_ms()
    yield gauge("clustor.raft.lateness_ms", lateness, "99th percentile of ticks and appends")
    ranges = [group.replica.group.election.range for group in node.groups.values()]
    widened = [drawn.bounds(high_rtt=False)[1] for drawn in ranges if drawn.is_widened]
    yield gauge(
        "clustor.raft.election_widened_ms",
        max(widened, default=0),
        "Highest timeout of a draw that our own lateness widened; 0: none is",
    )


def _control(node: Node) -> Iterator[MetricFamily]:
    """Give what the node's copy of the control plane adds to what the groups see of it."""
    if node.control is None:
        return
    state = node.control.cache_state()
    total = node.control.cache.cache_expiry_total
    yield counter("clustor.controlplane.cache_expiry_total", total, "Times that it expired")
    warns = int(MODE_TRUTH_TABLE[state].cache_warning)
    yield gauge("clustor.controlplane.cache_warning", warns, "1: older than fresh")
    bad = node.control.cache.bad_proofs
    yield counter("clustor.security.bad_proofs_total", bad, "Proofs whose signature is wrong")


def _certificate(node: Node) -> Iterator[MetricFamily]:
    try:
        ends = load_certificate(node.pki_directory / CERTIFICATE_FILE).not_valid_after_utc
    except (OSError, NodeError):
        return
    left = ends.timestamp() - time.time()
    yield gauge("clustor.security.cert_expiry_seconds", round(left), "Of this node's certificate")


def process_families() -> Iterator[MetricFamily]:
    """Give the process, under the names that every exporter uses."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    yield counter("process.cpu_seconds_total", used.ru_utime + used.ru_stime, "Processor time")
    try:
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123  # hot enough
            fields = file.read().split()
        yield gauge("process.virtual_memory_bytes", int(fields[0]) * _PAGE_BYTES, "Address space")
        yield gauge("process.resident_memory_bytes", int(fields[1]) * _PAGE_BYTES, "In memory")
        yield gauge("process.open_fds", len(os.listdir("/proc/self/fd")), "Open files")  # noqa: PTH208
    except OSError:
        return
    yield gauge("process.start_time_seconds", _STARTED, "When it began, since 1970")


_STARTED: Final = time.time()
