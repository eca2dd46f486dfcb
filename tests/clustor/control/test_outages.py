"""Strict fallback enters and leaves exactly as clustor §§9.1, 9.8 and 14.2 say, in whole groups."""

from __future__ import annotations

from bisect import bisect_left
from random import Random

import msgspec
import pytest

from clustor.control import (
    MODE_TRUTH_TABLE,
    AuditRecord,
    Caller,
    ClearProofConflict,
    CreateTenant,
    ProofConflict,
    ProofVerdict,
    PublishedProof,
    PublishProofs,
    TenantSpec,
    WriteRule,
    encode_call,
    find,
    judge,
    scan,
    sign_proofs,
    verdicts_of,
)
from clustor.raft.control_plane import CacheState
from clustor.raft.fallback import BlockingReason, FallbackState
from clustor.raft.reads import FailedClause, ReadRefusal
from clustor.raft.types import ReplicaId
from clustor.replica import ReadDenied, ReadReady
from tests.clustor.control.plane import PROOF_KEY, node_identity
from tests.clustor.control.world import (
    CONTROL,
    CONTROL_NODES,
    DATA,
    NUMBERS,
    PROFILE,
    Side,
    World,
)
from tests.clustor.replica.harness import TICK_MS, Node

GRACE_MS = NUMBERS.cache_grace_ms
DEMOTE_MS = PROFILE.fallback.local_only_demote_ms


def check_latch(world: World) -> None:
    """§9.1, recomputed from what stands: who is out of the latch may be out of it."""
    for side in world.sides.values():
        if side.node.replica is None or not side.node.up.leads:
            continue
        if side.fallback.asserted:
            continue
        assert world.cache_state(side) in (CacheState.FRESH, CacheState.CACHED)
        published = find(side.cache, PublishedProof, side.partition)
        assert published is not None, "out of the latch without a published proof"
        assert published.proof.last_durable_term == side.node.up.group.core.hard.term
        assert find(side.cache, ProofConflict, side.partition) is None
        age_ms = world.now.unix_ms - published.proof.updated_at
        assert age_ms <= NUMBERS.durability_proof_ttl_ms + 5 * TICK_MS


class ProofWatch:
    """No committed state of the control plane ever shows a proof go back (§9.8)."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._seen: dict[int, int] = {}  # revisions looked at, by replica
        self._ranks: dict[int, list[tuple[int, tuple[int, ...]]]] = {DATA: [], CONTROL: []}

    def __call__(self) -> None:
        for machine in self._world.control_machines():
            revision = machine.kv.revision
            if self._seen.get(id(machine)) != revision:
                self._seen[id(machine)] = revision
                for partition in self._ranks:
                    self._see(revision, partition, find(machine.kv, PublishedProof, partition))

    def _see(self, revision: int, partition: int, held: PublishedProof | None) -> None:
        """Put a rank among those of its partition, by revision: its neighbours bound it."""
        if held is None:
            return
        ranks, rank = self._ranks[partition], held.proof.proven().rank()
        place = bisect_left(ranks, revision, key=lambda each: each[0])
        if place < len(ranks) and ranks[place][0] == revision:
            assert ranks[place][1] == rank, "two replicas disagree on one revision"
            return
        ranks.insert(place, (revision, rank))
        around = [each[1] for each in ranks[max(0, place - 1) : place + 2]]
        assert around == sorted(around)


def checked_world(seed: int) -> World:
    world = World(seed)
    world.checks += [lambda: check_latch(world), ProofWatch(world)]
    world.run_until(world.healthy, 5_000)
    return world


def check_row(world: World, leader: Side) -> None:
    """The mode truth table of §14.2, row by row, as clients of the leader see it."""
    before = world.cache_state(leader)
    writes = world.writes(leader)
    answer = world.reads(leader)
    if world.cache_state(leader) is not before or not leader.node.up.leads:
        return  # it passed from one row to the next meanwhile
    row = MODE_TRUTH_TABLE[before]
    assert writes, "writes go on in every row"
    assert leader.fallback.asserted or row.writes is WriteRule.CONFIGURED
    if row.read_index is not None:
        assert isinstance(answer, ReadDenied)
        assert answer.refusal is row.read_index
    elif isinstance(answer, ReadDenied):  # the gate decides: no new proof could be published
        assert answer.refusal is ReadRefusal.NEEDED_FOR_READ_INDEX


# Outages of every length.


def test_calm_serves_linearizable_reads_under_writes() -> None:
    """C7: proofs on demand, at least every period while the watermark moves."""
    world = checked_world(1)
    leader = world.led()
    for _ in range(20):
        assert world.writes(leader)
        answer = world.reads(leader)
        assert isinstance(answer, ReadReady)
        assert leader.fallback.state is FallbackState.HEALTHY


def test_under_writes_a_proof_is_published_every_period() -> None:
    """C7: "at least every second while the watermark moves"; here every 200 ms."""
    world = checked_world(2)
    leader = world.led()
    ages = []
    for _ in range(30):
        assert world.writes(leader)
        ages.append(world.now.unix_ms - standing(world).proof.updated_at)
    assert max(ages[5:]) <= NUMBERS.proof_publish_period_ms + 10 * TICK_MS
    published = world.sides[leader.node_id].publisher._batches
    assert published <= 30 * 5 * TICK_MS // NUMBERS.proof_publish_period_ms + 10, "not every write"


@pytest.mark.parametrize(
    ("outage_ms", "worst"),
    [
        (300, CacheState.FRESH),
        (1_500, CacheState.CACHED),
        (3_000, CacheState.STALE),
        (5_000, CacheState.EXPIRED),
        (7_500, CacheState.EXPIRED),
    ],
)
def test_an_outage_of_each_length_follows_the_truth_table(
    outage_ms: int, worst: CacheState
) -> None:
    world = checked_world(outage_ms)
    leader = world.led()
    term = leader.node.up.group.core.hard.term
    world.cut_links(1, 2, 3)
    started = world.now.monotonic_ms
    seen = set()
    while world.now.monotonic_ms - started < outage_ms:
        seen.add(world.cache_state(leader))
        check_row(world, leader)
    order = list(CacheState)
    assert worst in seen
    assert order.index(worst) >= max(order.index(each) for each in seen) - 1
    world.mend_links()
    world.run(400)  # the next poll, and the publication that follows it
    world.run_until(world.healthy, 1_000)
    assert isinstance(world.reads(leader), ReadReady)
    assert leader.node.up.group.core.hard.term == term, "an outage alone changes no leader"


def test_an_outage_beyond_the_bound_demotes_the_leader_and_writes_go_on() -> None:
    """§9.1: LocalOnly for too long, then a bar; the control plane's return lifts it."""
    world = checked_world(3)
    first = world.led()
    world.cut_links(1, 2, 3)
    limit_ms = GRACE_MS + DEMOTE_MS + 2_000
    world.run_until(lambda: not first.node.up.leads, limit_ms)
    assert first.fallback.barred
    second = world.led()
    assert second is not first
    assert world.writes(second)
    denied = world.reads(second)
    assert isinstance(denied, ReadDenied)
    world.mend_links()
    world.run_until(world.healthy, 5_000)
    world.run_until(lambda: not first.fallback.barred, 5_000)
    assert isinstance(world.reads(world.led()), ReadReady)


def test_after_an_outage_a_proof_must_cover_what_was_committed_during_it() -> None:
    """§9.1: "until ControlPlaneRaft publishes a proof covering the current `raft_commit_index`"."""
    world = checked_world(20)
    leader = world.led()
    world.cut_links(1, 2, 3)
    world.run_until(lambda: world.cache_state(leader) is CacheState.STALE, GRACE_MS)
    assert world.writes(leader)
    leader.publishes = False
    world.mend_links()
    world.run(1_000)
    assert world.cache_state(leader) is CacheState.FRESH
    assert leader.fallback.blocking is BlockingReason.PROOF_MISSING, "the old proof is not enough"
    leader.publishes = True
    world.run_until(world.healthy, 1_000)
    assert isinstance(world.reads(leader), ReadReady)


def test_after_an_outage_without_writes_the_old_proof_still_covers_everything() -> None:
    world = checked_world(21)
    leader = world.led()
    world.run(500)
    world.cut_links(1, 2, 3)
    world.run_until(lambda: world.cache_state(leader) is CacheState.STALE, GRACE_MS)
    leader.publishes = False
    world.mend_links()
    world.run_until(world.healthy, 1_000)


def test_one_node_without_the_control_plane_is_no_matter_for_the_others() -> None:
    world = checked_world(4)
    leader = world.led()
    others = [
        side for side in world.sides.values() if side.partition == DATA and side is not leader
    ]
    world.cut_links(*(side.node_id for side in others))
    world.run(GRACE_MS + 500)
    assert [world.cache_state(side) for side in others] == [CacheState.EXPIRED] * 3
    assert isinstance(world.reads(leader), ReadReady)
    assert not leader.fallback.asserted


def test_a_leader_elected_during_an_outage_has_no_proof_of_its_term() -> None:
    world = checked_world(5)
    old = world.led()
    world.cut_links(1, 2, 3)
    world.data.apart({old.node.id})
    world.run_until(lambda: world.data_leader() is not old, 3_000)
    new = world.led()
    assert world.cache_state(new) in (CacheState.FRESH, CacheState.CACHED)
    assert new.fallback.blocking is BlockingReason.PROOF_MISSING
    denied = world.reads(new)
    assert isinstance(denied, ReadDenied)
    assert (denied.refusal, denied.failed_clause) == (
        ReadRefusal.NEEDED_FOR_READ_INDEX,
        FailedClause.STRICT_FALLBACK,
    )
    assert world.writes(new)
    world.data.apart(set())
    world.mend_links()
    world.run_until(world.healthy, 3_000)
    assert isinstance(world.reads(world.led()), ReadReady)


# Partitioned quorums of the control plane.


def test_a_control_plane_leader_without_its_quorum_confirms_nothing() -> None:
    """Nodes that reach only the cut-off side age as if nobody answered."""
    world = checked_world(6)
    leader = world.led()
    control = next(node for node in world.control.nodes.values() if node.up.leads)
    world.control.apart({control.id})
    for side in world.sides.values():
        if side.partition == DATA:
            side.reaches = {control.id}
    world.run(NUMBERS.cache_fresh_ms + 300)
    assert world.cache_state(leader) is CacheState.CACHED
    world.run(GRACE_MS)
    assert world.cache_state(leader) is CacheState.EXPIRED
    assert leader.fallback.blocking is BlockingReason.CACHE_EXPIRED
    assert world.writes(leader)
    world.mend_links()
    world.run_until(world.healthy, 3_000)
    assert isinstance(world.reads(world.led()), ReadReady), "the quorum's side serves"
    world.control.apart(set())
    world.run(1_000)
    digests = {(m.kv.revision, m.digest()) for m in world.control_machines()}
    world.run_until(lambda: len({m.kv.revision for m in world.control_machines()}) == 1, 3_000)
    assert digests


def test_a_control_plane_without_any_quorum_ages_every_cache_its_own_too() -> None:
    world = checked_world(7)
    for node in list(world.control.nodes.values())[:2]:
        world.control.crash(node)
    world.run(GRACE_MS + 500)
    alive = [side for side in world.sides.values() if side.node.replica is not None]
    assert {world.cache_state(side) for side in alive} == {CacheState.EXPIRED}
    assert world.writes(world.led())
    for node in world.control.nodes.values():
        if node.replica is None:
            world.control.open(node)
    world.run_until(world.healthy, 5_000)
    assert isinstance(world.reads(world.led()), ReadReady)


def test_nothing_acknowledged_is_lost_when_control_plane_nodes_are_killed_in_turn() -> None:
    world = checked_world(8)
    for number in (1, 2, 3):
        node = world.control.nodes[ReplicaId(number)]
        world.control.crash(node)
        for _ in range(5):
            assert world.writes(world.led())
        world.run(500)
        world.control.open(node)
        world.run_until(world.healthy, 5_000)
        assert isinstance(world.reads(world.led()), ReadReady)
        held = max(world.control_machines(), key=lambda m: m.kv.revision)
        assert find(held.kv, PublishedProof, DATA) is not None
    world.run(1_000)
    revisions = {(m.kv.revision, m.digest()) for m in world.control_machines()}
    assert len(revisions) == 1, "every replica has the same state in the end"


@pytest.mark.parametrize("seed", range(3))
def test_calls_are_done_once_however_often_their_answers_are_lost(seed: int) -> None:
    """Kill and restart every node of the control plane in turn under a stream of calls."""
    world = checked_world(50 + seed)
    world.answer_loss = 0.4
    rng = Random(seed)
    names = [f"t{number}" for number in range(18)]
    down: Node | None = None
    for number, name in enumerate(names):
        if number % 3 == 1:
            down = world.control.nodes[ReplicaId(1 + number // 3 % 3)]
            world.control.crash(down)
        elif number % 3 == 0 and down is not None:
            world.control.open(down)
        world.run(rng.choice([0, 20, 100]))
        world.insist(CreateTenant(tenant_id=name, sni=f"{name}.example.com"))
    if down is not None and down.replica is None:
        world.control.open(down)
    world.run_until(lambda: len({m.digest() for m in world.control_machines()}) == 1, 5_000)
    for machine in world.control_machines():
        assert sorted(each.tenant_id for each in scan(machine.kv, TenantSpec)) == sorted(names)
        records = [each for each in scan(machine.kv, AuditRecord) if each.kind == "CreateTenant"]
        assert [record.outcome for record in records] == ["Done"] * len(names)


# Proofs that regress, contradict or end.


def standing(world: World) -> PublishedProof:
    machine = max(world.control_machines(), key=lambda each: each.kv.revision)
    held = find(machine.kv, PublishedProof, DATA)
    assert held is not None
    return held


def publish_as(world: World, node_id: int, **change: int) -> ProofVerdict:
    held = standing(world).proof
    fresh = msgspec.structs.replace(held, updated_at=world.now.unix_ms, **change)
    command = PublishProofs(node_id=node_id, proofs=sign_proofs(PROOF_KEY, "p1", [fresh]))
    result = world.call(command, by=node_identity(node_id))
    return verdicts_of([DATA], result)[DATA]


def test_a_late_proof_of_an_earlier_leader_changes_nothing() -> None:
    world = checked_world(9)
    leader = world.led()
    assert world.writes(leader)
    world.run(500)
    held = standing(world).proof
    verdict = publish_as(world, 2, last_durable_index=held.last_durable_index - 1)
    assert verdict is ProofVerdict.SUPERSEDED
    world.run(300)
    assert standing(world).proof.proven() == held.proven()
    assert world.healthy()


def test_a_conflict_holds_the_latch_until_an_operator_clears_it() -> None:
    """§9.8: ControlPlaneProofConflict."""
    world = checked_world(10)
    leader = world.led()
    world.run(500)
    held = standing(world).proof
    world.cut_links(1, 2, 3)  # the leader must not publish anything newer meanwhile
    rival = msgspec.structs.replace(held, segment_seq=held.segment_seq + 1)
    assert judge(held, rival) is ProofVerdict.CONFLICT
    assert publish_as(world, 2, segment_seq=held.segment_seq + 1) is ProofVerdict.CONFLICT
    world.mend_links()
    world.run_until(lambda: leader.fallback.blocking is BlockingReason.PROOF_CONFLICT, 2_000)
    assert world.writes(leader)
    world.run(3 * GRACE_MS // 2)
    assert leader.fallback.blocking is BlockingReason.PROOF_CONFLICT, "it does not pass by itself"
    denied = world.reads(leader)
    assert isinstance(denied, ReadDenied)
    assert denied.refusal is ReadRefusal.NEEDED_FOR_READ_INDEX
    world.call(ClearProofConflict(partition_id=DATA, justification="looked"))
    world.run_until(world.healthy, 3_000)
    assert isinstance(world.reads(world.led()), ReadReady)


def test_a_group_at_rest_keeps_its_proof_alive() -> None:
    world = checked_world(11)
    world.run(3 * NUMBERS.durability_proof_ttl_ms // 2)
    assert world.healthy()


def test_a_proof_that_nobody_refreshes_ends_and_with_it_the_reads() -> None:
    """§14.2: stale proofs force strict fallback until refreshed."""
    world = checked_world(12)
    leader = world.led()
    leader.publishes = False
    world.run_until(
        lambda: leader.fallback.blocking is BlockingReason.PROOF_EXPIRED,
        NUMBERS.durability_proof_ttl_ms + 1_000,
    )
    assert leader.fallback.state is FallbackState.PROOF_PUBLISHED
    assert world.cache_state(leader) is CacheState.FRESH
    leader.publishes = True
    world.run_until(world.healthy, 12_000)


def test_a_proposal_that_was_given_up_may_still_be_committed_and_does_no_harm() -> None:
    world = checked_world(13)
    leader = world.led()
    held = standing(world).proof
    late = PublishProofs(
        node_id=leader.node_id,
        proofs=sign_proofs(
            PROOF_KEY, "p1", [msgspec.structs.replace(held, updated_at=world.now.unix_ms)]
        ),
    )
    caller = Caller(identity=node_identity(leader.node_id))
    call = encode_call(caller, "late", world.now.unix_ms, late)
    for _ in range(10):
        assert world.writes(leader)
    world.ask(None, call, lambda _reply: None)
    world.ask(None, call, lambda _reply: None)
    world.run(500)
    assert world.healthy()


# Everything at once.


@pytest.mark.parametrize("seed", range(6))
def test_any_mixture_of_faults_is_safe_and_heals(seed: int) -> None:
    """Safety is checked at every tick; then life: a leader out of the latch that serves reads."""
    run_mixture(seed, faults=6)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(6, 200))
def test_long_mixtures_of_faults_are_safe_and_heal(seed: int) -> None:
    run_mixture(seed, faults=25)


def run_mixture(seed: int, faults: int) -> None:
    world = checked_world(1_000 + seed)
    rng = Random(seed)
    for _ in range(faults):
        _break_something(world, rng)
        leader = world.data_leader()
        if leader is not None:
            world.writes(leader)
        world.run(rng.choice([100, 400, 1_000, 2_500]))
    _heal(world)
    world.run_until(lambda: _serves(world), 20_000)
    # A batch of proofs that was lost is given up after a second; until then a read may time out.
    world.run_until(lambda: isinstance(world.reads(world.led()), ReadReady), 5_000)
    world.run_until(lambda: len({m.digest() for m in world.control_machines()}) == 1, 5_000)


def _break_something(world: World, rng: Random) -> None:
    kind = rng.choice(
        ["links", "some links", "control apart", "crash", "mend", "data apart", "move"]
    )
    if kind == "links":
        world.cut_links(*rng.sample(range(1, 5), rng.randint(1, 4)))
    elif kind == "move":
        world.try_move(*rng.choice([(1, 2, 3), (2, 3, 4)]))
    elif kind == "some links":
        side = world.sides[rng.choice([1, 2, 3, CONTROL_NODES + 1])]
        side.reaches = set(rng.sample([1, 2, 3], rng.randint(1, 2)))
    elif kind == "control apart":
        world.control.apart({rng.choice([1, 2, 3])})
    elif kind == "data apart":
        world.data.apart({rng.choice([1, 2, 3])})
    elif kind == "crash":
        node = world.control.nodes[ReplicaId(rng.choice([1, 2, 3]))]
        if node.replica is not None:
            world.control.crash(node)
    else:
        _heal(world)


def _serves(world: World) -> bool:
    """Healthy and fresh, under members that the control plane recorded, and no move left open."""
    leader = world.data_leader()
    if leader is None or not world.healthy() or world.placement().previous is not None:
        return False
    if world.cache_state(leader) is not CacheState.FRESH:
        return False  # it may turn Stale before its next poll
    return leader.node.up.group.leadership.membership_acknowledged()


def _heal(world: World) -> None:
    world.mend_links()
    world.control.apart(set())
    world.data.apart(set())
    for node in world.control.nodes.values():
        if node.replica is None:
            world.control.open(node)
