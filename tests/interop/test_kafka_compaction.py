"""Compaction by key on real nodes: stock clients write and read, nodes are killed, and all agree.

What must be left is worked out from what the producers were told, not from the code: the last
record of each key at its own offset, nothing that was aborted, no deleted key.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.interop.broker_process import HOST, BrokerProcess
from tests.interop.cluster_process import UNHURRIED, ClusterProcess
from tests.interop.kafka_clients import PATIENCE_S, kafka_of, make_topic

TOPIC = "state"
CONFIG = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "1000",
}
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
Kept = dict[int, tuple[bytes | None, bytes | None]]
"""By offset: a key and its value."""


class Writer:
    """A stock producer that remembers what it was told."""

    def __init__(self, address: str, **options: object) -> None:
        self.producer = Producer({"bootstrap.servers": address, "linger.ms": 20, **options})
        self.acked: Kept = {}

    def write(self, key: bytes | None, value: bytes | None) -> None:
        def told(error: object, message: Any) -> None:
            assert error is None, error
            self.acked[message.offset()] = (message.key(), message.value())

        self.producer.produce(TOPIC, value, key=key, on_delivery=told)
        self.producer.poll(0)

    def flush(self) -> None:
        assert self.producer.flush(PATIENCE_S) == 0


def read(address: str, isolation: str = "read_committed") -> Kept:
    """Read the topic from its beginning to its end."""
    options = {"bootstrap.servers": address, "group.id": "judge", "enable.partition.eof": True}
    consumer = Consumer(options | {"isolation.level": isolation})
    consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
    found: Kept = {}
    while True:
        message: Any = consumer.poll(PATIENCE_S)
        assert message is not None, "the end was never reached"
        if message.error() is not None:
            consumer.close()
            return found
        found[message.offset()] = (message.key(), message.value())


def settle(address: str, wanted: Kept) -> None:
    """Wait until just this is left."""
    deadline = time.monotonic() + PATIENCE_S
    while (found := read(address)) != wanted:
        more = {at: found[at][0] for at in sorted(set(found) - set(wanted))}
        less = {at: wanted[at][0] for at in sorted(set(wanted) - set(found))}
        assert not less, f"lost: {less}"
        assert time.monotonic() < deadline, f"still there: {more}"
        time.sleep(0.2)


def last_words(acked: Kept) -> Kept:
    """Return what must be left in the end: the last value of each key that was not deleted."""
    last: dict[bytes | None, int] = {}
    for offset, (key, _) in sorted(acked.items()):
        last[key] = offset
    return {at: acked[at] for at in last.values() if acked[at][1] is not None}


def fill(address: str, rounds: int) -> Kept:
    """Write keys again and again in every codec, in transactions too, and delete some."""
    acked: Kept = {}
    for nth, codec in enumerate(CODECS):
        writer = Writer(address, **{"compression.type": codec, "enable.idempotence": True})
        for number in range(rounds):
            writer.write(b"key %d" % (number % 20), b"%s %d" % (codec.encode(), number) * 20)
        writer.write(b"gone %d" % nth, b"soon deleted")
        writer.flush()
        writer.write(b"gone %d" % nth, None)
        writer.flush()
        acked |= writer.acked
    banker = Writer(address, **{"transactional.id": "banker"})
    banker.producer.init_transactions(PATIENCE_S)
    for number in range(6):
        banker.producer.begin_transaction()
        before = dict(banker.acked)
        for key in range(10):
            banker.write(b"key %d" % key, b"transaction %d" % number)
        if number % 2:
            banker.flush()
            banker.producer.abort_transaction(PATIENCE_S)
            banker.acked = before
        else:
            banker.producer.commit_transaction(PATIENCE_S)
    acked |= banker.acked
    last = Writer(address)
    last.write(b"last", b"at the end")
    last.flush()
    return acked | last.acked


def test_only_the_last_record_of_each_key_stays_and_a_kill_changes_nothing(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", partitions=1) as process:
        address = f"{HOST}:{process.kafka}"
        make_topic(address, TOPIC, 1, **CONFIG)
        acked = fill(address, 200)
        wanted = last_words(acked)
        settle(address, wanted)
        assert set(read(address, "read_uncommitted")) <= set(wanted)
        process.kill()
        process.start()
        assert read(address) == wanted
        acked |= fill(address, 40)
        process.kill()
        process.start()
        wanted = last_words(acked)
        settle(address, wanted)


def test_every_replica_of_a_cluster_compacts_to_the_same(tmp_path: Path) -> None:
    """Nodes are killed while they write and while they compact; each leads, and all agree."""
    with ClusterProcess(tmp_path / "three", tenant_prgs=1, patience=UNHURRIED) as cluster:
        address = kafka_of(cluster)
        make_topic(address, TOPIC, 1, **CONFIG)
        acked = fill(address, 100)
        for node in (1, 2, 3):
            writer = Writer(address, **{"enable.idempotence": True})
            for number in range(400):
                if number == 200:
                    writer.producer.poll(0.2)
                    cluster.kill(node)
                writer.write(b"key %d" % (number % 7), b"%d after %d" % (number, node))
            writer.write(b"deleted by %d" % node, None)
            writer.write(b"last", b"%d" % node)
            writer.flush()
            acked |= writer.acked
            settle(address, last_words(acked))
        wanted = last_words(acked)
        for node in (3, 1, 2):
            cluster.kill(node)
            settle(address, wanted)


REFUSED = (
    {"cleanup.policy": "compress"},
    {"min.cleanable.dirty.ratio": "2"},
    {"min.compaction.lag.ms": "-1"},
    {"max.compaction.lag.ms": "1000"},
)


def test_a_config_that_would_have_no_effect_is_refused(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", partitions=1) as process:
        admin = AdminClient({"bootstrap.servers": f"{HOST}:{process.kafka}"})
        for config in REFUSED:
            made = admin.create_topics([NewTopic("refused", 1, config=config)])
            with pytest.raises(KafkaException) as refusal:
                made["refused"].result(PATIENCE_S)
            assert refusal.value.args[0].name() == "INVALID_CONFIG", config
