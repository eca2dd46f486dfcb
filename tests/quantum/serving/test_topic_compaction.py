"""Which passes the leader of a partition asks for: by configs, by age, and by who has the log."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from quantum.broker.streams import StreamRefusal
from quantum.node import topic_compaction
from quantum.node.topic_compaction import TopicCompaction
from quantum.partition.stream_side import section_of
from tests.quantum.serving.test_topic_files import Disk
from tests.quantum.serving.test_topics_leader import UUID, TopicLab

MINE, OTHER = 1, 2


class CompactionLab:
    """A partition of six records whose files say that they are as the log wants them."""

    def __init__(self, disk: Disk | None = None, **configs: str) -> None:
        self.lab = TopicLab(prgs=1)
        pairs = tuple((key.replace("_", "."), value) for key, value in configs.items())
        told: list[Any] = []
        self.lab.topics.create_topic("state", 1, pairs, UUID, told.append)
        self.lab.settle()
        topic = self.lab.topics.topic("state")
        assert topic is not None, told
        self.topic = topic
        for _ in range(3):
            self.lab.append(topic, 0, count=2)
        self.prg = self.lab.service.tenants["dev"].prgs[0]
        self.files = SimpleNamespace(
            segments=[SimpleNamespace(first_index=0, next_index=6, size_bytes=600)],
            in_flight=(),
            tail=None,
            compacted=(0, 0),
        )
        self.progress = {OTHER: SimpleNamespace(durable_index=0)}
        replica = cast("Any", self.prg.group.replica)
        partitions = {self.lab.topics.file_id(topic, 0): self.files}
        replica.streams = SimpleNamespace(store=SimpleNamespace(partitions=partitions))
        config = SimpleNamespace(members=frozenset((MINE, OTHER)))
        core = replica.group.core
        core.config, core.progress = config, self.progress
        replica.identity = SimpleNamespace(replica_id=MINE)
        replica.applied_index = 40
        self.knows = True
        reads = cast("Any", disk or Disk(None))
        self.compaction = TopicCompaction(lambda _prg: reads, lambda _prg: self.knows)

    def compact(self, now_ms: int) -> tuple[int, int]:
        """Look once; say what the log then wants, and let the files be so."""
        asyncio.run(self.compaction.compact(self.prg, now_ms))
        self.lab.settle()
        section = section_of(self.prg.broker)
        mark = section.compaction(self.topic.number, 0).mark
        self.files.compacted = mark
        return mark


def test_a_compacted_topic_is_compacted_and_another_is_not() -> None:
    assert CompactionLab(cleanup_policy="compact").compact(10_000) == (6, 0)
    assert CompactionLab(cleanup_policy="compact,delete").compact(10_000) == (6, 0)
    assert CompactionLab(cleanup_policy="delete").compact(10_000) == (0, 0)


def test_what_is_too_young_waits() -> None:
    disk = Disk(4)
    lab = CompactionLab(disk, cleanup_policy="compact", min_compaction_lag_ms="3000")
    assert lab.compact(10_000) == (4, 0)
    assert disk.asked == [7_001]
    assert CompactionLab(Disk(0), cleanup_policy="compact", min_compaction_lag_ms="1").compact(
        10_000
    ) == (0, 0)


def test_too_little_that_is_new_waits() -> None:
    lab = CompactionLab(cleanup_policy="compact", min_cleanable_dirty_ratio="0.5")
    assert lab.compact(10_000) == (6, 0)
    lab.lab.append(lab.topic, 0, count=1)
    lab.files.segments.append(SimpleNamespace(first_index=6, next_index=7, size_bytes=599))
    assert lab.compact(20_000) == (6, 0)
    lab.files.segments[-1].size_bytes = 600
    assert lab.compact(20_000) == (7, 0)


def test_tombstones_wait_for_their_time_and_for_every_member() -> None:
    lab = CompactionLab(cleanup_policy="compact", delete_retention_ms="5000")
    assert lab.compact(10_000) == (6, 0)
    section = section_of(lab.prg.broker)
    since = section.compaction(lab.topic.number, 0).passes[0].since_ms
    lab.progress[OTHER].durable_index = 1_000
    assert lab.compact(since + 4_999) == (6, 0), "too young"
    lab.progress[OTHER].durable_index = 39
    assert lab.compact(since + 5_000) == (6, 0), "a member lacks the pass in its log"
    lab.progress.clear()
    assert lab.compact(since + 5_000) == (6, 0), "nobody knows what a member has"
    lab.progress[OTHER] = SimpleNamespace(durable_index=40)
    assert lab.compact(since + 5_000) == (6, 6)
    assert lab.compact(since + 99_000) == (6, 6)


def test_a_pass_waits_until_the_own_files_are_where_the_last_one_wanted_them(
    monkeypatch: Any,
) -> None:
    rewritten: list[tuple[int, int]] = []

    async def rewrite(_group: Any, _pool: Any, _partition: int, rule: Any) -> bool:
        rewritten.append(rule.mark)
        return True

    monkeypatch.setattr(topic_compaction, "rewrite_stream", rewrite)
    lab = CompactionLab(cleanup_policy="compact", min_cleanable_dirty_ratio="0")
    lab.compact(10_000)
    lab.files.compacted = (0, 0)
    lab.files.size_bytes = 600
    lab.lab.append(lab.topic, 0, count=1)
    assert lab.compact(20_000) == (6, 0)
    assert rewritten == [(6, 0)]


def test_nothing_is_asked_of_a_group_that_does_not_know_compaction() -> None:
    lab = CompactionLab(cleanup_policy="compact")
    lab.knows = False
    assert lab.compact(10_000) == (0, 0)


def test_configs_of_compaction_are_refused_while_a_member_would_judge_them_otherwise() -> None:
    lab = TopicLab(prgs=1)
    tenant = lab.service.tenants["dev"]
    cast("Any", tenant).knows_compaction = lambda _prg: False
    told: list[Any] = []
    lab.topics.create_topic("state", 1, (("cleanup.policy", "compact"),), UUID, told.append)
    lab.settle()
    assert [each.refusal for each in told] == [StreamRefusal.BAD_CONFIG]
    lab.topics.create_topic("state", 1, (("cleanup.policy", "delete"),), UUID, told.append)
    lab.settle()
    lab.topics.alter_topic("state", (("delete.retention.ms", "1"),), told.append)
    lab.settle()
    assert [each.refusal for each in told[1:]] == [None, StreamRefusal.BAD_CONFIG]
