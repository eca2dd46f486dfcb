"""Stock transactional producers and read_committed consumers, with the machines in between."""

from __future__ import annotations

import logging
from typing import Any

import confluent_kafka
import pytest

from quantum.broker.streams import ExpireTransactions, StreamRefusal
from tests.quantum.kafka.listener import listening
from tests.quantum.kafka.transaction_listener import TransactionListener

QUIET = logging.getLogger("quantum.tests.silent")
QUIET.disabled = True


def producer(listener: TransactionListener, name: str | None = "tx", **more: Any) -> Any:
    settings: dict[str, Any] = {
        "bootstrap.servers": listener.address,
        "enable.idempotence": True,
        "logger": QUIET,
        "linger.ms": 0,
        **more,
    }
    if name is not None:
        settings["transactional.id"] = name
    made = confluent_kafka.Producer(settings)
    if name is not None:
        made.init_transactions(20)
    return made


def values(listener: TransactionListener, isolation: str, count: int) -> list[bytes]:
    """Read all that an isolation level shows: `count` of them, and a little longer for more."""
    settings: dict[str, Any] = {
        "bootstrap.servers": listener.address,
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "isolation.level": isolation,
        "enable.partition.eof": True,
        "check.crcs": True,
        "logger": QUIET,
    }
    consumer = confluent_kafka.Consumer(settings)
    consumer.assign([confluent_kafka.TopicPartition("t", 0, 0)])
    found: list[bytes] = []
    for _ in range(200):
        message: Any = consumer.poll(0.1)
        if message is None:
            continue
        if message.error() is not None:
            assert message.error().name() == "_PARTITION_EOF", message.error()
            if len(found) >= count:
                break
            continue
        found.append(message.value())
    consumer.close()
    return found


def send(made: Any, *rows: bytes) -> None:
    for each in rows:
        made.produce("t", each, partition=0)
    assert made.flush(20) == 0


def test_committed_readers_see_whole_transactions_and_no_aborted_ones() -> None:
    with listening(TransactionListener()) as listener:
        made = producer(listener)
        made.begin_transaction()
        send(made, b"a1", b"a2")
        made.commit_transaction(20)
        made.begin_transaction()
        send(made, b"b1", b"b2")
        made.abort_transaction(20)
        made.begin_transaction()
        send(made, b"c1")
        made.commit_transaction(20)
        assert values(listener, "read_committed", 3) == [b"a1", b"a2", b"c1"]
        everything = values(listener, "read_uncommitted", 5)
        assert everything == [b"a1", b"a2", b"b1", b"b2", b"c1"]
        partition = listener.partitions["t", 0]
        assert partition.last_stable_offset == partition.end_offset


def test_an_open_transaction_holds_committed_readers_back() -> None:
    with listening(TransactionListener()) as listener:
        made = producer(listener)
        made.begin_transaction()
        send(made, b"a")
        made.commit_transaction(20)
        made.begin_transaction()
        send(made, b"b")
        plain = producer(listener, None)
        send(plain, b"c")
        assert values(listener, "read_committed", 1) == [b"a"]
        made.commit_transaction(20)
        assert values(listener, "read_committed", 3) == [b"a", b"b", b"c"]


def test_a_new_instance_fences_the_old_one() -> None:
    with listening(TransactionListener()) as listener:
        old = producer(listener)
        old.begin_transaction()
        send(old, b"old")
        new = producer(listener)
        assert StreamRefusal.TRANSACTION_ENDING in listener.answers, (
            "what was open is aborted first"
        )
        new.begin_transaction()
        send(new, b"new")
        new.commit_transaction(20)
        with pytest.raises(confluent_kafka.KafkaException) as fenced:
            old.commit_transaction(20)
        assert fenced.value.args[0].fatal() or fenced.value.args[0].txn_requires_abort()
        assert values(listener, "read_committed", 1) == [b"new"]


def test_a_transaction_that_timed_out_is_gone_and_its_client_is_told() -> None:
    with listening(TransactionListener()) as listener:
        made = producer(listener)
        made.begin_transaction()
        send(made, b"late")
        with listener._grown:
            listener.coordinate(ExpireTransactions(10**7))
        with pytest.raises(confluent_kafka.KafkaException):
            made.commit_transaction(20)
        assert values(listener, "read_committed", 0) == []
        assert listener.partitions["t", 0].last_stable_offset == 2


def test_a_repeated_batch_is_stored_once() -> None:
    """The bytes that a stock producer sent come again, as after an answer that was lost."""
    with listening(TransactionListener()) as listener:
        send(producer(listener, None), b"once")
        (request,) = [each for each in listener.requests if each[:2] == b"\0\0"]
        answers = {listener.reply(request) for _ in range(3)}
        assert len(answers) == 1
        assert listener.partitions["t", 0].end_offset == 1
        assert values(listener, "read_uncommitted", 1) == [b"once"]
