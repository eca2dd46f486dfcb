"""Stock consumers share groups that the machines decide: they agree, move over, and commit."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import confluent_kafka
import pytest

from quantum.broker.streams import AssignedGroup, ClassicGroup
from tests.quantum.kafka import golden
from tests.quantum.kafka.group_listener import GroupListener
from tests.quantum.kafka.listener import PARTITIONS, listening

with warnings.catch_warnings():  # the client reads its own files in an old way
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

QUIET = logging.getLogger("quantum.tests.silent")
QUIET.disabled = True
PATIENCE = 200  # polls of a tenth of a second


def consumer(listener: GroupListener, **options: Any) -> Any:
    settings: dict[str, Any] = {
        "bootstrap.servers": listener.address,
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "topic.metadata.refresh.interval.ms": 500,
        "logger": QUIET,
        **options,
    }
    if settings.get("group.protocol") != "consumer":
        settings["heartbeat.interval.ms"] = 100
        settings["session.timeout.ms"] = 6_000
    made = confluent_kafka.Consumer(settings)
    made.subscribe(["t"])
    return made


def owned(each: Any) -> set[int]:
    return {part.partition for part in each.assignment()}


def poll_until(consumers: list[Any], shares: list[int]) -> list[Any]:
    """Poll all until they own as many partitions as `shares` says, each partition once."""
    found: list[Any] = []
    for _ in range(PATIENCE):
        for each in consumers:
            found += [m for m in each.consume(100, 0.05) if m.error() is None]
        parts = [owned(each) for each in consumers]
        assert len(set().union(*parts)) == sum(map(len, parts)), parts
        if sorted(map(len, parts)) == sorted(shares):
            return found
    raise AssertionError([owned(each) for each in consumers])


KINDS: dict[str, dict[str, Any]] = {
    "range": {"partition.assignment.strategy": "range"},
    "cooperative": {"partition.assignment.strategy": "cooperative-sticky"},
    "static": {"partition.assignment.strategy": "range", "group.instance.id": "i"},
    "kip-848": {"group.protocol": "consumer"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_consumers_come_and_go(kind: str) -> None:
    with listening(GroupListener()) as listener:
        options = dict(KINDS[kind])
        first = consumer(listener, **options)
        poll_until([first], [PARTITIONS])
        if "group.instance.id" in options:
            options["group.instance.id"] = "j"
        second = consumer(listener, **options)
        poll_until([first, second], [1, 1])
        for part in range(PARTITIONS):
            tp = confluent_kafka.TopicPartition("t", part, 5 + part)
            owner = first if part in owned(first) else second
            owner.commit(offsets=[tp], asynchronous=False)
        group = listener.groups.get("g")
        assert group is not None
        assert {key: row.offset for key, row in group.offsets.committed.items()} == {
            ("t", 0): 5,
            ("t", 1): 6,
        }
        expected = AssignedGroup if kind == "kip-848" else ClassicGroup
        assert isinstance(group.members, expected)
        second.close()
        if kind != "static":  # a static member keeps its place until its session ends
            poll_until([first], [PARTITIONS])
        first.close()
        if kind != "static":
            assert not group.members.members, "all have left"
        golden.keep("librdkafka-groups", listener.requests)


def test_a_commit_of_another_generation_is_refused() -> None:
    with listening(GroupListener()) as listener:
        first = consumer(listener)
        poll_until([first], [PARTITIONS])
        group = listener.groups.get("g")
        assert group is not None
        assert isinstance(group.members, ClassicGroup)
        group.members.generation += 1  # as if a rebalance had passed it by
        with pytest.raises(confluent_kafka.KafkaException) as refused:
            first.commit(offsets=[confluent_kafka.TopicPartition("t", 0, 9)], asynchronous=False)
        assert refused.value.args[0].name() == "ILLEGAL_GENERATION"
        assert not group.offsets.committed
        first.close()


@pytest.mark.filterwarnings("default")
def test_clients_of_two_kinds_share_a_group() -> None:
    """librdkafka and kafka-python agree on a protocol, and each reads what the other assigned."""
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    with listening(GroupListener()) as listener:
        first = consumer(listener, **KINDS["range"])
        poll_until([first], [PARTITIONS])
        second = kafka.KafkaConsumer(
            "t", bootstrap_servers=listener.address, group_id="g", heartbeat_interval_ms=100
        )
        parts: list[set[int]] = []
        for _ in range(PATIENCE):
            first.consume(100, 0.05)
            second.poll(50)
            parts = [owned(first), {each.partition for each in second.assignment()}]
            if [len(each) for each in parts] == [1, 1]:
                break
        assert parts in ([{0}, {1}], [{1}, {0}])
        first.close()
        for _ in range(PATIENCE):
            second.poll(50)
            if len(second.assignment()) == PARTITIONS:
                break
        assert len(second.assignment()) == PARTITIONS
        second.close()
