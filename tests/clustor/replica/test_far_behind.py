"""A follower whose messages were lost while the leader compacted past them must still catch up."""

from __future__ import annotations

from dataclasses import replace

from clustor.raft.profiles import CONSISTENCY_PROFILE, ReplicationNumbers
from tests.clustor.replica.harness import Cluster, put

FEW_IN_FLIGHT = replace(
    CONSISTENCY_PROFILE,
    replication=ReplicationNumbers(
        inflight_messages_max=4, snapshot_log_bytes_target=2_000, snapshot_retry_ms=200
    ),
)


def test_a_full_window_of_lost_messages_below_the_base_does_not_block_a_follower() -> None:
    cluster = Cluster(3, profile=FEW_IN_FLIGHT)
    leader = cluster.leader()
    cluster.run(100)
    away = next(node for node in cluster.nodes.values() if node is not leader)
    cluster.cut_off = {away.id}
    for number in range(40):
        cluster.propose(leader, (number, put(f"key{number % 7}", f"{number}" * 40)))
        cluster.settle()
    cluster.run(200)
    assert leader.up.group.core.log.base_index > away.up.group.core.log.last_index
    cluster.cut_off = set()
    cluster.run(3_000)
    assert away.up.applied_index == leader.up.applied_index
