"""A partition's durability mode: what is placed, what its group has, and what keeps them apart.

An operator's SetDurabilityMode gives out an epoch. The group's leader appends the fence for it as
soon as the predicate of clustor §9.3 holds, and records here either the epoch that is in force or
the clause that forbids it. A clause that stood for a moment does not undo the order: the leader
asks its group again, and who does not want it any more orders Strict.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from clustor.control.calls import Command
from clustor.control.draft import Draft, Refuse
from clustor.control.objects import ControlObject, key_of
from clustor.control.placement import Placement, voters_of
from clustor.control.rbac import CallerAuthority
from clustor.control.types import Count, ModeName, RefusalCode, Text
from clustor.kv import Key
from clustor.log.group_fsync import GroupFsyncClause
from clustor.log.types import DurabilityMode, DurabilityModeEpoch
from clustor.raft.transition import Transition


class DurabilityState(ControlObject, frozen=True, kw_only=True):
    """What a group's leader said last of its mode. Terms and epochs only grow."""

    PREFIX: ClassVar[str] = "durability/"
    partition_id: Count
    mode: ModeName  # committed and fenced in the group's ledger
    durability_mode_epoch: Count
    term: Count  # of the leader that said it
    node_id: Count
    refused_epoch: Count = 0  # placed, and not in force because of …
    refused_clause: Text = ""  # … this clause of §9.3; none: nothing waits
    recorded_at: Count

    def key(self) -> Key:
        return key_of(DurabilityState, self.partition_id)


class RecordDurabilityMode(Command, frozen=True, kw_only=True):
    """Mirror the mode that a group has, or the clause that refuses the placed one."""

    partition_id: Count
    node_id: Count
    term: Count
    mode: ModeName
    durability_mode_epoch: Count
    refused_epoch: Count = 0
    refused_clause: Text = ""


def on_record_durability_mode(
    draft: Draft, authority: CallerAuthority, command: RecordDurabilityMode
) -> dict[str, Any]:
    authority.require_node(command.node_id)
    placed = draft.need(Placement, command.partition_id)
    if command.node_id not in voters_of(placed):
        raise Refuse(RefusalCode.MEMBERSHIP_MISMATCH, "the node is no voter of this partition")
    newest = max(command.durability_mode_epoch, command.refused_epoch)
    if newest > placed.durability_mode_epoch:
        raise Refuse(RefusalCode.MODE_CONFLICT, "an epoch that was never given out")
    held = draft.find(DurabilityState, command.partition_id)
    if held is not None and _is_older(command, held):
        raise Refuse(
            RefusalCode.MODE_CONFLICT,
            "a later leader or a later epoch was recorded",
            held_term=held.term,
            held=held.durability_mode_epoch,
        )
    draft.put(
        DurabilityState(
            partition_id=command.partition_id,
            mode=command.mode,
            durability_mode_epoch=command.durability_mode_epoch,
            term=command.term,
            node_id=command.node_id,
            refused_epoch=command.refused_epoch,
            refused_clause=command.refused_clause,
            recorded_at=draft.now_ms,
        )
    )
    return {"durability_mode_epoch": command.durability_mode_epoch}


def _is_older(command: RecordDurabilityMode, held: DurabilityState) -> bool:
    return command.term < held.term or command.durability_mode_epoch < held.durability_mode_epoch


# The leader's side.


@dataclass(frozen=True, slots=True)
class ModeFacts:
    """What a leading replica knows of its mode."""

    term: int
    mode: DurabilityMode  # committed, as is the next
    durability_mode_epoch: DurabilityModeEpoch
    log_epoch: DurabilityModeEpoch  # the newest in the leader's log
    clause: GroupFsyncClause  # what forbids Group-Fsync now


ModeStep: TypeAlias = Transition | RecordDurabilityMode


def plan_mode_step(
    placement: Placement, held: DurabilityState | None, group: ModeFacts, node_id: int
) -> ModeStep | None:
    """Say what a leader must do so that its group, its placement and the record agree.

    A transition is the group's own to append. A record is for the control plane; the same word
    is not said twice.
    """
    transition = durability_transition(placement, group.log_epoch)
    if transition is None:
        if group.durability_mode_epoch < group.log_epoch:
            return None  # the fence is in the log, and not committed yet
        return _news(_record(placement, group, node_id), held)
    wants_group = transition.to_mode is DurabilityMode.GROUP_FSYNC
    if wants_group and group.clause is not GroupFsyncClause.NONE:
        return _news(_record(placement, group, node_id, refused=True), held)
    return transition


def is_settled(placement: Placement, held: DurabilityState | None) -> bool:
    """Say whether the placed mode is in force and recorded; where not, a leader looks again."""
    in_force = held.durability_mode_epoch if held is not None else 0
    return placement.durability_mode_epoch == in_force


def durability_transition(
    placement: Placement, log_epoch: DurabilityModeEpoch
) -> Transition | None:
    """Return the fence that the leader must append for the placed mode; None where it stands.

    `log_epoch` is the newest of the leader's log.
    """
    if placement.durability_mode_epoch <= log_epoch:
        return None
    mode = DurabilityMode[placement.durability_mode.name]
    return Transition(mode, DurabilityModeEpoch(placement.durability_mode_epoch))


def _record(
    placement: Placement, group: ModeFacts, node_id: int, *, refused: bool = False
) -> RecordDurabilityMode:
    return RecordDurabilityMode(
        partition_id=placement.partition_id,
        node_id=node_id,
        term=group.term,
        mode=ModeName[group.mode.name],
        durability_mode_epoch=group.durability_mode_epoch,
        refused_epoch=placement.durability_mode_epoch if refused else 0,
        refused_clause=group.clause.value if refused else "",
    )


def _news(
    record: RecordDurabilityMode, held: DurabilityState | None
) -> RecordDurabilityMode | None:
    """Return the record unless it stands, or says no more than that nothing was ever changed."""
    if held is None:
        return record if record.durability_mode_epoch or record.refused_epoch else None
    said = (record.durability_mode_epoch, record.refused_epoch, record.refused_clause)
    known = (held.durability_mode_epoch, held.refused_epoch, held.refused_clause)
    return record if said != known else None
