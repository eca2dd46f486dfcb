"""The adversary: it draws what goes wrong, step by step, from the world's generator."""

from __future__ import annotations

from functools import partial

from clustor.log.types import DurabilityMode, DurabilityModeEpoch, LogIndex
from clustor.raft.errors import MembershipRefused
from clustor.raft.membership import Change, ChangeKind
from clustor.raft.reconfiguration import MembershipRequest, Preflight
from clustor.raft.transition import Transition
from clustor.raft.types import ReplicaId, RoutingEpoch
from tests.clustor.raft.nodes import Node
from tests.clustor.raft.world import World

STEP_MS = 50


def run_under_faults(world: World, duration_ms: int) -> None:
    """Let clients work while the adversary does what the world's faults allow."""
    wiped = damaged = False
    for _ in range(duration_ms // STEP_MS):
        world.run(STEP_MS)
        if world.rng.random() < 0.7:
            world.propose(world.rng.choice((1, 1, 2, 10)))
        if world.rng.random() < 0.2:
            world.read()
        _harm_nodes(world)
        _harm_network(world)
        _steer(world)
        if world.faults.wipe and not wiped and world.rng.random() < 0.02:
            wiped = _wipe_one(world)
        if world.faults.damage and not damaged and world.rng.random() < 0.05:
            damaged = _damage_one(world)


def _chance(world: World, per_second: float) -> bool:
    return world.rng.random() < per_second * STEP_MS / 1000


def _harm_nodes(world: World) -> None:
    for node in world.nodes.values():
        if node.up and _chance(world, world.faults.crash):
            node.crash()
            delay_ms = world.rng.randint(20, 1_500)
            world.later(delay_ms, None, partial(_restart, world, node))
        if node.up and _chance(world, world.faults.pause):
            node.paused_until = world.now + world.rng.randint(50, 1_200)
        if node.up and _chance(world, world.faults.stall):
            node.stalled_until = world.now + world.rng.randint(100, 1_500)


def _restart(world: World, node: Node) -> None:
    if not node.up:
        world.restart(node)


def _harm_network(world: World) -> None:
    rng = world.rng
    if _chance(world, world.faults.partition):
        kind = rng.random()
        ids = sorted(world.nodes)
        leader = world.leader()
        if kind < 0.3:
            world.blocked = set()
        elif kind < 0.6 and leader is not None:
            # A leader alone goes on writing for a while what nobody else will ever have.
            friends = rng.sample(ids, rng.randint(0, (len(ids) - 1) // 2 - 1))
            world.isolate({leader.id, *friends})
            world.propose(rng.randint(1, 6))
        elif kind < 0.85:
            world.isolate(set(rng.sample(ids, rng.randint(1, len(ids) - 1))))
        else:  # one way only
            pairs = [(a, b) for a in ids for b in ids if a != b]
            world.blocked = set(rng.sample(pairs, rng.randint(1, len(pairs) // 2)))
    if _chance(world, world.faults.outage):
        world.control.down = not world.control.down


def _steer(world: World) -> None:
    leader = world.leader()
    if leader is None or leader.group is None:
        return
    if _chance(world, world.faults.transfer):
        leader.group.transfer(world.rng.choice(sorted(world.nodes)))
        leader.turn()
    if _chance(world, world.faults.change):
        change_members(world, leader)
    if _chance(world, world.faults.toggle):
        world.control.mode_epoch = DurabilityModeEpoch(world.control.mode_epoch + 1)
        mode = world.rng.choice(list(DurabilityMode))
        leader.group.propose_transition(Transition(mode, world.control.mode_epoch))
        leader.turn()


def change_members(world: World, leader: Node) -> None:
    """Ask for a random change that leaves at least three voters."""
    group, rng = leader.group, world.rng
    assert group is not None
    voters = group.core.config.voters
    target = set(voters)
    strangers = sorted(set(world.nodes) - group.core.config.members)
    watching = strangers[:1] if rng.random() < 0.3 else []
    for replica_id in rng.sample(sorted(set(world.nodes) - set(watching)), 2):
        if replica_id in target and len(target) > 3:
            target.discard(replica_id)
        else:
            target.add(replica_id)
    world.control.routing_epoch = RoutingEpoch(world.control.routing_epoch + 1)
    try:
        group.change_membership(
            MembershipRequest(
                _between(voters, frozenset(target), rng.random() < 0.3)
                + tuple(Change(ChangeKind.ADD_OBSERVER, member) for member in watching),
                world.control.routing_epoch,
                Preflight(0.5, survivable=True, placement_digest=b"digest"),
            )
        )
    except MembershipRefused:
        return
    leader.turn()


def _between(
    old: frozenset[ReplicaId], new: frozenset[ReplicaId], demote: bool
) -> tuple[Change, ...]:
    leaving = ChangeKind.ADD_LEARNER if demote else ChangeKind.REMOVE
    return tuple(Change(ChangeKind.ADD_VOTER, member) for member in sorted(new - old)) + tuple(
        Change(leaving, member) for member in sorted(old - new)
    )


def _wipe_one(world: World) -> bool:
    """Let one node lose its disk and come back empty; never a second one in a run."""
    down = [node for node in world.nodes.values() if not node.up and node.disk.hard is not None]
    if not down:
        return False
    world.rng.choice(down).wipe()
    return True


def _damage_one(world: World) -> bool:
    """Flip bits in entries that one node's disk holds for certain."""
    nodes = [n for n in world.nodes.values() if n.group and len(n.disk.entries) > 3]
    nodes = [n for n in nodes if not any(kind == "append" for kind, _ in n.queue)]
    if not nodes:
        return False
    node = world.rng.choice(nodes)
    first = world.rng.randint(node.disk.base_index + 1, node.disk.last_index())
    last = min(first + world.rng.randint(0, 4), node.disk.last_index())
    node.disk.damaged = (LogIndex(first), LogIndex(last))
    assert node.group is not None
    node.group.log_damaged(LogIndex(first), LogIndex(last))
    node.turn()
    return True
