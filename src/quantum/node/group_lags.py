"""How far each consumer group is behind: a metric, and a page for `quantum doctor`.

A group is told of by the node that coordinates it, so that a cluster's nodes together tell of each
once. Where a partition ends is what this node's replica has applied: a follower's word may be a
moment old. A partition that has no replica here is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from heapq import nlargest
from typing import TYPE_CHECKING, Final, NamedTuple

from clustor.telemetry import MetricFamily, MetricKind, labels
from quantum.mesh.topics import TenantTopics

if TYPE_CHECKING:
    from quantum.mesh.tenant import Tenant
    from quantum.node.service import BrokerService

SERIES_MAX: Final = 1_000
"""So many series at most: beyond it partitions are added up by group, then groups by tenant."""
ROWS_MAX: Final = 1_000
_ALL: Final = "all"
_GROUPS_PER_STEP: Final = 50
_PATH: Final = "/kafka/lag"
_TEXT: Final = "Records that a consumer group has not committed, by partition"


class PartitionLag(NamedTuple):
    """One partition that a group has committed."""

    tenant: str
    group: str
    topic: str
    partition: int
    committed: int
    end: int
    members: int
    """How many consumers the group has now."""

    @property
    def lag(self) -> int:
        return max(0, self.end - self.committed)


def tenant_lags(tenant: Tenant) -> Iterator[PartitionLag | None]:
    """Tell of the groups that this node coordinates; None lets others have the loop."""
    topics = tenant.topics
    for prg in range(tenant.prg_count):
        if not topics.leader(prg).is_here:
            continue
        groups = topics.coordinator(prg).groups
        for number, name in enumerate(groups.names()):
            group = groups.get(name)
            if group is None:
                continue  # gone while others had the loop
            members = 0 if group.members is None else len(group.members.members)
            for (topic, partition), row in sorted(group.offsets.committed.items()):
                end = _end(topics, topic, partition)
                if end is not None:
                    facts = (tenant.name, name, topic, partition, row.offset, end, members)
                    yield PartitionLag(*facts)
            if number % _GROUPS_PER_STEP == _GROUPS_PER_STEP - 1:
                yield None


def _end(topics: TenantTopics, name: str, partition: int) -> int | None:
    topic = topics.topic(name)
    view = None if topic is None else topics.partition(topic, partition)
    return None if view is None else view.high_watermark


def lag_family(rows: Iterable[PartitionLag]) -> MetricFamily:
    """Make series of lags, few whoever makes groups and partitions."""
    # A series that is always there: who looks for it learns that nobody is behind.
    sums = {each[:4]: each.lag for each in rows} or {(_ALL, _ALL, _ALL, -1): 0}
    for kept in (2, 1, 0):
        if len(sums) <= SERIES_MAX:
            break
        sums = _added_up(sums, kept)
    series = [
        (labels(tenant=tenant, group=group, topic=topic, partition=str(partition)), lag)
        for (tenant, group, topic, partition), lag in sorted(sums.items(), key=str)
    ]
    return MetricFamily("quantum.kafka_group_lag", MetricKind.GAUGE, _TEXT, list(series))


def _added_up(
    sums: dict[tuple[str, str, str, int], int], kept: int
) -> dict[tuple[str, str, str, int], int]:
    """Keep the tenant (1) or the tenant and the group (2), and add up what is beneath them."""
    found: Counter[tuple[str, str, str, int]] = Counter()
    for (tenant, group, _, _), lag in sums.items():
        kept_tenant, kept_group = (tenant if kept else _ALL), (group if kept > 1 else _ALL)
        found[kept_tenant, kept_group, _ALL, -1] += lag
    return found


class GroupLags:
    """The lags of one node's tenants."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service

    def families(self) -> Iterator[MetricFamily | None]:
        """Give the series; None lets others have the loop."""
        rows: list[PartitionLag] = []
        for tenant in list(self._service.tenants.values()):
            for each in tenant_lags(tenant):
                if each is None:
                    yield None
                else:
                    rows.append(each)
            yield None
        yield lag_family(rows)

    def page(self, path: str, query: dict[str, str]) -> tuple[int, object] | None:
        """Answer for the page, the furthest behind first; None: it is another page."""
        if path != _PATH:
            return None
        wanted = query.get("tenant")
        tenants = [each for each in self._service.tenants.values() if wanted in (None, each.name)]
        rows = [row for each in tenants for row in tenant_lags(each) if row is not None]
        shown = nlargest(ROWS_MAX, rows, key=lambda each: each.lag)
        return 200, {
            "partitions": [{**each._asdict(), "lag": each.lag} for each in shown],
            "left_out": len(rows) - len(shown),
        }
