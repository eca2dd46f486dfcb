"""Plans: from nothing to a recorded cluster, wherever it was broken off before."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from random import Random

import msgspec
import pytest

from clustor.control import (
    AccessRole,
    Answer,
    Caller,
    ClusterConfig,
    Command,
    ControlMachine,
    Done,
    DraftReading,
    KeyPurpose,
    Members,
    MembershipRecord,
    NodeSpec,
    Placement,
    PlacePartition,
    RbacManifest,
    RecordMembership,
    RemoveNode,
    SigningKey,
    decode_answer,
    encode_call,
    find,
    scan,
)
from clustor.kv import StoreId
from clustor.log.types import PartitionId
from clustor.runtime.cluster_file import ClusterFile, NodeEntry
from clustor.runtime.control.placement import plan_step
from clustor.runtime.control.records import (
    CONTROL_PARTITION,
    cluster_records,
    operator_of,
    steward_of,
)
from clustor.runtime.pki.identity import NodeId, spiffe_uri
from quantum.tenants.broker_file import BrokerFile, TenantEntry
from quantum.tenants.group_ids import group_of
from quantum.tenants.records import tenant_records
from tests.clustor.runtime.test_control_steering import facts

GROUPS = (PartitionId(1), CONTROL_PARTITION)
BROKER = BrokerFile((TenantEntry("dev", 3), TenantEntry("Loud_Name", 2)))

Plan = Callable[[DraftReading], Iterable[Command]]


def entry(node_id: int, port: int = 7_000) -> NodeEntry:
    return NodeEntry(node_id, "127.0.0.1", port + node_id, 1, f"{node_id:02x}" * 32)


def cluster(*nodes: int, removed: tuple[int, ...] = ()) -> ClusterFile:
    return ClusterFile(
        "test", 1, tuple(map(entry, nodes)), removed=tuple(map(entry, removed)), birth_id="b"
    )


def placed(*voters: int) -> dict[PartitionId, Members]:
    return dict.fromkeys(GROUPS, Members(voters=voters))


class Plane:
    """A machine, and its cluster's steward."""

    def __init__(self) -> None:
        self.machine = ControlMachine(StoreId(b"0123456789abcdef"))
        self._calls = itertools.count(1)

    @property
    def store(self) -> DraftReading:
        return self.machine.kv

    def call(self, command: Command, caller: Caller | None = None) -> Answer:
        number = next(self._calls)
        caller = caller or steward_of(cluster(1).id)
        call = encode_call(caller, f"c{number}", 1_000_000 + number, command)
        (reply,) = self.machine.apply_batch(number, [call])
        return decode_answer(reply)

    def carry_out(self, plan: Plan, calls_max: int = 1_000) -> None:
        """Carry a plan out to its end, or break it off after so many calls."""
        for _ in range(20):
            commands = list(plan(self.store))
            if not commands:
                return
            for command in commands:
                if calls_max == 0:
                    return
                calls_max -= 1
                answer = self.call(command)
                assert isinstance(answer, Done), (command, answer)
        raise AssertionError("the plan never ends")


def everything(file: ClusterFile, voters: tuple[int, ...]) -> Plan:
    own = cluster_records(file, placed(*voters))
    broker = tenant_records(BROKER, lambda _partition: Members(voters=voters))

    def plan(store: DraftReading) -> list[Command]:
        return own(store) or broker(store)

    return plan


@pytest.mark.parametrize("nodes", [(1,), (1, 2), (1, 2, 3), (1, 2, 3, 4, 5)])
def test_a_plan_records_the_cluster_and_then_wants_nothing(nodes: tuple[int, ...]) -> None:
    plane = Plane()
    plan = everything(cluster(*nodes), nodes)
    plane.carry_out(plan)
    assert list(plan(plane.store)) == []
    assert find(plane.store, ClusterConfig, "config") is not None
    assert [node.node_id for node in scan(plane.store, NodeSpec)] == list(nodes)
    keys = list(scan(plane.store, SigningKey, KeyPurpose.CONTROL_PLANE_PROOF.value))
    assert [key.key_id for key in keys] == [f"node-{node}" for node in nodes]
    tenants = {each.partition_id: each.tenant_id for each in scan(plane.store, Placement)}
    assert tenants == {
        **dict.fromkeys(GROUPS),
        **{group_of(0, number): "dev" for number in range(3)},
        **{group_of(1, number): "Loud_Name" for number in range(2)},
    }


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_that_is_broken_off_anywhere_is_gone_on_with(seed: int) -> None:
    rng = Random(seed)
    plane, whole = Plane(), Plane()
    plan = everything(cluster(1, 2, 3), (1, 2, 3))
    for _ in range(rng.randrange(1, 6)):
        plane.carry_out(plan, calls_max=rng.randrange(0, 6))
    plane.carry_out(plan)
    whole.carry_out(plan)
    for kind in (NodeSpec, Placement, SigningKey):
        assert list(map(_timeless, scan(plane.store, kind))) == list(
            map(_timeless, scan(whole.store, kind))
        )


def _timeless(value: msgspec.Struct) -> dict[str, object]:
    return {
        name: field for name, field in msgspec.structs.asdict(value).items() if "_at" not in name
    }


def test_the_operator_and_the_steward_may_call_and_nobody_else() -> None:
    plane = Plane()
    plane.carry_out(cluster_records(cluster(1), placed(1)))
    manifest = find(plane.store, RbacManifest, "manifest")
    assert manifest is not None
    assert {(each.identity, each.role) for each in manifest.bindings} == {
        (steward_of(cluster(1).id).identity, AccessRole.OPERATOR),
        (operator_of(cluster(1).id).identity, AccessRole.OPERATOR),
    }


def test_a_node_that_moved_is_registered_anew_and_keeps_its_zone() -> None:
    plane = Plane()
    plane.carry_out(cluster_records(cluster(1, 2, 3), placed(1, 2, 3)))
    moved = msgspec.structs.replace(cluster(1, 2, 3), nodes=(entry(1), entry(2, 9_000), entry(3)))
    before = find(plane.store, NodeSpec, 2)
    plane.carry_out(cluster_records(moved, placed(1, 2, 3)))
    after = find(plane.store, NodeSpec, 2)
    assert before is not None
    assert after == msgspec.structs.replace(before, address="127.0.0.1:9002")


def test_a_node_that_left_is_forgotten_once_nothing_is_placed_on_it() -> None:
    plane = Plane()
    plane.carry_out(cluster_records(cluster(1, 2, 3), placed(1, 2, 3)))
    left = cluster(1, 2, removed=(3,))
    assert list(cluster_records(left, placed(1, 2))(plane.store)) == []
    for partition in GROUPS:
        _follow(plane, partition, (1, 2), epoch=9)
    assert list(cluster_records(left, placed(1, 2))(plane.store)) == [RemoveNode(node_id=3)]
    plane.carry_out(cluster_records(left, placed(1, 2)))
    assert find(plane.store, NodeSpec, 3) is None


def _follow(plane: Plane, partition: PartitionId, voters: tuple[int, ...], epoch: int) -> None:
    """Let the control plane follow a group that changed its own members, until they agree."""
    leader = Caller(identity=spiffe_uri(cluster(1).id, NodeId(voters[0])))
    for _ in range(3):
        placement = find(plane.store, Placement, partition)
        assert placement is not None
        record = find(plane.store, MembershipRecord, partition)
        step = plan_step(placement, record, facts(voters, epoch), voters[0])
        if step is None:
            return
        assert isinstance(step, RecordMembership | PlacePartition)
        by = leader if isinstance(step, RecordMembership) else None
        assert isinstance(plane.call(step, by), Done)
    raise AssertionError("the group and its placement never agree")


def test_a_placement_follows_its_group_and_is_recorded() -> None:
    plane = Plane()
    plane.carry_out(cluster_records(cluster(1, 2, 3, 4), placed(1, 2, 3)))
    for voters, epoch in (((1, 2, 3), 0), ((2, 3, 4), 8), ((2, 3), 9)):
        _follow(plane, PartitionId(1), voters, epoch)
        placement = find(plane.store, Placement, 1)
        record = find(plane.store, MembershipRecord, 1)
        assert placement is not None
        assert record is not None
        assert (placement.members.voters, placement.previous) == (voters, None)
        assert record.routing_epoch == placement.routing_epoch


def test_a_node_that_joined_can_sign_and_carry() -> None:
    plane = Plane()
    plane.carry_out(cluster_records(cluster(1, 2, 3), placed(1, 2, 3)))
    plane.carry_out(cluster_records(cluster(1, 2, 3, 4), placed(1, 2, 3)))
    key = find(plane.store, SigningKey, KeyPurpose.CONTROL_PLANE_PROOF.value, "node-4")
    assert key is not None
    assert key.public_key == bytes.fromhex(entry(4).signing_key)
    assert find(plane.store, NodeSpec, 4) is not None
