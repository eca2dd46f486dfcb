"""A placed durability mode: what its group's leader does, what it records, and who may."""

from __future__ import annotations

import msgspec
import pytest

from clustor.control import (
    DurabilityState,
    ModeFacts,
    ModeName,
    ModeStep,
    Placement,
    RecordDurabilityMode,
    RefusalCode,
    SetDurabilityMode,
    TenantTier,
    find,
    is_settled,
    plan_mode_step,
)
from clustor.log.group_fsync import GroupFsyncClause
from clustor.log.types import DurabilityMode, DurabilityModeEpoch
from clustor.raft.transition import Transition
from tests.clustor.control.plane import Plane, node_identity, settled_plane

GROUP, STRICT = DurabilityMode.GROUP_FSYNC, DurabilityMode.STRICT
NONE, BACKOFF = GroupFsyncClause.NONE, GroupFsyncClause.DOWNGRADE_BACKOFF
NODE = 1


def placed(plane: Plane) -> Placement:
    found = find(plane.machine.kv, Placement, 1)
    assert found is not None
    return found


def ordered(mode: ModeName = ModeName.GROUP_FSYNC, epoch: int = 1) -> Placement:
    held = placed(settled_plane())
    return msgspec.structs.replace(held, durability_mode=mode, durability_mode_epoch=epoch)


def facts(
    mode: DurabilityMode, epoch: int, *, log: int | None = None, clause: GroupFsyncClause = NONE
) -> ModeFacts:
    in_log = epoch if log is None else log
    return ModeFacts(3, mode, DurabilityModeEpoch(epoch), DurabilityModeEpoch(in_log), clause)


def said(epoch: int, refused: int = 0, clause: str = "", term: int = 3) -> DurabilityState:
    return DurabilityState(
        partition_id=1,
        mode=ModeName.STRICT,
        durability_mode_epoch=epoch,
        term=term,
        node_id=2,
        refused_epoch=refused,
        refused_clause=clause,
        recorded_at=5,
    )


def record(mode: ModeName, epoch: int, refused: int = 0, clause: str = "") -> RecordDurabilityMode:
    return RecordDurabilityMode(
        partition_id=1,
        node_id=NODE,
        term=3,
        mode=mode,
        durability_mode_epoch=epoch,
        refused_epoch=refused,
        refused_clause=clause,
    )


FENCE = Transition(GROUP, DurabilityModeEpoch(1))
IN_GROUP = record(ModeName.GROUP_FSYNC, 1)
WAITS = record(ModeName.STRICT, 0, 1, BACKOFF.value)

STEPS: dict[str, tuple[Placement, DurabilityState | None, ModeFacts, ModeStep | None]] = {
    "nothing was ever ordered": (ordered(ModeName.STRICT, 0), None, facts(STRICT, 0), None),
    "ordered, and nothing forbids it": (ordered(), None, facts(STRICT, 0), FENCE),
    "a clause forbids it": (ordered(), None, facts(STRICT, 0, clause=BACKOFF), WAITS),
    "the clause was told": (
        ordered(),
        said(0, 1, BACKOFF.value),
        facts(STRICT, 0, clause=BACKOFF),
        None,
    ),
    "another clause was told": (
        ordered(),
        said(0, 1, GroupFsyncClause.STRICT_FALLBACK.value),
        facts(STRICT, 0, clause=BACKOFF),
        WAITS,
    ),
    "the clause is gone": (ordered(), said(0, 1, BACKOFF.value), facts(STRICT, 0), FENCE),
    "the fence is in the log only": (ordered(), None, facts(STRICT, 0, log=1), None),
    "the fence is committed": (ordered(), None, facts(GROUP, 1), IN_GROUP),
    "and a refusal stood before": (ordered(), said(0, 1, "X"), facts(GROUP, 1), IN_GROUP),
    "and it is recorded": (ordered(), said(1), facts(GROUP, 1), None),
    "back to Strict, whatever forbids Group-Fsync": (
        ordered(ModeName.STRICT, 2),
        said(1),
        facts(GROUP, 1, clause=BACKOFF),
        Transition(STRICT, DurabilityModeEpoch(2)),
    ),
    "a later order was overtaken by nothing": (
        ordered(ModeName.STRICT, 2),
        said(0),
        facts(STRICT, 0),
        Transition(STRICT, DurabilityModeEpoch(2)),
    ),
}


@pytest.mark.parametrize(("placement", "held", "group", "step"), STEPS.values(), ids=STEPS.keys())
def test_one_step_of_a_leader(
    placement: Placement, held: DurabilityState | None, group: ModeFacts, step: ModeStep | None
) -> None:
    assert plan_mode_step(placement, held, group, NODE) == step


def test_a_leader_looks_again_until_the_placed_epoch_is_recorded() -> None:
    assert is_settled(ordered(ModeName.STRICT, 0), None)
    assert not is_settled(ordered(), None)
    assert not is_settled(ordered(), said(0, 1, BACKOFF.value))
    assert is_settled(ordered(), said(1))


def switched() -> Plane:
    plane = Plane()
    plane.add_nodes(4)
    plane.add_tenant("a", tier=TenantTier.DEVELOPMENT, group_fsync_allowed=True)
    plane.done(plane.placing(1, tenant_id="a"))
    plane.done(SetDurabilityMode(partition_id=1, mode=ModeName.GROUP_FSYNC, expected_epoch=0))
    return plane


def test_what_a_leader_records_stands_and_only_grows() -> None:
    plane = switched()
    plane.done(WAITS, by=node_identity(1))
    held = find(plane.machine.kv, DurabilityState, 1)
    assert held is not None and (held.refused_epoch, held.refused_clause) == (1, BACKOFF.value)
    plane.done(IN_GROUP, by=node_identity(1))
    held = find(plane.machine.kv, DurabilityState, 1)
    assert held is not None and (held.mode, held.refused_clause) == (ModeName.GROUP_FSYNC, "")
    older = msgspec.structs.replace(IN_GROUP, term=2)
    assert plane.refused(older, by=node_identity(1)) is RefusalCode.MODE_CONFLICT
    back = record(ModeName.STRICT, 0)
    assert plane.refused(back, by=node_identity(1)) is RefusalCode.MODE_CONFLICT
    assert find(plane.machine.kv, DurabilityState, 1) == held


REFUSED = {
    "for another node": (IN_GROUP, node_identity(2), RefusalCode.UNAUTHORIZED),
    "of a node that is no voter": (
        msgspec.structs.replace(IN_GROUP, node_id=4),
        node_identity(4),
        RefusalCode.MEMBERSHIP_MISMATCH,
    ),
    "of an epoch that nobody gave out": (
        record(ModeName.GROUP_FSYNC, 2),
        node_identity(1),
        RefusalCode.MODE_CONFLICT,
    ),
    "of a refused epoch that nobody gave out": (
        record(ModeName.STRICT, 0, 2, "X"),
        node_identity(1),
        RefusalCode.MODE_CONFLICT,
    ),
}


@pytest.mark.parametrize(("command", "by", "code"), REFUSED.values(), ids=REFUSED.keys())
def test_a_record_is_refused(command: RecordDurabilityMode, by: str, code: RefusalCode) -> None:
    plane = switched()
    assert plane.refused(command, by=by) is code
    assert find(plane.machine.kv, DurabilityState, 1) is None
