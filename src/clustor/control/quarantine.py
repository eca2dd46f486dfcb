"""Quarantines as the control plane records them: per partition, with a reason (clustor §9.4)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, ClassVar

import msgspec

from clustor.control.calls import Command
from clustor.control.draft import Draft, Refuse
from clustor.control.objects import ControlObject, key_of
from clustor.control.placement import Placement
from clustor.control.rbac import CallerAuthority
from clustor.control.types import Count, RefusalCode, Text
from clustor.kv import Key


class QuarantineCause(StrEnum):
    """Clustor §11.2."""

    INTEGRITY = "Integrity"
    ADMINISTRATIVE = "Administrative"
    APPLY_FAULT = "ApplyFault"


class Quarantine(ControlObject, frozen=True, kw_only=True):
    """A replica of a partition that must not write. Its neighbours are not touched by it."""

    PREFIX: ClassVar[str] = "quarantine/"
    partition_id: Count
    node_id: Count
    cause: QuarantineCause
    detail: Text
    since: Count

    def key(self) -> Key:
        return key_of(Quarantine, self.partition_id, self.node_id)


class QuarantineCleared(ControlObject, frozen=True, kw_only=True):
    """The control plane's acknowledgement that a replica may work again."""

    PREFIX: ClassVar[str] = "quarantine_cleared/"
    partition_id: Count
    node_id: Count
    evidence: Text
    cleared_at: Count

    def key(self) -> Key:
        return key_of(QuarantineCleared, self.partition_id, self.node_id)


class ReportQuarantine(Command, frozen=True, kw_only=True):
    """Record that a replica is in quarantine."""

    partition_id: Count
    node_id: Count
    cause: QuarantineCause
    detail: Text


class ClearQuarantine(Command, frozen=True, kw_only=True):
    """Acknowledge that a replica was rebuilt; `evidence` names the snapshot or log used."""

    partition_id: Count
    node_id: Count
    evidence: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]


class AdminResumePartition(Command, frozen=True, kw_only=True):
    """Let a replica out of quarantine or repair mode without a rebuild: break-glass."""

    partition_id: Count
    node_id: Count
    justification: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]


def on_report_quarantine(
    draft: Draft, authority: CallerAuthority, command: ReportQuarantine
) -> dict[str, Any]:
    authority.require_node(command.node_id)
    placement = draft.need(Placement, command.partition_id)
    if command.node_id not in placement.members.all:
        raise Refuse(RefusalCode.INVALID, "the node has no replica of this partition")
    draft.put(
        Quarantine(
            partition_id=command.partition_id,
            node_id=command.node_id,
            cause=command.cause,
            detail=command.detail,
            since=draft.now_ms,
        )
    )
    return {"since": draft.now_ms}


def on_clear_quarantine(
    draft: Draft, _authority: CallerAuthority, command: ClearQuarantine
) -> dict[str, Any]:
    return _clear(draft, command.partition_id, command.node_id, command.evidence)


def on_admin_resume(
    draft: Draft, _authority: CallerAuthority, command: AdminResumePartition
) -> dict[str, Any]:
    return _clear(draft, command.partition_id, command.node_id, command.justification)


def _clear(draft: Draft, partition_id: int, node_id: int, evidence: str) -> dict[str, Any]:
    draft.need(Quarantine, partition_id, node_id)
    draft.delete(Quarantine, partition_id, node_id)
    draft.put(
        QuarantineCleared(
            partition_id=partition_id,
            node_id=node_id,
            evidence=evidence,
            cleared_at=draft.now_ms,
        )
    )
    return {"cleared_at": draft.now_ms}
