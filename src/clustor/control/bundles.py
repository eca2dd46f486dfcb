"""Definition bundles, and the barriers behind which they become active (clustor §9.7).

Every replica of a partition tries a bundle beside what is in force and reports for itself. A
partition is as ready as its voters are on average: one that says nothing counts as not ready at
all. So a threshold of a million wants every voter warm, one of 600,000 two of three.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from hashlib import sha256
from typing import Annotated, Any, ClassVar, Final

import msgspec

from clustor.control.calls import Command
from clustor.control.draft import Draft, DraftReading, Refuse, find, scan
from clustor.control.objects import ControlObject, canonical, key_of
from clustor.control.placement import Placement
from clustor.control.rbac import CallerAuthority
from clustor.control.types import Count, Digest, Name, Ratio, RefusalCode, Text
from clustor.kv import Key

BLOB_BYTES_MAX: Final = 512 * 1024


class DefinitionBundle(ControlObject, frozen=True, kw_only=True):
    PREFIX: ClassVar[str] = "bundle/"
    bundle_id: Name
    version: Count
    sha256: Digest
    definition_blob: bytes
    warmup_recipe: Text
    published_at: Count

    def key(self) -> Key:
        return key_of(DefinitionBundle, self.bundle_id)


class BarrierState(StrEnum):
    ARMED = "Armed"
    ACTIVATED = "Activated"
    EXPIRED = "Expired"


class ActivationBarrier(ControlObject, frozen=True, kw_only=True):
    """All partitions become ready before `warmup_deadline`, or nothing is activated.

    `warmup_deadline` is a moment, `readiness_window_ms` how old a report may be when it counts.
    """

    PREFIX: ClassVar[str] = "barrier/"
    barrier_id: Name
    bundle_id: Name
    readiness_threshold: Ratio
    warmup_deadline: Count
    readiness_window_ms: Count
    partitions: tuple[Count, ...]
    state: BarrierState
    armed_at: Count
    readiness_digest: Digest | None = None
    activated_at: Count | None = None

    def key(self) -> Key:
        return key_of(ActivationBarrier, self.barrier_id)


class WarmupReadiness(ControlObject, frozen=True, kw_only=True):
    """What one replica of a partition said last of a bundle."""

    PREFIX: ClassVar[str] = "readiness/"
    partition_id: Count
    bundle_id: Name
    shadow_apply_checkpoint_index: Count
    partition_ready_ratio: Ratio
    reported_by: Count
    reported_at: Count

    def key(self) -> Key:
        return key_of(WarmupReadiness, self.bundle_id, self.partition_id, self.reported_by)


class PublishBundle(Command, frozen=True, kw_only=True):
    """Publish a definition bundle; its digest is checked here and again by every node."""

    bundle_id: Name
    version: Count
    sha256: Digest
    definition_blob: Annotated[bytes, msgspec.Meta(max_length=BLOB_BYTES_MAX)]
    warmup_recipe: Text = ""


class ArmBarrier(Command, frozen=True, kw_only=True):
    """Arm an activation barrier for a bundle."""

    barrier_id: Name
    bundle_id: Name
    readiness_threshold: Ratio
    warmup_deadline_ms: Annotated[int, msgspec.Meta(ge=1, le=604_800_000)]
    readiness_window_ms: Annotated[int, msgspec.Meta(ge=1, le=604_800_000)]
    partitions: Annotated[tuple[Count, ...], msgspec.Meta(min_length=1, max_length=4_096)]


class ReportWarmup(Command, frozen=True, kw_only=True):
    """Report how far the shadow apply of a node's replica is with a bundle."""

    node_id: Count
    partition_id: Count
    bundle_id: Name
    shadow_apply_checkpoint_index: Count
    partition_ready_ratio: Ratio


class DefineActivate(Command, frozen=True, kw_only=True):
    """Activate a barrier's bundle, if every partition is ready in time; groups then switch."""

    barrier_id: Name


def on_publish_bundle(
    draft: Draft, _authority: CallerAuthority, command: PublishBundle
) -> dict[str, Any]:
    draft.absent(DefinitionBundle, command.bundle_id)
    if sha256(command.definition_blob).digest() != command.sha256:
        raise Refuse(RefusalCode.INVALID, "the digest is not the blob's")
    draft.put(
        DefinitionBundle(
            bundle_id=command.bundle_id,
            version=command.version,
            sha256=command.sha256,
            definition_blob=command.definition_blob,
            warmup_recipe=command.warmup_recipe,
            published_at=draft.now_ms,
        )
    )
    return {"bundle_id": command.bundle_id}


def on_arm_barrier(
    draft: Draft, _authority: CallerAuthority, command: ArmBarrier
) -> dict[str, Any]:
    draft.absent(ActivationBarrier, command.barrier_id)
    draft.need(DefinitionBundle, command.bundle_id)
    for partition_id in command.partitions:
        draft.need(Placement, partition_id)
    deadline = draft.now_ms + command.warmup_deadline_ms
    draft.put(
        ActivationBarrier(
            barrier_id=command.barrier_id,
            bundle_id=command.bundle_id,
            readiness_threshold=command.readiness_threshold,
            warmup_deadline=deadline,
            readiness_window_ms=command.readiness_window_ms,
            partitions=tuple(sorted(set(command.partitions))),
            state=BarrierState.ARMED,
            armed_at=draft.now_ms,
        )
    )
    return {"warmup_deadline": deadline}


def on_report_warmup(
    draft: Draft, authority: CallerAuthority, command: ReportWarmup
) -> dict[str, Any]:
    authority.require_node(command.node_id)
    draft.need(DefinitionBundle, command.bundle_id)
    placement = draft.need(Placement, command.partition_id)
    if command.node_id not in placement.members.all:
        raise Refuse(RefusalCode.INVALID, "the node has no replica of this partition")
    draft.put(
        WarmupReadiness(
            partition_id=command.partition_id,
            bundle_id=command.bundle_id,
            shadow_apply_checkpoint_index=command.shadow_apply_checkpoint_index,
            partition_ready_ratio=command.partition_ready_ratio,
            reported_by=command.node_id,
            reported_at=draft.now_ms,
        )
    )
    return {}


def on_define_activate(
    draft: Draft, _authority: CallerAuthority, command: DefineActivate
) -> dict[str, Any]:
    barrier = draft.need(ActivationBarrier, command.barrier_id)
    if barrier.state is not BarrierState.ARMED:
        raise Refuse(RefusalCode.INVALID, "the barrier is not armed", state=barrier.state)
    if draft.now_ms > barrier.warmup_deadline:
        draft.put(msgspec.structs.replace(barrier, state=BarrierState.EXPIRED))
        raise Refuse(
            RefusalCode.ACTIVATION_BARRIER_EXPIRED,
            "arm a new barrier",
            keep_changes=True,
            warmup_deadline=barrier.warmup_deadline,
        )
    partitions = barrier.partitions
    reports = {
        each: recent_reports(draft.store, barrier, each, draft.now_ms) for each in partitions
    }
    waiting = [
        each
        for each in partitions
        if ready_ratio(draft.store, each, reports[each]) < barrier.readiness_threshold
    ]
    if waiting:
        raise Refuse(RefusalCode.NOT_READY, "partitions are not ready", partitions=waiting[:32])
    counted = [record for each in partitions for record in reports[each]]
    digest = sha256(canonical(counted)).digest()  # by partition, then by node
    draft.put(
        msgspec.structs.replace(
            barrier,
            state=BarrierState.ACTIVATED,
            readiness_digest=digest,
            activated_at=draft.now_ms,
        )
    )
    return {"readiness_digest": digest}


def recent_reports(
    store: DraftReading, barrier: ActivationBarrier, partition_id: int, now_ms: int
) -> list[WarmupReadiness]:
    """Return what the replicas of a partition said lately enough for a barrier, by node."""
    found = [
        each
        for each in scan(store, WarmupReadiness, barrier.bundle_id, partition_id)
        if now_ms - each.reported_at <= barrier.readiness_window_ms
    ]
    return sorted(found, key=lambda each: each.reported_by)


def ready_ratio(store: DraftReading, partition_id: int, reports: Iterable[WarmupReadiness]) -> int:
    """Return how ready a partition is, in millionths: the mean of its voters."""
    placement = find(store, Placement, partition_id)
    voters = placement.members.voters if placement is not None else ()
    if not voters:
        return 0
    said = {each.reported_by: each.partition_ready_ratio for each in reports}
    return sum(said.get(voter, 0) for voter in voters) // len(voters)


# The node's side.


def on_trial(store: DraftReading, partition_id: int, now_ms: int) -> ActivationBarrier | None:
    """Return the barrier whose bundle a partition's replicas try now: the one armed last."""
    armed = [
        each
        for each in scan(store, ActivationBarrier)
        if each.state is BarrierState.ARMED
        and partition_id in each.partitions
        and now_ms <= each.warmup_deadline
    ]
    return max(armed, key=lambda each: (each.armed_at, each.barrier_id), default=None)


def activated(store: DraftReading, partition_id: int) -> ActivationBarrier | None:
    """Return the barrier that opened last for a partition: its bundle shall be in force."""
    opened = [
        each
        for each in scan(store, ActivationBarrier)
        if each.state is BarrierState.ACTIVATED and partition_id in each.partitions
    ]
    return max(opened, key=lambda each: (each.activated_at or 0, each.barrier_id), default=None)


def report_warmup_is_due(
    held: WarmupReadiness | None, wanted: ReportWarmup, window_ms: int, now_ms: int
) -> bool:
    """Say whether a replica must report: its readiness changed, or its word grows old."""
    if held is None or held.partition_ready_ratio != wanted.partition_ready_ratio:
        return True
    return now_ms - held.reported_at >= window_ms // 2
