"""Placements: the preflight of clustor §9.9, epochs of §7.1, limits of quantumqtt §8.2.1."""

from __future__ import annotations

import base64
from base64 import b64encode

import msgspec
import pytest

from clustor.control import (
    ClusterConfig,
    DeleteTenant,
    DrainNode,
    EnrollNode,
    IssueBootstrapToken,
    Members,
    MembershipRecord,
    ModeName,
    OverrideScope,
    Placement,
    PublishedProof,
    RecordMembership,
    RefusalCode,
    RegisterNode,
    RemoveNode,
    RetirePartition,
    RoutingMap,
    SetDurabilityMode,
    SetFollowerReads,
    SetRoutingMap,
    TenantTier,
    UpdateTenant,
    digest_of,
    find,
    preflight,
    rehearse,
)
from clustor.control import tenants as tenant_limits
from clustor.raft.membership import Membership, membership_digest
from clustor.raft.types import ReplicaId
from tests.clustor.control.plane import Plane, digest, genesis, node_identity, proof, settled_plane


def placement(plane: Plane, partition_id: int = 1) -> Placement:
    found = find(plane.machine.kv, Placement, partition_id)
    assert found is not None
    return found


# §9.9, phase 1.


def test_a_move_may_fill_a_node_to_seventy_percent_and_no_further() -> None:
    plane = settled_plane()  # 10 of 100 are taken on nodes 1 to 3
    assert plane.refused(plane.placing(2, load=61)) is RefusalCode.UTILIZATION_EXCEEDED
    plane.place(2, load=60)
    assert plane.refused(plane.placing(3, load=1)) is RefusalCode.UTILIZATION_EXCEEDED


def test_what_a_partition_carries_already_counts_once() -> None:
    plane = settled_plane()
    plane.place(1, epoch=1, load=70)


def test_voters_of_one_zone_do_not_survive_its_loss() -> None:
    plane = Plane()
    plane.add_nodes(6)  # 1 and 4 share a zone
    assert plane.refused(plane.placing(1, 1, 4, 2)) is RefusalCode.NOT_SURVIVABLE
    plane.place(1, 1, 5, 3)


def test_in_fewer_than_three_zones_the_loss_of_one_node_is_the_measure() -> None:
    plane = Plane()
    plane.add_nodes(3, zones=2)
    plane.place(1)


@pytest.mark.parametrize("voters", [(1,), (1, 2)])
def test_three_voters_are_the_least(voters: tuple[int, ...]) -> None:
    plane = settled_plane()
    assert plane.refused(plane.placing(2, *voters)) is RefusalCode.NOT_SURVIVABLE


def test_draining_nodes_do_not_count_as_healthy() -> None:
    plane = settled_plane()
    for node_id in (1, 2):
        plane.done(DrainNode(node_id=node_id, draining=True))
    assert plane.refused(plane.placing(2)) is RefusalCode.NOT_SURVIVABLE


def test_an_override_of_the_right_scope_and_partition_lets_it_pass() -> None:
    plane = settled_plane()
    plane.override("credit", OverrideScope.CREDIT)
    plane.override("other", OverrideScope.SURVIVABILITY, 9)
    plane.override("ours", OverrideScope.SURVIVABILITY, 2)
    for ref in ("none", "credit", "other"):
        command = plane.placing(2, 1, override_ref=ref)
        assert plane.refused(command) is RefusalCode.OVERRIDE_REFUSED
    plane.done(plane.placing(2, 1, override_ref="ours"))
    assert placement(plane, 2).override_ref == "ours"


def test_the_rehearsal_s_digest_is_deterministic_and_checked() -> None:
    plane = settled_plane()
    command = plane.placing(2, 3, 2, 1)
    rehearsal = rehearse(plane.machine.draft(0), command)
    assert rehearsal == rehearse(plane.machine.draft(0), plane.placing(2, 1, 2, 3))
    wrong = msgspec.structs.replace(command, placement_digest=digest("another"))
    assert plane.refused(wrong) is RefusalCode.PLACEMENT_DIGEST_MISMATCH
    right = msgspec.structs.replace(command, placement_digest=rehearsal.placement_digest)
    result = plane.done(right)
    assert base64.b64decode(result["placement_digest"]) == rehearsal.placement_digest
    late = msgspec.structs.replace(right, expected_routing_epoch=2)
    assert plane.refused(late) is RefusalCode.PLACEMENT_DIGEST_MISMATCH


@pytest.mark.parametrize(
    ("members", "code"),
    [
        (Members(voters=()), RefusalCode.INVALID),
        (Members(voters=(1, 2, 2)), RefusalCode.INVALID),
        (Members(voters=(1, 2, 3), learners=(3,)), RefusalCode.INVALID),
        (Members(voters=(1, 2, 99)), RefusalCode.NOT_FOUND),
    ],
)
def test_members_are_checked(members: Members, code: RefusalCode) -> None:
    plane = settled_plane()
    command = msgspec.structs.replace(plane.placing(2), members=members)
    assert plane.refused(command) is code


def test_a_voter_does_not_become_an_observer_in_one_move() -> None:
    plane = settled_plane()
    plane.add_nodes(5)
    move = msgspec.structs.replace(
        plane.placing(1, epoch=1), members=Members(voters=(2, 3, 4), observers=(1,))
    )
    assert plane.refused(move) is RefusalCode.INVALID
    plane.done(msgspec.structs.replace(move, members=Members(voters=(2, 3, 4), observers=(5,))))


def test_how_many_voters_a_profile_needs() -> None:
    """Clustor §6.3: three, five for DR; a development cluster may place on one node."""
    plane = settled_plane()
    config = find(plane.machine.kv, ClusterConfig, "config")
    assert config is not None
    assert (config.voters_min("WAN"), config.voters_min("DR")) == (3, 5)
    assert plane.refused(plane.placing(2, profile="DR")) is RefusalCode.NOT_SURVIVABLE
    assert plane.refused(plane.placing(2, profile="Fast")) is RefusalCode.INVALID
    plane.done(plane.placing(2, profile="WAN"))
    assert (placement(plane).profile, placement(plane, 2).profile) == ("ConsistencyProfile", "WAN")
    small = Plane(initialized=False)
    small.done(msgspec.structs.replace(genesis(), development=True))
    small.add_nodes(1)
    small.place(1, 1)


# Epochs.


def test_each_change_takes_the_next_epoch_of_its_ring() -> None:
    plane = settled_plane()
    assert placement(plane).routing_epoch == 1
    plane.place(2)
    plane.place(1, 2, 3, 4, epoch=1)
    assert (placement(plane).routing_epoch, placement(plane, 2).routing_epoch) == (3, 2)
    assert plane.refused(plane.placing(1, epoch=1)) is RefusalCode.ROUTING_EPOCH_MISMATCH


def test_a_tenant_s_ring_and_placements_count_with_one_counter() -> None:
    plane = settled_plane()
    plane.done(plane.placing(5, tenant_id="a"))
    plane.done(plane.placing(6, tenant_id="a"))
    ring = SetRoutingMap(tenant_id="a", partitions=(6, 5), hash_seed=7, expected_routing_epoch=2)
    assert plane.done(ring) == {"routing_epoch": 3}
    assert plane.refused(ring) is RefusalCode.ROUTING_EPOCH_MISMATCH
    held = find(plane.machine.kv, RoutingMap, "a")
    assert held is not None
    assert (held.partitions, held.redirect_until) == ((6, 5), plane.now_ms + 600_000)
    foreign = msgspec.structs.replace(ring, partitions=(1,), expected_routing_epoch=3)
    assert plane.refused(foreign) is RefusalCode.INVALID
    retire = RetirePartition(partition_id=5, expected_routing_epoch=1)
    assert plane.refused(retire) is RefusalCode.IN_USE
    shrunk = msgspec.structs.replace(ring, partitions=(6,), expected_routing_epoch=3)
    plane.done(shrunk)
    plane.done(retire)
    plane.done(msgspec.structs.replace(ring, partitions=(), expected_routing_epoch=5))
    plane.done(RetirePartition(partition_id=6, expected_routing_epoch=2))
    plane.done(DeleteTenant(tenant_id="a"))
    plane.add_tenant("a")
    plane.done(plane.placing(5, tenant_id="a"))
    assert placement(plane, 5).routing_epoch == 8, "a later tenant of the name goes on"


def test_a_partition_never_changes_its_tenant() -> None:
    plane = settled_plane()
    assert plane.refused(plane.placing(1, tenant_id="a", epoch=1)) is RefusalCode.INVALID


def test_a_retired_partition_leaves_nothing_to_its_successor() -> None:
    plane = settled_plane()
    plane.publish(proof(1, 100))
    plane.done(RetirePartition(partition_id=1, expected_routing_epoch=1))
    assert find(plane.machine.kv, PublishedProof, 1) is None
    plane.place(1)
    assert placement(plane).routing_epoch == 3
    assert plane.publish(proof(1, 1)) == {"1": "Published"}


def test_group_fsync_is_for_whitelisted_development_tenants() -> None:
    plane = settled_plane()
    plane.done(plane.placing(5, tenant_id="a"))
    to_group = SetDurabilityMode(partition_id=5, mode=ModeName.GROUP_FSYNC, expected_epoch=0)
    assert plane.done(to_group) == {"durability_mode_epoch": 1}
    assert plane.refused(to_group) is RefusalCode.MODE_CONFLICT, "the epoch has moved on"
    back = SetDurabilityMode(partition_id=5, mode=ModeName.STRICT, expected_epoch=1)
    assert plane.done(back) == {"durability_mode_epoch": 2}
    untenanted = msgspec.structs.replace(to_group, partition_id=1)
    assert plane.refused(untenanted) is RefusalCode.MODE_CONFLICT
    promote = UpdateTenant(
        tenant_id="a",
        tier=TenantTier.PRODUCTION,
        group_fsync_allowed=True,
        dr_shipping=True,
        suspended=False,
    )
    plane.done(promote)
    again = msgspec.structs.replace(to_group, expected_epoch=2)
    assert plane.refused(again) is RefusalCode.MODE_CONFLICT


def test_follower_reads_are_granted_by_the_control_plane() -> None:
    plane = settled_plane()
    plane.done(SetFollowerReads(partition_id=1, capability=True))
    assert placement(plane).follower_read_snapshot_capability
    plane.place(1, 2, 3, 4, epoch=1)
    assert placement(plane).follower_read_snapshot_capability, "a move keeps it"


# Membership acks.


def recording(members: Members, epoch: int, node_id: int = 1) -> RecordMembership:
    return RecordMembership(
        partition_id=1,
        node_id=node_id,
        routing_epoch=epoch,
        membership_digest=digest_of(members),
        durability_mode_epoch=0,
    )


def test_the_control_plane_digests_members_as_a_group_does() -> None:
    config = Membership(
        voters=frozenset({ReplicaId(1), ReplicaId(2)}), observers=frozenset({ReplicaId(7)})
    )
    assert digest_of(Members(voters=(2, 1), observers=(7,))) == membership_digest(config)


def test_a_membership_is_recorded_as_it_was_placed() -> None:
    plane = settled_plane()
    by = node_identity(1)
    old, new = Members(voters=(1, 2, 3)), Members(voters=(2, 3, 4))
    assert plane.done(recording(old, 1), by=by) == {"routing_epoch": 1}
    assert plane.refused(recording(new, 1), by=by) is RefusalCode.MEMBERSHIP_MISMATCH
    assert plane.refused(recording(old, 2), by=by) is RefusalCode.ROUTING_EPOCH_MISMATCH
    stranger = recording(old, 1, node_id=4)
    assert plane.refused(stranger, by=node_identity(4)) is RefusalCode.MEMBERSHIP_MISMATCH
    plane.place(1, 2, 3, 4, epoch=1)
    plane.done(recording(new, 2, node_id=4), by=node_identity(4))
    record = find(plane.machine.kv, MembershipRecord, 1)
    assert record is not None
    assert record.membership_digest == digest_of(new)


def test_the_manifest_follows_a_rollback() -> None:
    plane = settled_plane()
    old = Members(voters=(1, 2, 3))
    plane.place(1, 2, 3, 4, epoch=1)
    neither = recording(Members(voters=(1, 2)), 2)
    assert plane.refused(neither, by=node_identity(1)) is RefusalCode.MEMBERSHIP_MISMATCH
    plane.done(recording(old, 2), by=node_identity(1))
    held = placement(plane)
    assert (held.members, held.rolled_back, held.routing_epoch) == (old, True, 2)
    assert plane.machine._indexes.node_load[4] == 0


def test_a_second_move_waits_until_the_first_is_recorded_or_takes_it_back() -> None:
    plane = settled_plane()
    plane.add_nodes(5)
    plane.place(1, 2, 3, 4, epoch=1)
    further = plane.placing(1, 3, 4, 5, epoch=2)
    assert plane.refused(further) is RefusalCode.IN_USE
    assert plane.refused(RemoveNode(node_id=1)) is RefusalCode.IN_USE, "a rollback needs it"
    plane.place(1, 1, 2, 3, epoch=2)
    plane.done(recording(Members(voters=(1, 2, 3)), 3), by=node_identity(1))
    plane.place(1, 3, 4, 5, epoch=3)
    plane.done(recording(Members(voters=(3, 4, 5)), 4, node_id=3), by=node_identity(3))
    plane.done(RemoveNode(node_id=1))


# Limits and nodes.


def test_beyond_the_soft_limits_an_override_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenant_limits, "TENANTS_MAX", 2)
    monkeypatch.setattr(tenant_limits, "TENANTS_HARD_MAX", 3)
    monkeypatch.setattr(preflight, "PARTITIONS_MAX", 1)
    plane = settled_plane()
    plane.add_tenant("b")
    with pytest.raises(AssertionError, match="CapacityExceeded"):
        plane.add_tenant("c")
    assert plane.refused(plane.placing(2)) is RefusalCode.CAPACITY_EXCEEDED
    plane.override("more", OverrideScope.CAPACITY)
    plane.done(plane.placing(2, override_ref="more"))
    plane.add_tenant("c", override_ref="more")
    with pytest.raises(AssertionError, match="full of tenants"):
        plane.add_tenant("d", override_ref="more")


def test_the_published_limits() -> None:
    assert (tenant_limits.TENANTS_MAX, tenant_limits.TENANTS_HARD_MAX) == (5_000, 10_000)
    assert tenant_limits.PARTITIONS_MAX == 2_000
    assert tenant_limits.TENANT_PARTITIONS_MAX == 512
    assert tenant_limits.TENANT_PARTITIONS_HARD_MAX == 1_024


def test_a_node_that_carries_partitions_stays() -> None:
    plane = settled_plane()
    assert plane.refused(RemoveNode(node_id=1)) is RefusalCode.IN_USE
    plane.done(RemoveNode(node_id=4))


def test_numbers_and_identities_of_nodes_are_their_own() -> None:
    plane = settled_plane()
    node = RegisterNode(node_id=5, identity=node_identity(1), zone="z0", address="x:1", capacity=10)
    assert plane.refused(node) is RefusalCode.IN_USE
    taken = msgspec.structs.replace(node, node_id=1, identity=node_identity(5))
    assert plane.refused(taken) is RefusalCode.IN_USE


def test_a_bootstrap_token_enrols_one_node_once() -> None:
    plane = settled_plane()
    secret = "a secret of the node"
    kept = digest(secret)
    plane.done(IssueBootstrapToken(token_id="t", secret_sha256=kept, ttl_ms=1_000))
    enroll = EnrollNode(
        token_id="t", secret=secret, node_id=7, zone="z1", address="n7:1", capacity=10
    )
    for shown in ("a guess at the secret", kept.hex(), b64encode(kept).decode()):
        wrong = msgspec.structs.replace(enroll, secret=shown)  # what is kept is nothing to show
        assert plane.refused(wrong, by="spiffe://test/new") is RefusalCode.UNAUTHORIZED
    plane.done(enroll, by="spiffe://test/new")
    second = msgspec.structs.replace(enroll, node_id=8)
    assert plane.refused(second, by="spiffe://test/other") is RefusalCode.UNAUTHORIZED
    plane.done(IssueBootstrapToken(token_id="u", secret_sha256=kept, ttl_ms=1_000))
    plane.now_ms += 1_000
    late = msgspec.structs.replace(second, token_id="u")
    assert plane.refused(late, by="spiffe://test/other") is RefusalCode.UNAUTHORIZED
