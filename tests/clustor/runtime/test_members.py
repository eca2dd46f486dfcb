"""Orders to change members: what a node refuses, and that clients wait for the record (§9.9)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from clustor.log.types import PartitionId
from clustor.raft.control_plane import CacheState
from clustor.raft.errors import MembershipRefused
from clustor.raft.types import RoutingEpoch
from clustor.replica import Applied, RequestsRefused
from clustor.runtime.admin.commands import CONTROL_EXPIRED, AdminCommands
from clustor.runtime.cluster_file import ClusterFile, NodeEntry
from clustor.runtime.errors import DataDirectoryRefused
from clustor.runtime.group import HostedGroup
from clustor.runtime.members import WantedChange, change_members, record_membership
from clustor.runtime.node import Node
from tests.clustor.replica.harness import PARTITION, Cluster, put
from tests.clustor.replica.harness import Node as Seat


class Hosted:
    """What the orders see of a hosted group: its replica, on simulated disks."""

    def __init__(self, seat: Seat) -> None:
        self.replica = seat.up
        self.partition_id = PARTITION
        self.rolled_back = "an earlier change"


def hosted(seat: Seat) -> HostedGroup:
    return cast("HostedGroup", Hosted(seat))


def settled(cluster: Cluster, leader: Seat) -> None:
    """Let a change go through all its phases."""
    for _ in range(100):
        cluster.run(100)
        if not leader.up.group.core.config.is_joint and not leader.up.group.core.config.learners:
            return
    raise AssertionError("the change never ends")


def test_clients_wait_until_a_finalised_membership_is_recorded() -> None:
    cluster = Cluster(3, spares=1)
    leader = cluster.leader()
    cluster.run(100)
    group = hosted(leader)
    begun = change_members(group, WantedChange("add", 4))
    assert begun.routing_epoch == 1
    assert group.rolled_back == "", "this is another change"
    cluster.turn(leader)
    settled(cluster, leader)
    assert sorted(leader.up.group.core.config.voters) == [1, 2, 3, 4]
    cluster.propose(leader, (1, put("a", "x")))
    cluster.settle()
    assert leader.outcomes == [RequestsRefused([1], "MembershipUnacknowledged")]  # type: ignore[list-item]
    cluster.run(1_100)
    wanted = [o.record_membership for o in leader.outputs if o.record_membership is not None]
    record_membership(group, wanted[-1])
    cluster.turn(leader)
    cluster.settle()
    cluster.propose(leader, (2, put("a", "x")))
    cluster.settle()
    assert isinstance(leader.outcomes[-1], Applied)


def test_only_the_leader_changes_members() -> None:
    cluster = Cluster(3, spares=1)
    leader = cluster.leader()
    follower = next(seat for seat in cluster.nodes.values() if seat is not leader)
    with pytest.raises(MembershipRefused) as refused:
        change_members(hosted(follower), WantedChange("add", 4))
    assert refused.value.reason == "not the leader"


def test_fewer_voters_than_survive_a_loss_need_a_reason() -> None:
    cluster = Cluster(3)
    leader = cluster.leader()
    cluster.run(100)
    gone = next(seat.id for seat in cluster.nodes.values() if seat is not leader)
    with pytest.raises(MembershipRefused) as refused:
        change_members(hosted(leader), WantedChange("remove", gone))
    assert refused.value.reason == "the group would not survive a loss"
    change_members(hosted(leader), WantedChange("remove", gone, "it is sold"))


class Control:
    """What the commands see of a node's copy of the control plane."""

    def __init__(self, state: CacheState) -> None:
        self.state = state

    def cache_state(self) -> CacheState:
        return self.state

    def epoch_above(self, _group: object) -> RoutingEpoch:
        return RoutingEpoch(40)


class Host:
    """What the commands see of a node."""

    def __init__(self, seat: Seat) -> None:
        self.groups = {PARTITION: hosted(seat)}
        self.cluster = listed(1, 2, 3)
        self.touched: list[object] = []
        self.control: Control | None = None  # a cluster without a control plane

    def touch(self, group: object) -> None:
        self.touched.append(group)

    def admin_address(self, replica: int | None) -> str:
        return f"node-{replica}:1"

    def adopt_cluster(self, cluster: ClusterFile) -> None:
        self.cluster = cluster


def listed(*nodes: int) -> ClusterFile:
    return ClusterFile("dev", 1, tuple(NodeEntry(node, "h", 1, 2, "00") for node in nodes))


def refuse() -> ClusterFile:
    raise DataDirectoryRefused("cannot read the list", file=str(Path("x")))


ADD = b'{"kind":"add","node_id":4}'


@pytest.mark.parametrize(
    ("path", "body", "code", "says"),
    {
        "no such page": ("/nothing", b"{}", 404, "no such page"),
        "no such group": ("/groups/99/members", ADD, 404, "no such page"),
        "group zero": ("/groups/0/members", ADD, 404, "no such page"),
        "not JSON": ("/groups/7/members", b"{", 400, "not what this page takes"),
        "a strange kind": ("/groups/7/members", b'{"kind":"x","node_id":1}', 400, "not what"),
        "a strange member": ("/groups/7/leader", b'{"node_id":1,"x":1}', 400, "not what"),
        "a node that is not listed": ("/groups/7/members", ADD, 409, "no such node"),
        "a leader that is no voter": ("/groups/7/leader", b'{"node_id":9}', 409, "NotAVoter"),
    }.values(),
)
def test_orders_that_are_refused(path: str, body: bytes, code: int, says: str) -> None:
    cluster = Cluster(3)
    leader = cluster.leader()
    cluster.run(1_000)
    host = Host(leader)
    commands = AdminCommands(cast("Node", host), lambda: listed(1, 2, 3))
    answered, content = commands.carry_out(path, body)
    assert answered == code
    assert says in json.dumps(content)
    assert not host.touched


def test_the_list_is_read_again_and_an_order_is_begun() -> None:
    cluster = Cluster(3, spares=1)
    leader = cluster.leader()
    cluster.run(1_000)
    host = Host(leader)
    commands = AdminCommands(cast("Node", host), lambda: listed(1, 2, 3, 4))
    assert commands.carry_out("/reload", b"{}") == (200, {"nodes": [1, 2, 3, 4]})
    code, begun = commands.carry_out(f"/groups/{PARTITION}/members", ADD)
    assert (code, cast("Any", begun).routing_epoch) == (202, 1)
    assert host.touched == [host.groups[PartitionId(PARTITION)]]
    again, content = commands.carry_out(f"/groups/{PARTITION}/members", ADD)
    assert (again, cast("Any", content)["error"]) == (409, "another change is under way")


def test_a_change_has_an_epoch_above_the_placement_and_waits_for_an_expired_copy() -> None:
    """Mutating admin calls fail closed while the copy is Expired (clustor §14.2)."""
    cluster = Cluster(3, spares=1)
    leader = cluster.leader()
    cluster.run(1_000)
    host = Host(leader)
    host.cluster = listed(1, 2, 3, 4)
    host.control = Control(CacheState.EXPIRED)
    commands = AdminCommands(cast("Node", host), lambda: listed(1, 2, 3, 4))
    code, content = commands.carry_out(f"/groups/{PARTITION}/members", ADD)
    assert (code, cast("Any", content)["error"]) == (409, CONTROL_EXPIRED)
    host.control.state = CacheState.STALE
    code, begun = commands.carry_out(f"/groups/{PARTITION}/members", ADD)
    assert (code, cast("Any", begun).routing_epoch) == (202, 40)


def test_a_list_that_cannot_be_read_changes_nothing() -> None:
    cluster = Cluster(1)
    host = Host(cluster.leader())
    code, content = AdminCommands(cast("Node", host), refuse).carry_out("/reload", b"{}")
    assert code == 409 and "cannot read the list" in json.dumps(content)
    assert host.cluster == listed(1, 2, 3)


def test_a_leader_hands_over_when_it_is_ordered_to() -> None:
    cluster = Cluster(3)
    leader = cluster.leader()
    cluster.run(1_000)
    heir = next(seat for seat in cluster.nodes.values() if seat is not leader)
    commands = AdminCommands(cast("Node", Host(leader)), refuse)
    body = json.dumps({"node_id": heir.id}).encode()
    assert commands.carry_out(f"/groups/{PARTITION}/leader", body)[0] == 202
    cluster.turn(leader)
    cluster.run(500)
    assert cluster.leader() is heir
