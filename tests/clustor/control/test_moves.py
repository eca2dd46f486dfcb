"""A partition moves because its placement says so: preflight, change, record, acknowledgement."""

from __future__ import annotations

from clustor.control import Members, MembershipRecord, digest_of, find
from clustor.raft.types import ReplicaId
from clustor.replica import ReadReady
from tests.clustor.control.world import DATA, World


def moved(world: World) -> bool:
    return world.placement().previous is None


def voters(world: World) -> set[int]:
    return set(world.led().node.up.group.core.hard.membership.voters)


def serves(world: World) -> bool:
    """Whether the leader may serve clients under the members in force (clustor §9.9)."""
    leader = world.data_leader()
    if leader is None or not world.healthy():
        return False
    return leader.node.up.group.leadership.membership_acknowledged()


def settled_world(seed: int) -> World:
    world = World(seed)
    world.run_until(world.healthy, 5_000)
    return world


def test_a_group_follows_its_placement_and_the_control_plane_records_it() -> None:
    world = settled_world(1)
    goal = Members(voters=(1, 2, 4)) if world.led().node_id == 1 else Members(voters=(2, 3, 4))
    world.move(*goal.voters)
    world.run_until(lambda: moved(world), 10_000)
    assert voters(world) == set(goal.voters)
    machine = max(world.control_machines(), key=lambda each: each.kv.revision)
    record = find(machine.kv, MembershipRecord, DATA)
    assert record is not None
    assert record.membership_digest == digest_of(goal)
    assert record.proof_index > 0, "it cites a proof (clustor §9.9)"
    world.run_until(lambda: serves(world), 5_000)
    assert world.writes(world.led()), "served under the new members once they are acknowledged"
    assert isinstance(world.reads(world.led()), ReadReady)


def test_a_rolled_back_move_is_recorded_and_the_next_one_may_begin() -> None:
    """The joiner never answers: the group goes back, and the manifest follows it."""
    world = settled_world(2)
    world.data.crash(world.data.nodes[ReplicaId(4)])
    world.move(2, 3, 4)
    assert world.placement().previous is not None
    world.run_until(lambda: moved(world), 10_000)
    held = world.placement()
    assert held.rolled_back
    assert held.members == Members(voters=(1, 2, 3))
    assert voters(world) == {1, 2, 3}
    assert world.writes(world.led())
    world.data.open(world.data.nodes[ReplicaId(4)])
    world.move(2, 3, 4)
    world.run_until(lambda: moved(world), 10_000)
    assert voters(world) == {2, 3, 4}


def test_a_move_that_is_taken_back_before_it_began_leaves_nothing_open() -> None:
    world = settled_world(3)
    world.cut_links(1, 2, 3)
    world.move(2, 3, 4)
    world.move(1, 2, 3)
    world.mend_links()
    world.run_until(lambda: moved(world), 10_000)
    assert voters(world) == {1, 2, 3}
    world.move(2, 3, 4)
    world.run_until(lambda: moved(world), 10_000)
    assert voters(world) == {2, 3, 4}


def test_an_outage_in_mid_move_holds_it_up_and_no_longer() -> None:
    world = settled_world(4)
    world.move(2, 3, 4)
    world.run(400)
    world.cut_links(1, 2, 3, 4)
    world.run(3_000)
    world.mend_links()
    world.run_until(lambda: moved(world), 10_000)
    assert voters(world) in ({2, 3, 4}, {1, 2, 3})
    world.run_until(lambda: serves(world), 5_000)
    assert isinstance(world.reads(world.led()), ReadReady)
