"""Who led what, and when, stands in the audit log; a manifest without a steward is noticed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from clustor.control import AccessRole, Binding, RbacManifest
from clustor.log.types import PartitionId, Term
from clustor.raft.output import RoleChange
from clustor.raft.types import ReplicaId
from clustor.raft.types import Role as RaftRole
from clustor.runtime.control.records import lacks_steward, operator_of, steward_of
from clustor.runtime.outputs import tell_leadership
from clustor.runtime.pki.identity import NodeId, cluster_id


@dataclass
class Desk:
    """Stands for the audit log."""

    told: list[tuple[object, ...]] = field(default_factory=list)

    def group_did(self, what: str, *facts: object) -> None:
        self.told.append((what, *facts))


@dataclass
class Group:
    partition_id: PartitionId = PartitionId(7)
    led_term: int = 0


def play(*changes: tuple[RaftRole, int]) -> list[tuple[object, ...]]:
    desk, group = Desk(), Group()
    for role, term in changes:
        change = RoleChange(role, Term(term), ReplicaId(3), "because")
        tell_leadership(cast("Any", desk), NodeId(3), cast("Any", group), change)
    return desk.told


FOLLOWER, CANDIDATE, LEADER = RaftRole.FOLLOWER, RaftRole.CANDIDATE, RaftRole.LEADER
BEGUN = ("LeadershipBegun", 7, 3, 4, "because")
ENDED = ("LeadershipEnded", 7, 3, 4, "because")

STORIES = {
    "elected and deposed": ([(CANDIDATE, 4), (LEADER, 4), (FOLLOWER, 5)], [BEGUN, ENDED]),
    "never elected": ([(FOLLOWER, 1), (CANDIDATE, 2), (FOLLOWER, 3)], []),
    "deposed once": ([(LEADER, 4), (FOLLOWER, 5), (CANDIDATE, 6)], [BEGUN, ENDED]),
}


@pytest.mark.parametrize(("changes", "told"), STORIES.values(), ids=STORIES.keys())
def test_the_beginning_and_the_end_of_leading_are_told_once(
    changes: list[tuple[RaftRole, int]], told: list[tuple[object, ...]]
) -> None:
    assert play(*changes) == told


def test_a_node_without_an_audit_log_goes_on() -> None:
    change = RoleChange(LEADER, Term(4), ReplicaId(3), "elected")
    group = Group()
    tell_leadership(None, NodeId(3), cast("Any", group), change)
    assert group.led_term == 4


CLUSTER = cluster_id("dev")


@pytest.mark.parametrize(
    ("identity", "role", "lacks"),
    [
        (steward_of(CLUSTER).identity, AccessRole.OPERATOR, False),
        (steward_of(CLUSTER).identity, AccessRole.OBSERVER, True),
        (operator_of(CLUSTER).identity, AccessRole.OPERATOR, True),
    ],
)
def test_a_manifest_must_keep_the_steward(identity: str, role: AccessRole, *, lacks: bool) -> None:
    manifest = RbacManifest(
        version=1, bindings=(Binding(identity=identity, role=role),), published_at=1
    )
    assert lacks_steward(manifest, CLUSTER) is lacks
