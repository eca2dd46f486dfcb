"""The log's word on compaction: only forward, nothing of an open transaction, in every replica."""

from __future__ import annotations

import pytest

from quantum.broker.streams import AddToTransaction, DeleteTopic, EndTransaction, InitProducer
from quantum.broker.streams.compacting import PASSES_MAX, PartitionCompaction
from quantum.broker.streams.errors import SnapshotUnreadable
from quantum.broker.streams.section import encode_compaction
from quantum.broker.streams.topic_configs import (
    is_compacted,
    is_trimmed,
    refuse_configs,
    speak_of_compaction,
)
from tests.quantum.streams.stream_desk import StreamDesk, batch_of


def compacted(desk: StreamDesk, through: int, purged: int = 0) -> tuple[int, int]:
    """Say a pass to four replicas, which the desk compares, and return where they stand."""
    desk.apply(encode_compaction(desk.now_ms, [(1, 0, through, purged)]))
    return desk.section.compaction(1, 0).mark


def test_a_pass_goes_forward_as_far_as_there_is_something() -> None:
    desk = StreamDesk()
    desk.create("state", cleanup_policy="compact")
    desk.append(batch_of(1, 0, 5))
    assert compacted(desk, 3) == (3, 0)
    assert compacted(desk, 2) == (3, 0), "never back"
    assert compacted(desk, 6) == (3, 0), "not beyond the end"
    assert compacted(desk, 5, 4) == (3, 0), "nothing is purged that no earlier pass covered"
    assert compacted(desk, 5, 3) == (5, 3)
    assert compacted(desk, 5, 2) == (5, 3)
    assert [each.through for each in desk.section.compaction(1, 0).passes] == [5]
    desk.apply(encode_compaction(desk.now_ms, [(9, 0, 1, 0), (1, 7, 1, 0)]))
    desk.apply(encode_compaction(desk.now_ms, [(1, 0, 5, 5)])[:-1])
    assert desk.section.compaction(1, 0).mark == (5, 3), "what is no pass changes nothing"


def test_nothing_of_an_open_transaction_is_compacted() -> None:
    desk = StreamDesk()
    desk.create("state", cleanup_policy="compact")
    desk.append(batch_of(1, 0, 2))
    given = desk.transact(InitProducer(0, "t", 60_000))
    producer = (given.producer_id, given.epoch, 0)
    desk.transact(AddToTransaction(0, "t", given.producer_id, given.epoch, (("state", 0),)))
    desk.append(batch_of(1, 0, 3, producer, transactional=True))
    assert compacted(desk, 3) == (0, 0)
    assert compacted(desk, 2) == (2, 0)
    desk.transact(EndTransaction(0, "t", given.producer_id, given.epoch, commit=False))
    assert compacted(desk, 6) == (6, 0)


def test_a_topic_that_ends_takes_its_compaction_along() -> None:
    desk = StreamDesk()
    desk.create("state", cleanup_policy="compact")
    desk.append(batch_of(1, 0, 5))
    assert compacted(desk, 5) == (5, 0)
    assert any(key.startswith(b"c") for key in desk.section.page_keys())
    desk.topics(DeleteTopic(0, "state"))
    assert not any(key.startswith(b"c") for key in desk.section.page_keys())


def test_times_are_kept_for_so_many_passes_and_no_more() -> None:
    compaction = PartitionCompaction()
    for through in range(1, PASSES_MAX + 11):
        assert compaction.take(through, 0, 10_000, through * 10)
    assert len(compaction.passes) == PASSES_MAX
    assert compaction.passes[0].through == 11
    assert PartitionCompaction.thaw(compaction.freeze()) == compaction
    with pytest.raises(SnapshotUnreadable):
        PartitionCompaction.thaw(PartitionCompaction(3, 4).freeze())


def test_each_config_that_is_taken_says_something() -> None:
    for value in ("delete", "compact", "compact,delete", "delete,compact"):
        assert refuse_configs([("cleanup.policy", value)]) == ""
    for key, value in (
        ("cleanup.policy", "compact,compact"),
        ("cleanup.policy", ""),
        ("min.cleanable.dirty.ratio", "1.01"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.cleanable.dirty.ratio", "-0.1"),
        ("delete.retention.ms", "-1"),
        ("min.compaction.lag.ms", "soon"),
    ):
        assert key in refuse_configs([(key, value)]), (key, value)
    assert is_trimmed({}) and not is_compacted({})
    assert is_compacted({"cleanup.policy": "compact"})
    assert not is_trimmed({"cleanup.policy": "compact"})
    both = {"cleanup.policy": "compact,delete"}
    assert is_compacted(both) and is_trimmed(both)
    assert not speak_of_compaction([("cleanup.policy", "delete"), ("retention.ms", "1")])
    assert speak_of_compaction([("delete.retention.ms", "1")])
