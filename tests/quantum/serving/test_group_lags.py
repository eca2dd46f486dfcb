"""How far groups are behind: rows from the coordinators, few series whoever makes groups."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from clustor.telemetry import encode_families
from quantum.broker.streams import CommitOffsets, CommittedOffset
from quantum.broker.streams.groups import GroupCoordinator
from quantum.node.group_lags import ROWS_MAX, SERIES_MAX, GroupLags, PartitionLag, lag_family


def series(rows: list[PartitionLag]) -> dict[str, float]:
    lines = encode_families([lag_family(rows)]).decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def row(group: int, partition: int, lag: int = 2, tenant: str = "dev") -> PartitionLag:
    return PartitionLag(tenant, f"g{group}", "t", partition, 10, 10 + lag, 0)


def test_each_partition_of_a_group_has_its_series() -> None:
    assert series([row(1, 0), row(1, 1, 0), row(2, 0, 7)]) == {
        'quantum_kafka_group_lag{tenant="dev",group="g1",topic="t",partition="0"}': 2,
        'quantum_kafka_group_lag{tenant="dev",group="g1",topic="t",partition="1"}': 0,
        'quantum_kafka_group_lag{tenant="dev",group="g2",topic="t",partition="0"}': 7,
    }


@pytest.mark.parametrize(
    ("groups", "partitions", "count"),
    [(10, 100, 1_000), (10, 101, 10), (1_001, 1, 1)],
    ids=["all", "by group", "by tenant"],
)
def test_series_are_bounded_and_nothing_of_the_lag_is_lost(
    groups: int, partitions: int, count: int
) -> None:
    rows = [row(group, partition) for group in range(groups) for partition in range(partitions)]
    found = series(rows)
    assert len(found) == count <= SERIES_MAX
    assert sum(found.values()) == 2 * groups * partitions


def test_so_many_tenants_are_one_series() -> None:
    rows = [row(1, 0, tenant=f"t{number}") for number in range(SERIES_MAX + 1)]
    assert list(series(rows).values()) == [2 * (SERIES_MAX + 1)]


def test_a_committed_offset_beyond_a_stale_end_is_no_negative_lag() -> None:
    assert row(1, 0, -5).lag == 0


class OneNode:
    """Topics of one tenant in two PRGs, of which this node leads the first."""

    def __init__(self) -> None:
        self.coordinators = [GroupCoordinator(), GroupCoordinator()]
        self.ends = {("t", 0): 100, ("t", 1): 50}

    def leader(self, prg: int) -> Any:
        return SimpleNamespace(is_here=prg == 0)

    def coordinator(self, prg: int) -> Any:
        return SimpleNamespace(groups=self.coordinators[prg])

    def topic(self, name: str) -> Any:
        return name if any(each == name for each, _ in self.ends) else None

    def partition(self, topic: Any, p: int) -> Any:
        end = self.ends.get((topic, p))
        return None if end is None else SimpleNamespace(high_watermark=end)

    def commit(self, prg: int, group: str, **offsets: int) -> None:
        rows = tuple(
            ((name.rpartition("_")[0], int(name.rpartition("_")[2])), CommittedOffset(offset))
            for name, offset in offsets.items()
        )
        self.coordinators[prg].apply(CommitOffsets(1, group, -1, "", rows))


def lags_of(topics: OneNode) -> GroupLags:
    tenant = SimpleNamespace(name="dev", prg_count=2, topics=topics)
    return GroupLags(cast("Any", SimpleNamespace(tenants={"dev": tenant})))


def page(lags: GroupLags, **query: str) -> dict[str, Any]:
    answer = lags.page("/kafka/lag", query)
    assert answer is not None and answer[0] == 200
    return cast("dict[str, Any]", answer[1])


def test_a_node_tells_of_the_groups_that_it_coordinates_the_furthest_behind_first() -> None:
    topics = OneNode()
    topics.commit(0, "mine", t_0=90, t_1=10, gone_0=5, t_7=1)
    topics.commit(1, "another-node-s", t_0=0)
    lags = lags_of(topics)
    found = page(lags)
    assert [(each["group"], each["partition"], each["lag"]) for each in found["partitions"]] == [
        ("mine", 1, 40),
        ("mine", 0, 10),
    ]
    assert found["partitions"][0]["members"] == 0 and found["left_out"] == 0
    assert page(lags, tenant="other")["partitions"] == []
    assert lags.page("/kafka/other", {}) is None
    (family,) = [each for each in lags.families() if each is not None]
    assert sum(value for _, value in family.series) == 50


def test_the_page_is_bounded_and_says_what_it_left_out() -> None:
    topics = OneNode()
    for number in range(ROWS_MAX + 7):
        topics.commit(0, f"g{number}", t_0=100 - number % 100)
    found = page(lags_of(topics))
    assert (len(found["partitions"]), found["left_out"]) == (ROWS_MAX, 7)
    shown = [each["lag"] for each in found["partitions"]]
    assert shown == sorted(shown, reverse=True)
