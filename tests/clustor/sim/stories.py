"""Short stories for bugs that chance rarely meets: sound code passes, its bug does not."""

from __future__ import annotations

from pathlib import Path

from clustor.kv import Key, KvMachine
from clustor.log.types import DurabilityModeEpoch, IoWriterMode, LogIndex, SegmentSeq, Term
from clustor.raft.control_plane import ControlPlaneUpdate, VerifiedProof
from clustor.raft.messages import VoteRequest, VoteResponse
from clustor.raft.types import DurabilityTuple, ReplicaId
from clustor.replica import Applied, ReadReady, RequestId
from clustor.sim.disk import CrashChoice
from tests.clustor.raft.test_scenarios import play
from tests.clustor.replica.harness import TICK_MS, Cluster, Node, put

SCENARIOS = Path(__file__).parent.parent / "raft" / "scenarios"
ONE, TWO, THREE = ReplicaId(1), ReplicaId(2), ReplicaId(3)


def ask_for_vote(cluster: Cluster, node: Node, candidate: ReplicaId, term: int) -> None:
    request = VoteRequest(
        Term(term), candidate, Term(9), LogIndex(99), DurabilityModeEpoch(0), transfer=True
    )
    node.up.receive(request)
    cluster.turn(node)


def votes(cluster: Cluster) -> list[tuple[ReplicaId, int]]:
    return [
        (to, message.term)
        for _, to, message in cluster.mail
        if isinstance(message, VoteResponse) and message.vote_granted
    ]


def a_vote_in_a_known_term_survives_a_loss_of_power() -> None:
    cluster = Cluster(3)
    node = cluster.nodes[ONE]
    node.up.receive(VoteResponse(Term(5), TWO, vote_granted=False))
    cluster.turn(node)
    while node.works:
        cluster.work(node)
    ask_for_vote(cluster, node, TWO, 5)
    while node.works:
        cluster.work(node)
    assert votes(cluster) == [(TWO, 5)]
    node.disk = node.disk.crash(CrashChoice())
    cluster.open(node)
    while node.works:
        cluster.work(node)
    ask_for_vote(cluster, node, THREE, 5)
    while node.works:
        cluster.work(node)
    assert votes(cluster) == [(TWO, 5)], "the same replica voted twice in one term"


def a_vote_leaves_only_when_it_is_durable() -> None:
    cluster = Cluster(3)
    node = cluster.nodes[ONE]
    ask_for_vote(cluster, node, TWO, 5)
    assert node.works and not votes(cluster)
    while node.works:
        cluster.work(node)
    assert votes(cluster) == [(TWO, 5)]


def a_leader_that_is_cut_off_does_not_serve_what_is_old() -> None:
    cluster = Cluster(3)
    old = cluster.leader()
    cluster.run(200)
    cluster.propose(old, (1, put("key", "old")))
    cluster.settle()
    cluster.run(200)
    cluster.cut_off = {old.id}
    others = [node for node in cluster.nodes.values() if node is not old]
    new = _next_leader(cluster, others)
    cluster.propose(new, (2, put("key", "new")))
    cluster.settle()
    assert isinstance(new.outcomes[-1], Applied)
    assert old.up.leads, "its clock stands still: it has not noticed yet"
    old.up.read(RequestId(3), cluster.now_ms + 1_000)
    old.up.tick(old.up.group.core.now_ms)
    cluster.turn(old)
    cluster.settle()
    served = [answer for answer in old.reads if isinstance(answer, ReadReady)]
    machine = old.up.machine
    assert isinstance(machine, KvMachine)
    record = machine.get(Key(b"key"))
    assert not served or (record is not None and record.value == b"new"), "a stale read"


def _next_leader(cluster: Cluster, others: list[Node]) -> Node:
    for _ in range(300):
        cluster.now_ms += TICK_MS
        for node in others:
            cluster.tell(node)
            node.up.tick(cluster.now_ms)
            cluster.turn(node)
        cluster.settle()
        for node in others:
            if node.up.leads and node.up.applied_index >= node.up.group.core.term_start:
                return node
    raise AssertionError("no new leader")


def figure_8() -> None:
    """Entries of an older term are never committed by counting replicas."""
    for name in ("figure_8.txt", "figure_8_commit.txt"):
        text = (SCENARIOS / name).read_text()
        assert play(text) == text


def a_proof_of_another_term_opens_no_read() -> None:
    """The proof names a higher index than any here, but of a term that is over."""
    cluster = Cluster(3)
    cluster.leader()
    cluster.cut_off = {cluster.leader().id}
    leader = cluster.leader()
    cluster.cut_off = set()
    cluster.run(100)
    term = Term(leader.up.group.core.hard.term - 1)
    stale = DurabilityTuple(
        term, LogIndex(999), SegmentSeq(1), IoWriterMode.BLOCKING, DurabilityModeEpoch(0)
    )
    cluster.control_is_down = True
    leader.up.group.access.control.proof = None  # what it heard of the newest term is forgotten
    leader.up.control_plane(ControlPlaneUpdate(proof=VerifiedProof(stale, 0)))
    leader.up.read(RequestId(1), cluster.now_ms + 200)
    cluster.run(400)
    assert leader.reads and not any(isinstance(answer, ReadReady) for answer in leader.reads)


STORIES = (
    a_vote_in_a_known_term_survives_a_loss_of_power,
    a_vote_leaves_only_when_it_is_durable,
    a_leader_that_is_cut_off_does_not_serve_what_is_old,
    figure_8,
    a_proof_of_another_term_opens_no_read,
)
