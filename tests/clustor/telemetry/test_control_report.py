"""The control plane's part of readiness: what it says, or why it says nothing."""

from __future__ import annotations

import pytest

from clustor.control.bundles import ActivationBarrier, BarrierState, WarmupReadiness
from clustor.control.cache import CacheCursor, ClockReading, ControlCache
from clustor.control.features import Feature, FeatureGate, GateState
from clustor.control.objects import ControlObject, canonical
from clustor.control.placement import Members, Placement
from clustor.kv import KvRecord, Revision, StoreId
from clustor.raft.profiles import ControlPlaneNumbers
from clustor.telemetry.control_report import NO_CONTROL_PLANE, control_members

NOW = ClockReading(1_000, 2_000_000)
BARRIER = ActivationBarrier(
    barrier_id="b-2",
    bundle_id="bundle-7",
    readiness_threshold=900_000,
    warmup_deadline=9_000_000,
    readiness_window_ms=60_000,
    partitions=(1, 2),
    state=BarrierState.ARMED,
    armed_at=50,
)


def placed(partition: int) -> Placement:
    return Placement(
        partition_id=partition,
        tenant_id=None,
        members=Members(voters=(1,)),
        load=1,
        routing_epoch=1,
        placement_digest=bytes(32),
        utilization=0,
        survivable=True,
        profile="ConsistencyProfile",
    )


def report_of(partition: int, ratio: int, checkpoint: int) -> WarmupReadiness:
    return WarmupReadiness(
        partition_id=partition,
        bundle_id="bundle-7",
        shadow_apply_checkpoint_index=checkpoint,
        partition_ready_ratio=ratio,
        reported_by=1,
        reported_at=60,
    )


def cache_of(*objects: ControlObject) -> ControlCache:
    cache = ControlCache(ControlPlaneNumbers())
    records = [
        KvRecord(each.key(), canonical(each), Revision(n), Revision(n), 1, 0)
        for n, each in enumerate(sorted(objects, key=lambda each: each.key()), 1)
    ]
    cache.listed(CacheCursor(StoreId(b"s" * 16), Revision(99)), records, asked=NOW, confirmed=True)
    return cache


def test_without_a_control_plane_every_member_is_null_with_its_reason() -> None:
    members, absent = control_members(None, NOW)
    assert set(members.values()) == {None}
    assert set(absent) == set(members)
    assert set(absent.values()) == {NO_CONTROL_PLANE}
    for name in (
        *("definition_bundle_id", "activation_barrier_id", "shadow_apply_state"),
        *("shadow_apply_checkpoint_index", "warmup_ready_ratio"),
        *(f"feature.{feature}_gate_state" for feature in Feature),
        *(f"feature.{feature}_predicate_digest" for feature in Feature),
    ):
        assert name in members, "clustor §8.2"


def test_an_empty_one_says_what_was_never_set() -> None:
    members, absent = control_members(cache_of(), NOW)
    assert members["controlplane.cache_state"] == "Fresh"
    assert members["controlplane.cache_age_ms"] == 0
    assert members["definition_bundle_id"] is None
    assert {name for name, value in members.items() if value is None} == set(absent)


@pytest.mark.parametrize(
    ("reports", "ratio", "checkpoint"),
    [
        ((), None, None),
        ((report_of(1, 1_000_000, 40),), 0.0, 40),
        ((report_of(1, 1_000_000, 40), report_of(2, 950_000, 30)), 0.95, 30),
        ((report_of(1, 1_000_000, 40), report_of(9, 1_000_000, 30)), 0.0, 40),
    ],
    ids=["none", "one of two", "both", "another partition's"],
)
def test_a_barrier_is_as_ready_as_its_least_ready_partition(
    reports: tuple[WarmupReadiness, ...], ratio: float | None, checkpoint: int | None
) -> None:
    members, absent = control_members(cache_of(BARRIER, placed(1), placed(2), *reports), NOW)
    assert members["definition_bundle_id"] == "bundle-7"
    assert members["activation_barrier_id"] == "b-2"
    assert members["warmup_ready_ratio"] == ratio
    assert members["shadow_apply_checkpoint_index"] == checkpoint
    assert ("warmup_ready_ratio" in absent) is (ratio is None)


def test_a_gate_is_shown_with_its_digest() -> None:
    gate = FeatureGate(
        name=Feature.GROUP_FSYNC,
        state=GateState.ENABLED,
        predicate_digest=b"\x0f" * 32,
        changed_at=5,
        changed_by="spiffe://test/operator",
    )
    members, absent = control_members(cache_of(gate), NOW)
    assert members["feature.GroupFsync_gate_state"] == "Enabled"
    assert members["feature.GroupFsync_predicate_digest"] == "0x" + "0f" * 32
    assert "feature.GroupFsync_gate_state" not in absent
    assert absent["feature.LeaseEnable_gate_state"]
