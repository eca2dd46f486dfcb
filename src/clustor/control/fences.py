"""DR fences: a region stops at proven indexes before another is promoted (quantumqtt §17)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, ClassVar

import msgspec

from clustor.control.calls import Command
from clustor.control.draft import Draft, DraftReading, Refuse, scan
from clustor.control.objects import ControlObject, key_of
from clustor.control.overrides import require_override
from clustor.control.proofs import PublishedProof
from clustor.control.rbac import CallerAuthority
from clustor.control.types import Count, Digest, Name, OverrideScope, RefusalCode
from clustor.kv import Key


class FenceState(StrEnum):
    FENCED = "Fenced"
    PROMOTED = "Promoted"
    LIFTED = "Lifted"


class FencedIndex(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Where a partition stops: the proof that stood when the fence was committed."""

    partition_id: Count
    last_durable_term: Count
    last_durable_index: Count


class DrFence(ControlObject, frozen=True, kw_only=True):
    """FenceCommit. The epoch is one for all partitions of the fence, and only grows."""

    PREFIX: ClassVar[str] = "fence/"
    fence_id: Name
    region: Name
    fence_epoch: Count
    partitions: tuple[FencedIndex, ...]
    state: FenceState
    committed_at: Count
    promoted_region: Name | None = None
    promoted_at: Count | None = None
    override_ref: Name | None = None

    def key(self) -> Key:
        return key_of(DrFence, self.fence_id)


class FenceEpoch(ControlObject, frozen=True, kw_only=True):
    PREFIX: ClassVar[str] = "fence_epoch/"
    fence_epoch: Count

    def key(self) -> Key:
        return key_of(FenceEpoch, "newest")


class StandbyEvidence(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False
):
    """What the standby can prove of a partition: its ledger's index, and the manifest below it."""

    partition_id: Count
    last_durable_term: Count
    last_durable_index: Count
    manifest_hash: Digest


class CommitFence(Command, frozen=True, kw_only=True):
    """Fence partitions of a region at their published proofs."""

    fence_id: Name
    region: Name
    partitions: Annotated[tuple[Count, ...], msgspec.Meta(min_length=1, max_length=4_096)]


class PromoteRegion(Command, frozen=True, kw_only=True):
    """Promote a standby whose ledger reaches every fenced index.

    Where it does not, an override of scope Durability accepts the loss, and says so.
    """

    fence_id: Name
    region: Name
    evidence: Annotated[tuple[StandbyEvidence, ...], msgspec.Meta(max_length=4_096)]
    override_ref: Name | None = None


class LiftFence(Command, frozen=True, kw_only=True):
    """Lift a fence that did not lead to a promotion."""

    fence_id: Name


def on_commit_fence(
    draft: Draft, _authority: CallerAuthority, command: CommitFence
) -> dict[str, Any]:
    draft.absent(DrFence, command.fence_id)
    newest = draft.find(FenceEpoch, "newest")
    epoch = newest.fence_epoch + 1 if newest is not None else 1
    fenced = tuple(_fenced(draft, partition) for partition in sorted(set(command.partitions)))
    draft.put(FenceEpoch(fence_epoch=epoch))
    draft.put(
        DrFence(
            fence_id=command.fence_id,
            region=command.region,
            fence_epoch=epoch,
            partitions=fenced,
            state=FenceState.FENCED,
            committed_at=draft.now_ms,
        )
    )
    return {"fence_epoch": epoch}


def _fenced(draft: Draft, partition_id: int) -> FencedIndex:
    proof = draft.need(PublishedProof, partition_id).proof
    return FencedIndex(
        partition_id=partition_id,
        last_durable_term=proof.last_durable_term,
        last_durable_index=proof.last_durable_index,
    )


def on_promote_region(
    draft: Draft, _authority: CallerAuthority, command: PromoteRegion
) -> dict[str, Any]:
    fence = _fenced_fence(draft, command.fence_id)
    if command.region == fence.region:
        raise Refuse(RefusalCode.INVALID, "the fenced region cannot be promoted")
    reached = {each.partition_id: each for each in command.evidence}
    behind = [
        each.partition_id
        for each in fence.partitions
        if not _reaches(reached.get(each.partition_id), each)
    ]
    if behind and command.override_ref is None:
        raise Refuse(RefusalCode.FENCE_INCOMPLETE, "the standby is behind", partitions=behind[:32])
    if behind:
        require_override(draft, command.override_ref, OverrideScope.DURABILITY, behind[0])
    draft.put(
        msgspec.structs.replace(
            fence,
            state=FenceState.PROMOTED,
            promoted_region=command.region,
            promoted_at=draft.now_ms,
            override_ref=command.override_ref,
        )
    )
    return {"fence_epoch": fence.fence_epoch, "behind": len(behind)}


def fences_of(store: DraftReading) -> dict[int, str]:
    """Return which partitions are fenced, and by what.

    A fence that led to a promotion stands for good: another region has the partition now.
    """
    return {
        each.partition_id: fence.fence_id
        for fence in scan(store, DrFence)
        if fence.state is not FenceState.LIFTED
        for each in fence.partitions
    }


def _reaches(evidence: StandbyEvidence | None, fenced: FencedIndex) -> bool:
    if evidence is None:
        return False
    held = (evidence.last_durable_term, evidence.last_durable_index)
    return held >= (fenced.last_durable_term, fenced.last_durable_index)


def _fenced_fence(draft: Draft, fence_id: str) -> DrFence:
    fence = draft.need(DrFence, fence_id)
    if fence.state is not FenceState.FENCED:
        raise Refuse(RefusalCode.INVALID, "the fence does not stand", state=fence.state)
    return fence


def on_lift_fence(draft: Draft, _authority: CallerAuthority, command: LiftFence) -> dict[str, Any]:
    fence = _fenced_fence(draft, command.fence_id)
    draft.put(msgspec.structs.replace(fence, state=FenceState.LIFTED))
    return {}
