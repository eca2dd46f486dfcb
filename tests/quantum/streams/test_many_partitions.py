"""Five thousand partitions of one PRG: what each costs while it is idle, and in a turn."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

from clustor.log.types import PartitionId
from clustor.streams import StoreId, StreamConfig, StreamMemory, create_store
from clustor.streams.changes import StreamDefine
from quantum.broker import Broker, BrokerSettings
from quantum.broker.streams import CreateTopic
from quantum.broker.streams.section import TOPICS, encode_stream_command
from quantum.partition.stream_side import section_of
from tests.clustor.log.harness import new_keys
from tests.quantum.serving.test_topics_leader import UUID, TopicLab
from tests.quantum.streams.stream_desk import batch_of

MANY = 5_000
IDLE_BYTES_MAX = 8 << 10
ALONE = BrokerSettings(
    prg=0,
    prg_count=1,
    topic_partition=lambda _key, _count: 0,
    session_partition=lambda _key, _count: 0,
)


def test_an_idle_partition_costs_little_memory() -> None:
    broker = Broker(ALONE, keeps_streams=True)
    command = CreateTopic(0, "many", UUID, MANY)
    gc.collect()
    tracemalloc.start()
    try:
        broker.apply_batch(1, [encode_stream_command(1_000, TOPICS, command)])
        changes = broker.take_stream_changes()
        gc.collect()
        state_bytes = tracemalloc.get_traced_memory()[0]
        facts = (PartitionId(1), StoreId(bytes(16)), new_keys(), StreamConfig())
        store = create_store(*facts, memory=StreamMemory()).store
        for change in changes:
            store.take(1, change)
        gc.collect()
        all_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert sum(isinstance(each, StreamDefine) for each in changes) == MANY
    assert len(section_of(broker).partitions) == MANY
    print(f"{state_bytes / MANY:.0f} bytes of state, {all_bytes / MANY:.0f} with the store")
    assert all_bytes / MANY <= IDLE_BYTES_MAX


def test_a_turn_for_all_of_them_is_as_many_entries_as_for_one() -> None:
    lab = TopicLab(prgs=1)
    topic = lab.create("many", MANY)
    lab.append(topic, 0)
    entries = []
    for partitions in (1, MANY):
        before, told = lab.indices[0], list[Any]()
        for p in range(partitions):
            lab.topics.append(0, [batch_of(topic.number, p)], told.append)
        lab.settle()
        entries.append(lab.indices[0] - before)
        assert sum(len(each) for each in told) == partitions
    assert entries == [1, 1]
