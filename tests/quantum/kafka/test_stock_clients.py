"""Stock clients read what the codec writes, and it reads what they send.

The listener is no broker (see `listener`), so this is about bytes: every client's own encoders
and decoders stand on the other side. `QUANTUM_GOLDEN=1` writes the golden requests anew.
"""

from __future__ import annotations

import asyncio
import logging
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import aiokafka
import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from quantum.protocols.kafka.codec import check_stored, iterate_records
from tests.quantum.kafka import golden
from tests.quantum.kafka.listener import Listener, listening

with warnings.catch_warnings():  # the client reads its own files in an old way
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

# What a client warns about in itself is not ours to judge.
pytestmark = pytest.mark.filterwarnings("default")

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
COUNT = 60
PAYLOADS = [(f"k{nth}".encode(), f"v{nth}".encode() * 40) for nth in range(COUNT)]
HEADERS: list[Any] = [("trace", b"1"), ("trace", b"2")]
QUIET = logging.getLogger("quantum.tests.silent")
QUIET.disabled = True


@pytest.fixture(autouse=True)
def _quiet() -> None:
    for name in ("kafka", "aiokafka"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def deadline_polls() -> Iterator[int]:
    """Count polls of half a second: a client that gets nothing in twenty seconds gets nothing."""
    yield from range(40)


def librdkafka(listener: Listener, codec: str) -> list[Any]:
    address = {"bootstrap.servers": listener.address, "logger": QUIET}
    producer = confluent_kafka.Producer({**address, "compression.type": codec})
    for key, value in PAYLOADS:
        producer.produce("t", value, key=key, headers=HEADERS)
    assert producer.flush(20) == 0
    consumer = confluent_kafka.Consumer(
        {**address, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["t"])
    found: list[Any] = []
    for _ in deadline_polls():
        found += [(m.key(), m.value(), m.headers()) for m in consumer.consume(COUNT, 0.5)]
        if len(found) >= COUNT:
            break
    consumer.commit(asynchronous=False)
    consumer.close()
    return found


def kafka_python(listener: Listener, codec: str) -> list[Any]:
    chosen = None if codec == "none" else codec
    producer = kafka.KafkaProducer(bootstrap_servers=listener.address, compression_type=chosen)
    for key, value in PAYLOADS:
        producer.send("t", value, key=key, headers=HEADERS)
    producer.flush(20)
    producer.close(5)
    consumer = kafka.KafkaConsumer(
        "t", bootstrap_servers=listener.address, group_id="g", auto_offset_reset="earliest"
    )
    found: list[Any] = []
    for _ in deadline_polls():
        for rows in consumer.poll(500).values():
            found += [(m.key, m.value, m.headers) for m in rows]
        if len(found) >= COUNT:
            break
    consumer.commit()
    consumer.close()
    return found


def aio_kafka(listener: Listener, codec: str) -> list[Any]:
    async def talk() -> list[Any]:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=listener.address,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=True,
        )
        await producer.start()
        waiting = [
            await producer.send("t", value, key=key, headers=HEADERS) for key, value in PAYLOADS
        ]
        await asyncio.wait_for(asyncio.gather(*waiting), 20)
        await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer(
            "t", bootstrap_servers=listener.address, group_id="g", auto_offset_reset="earliest"
        )
        await consumer.start()
        found: list[Any] = []
        for _ in deadline_polls():
            for rows in (await consumer.getmany(timeout_ms=500)).values():
                found += [(m.key, m.value, m.headers) for m in rows]
            if len(found) >= COUNT:
                break
        await consumer.commit()
        await consumer.stop()
        return found

    return asyncio.run(talk())


CLIENTS: dict[str, Callable[[Listener, str], list[Any]]] = {
    "librdkafka": librdkafka,
    "kafka-python": kafka_python,
    "aiokafka": aio_kafka,
}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("client", CLIENTS)
def test_what_a_client_produced_it_consumes(client: str, codec: str) -> None:
    with listening() as listener:
        found = CLIENTS[client](listener, codec)
        rows = Counter((key, value) for key, value, _ in found)
        assert rows == Counter(PAYLOADS)
        assert all(list(headers) == HEADERS for _, _, headers in found)
        assert not listener.refused
        assert sum(listener.offsets.values()) == COUNT
        read_by_us: Counter[Any] = Counter()
        for (_, _), log in listener.logs.items():
            for batch in log:
                header = check_stored(batch)
                assert header.compression.name.lower() == codec
                read_by_us.update((each.key, each.value) for each in iterate_records(batch))
        assert read_by_us == Counter(PAYLOADS)
        golden.keep(client, listener.requests)


def test_append_time_is_what_a_consumer_sees() -> None:
    with listening(append_time_ms=1_700_000_000_123) as listener:
        address = {"bootstrap.servers": listener.address, "logger": QUIET}
        producer = confluent_kafka.Producer(address)
        producer.produce("t", b"v", timestamp=5)
        assert producer.flush(20) == 0
        consumer = confluent_kafka.Consumer(
            {**address, "group.id": "g", "auto.offset.reset": "earliest", "check.crcs": True}
        )
        consumer.subscribe(["t"])
        (message,) = consumer.consume(1, 20)
        consumer.close()
        assert message.timestamp() == (
            confluent_kafka.TIMESTAMP_LOG_APPEND_TIME,
            1_700_000_000_123,
        )


def test_transactions_and_admin_are_understood() -> None:
    with listening() as listener:
        address: Any = {"bootstrap.servers": listener.address, "logger": QUIET}
        producer = confluent_kafka.Producer({**address, "transactional.id": "tx"})
        producer.init_transactions(20)
        for abort in (False, True):
            producer.begin_transaction()
            producer.produce("t", b"v")
            producer.flush(20)
            consumer = confluent_kafka.Consumer({**address, "group.id": "g"})
            offsets = [confluent_kafka.TopicPartition("t", 0, 1)]
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 20)
            consumer.close()
            if abort:
                producer.abort_transaction(20)
            else:
                producer.commit_transaction(20)
        admin = AdminClient(address)
        for future in admin.create_topics([NewTopic("made", 2, 1)]).values():
            future.result(20)
        for future in admin.delete_topics(["made"]).values():
            future.result(20)
        admin.list_consumer_groups(request_timeout=20).result(20)
        assert admin.list_topics(timeout=20).cluster_id == "listener"
        golden.keep("librdkafka-admin", listener.requests)


def test_golden_requests_are_not_written_by_accident() -> None:
    assert not os.environ.get("QUANTUM_GOLDEN"), "they were written anew: look at the diff"
