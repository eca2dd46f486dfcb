"""The feed of a node over a real replica: who is answered, who waits, and who is told no."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from clustor.raft.profiles import CONSISTENCY_PROFILE
from clustor.raft.types import ReplicaId
from quantum.archive.feed_page import FeedRequest, decode_page, key_name, prove
from quantum.node.feeding import Feeding
from tests.clustor.replica.harness import PARTITION, Cluster, Node, put

SHARE = 4_000
NOW_MS = 1_700_000_000_000


class Files:
    """What a page is not read from here: the window of the group has it all."""

    def again(self) -> Files:
        return self

    def close(self) -> None: ...


class Bench:
    """One node's feed, on a clock of the test's own."""

    def __init__(self, cluster: Cluster, node: Node) -> None:
        self.now_ms = 0
        self.keys = cluster.keys
        replication = replace(
            CONSISTENCY_PROFILE.replication, snapshot_bytes_per_second_max=10 * SHARE
        )
        profile = replace(CONSISTENCY_PROFILE, replication=replication)
        group = SimpleNamespace(replica=node.up, partition_id=PARTITION, storage=Files())
        numbers = SimpleNamespace(
            prg_count=1, queue_messages_max=1, queue_bytes_max=1, dedupe_horizon_ms=1_000
        )
        self.prg = cast("Any", _Prg())
        self.prg.tenant, self.prg.number = SimpleNamespace(name="dev", rings=()), 0
        self.prg.group, self.prg.leader_node = group, 1
        self.prg.broker = SimpleNamespace(settings=numbers)
        self.feeding = Feeding(
            cast(
                "Any",
                SimpleNamespace(
                    now_ms=lambda: self.now_ms,
                    settings=SimpleNamespace(keys=cluster.keys, profile=profile),
                    cluster=SimpleNamespace(birth="born"),
                ),
            ),
            cast("Any", SimpleNamespace(tenants={"dev": SimpleNamespace(prgs=[self.prg])})),
        )

    async def ask(self, first: int, bytes_max: int = 1_000_000) -> tuple[int, Any]:
        request = FeedRequest("dev", 0, first, bytes_max, time.time_ns() // 1_000_000)
        answer = self.feeding.page(request, prove(request, self.keys, PARTITION))
        code, content = await answer if isinstance(answer, asyncio.Future) else answer
        if code == 200:
            assert isinstance(content, bytes)
            return code, [entry.index for entry in decode_page(content, self.keys, PARTITION)[1]]
        return code, content


class _Prg:
    """A partition that a dictionary can have as a key."""


def filled(nodes: int = 3) -> tuple[Cluster, Node]:
    cluster = Cluster(nodes)
    leader = cluster.leader()
    for number in range(20):
        cluster.propose(leader, (number, put(f"key{number}", "x" * 1_000)))
        cluster.settle()
    cluster.run(200)
    return cluster, leader


async def test_a_feed_has_the_observers_share_and_no_more() -> None:
    cluster, leader = filled()
    bench = Bench(cluster, leader)
    last = leader.up.group.core.wal_committed_index
    seen: list[int] = []
    paused = 0
    while not seen or seen[-1] < last:
        code, found = await bench.ask(len(seen) + 1)
        if code == 200:
            assert found, "a page has at least one entry"
            seen += found
        else:
            assert (code, found["error"]) == (429, "the observers' share is used up")
            assert found["retry_ms"] > 0
            paused += 1
            bench.now_ms += found["retry_ms"]
    assert seen == list(range(1, last + 1))
    assert paused * 100 >= 1_000 * (20 * 1_000 - 2 * SHARE) / SHARE, "about 20 kB at 4 kB/s"
    assert (await bench.ask(last + 1))[1] == [], "what is not there costs nothing"


async def test_followers_answer_too_and_nobody_without_a_leader() -> None:
    cluster, leader = filled()
    follower = next(node for node in cluster.nodes.values() if node is not leader)
    bench = Bench(cluster, follower)
    code, found = await bench.ask(1, 2_000)
    assert (code, found[0]) == (200, 1)
    cluster.cut_off = {node.id for node in cluster.nodes.values() if node is not follower}
    cluster.run(3_000)
    assert follower.up.group.core.leader_id is None or follower.up.leads is False
    code, found = await bench.ask(1)
    assert code == 503
    assert "leader" in found["error"]
    assert found["retry_ms"] > 0
    cluster.cut_off = set()
    cluster.run(3_000)
    bench.now_ms += 10_000
    assert (await bench.ask(1, 2_000))[0] == 200, "and again when there is one"


async def test_item_12_a_refusal_names_the_key_or_the_clock() -> None:
    """Issue 20: who has other keys learns which are wanted; who has the time wrong, by how much."""
    cluster, leader = filled(1)
    bench = Bench(cluster, leader)
    now_ms = time.time_ns() // 1_000_000
    asked = FeedRequest("dev", 0, 1, 100, now_ms)
    code, said = cast("Any", bench.feeding.page(asked, "1.00"))
    assert (code, said["wanted"]) == (403, key_name(cluster.keys))
    code, said = cast("Any", bench.feeding.page(replace(asked, at_ms=now_ms - 900_000), "1.00"))
    assert code == 403 and "wanted" not in said
    assert "the reader's clock is 900 s behind ours" in said["error"]


async def test_questions_that_prove_nothing_are_refused() -> None:
    cluster, leader = filled(1)
    bench = Bench(cluster, leader)
    for tenant, prg, expected in (("dev", 0, 403), ("dev", 1, 404), ("other", 0, 404)):
        asked = FeedRequest(tenant, prg, 1, 100, NOW_MS)
        assert cast("Any", bench.feeding.page(asked, "1.00"))[0] == expected
    row = bench.feeding.directory().partitions[0]
    assert (row.tenant, row.first, row.refusal) == ("dev", 1, "")
    assert leader.id == ReplicaId(1)
