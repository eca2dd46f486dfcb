"""What is scraped is what Prometheus' own parser reads; few series whatever the groups are."""

from __future__ import annotations

import random
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from clustor.telemetry import (
    DETAIL_BYTES_MAX,
    GroupReading,
    MetricFamily,
    MetricKind,
    NodeMeters,
    Totals,
    by_label,
    counter,
    detail_families,
    encode_families,
    gauge,
    histogram,
    labels,
    meter_families,
    schema_families,
)
from clustor.telemetry.meters import Histogram

GROUPS = 10_000


def read(families: list[MetricFamily]) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Parse what was encoded; give the values by name and labels."""
    return _values(encode_families(families).decode())


def _values(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = tuple(sorted(sample.labels.items()))
            found.setdefault(sample.name, {})[key] = sample.value
    return found


def test_names_labels_and_values_survive_the_parser() -> None:
    ugly = 'quo"te\\ and\nline'
    found = read(
        [
            counter("clustor.wal.syncs_total", 7, 'help with \\ and\na "line"'),
            gauge("clustor.flow.credit_share_min", 0.25, "a share"),
            by_label(
                MetricKind.GAUGE, "clustor.raft.role", "role", {ugly: 2, "Leader": 1}, "roles"
            ),
        ]
    )
    assert found["clustor_wal_syncs_total"] == {(): 7.0}
    assert found["clustor_flow_credit_share_min"] == {(): 0.25}
    assert found["clustor_raft_role"] == {(("role", ugly),): 2.0, (("role", "Leader"),): 1.0}


def test_a_histogram_is_cumulative_and_ends_in_inf() -> None:
    observed = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 99.0):
        observed.observe(value)
    found = read([histogram("clustor.wal.fsync_latency_ms", observed, "syncs")])
    assert found["clustor_wal_fsync_latency_ms_bucket"] == {
        (("le", "1.0"),): 2.0,
        (("le", "2.0"),): 3.0,
        (("le", "+Inf"),): 4.0,
    }
    assert found["clustor_wal_fsync_latency_ms_count"] == {(): 4.0}
    assert found["clustor_wal_fsync_latency_ms_sum"] == {(): 102.0}


def test_a_family_without_series_is_left_out() -> None:
    assert (
        encode_families([by_label(MetricKind.GAUGE, "clustor.raft.role", "role", {}, "roles")])
        == b""
    )


def drawn(rng: random.Random, partition: int) -> GroupReading:
    return GroupReading(
        partition,
        role=rng.choice(["Leader", "Follower", "PreCandidate"]),
        term=rng.randrange(1, 1 << 20),
        commit_index=rng.randrange(1 << 40),
        applied_index=rng.randrange(1 << 40),
        durable_index=rng.randrange(1 << 40),
        lag_bytes=rng.randrange(1 << 30),
        credit_share=round(rng.random(), 4),
        throttle_reason=rng.choice(["", "WALDevice", "FollowerLag"]),
        strict_fallback_pending_entries=rng.randrange(1 << 20),
        gate_blocked={"ReadIndex": rng.randrange(5)},
        is_leaderless=rng.random() < 0.01,
    )


def readings(count: int = GROUPS) -> list[GroupReading]:
    rng = random.Random(count)
    return [drawn(rng, partition) for partition in range(1, count + 1)]


def test_ten_thousand_groups_are_as_few_series_as_ten() -> None:
    sizes = {}
    for count in (10, GROUPS):
        totals = Totals()
        for reading in readings(count):
            totals.add(reading)
        found = _values(encode_families(totals.families()).decode())
        sizes[count] = sum(map(len, found.values()))
        assert found["clustor_raft_groups"] == {(): float(count)}
        assert sum(found["clustor_raft_role"].values()) == count
    assert sizes[GROUPS] <= sizes[10] + 10


def test_sums_and_extremes_are_those_of_the_groups() -> None:
    some, totals = readings(50), Totals()
    for reading in some:
        totals.add(reading)
    found = _values(encode_families(totals.families()).decode())
    assert found["clustor_raft_commits_total"] == {(): sum(g.commit_index for g in some)}
    assert found["clustor_flow_follower_lag_bytes"] == {(): max(g.lag_bytes for g in some)}
    assert found["clustor_flow_credit_share_min"] == {(): min(g.credit_share for g in some)}
    blocked = found["clustor_raft_strict_fallback_gate_blocked_total"]
    assert blocked == {
        (("operation", "ReadIndex"),): sum(g.gate_blocked["ReadIndex"] for g in some)
    }


def test_a_scrape_of_ten_thousand_groups_is_short_and_small() -> None:
    """With detail too: what does not fit is counted, not sent."""
    groups = readings()
    began = time.process_time()
    totals = Totals()
    for reading in groups:
        totals.add(reading)
    plain = encode_families(
        [*schema_families("abc", "0.1.0+abc"), *meter_families(NodeMeters()), *totals.families()]
    )
    took = time.process_time() - began
    began = time.process_time()
    detailed = encode_families(detail_families(groups))
    took_detail = time.process_time() - began
    print(f"\n{GROUPS} groups: {took * 1000:.0f} ms and {len(plain)} bytes; ", end="")
    print(f"detail {took_detail * 1000:.0f} ms and {len(detailed)} bytes")
    assert took < 1.0 and took_detail < 1.0
    assert len(plain) < 64 << 10
    assert len(detailed) < 2 << 20
    found = _values(detailed.decode())
    shown = len(found["clustor_raft_group_term"])
    assert shown > 1_000
    assert found["metrics_detail_groups_left_off"] == {(): float(GROUPS - shown)}


@pytest.mark.parametrize("room", [20 << 10, 64 << 10, DETAIL_BYTES_MAX])
def test_detail_never_exceeds_its_room(room: int) -> None:
    encoded = encode_families(detail_families(readings(3_000), bytes_max=room))
    assert len(encoded) <= room
    found = _values(encoded.decode())
    assert len({len(each) for name, each in found.items() if "_group_" in name}) == 1


def test_labels_are_escaped_once() -> None:
    assert labels(a='x"y', b="1") == 'a="x\\"y",b="1"'


def test_every_counter_is_named_as_one() -> None:
    """A parser of the newer format drops a counter that does not end in _total."""
    totals = Totals()
    totals.add(GroupReading(1, gate_blocked={"Lease": 1}))
    every = [*meter_families(NodeMeters()), *totals.families(), *detail_families([])]
    named = [family.name for family in every if family.kind is MetricKind.COUNTER]
    assert named
    assert all(name.endswith("_total") for name in named), named
