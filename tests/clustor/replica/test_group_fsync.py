"""Group-Fsync: small batches wait for each other a few milliseconds, and nothing else changes."""

from __future__ import annotations

from clustor.kv import Key, KvMachine
from clustor.log.config import LogConfig
from clustor.log.group_fsync import GroupFsyncClause
from clustor.log.steps import Sync
from clustor.log.types import DurabilityMode, DurabilityModeEpoch, IoWriterMode
from clustor.raft.leadership import ProposalAccepted, ProposalRefused
from clustor.raft.profiles import THROUGHPUT
from clustor.raft.transition import Transition
from clustor.replica import Applied, Delay
from tests.clustor.replica.harness import TICK_MS, Cluster, Node, put

KIB = 1 << 10
LARGE_LOG = LogConfig(segment_bytes=1 << 20)


def grouped(size: int = 3) -> tuple[Cluster, Node]:
    """Return a cluster whose group runs in Group-Fsync, and its leader."""
    cluster = Cluster(
        size, profile=THROUGHPUT, log_config=LARGE_LOG, io_writer_mode=IoWriterMode.FIXED_URING
    )
    leader = cluster.leader()
    cluster.run(200)
    change(cluster, leader, DurabilityMode.GROUP_FSYNC, 1)
    for node in cluster.nodes.values():
        assert node.up.group.core.durability_mode() is DurabilityMode.GROUP_FSYNC
    return cluster, leader


def change(cluster: Cluster, leader: Node, mode: DurabilityMode, epoch: int) -> None:
    answer = leader.up.propose_transition(Transition(mode, DurabilityModeEpoch(epoch)))
    assert isinstance(answer, ProposalAccepted), answer
    cluster.turn(leader)
    cluster.run(300)


def delay_of(node: Node) -> Delay | None:
    return node.outputs[-1].delay


def end_delay(cluster: Cluster, node: Node, waited_ms: float = 4.0) -> None:
    """Let the newest delay of a node come to its end."""
    newest = next(output.delay for output in reversed(node.outputs) if output.delay is not None)
    node.up.write_delayed(newest.number, waited_ms)
    cluster.turn(node)


def deliver_all(cluster: Cluster) -> None:
    while cluster.mail:
        cluster.deliver()


def test_in_strict_a_batch_goes_to_the_disk_at_once() -> None:
    cluster = Cluster(1, profile=THROUGHPUT, io_writer_mode=IoWriterMode.FIXED_URING)
    leader = cluster.leader()
    cluster.propose(leader, (1, put("a", "x")))
    assert len(leader.works) == 1
    assert delay_of(leader) is None


def test_a_shut_gate_forbids_it_and_clamps_what_runs() -> None:
    """Clustor §14.2: no feature without its gate."""
    cluster, leader = grouped(1)
    leadership = leader.up.group.leadership
    assert not leadership.must_write_strict()
    leader.up.group.allow_group_fsync(allowed=False)
    assert leadership.group_fsync_clause() is GroupFsyncClause.FEATURE_GATE
    assert leadership.must_write_strict()
    change(cluster, leader, DurabilityMode.STRICT, 2)
    again = Transition(DurabilityMode.GROUP_FSYNC, DurabilityModeEpoch(3))
    assert isinstance(leader.up.propose_transition(again), ProposalRefused)


def test_small_batches_wait_and_are_written_by_one_plan() -> None:
    cluster, leader = grouped(1)
    cluster.propose(leader, (1, put("a", "x")))
    assert not leader.works
    assert delay_of(leader) is not None
    cluster.propose(leader, (2, put("b", "y")))
    assert delay_of(leader) is None, "one timer for a batch, not one for each part of it"
    assert not leader.works
    end_delay(cluster, leader)
    assert len(leader.works) == 1
    assert sum(isinstance(step, Sync) for step in leader.works[0].plan) == 2
    assert leader.outcomes == [], "written is not yet durable"
    cluster.settle()
    replies = [outcome for outcome in leader.outcomes if isinstance(outcome, Applied)]
    assert [outcome.request_ids for outcome in replies] == [[1], [2]]


def test_followers_wait_too_and_nothing_is_acknowledged_meanwhile() -> None:
    cluster, leader = grouped()
    followers = [node for node in cluster.nodes.values() if node is not leader]
    cluster.propose(leader, (1, put("a", "x")))
    deliver_all(cluster)
    assert all(not node.works for node in cluster.nodes.values())
    end_delay(cluster, leader)
    cluster.work(leader)
    deliver_all(cluster)
    assert leader.outcomes == [], "one disk of three is no quorum"
    end_delay(cluster, followers[0])
    cluster.work(followers[0])
    deliver_all(cluster)
    assert any(isinstance(outcome, Applied) for outcome in leader.outcomes)


def test_a_full_batch_does_not_wait_for_its_time() -> None:
    cluster, leader = grouped(1)
    for number in range(3):
        cluster.propose(leader, (number, put(f"k{number}", "v" * 24 * KIB)))
    assert len(leader.works) == 1, "the third would have made it too large"
    assert delay_of(leader) is not None, "and waits for its own time"
    cluster.propose(leader, (9, put("large", "v" * 65 * KIB)))
    assert len(leader.works) == 3


def test_a_driver_without_timers_writes_with_the_next_tick() -> None:
    cluster, leader = grouped(1)
    cluster.propose(leader, (1, put("a", "x")))
    cluster.run(TICK_MS)
    assert any(isinstance(outcome, Applied) for outcome in leader.outcomes)


def test_a_timer_of_a_batch_that_is_written_already_means_nothing() -> None:
    cluster, leader = grouped(1)
    cluster.propose(leader, (1, put("a", "x")))
    old = delay_of(leader)
    assert old is not None
    end_delay(cluster, leader)
    cluster.settle()
    cluster.propose(leader, (2, put("b", "y")))
    leader.up.write_delayed(old.number, 4.0)
    cluster.turn(leader)
    assert not leader.works


def test_batches_that_wait_too_long_put_group_fsync_off() -> None:
    cluster, leader = grouped(1)
    for number in range(2):
        cluster.propose(leader, (number, put("a", "x")))
        end_delay(cluster, leader, waited_ms=6.0)
        cluster.settle()
    cluster.propose(leader, (9, put("b", "y")))
    assert len(leader.works) == 1, "clamped to Strict for a while"
    cluster.settle()
    cluster.run(1_200)
    cluster.propose(leader, (10, put("c", "z")))
    assert not leader.works, "and back when its back-off is over"


def test_what_waits_is_written_before_a_fence() -> None:
    cluster, leader = grouped()
    cluster.propose(leader, (1, put("a", "x")))
    assert not leader.works
    change(cluster, leader, DurabilityMode.STRICT, 2)
    assert any(isinstance(outcome, Applied) for outcome in leader.outcomes)
    cluster.propose(leader, (2, put("b", "y")))
    assert leader.works
    cluster.settle()
    cluster.run(200)
    assert len({node.up.machine.digest() for node in cluster.nodes.values()}) == 1


def test_a_node_with_much_under_way_lets_its_replicas_wait() -> None:
    cluster, leader = grouped(1)
    limit = THROUGHPUT.group_fsync.node_inflight_bytes_max
    cluster.node_inflight.inflight_bytes += limit
    cluster.propose(leader, (1, put("a", "x")))
    end_delay(cluster, leader)
    assert not leader.works
    cluster.node_inflight.inflight_bytes -= limit
    cluster.run(TICK_MS)
    assert any(isinstance(outcome, Applied) for outcome in leader.outcomes)
    assert cluster.node_inflight.inflight_bytes == 0


def test_a_failed_disk_gives_back_what_was_under_way() -> None:
    cluster, leader = grouped(1)
    cluster.propose(leader, (1, put("a", "x")))
    end_delay(cluster, leader)
    assert cluster.node_inflight.inflight_bytes > 0
    leader.up.disk_failed(leader.works[0].token, OSError("gone"))
    assert cluster.node_inflight.inflight_bytes == 0


def test_a_crash_while_batches_wait_loses_nothing_that_was_acknowledged() -> None:
    for seed in range(10):
        cluster, leader = grouped()
        cluster.rng.seed(seed)
        for number in range(20):
            cluster.propose(leader, (number, put(f"k{number}", "v")))
            if cluster.rng.random() < 0.5:
                cluster.run(TICK_MS)
        acknowledged = sum(
            len(outcome.request_ids) for outcome in leader.outcomes if isinstance(outcome, Applied)
        )
        for node in cluster.nodes.values():
            cluster.crash(node)
        for node in cluster.nodes.values():
            cluster.open(node)
        cluster.settle()
        survivor = cluster.leader()
        kept = sum(1 for n in range(20) if has(survivor, f"k{n}"))
        assert kept >= acknowledged, seed


def has(node: Node, key: str) -> bool:
    machine = node.up.machine
    assert isinstance(machine, KvMachine)
    return machine.get(Key(key.encode())) is not None
