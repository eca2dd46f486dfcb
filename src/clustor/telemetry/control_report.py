"""The control plane's part of `/readyz`: bundle, barrier, warm-up and feature gates (§8.2)."""

from __future__ import annotations

from typing import Final

from clustor.control.bundles import ActivationBarrier, BarrierState, WarmupReadiness, ready_ratio
from clustor.control.cache import ClockReading, ControlCache
from clustor.control.draft import find, scan
from clustor.control.features import Feature, FeatureGate
from clustor.control.types import MILLION

NO_CONTROL_PLANE: Final = "no control plane is attached to this node"
_NO_BARRIER: Final = "no activation barrier was ever armed"
_NO_SHADOW: Final = "no shadow apply was reported for this bundle"
_BARRIER_MEMBERS: Final = (
    "definition_bundle_id",
    "activation_barrier_id",
    "activation_barrier_state",
    "shadow_apply_state",
    "shadow_apply_checkpoint_index",
    "warmup_ready_ratio",
)


def control_members(
    cache: ControlCache | None, now: ClockReading
) -> tuple[dict[str, object], dict[str, str]]:
    """Return the members, and for each that is None the reason why it is."""
    if cache is None:
        members: dict[str, object] = dict.fromkeys(
            ("controlplane.cache_state", "controlplane.cache_age_ms", *_BARRIER_MEMBERS)
        )
        for feature in Feature:
            members |= dict.fromkeys(_feature_names(feature))
        return members, dict.fromkeys(members, NO_CONTROL_PLANE)
    found: dict[str, object] = {
        "controlplane.cache_state": str(cache.state(now)),
        "controlplane.cache_age_ms": cache.age_ms(now),
        "controlplane.cache_expiry_total": cache.cache_expiry_total,
    }
    absent = {"controlplane.cache_age_ms": "never heard"} if cache.age_ms(now) is None else {}
    for part, why in (_barrier(cache), _features(cache)):
        found |= part
        absent |= why
    return found, absent


def _barrier(cache: ControlCache) -> tuple[dict[str, object], dict[str, str]]:
    barriers = sorted(scan(cache, ActivationBarrier), key=lambda each: each.armed_at)
    if not barriers:
        return dict.fromkeys(_BARRIER_MEMBERS), dict.fromkeys(_BARRIER_MEMBERS, _NO_BARRIER)
    newest = barriers[-1]
    reports = [
        each
        for each in scan(cache, WarmupReadiness, newest.bundle_id)
        if each.partition_id in newest.partitions
    ]
    members: dict[str, object] = {
        "definition_bundle_id": newest.bundle_id,
        "activation_barrier_id": newest.barrier_id,
        "activation_barrier_state": str(newest.state),
        "shadow_apply_state": _shadow_state(newest, len(reports)),
        "shadow_apply_checkpoint_index": None,
        "warmup_ready_ratio": None,
    }
    if not reports:
        why = dict.fromkeys(("shadow_apply_checkpoint_index", "warmup_ready_ratio"), _NO_SHADOW)
        return members, why
    members["shadow_apply_checkpoint_index"] = min(
        each.shadow_apply_checkpoint_index for each in reports
    )
    ratios = [
        ready_ratio(cache, each, (one for one in reports if one.partition_id == each))
        for each in newest.partitions
    ]
    members["warmup_ready_ratio"] = min(ratios) / MILLION
    return members, {}


def _shadow_state(barrier: ActivationBarrier, reports: int) -> str:
    if barrier.state is not BarrierState.ARMED:
        return str(barrier.state)
    return "Warming" if reports else "Waiting"


def _features(cache: ControlCache) -> tuple[dict[str, object], dict[str, str]]:
    members: dict[str, object] = {}
    absent: dict[str, str] = {}
    for feature in Feature:
        gate = find(cache, FeatureGate, feature.value)
        state, digest = _feature_names(feature)
        members[state] = None if gate is None else str(gate.state)
        members[digest] = None if gate is None else "0x" + gate.predicate_digest.hex()
        if gate is None:
            absent |= dict.fromkeys((state, digest), "the control plane never set this gate")
    return members, absent


def _feature_names(feature: Feature) -> tuple[str, str]:
    return f"feature.{feature}_gate_state", f"feature.{feature}_predicate_digest"
