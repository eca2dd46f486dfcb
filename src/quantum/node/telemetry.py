"""What the broker counts and shows: publishes, refusals, queues, streams (quantumqtt §13.6).

What the hot path counts is in ints and lists (`BrokerMeters`), read when somebody scrapes.
Everything else is read from the tables themselves, a thousand sessions at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from clustor.telemetry import MetricFamily, MetricKind, by_label, counter, gauge, labels
from clustor.telemetry.exposition import histogram
from quantum.broker.full_queues import FullQueue
from quantum.broker.limiting import is_over_quota
from quantum.node.queue_telemetry import few, queue_families
from quantum.protocols.mqtt.codec import ReasonCode
from quantum.protocols.mqtt.session.connection import MqttConnection
from quantum.protocols.mqtt.session.partition_sessions import PartitionSessions
from quantum.protocols.mqtt.session.tenant_sessions import TenantClient
from quantum.tenancy import FullQueueChoice

if TYPE_CHECKING:
    from quantum.node.service import BrokerService

SESSIONS_PER_STEP: Final = 1_000
_OVERLOAD: Final = frozenset(
    (ReasonCode.QUOTA_EXCEEDED, ReasonCode.SERVER_BUSY, ReasonCode.CONNECTION_RATE_EXCEEDED)
)
_SECONDS_PER_TICK: Final = 0.010


class _PrgTotals:
    """What all partitions of this node hold, added up."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    @property
    def waiting(self) -> int:
        """Messages in the queues of sessions, sent or not."""
        return self.counts["queued"] + self.counts["in_flight"]

    def add(self, sessions: PartitionSessions[TenantClient]) -> Iterator[None]:
        prg, counts = sessions.leader, self.counts
        state = prg.broker.state
        counts["partitions"] += 1
        counts["served"] += prg.leading
        counts["sessions"] += len(state.sessions)
        counts["connected"] += len(sessions.connections)
        counts["filters"] += len(state.filters)
        counts["subscriptions"] += state.subscription_count
        counts["retained"] += len(state.retained)
        counts["retained_bytes"] += state.retained_bytes
        counts["over_quota"] += is_over_quota(state)
        counts["stores_full"] += prg.number in state.full_stores
        counts["full"] += len(state.routes.full)
        counts["expired"] += state.dropped
        counts["backlog_bytes"] += prg.backlog.amount
        counts["stalled"] += prg.stalled
        counts["forward_unanswered"] += sum(map(len, prg.forwards.values()))
        counts["forward_ticks"] += prg.forward_wait_ticks
        for outbox in state.channels.outboxes().values():
            counts["stream_items"] += len(outbox.items)
            counts["stream_bytes"] += outbox.weight
        for number, session in enumerate(list(state.sessions.values())):
            outbound = session.outbound
            counts["queued"] += len(outbound.queue)
            counts["in_flight"] += len(outbound.in_flight)
            counts["queued_bytes"] += outbound.weight
            counts["dedupe"] += len(session.received)
            if number % SESSIONS_PER_STEP == SESSIONS_PER_STEP - 1:
                yield None


class BrokerTelemetry:
    """The series of one broker node."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service

    def families(self) -> Iterator[MetricFamily | None]:
        """Give all series; None lets others have the loop."""
        yield from self._hot()
        totals, waiting = _PrgTotals(), {}
        for tenant in self._service.mqtt.tenants.values():
            before = totals.waiting
            for sessions in tenant.sessions:
                yield from totals.add(sessions)
                yield None
            waiting[tenant.name] = totals.waiting - before
        yield from self._held(totals.counts)
        yield from self._tenants(waiting)
        yield from queue_families(self._service.amqp, self._service.now_ms())
        yield from self._lags()

    def _dropped(self) -> dict[str, int]:
        """Count what was dropped, by its cause; each partition where it is led."""
        found = {"slow-client": self._service.mqtt.dropped}
        found |= {
            f"queue-{each.value}": 0
            for each in FullQueueChoice
            if each is not FullQueueChoice.BLOCK
        }
        for tenant in self._service.tenants.values():
            for prg in tenant.prgs:
                for policy, count in prg.broker.state.dropped_full.items() if prg.leading else ():
                    found[f"queue-{FullQueue(policy).name.lower().replace('_', '-')}"] += count
        return found

    def _hot(self) -> Iterator[MetricFamily]:
        service, meters = self._service, self._service.mqtt.meters
        yield _by_qos("quantum.publishes_received_total", meters.publishes_in, "From clients")
        yield _by_qos("quantum.publishes_sent_total", meters.publishes_out[::2], "To clients")
        yield gauge("quantum.connections", service.mqtt.connections, "Connections here")
        yield counter("quantum.connects_total", meters.connects, "Connections ever opened")
        text = "Clients that stayed connected while their session found another leader"
        yield counter("quantum.resumed_total", meters.resumed, text)
        text = "Messages that were dropped: a client did not take them, or its queue was full (C24)"
        yield by_label(MetricKind.COUNTER, "quantum.dropped_total", "cause", self._dropped(), text)
        yield _by_reason("quantum.refused_total", meters.refused)
        ended = {_reason_name(code): count for code, count in meters.disconnects.items()}
        text = "Connections that the broker ended"
        yield by_label(MetricKind.COUNTER, "quantum.disconnects_total", "reason", ended, text)
        overload = sum(count for (_, code), count in meters.refused.items() if code in _OVERLOAD)
        yield counter("quantum.reject_overload_total", overload, "Refused for load or quota")
        yield from self._door()
        faults = {_reason_name(code): count for code, count in meters.faults.items()}
        text = "Packets that break the protocol, by the reason code that answers them"
        yield by_label(MetricKind.COUNTER, "quantum.faults_total", "reason", faults, text)
        text = (
            "From the arrival of a QoS 1 or 2 publish to its PUBACK or PUBREC: fsynced on a quorum"
        )
        yield histogram("quantum.publish_ack_seconds", meters.publish_ack_seconds, text)
        both = meters.forwarded + meters.local
        ratio = meters.forwarded / both if both else 0.0
        yield gauge("quantum.cross_prg_ratio", ratio, "Logged publishes that change partitions")

    def _door(self) -> Iterator[MetricFamily]:
        service, lobby = self._service, self._service.lobby
        if lobby is not None:
            came, text = lobby.counts.as_dict(), "What came to the door, and what became of it"
            yield by_label(MetricKind.COUNTER, "quantum.door_total", "what", came, text)
            yield gauge("quantum.half_open", lobby.half_open, "Connections without an answer yet")
        text = "Tenants whose trust bundle cannot be used: none of their certificates is believed"
        yield gauge("quantum.tenants_distrusted", service.distrusted, text)
        large = service.mqtt.large
        yield gauge("quantum.large_packet_bytes", large.bytes, "Large packets on their way in")
        yield gauge("quantum.large_packets_waiting", large.waiting, "Clients that wait for room")

    def _held(self, counts: Counter[str]) -> Iterator[MetricFamily]:
        depths = {
            "offline": counts["queued"],
            "in_flight": counts["in_flight"],
            "stalled": counts["stalled"],
            "forward": counts["forward_unanswered"],
            "stream": counts["stream_items"],
            "dedupe": counts["dedupe"],
        }
        yield by_label(
            MetricKind.GAUGE, "quantum.queue_depth", "type", depths, "What waits, by where"
        )
        for name, key, text in _GAUGES:
            yield gauge(f"quantum.{name}", counts[key], text)
        expired = counts["expired"]
        yield counter("quantum.messages_expired_total", expired, "Dropped unsent by replicas here")
        seconds = counts["forward_ticks"] * _SECONDS_PER_TICK
        text = "Adds up the time in which publishes waited for another partition"
        yield gauge("quantum.forward_backpressure_seconds", round(seconds, 3), text)

    def _tenants(self, waiting: dict[str, int]) -> Iterator[MetricFamily]:
        tenants, mqtt = self._service.tenants, self._service.mqtt.tenants
        for name, attribute, text in _TENANT_COUNTERS:
            sums = few({each: getattr(clients, attribute) for each, clients in mqtt.items()})
            yield by_label(MetricKind.COUNTER, f"quantum.{name}", "tenant", sums, text)
        text = (
            "Messages that wait for sessions or are not acknowledged, in replicas here, by tenant"
        )
        yield by_label(
            MetricKind.GAUGE, "quantum.tenant_queue_messages", "tenant", few(waiting), text
        )
        throttled = few({name: tenant.throttled for name, tenant in tenants.items()})
        text = "Times that clients were left unread"
        name = "quantum.tenant_throttle_events_total"
        yield by_label(MetricKind.COUNTER, name, "tenant", throttled, text)
        held = few({name: tenant.guard.connections for name, tenant in tenants.items()})
        name, text = "quantum.tenant_connections", "Connections here, by tenant"
        yield by_label(MetricKind.GAUGE, name, "tenant", held, text)
        alerts = few({name: len(tenant.guard.alerts) for name, tenant in tenants.items()})
        name, text = "quantum.tenant_quota_alerts", "Quotas at 0.95 or more, by tenant"
        yield by_label(MetricKind.GAUGE, name, "tenant", alerts, text)
        windows = [
            connection.outward.sight().window
            for clients in mqtt.values()
            for connection in clients.connected()
            if isinstance(connection, MqttConnection) and connection.outward is not None
        ]
        yield gauge("quantum.leader_credit_hint", min(windows, default=0), "Smallest window")

    def _lags(self) -> Iterator[MetricFamily]:
        applied, replicated = 0.0, 0.0
        for tenant in self._service.tenants.values():
            for prg in tenant.prgs:
                if prg.leading:
                    lags = prg.group.admission.lags().values()
                    replicated = max(replicated, *(lag.lag_ms / 1000 for lag in lags), 0.0)
                    write_ms = prg.group.replica.group.durability.oldest_write_age_ms()
                    applied = max(applied, write_ms / 1000)
        yield gauge("quantum.apply_lag_seconds", applied, "Age of the oldest unfinished write")
        yield gauge("quantum.replication_lag_seconds", replicated, "Of the slowest follower")


_TENANT_COUNTERS: Final = (
    ("tenant_received_bytes_total", "bytes_in", "MQTT bytes from clients served here, by tenant"),
    ("tenant_sent_bytes_total", "bytes_out", "MQTT bytes to clients served here, by tenant"),
    ("tenant_deliveries_total", "deliveries", "Messages sent to clients served here, by tenant"),
    ("tenant_dropped_total", "dropped", "Messages that a client could not take, by tenant"),
)
_GAUGES: Final = (
    ("partitions", "partitions", "Partitions with a replica here"),
    ("partitions_served", "served", "Partitions whose sessions run here"),
    ("sessions", "sessions", "Sessions in the log"),
    ("sessions_connected", "connected", "Clients connected to partitions served here"),
    ("sessions_full", "full", "Sessions whose queue is full: their topics refuse publishes"),
    ("subscriptions", "subscriptions", "Subscriptions"),
    ("filters", "filters", "Distinct filters"),
    ("retained_messages", "retained", "Retained messages"),
    ("retained_bytes", "retained_bytes", "What they weigh"),
    ("queued_bytes", "queued_bytes", "What waits for clients"),
    ("backlog_bytes", "backlog_bytes", "What waits for the log"),
    ("stream_bytes", "stream_bytes", "What waits for other partitions"),
    ("partitions_over_quota", "over_quota", "Partitions that hold more than their part of a quota"),
    ("stores_full", "stores_full", "Partitions whose queues hold all that their tenant may have"),
)


def _by_qos(name: str, counts: list[int], text: str) -> MetricFamily:
    values = {str(qos): count for qos, count in enumerate(counts)}
    return by_label(MetricKind.COUNTER, name, "qos", values, f"Publishes, by QoS: {text}")


def _by_reason(name: str, refused: Counter[tuple[str, int]]) -> MetricFamily:
    series = [
        (labels(packet=packet, reason=_reason_name(code)), count)
        for (packet, code), count in sorted(refused.items())
    ]
    return MetricFamily(
        name, MetricKind.COUNTER, "Answers that refuse, by packet and why", list(series)
    )


def _reason_name(code: int) -> str:
    try:
        return ReasonCode(code).name.lower()
    except ValueError:
        return f"0x{code:02x}"
