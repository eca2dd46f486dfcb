"""What a scrape shows of AMQP's queues, by tenant: each partition counts where it is led."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from clustor.telemetry import MetricFamily, MetricKind, by_label
from quantum.protocols.amqp.session.amqp_node import AmqpNode
from quantum.protocols.amqp.session.partition_queues import PartitionQueues

TENANTS_MAX: Final = 100
"""With more tenants than this no series has a tenant's name."""


def few(by_tenant: dict[str, int], join: Callable[[list[int]], int] = sum) -> dict[str, int]:
    """Name no tenant where they are many: a scrape has few series whoever makes tenants."""
    return by_tenant if len(by_tenant) <= TENANTS_MAX else {"all": join(list(by_tenant.values()))}


def queue_families(amqp: AmqpNode, now_ms: int) -> Iterator[MetricFamily | None]:
    """Give the series of queues; None lets others have the loop."""
    led = {
        name: [each for each in home.queues if each.leader.leading]
        for name, home in amqp.tenants.items()
    }
    for name, text, count in _SUMS:
        found = {tenant: sum(map(count, partitions)) for tenant, partitions in led.items()}
        yield by_label(MetricKind.GAUGE, f"quantum.amqp_{name}", "tenant", few(found), text)
        yield None
    ages = {
        tenant: max((_age_ms(each, now_ms) for each in partitions), default=0) // 1000
        for tenant, partitions in led.items()
    }
    text = "How long the oldest message has waited in a queue that is led here, by tenant"
    name = "quantum.amqp_oldest_message_seconds"
    yield by_label(MetricKind.GAUGE, name, "tenant", few(ages, max), text)
    text = "How often peers broke AMQP, by the condition that they were told"
    yield by_label(MetricKind.COUNTER, "quantum.amqp_faults_total", "condition", amqp.faults, text)


def _age_ms(partition: PartitionQueues, now_ms: int) -> int:
    queues = partition.section.queues.values()
    began = [each for each in (queue.oldest_ms() for queue in queues) if each is not None]
    return max(0, now_ms - min(began)) if began else 0


def _queues(partition: PartitionQueues) -> int:
    return len(partition.section.queues)


def _messages(partition: PartitionQueues) -> int:
    return sum(len(each.live) for each in partition.section.queues.values())


def _dead(partition: PartitionQueues) -> int:
    return sum(len(each.dead) for each in partition.section.queues.values())


def _bytes(partition: PartitionQueues) -> int:
    return partition.section.totals.bytes


def _unsettled(partition: PartitionQueues) -> int:
    return partition.unsettled


def _receivers(partition: PartitionQueues) -> int:
    return partition.receiver_count


_SUMS: Final = (
    ("queues", "AMQP queues that are led here, by tenant", _queues),
    ("queue_messages", "Messages in them, by tenant", _messages),
    ("queue_bytes", "What their messages and dead letters weigh, by tenant", _bytes),
    ("dead_letters", "Dead letters in them, by tenant", _dead),
    ("unsettled", "Messages that receivers hold or have just settled, by tenant", _unsettled),
    ("receivers", "Receivers of them, wherever they are connected, by tenant", _receivers),
)
