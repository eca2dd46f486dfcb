"""One connection of the adapter: order, bounds, bad input, leaders elsewhere, and access rules."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema

from clustor.runtime.containment import contained
from quantum.protocols.kafka.codec import (
    ApiKey,
    KafkaCode,
    KafkaRecord,
    build_batch,
    decode,
    encode,
    shape,
    versions_of,
)
from quantum.protocols.kafka.session.dispatch import HANDLERS, HIDDEN
from quantum.protocols.kafka.session.limits import KafkaLimits
from quantum.tenancy import describe_tenants
from tests.quantum.kafka import golden
from tests.quantum.kafka.session.adapter_server import AdapterBench, BenchWire
from tests.quantum.kafka.test_fuzz import mutated

UUID = bytes(range(16))


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def request(key: ApiKey, version: int, correlation: int, facts: dict[str, Any]) -> bytes:
    row = versions_of(key, version)
    head = struct.pack(">hhih", key, version, correlation, 1) + b"t"
    head += b"\x00" if version >= row.flexible_from else b""
    return framed(head + encode(shape(load_request_schema(key, version), facts)))


def produce(correlation: int, values: list[bytes], topic: str = "t", acks: int = -1) -> bytes:
    records = [KafkaRecord(n, 1_000, None, value) for n, value in enumerate(values)]
    partition = {"index": 0, "records": build_batch(records)}
    facts: dict[str, Any] = {"transactional_id": None, "acks": acks, "timeout": 30_000}
    facts["topic_data"] = [{"name": topic, "partition_data": [partition]}]
    return request(ApiKey.PRODUCE, 8, correlation, facts)


def fetch(correlation: int, offset: int = 0, wait_ms: int = 0, topic: str = "t") -> bytes:
    partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    facts: dict[str, Any] = {"max_wait": wait_ms, "min_bytes": 1, "max_bytes": 1 << 20}
    facts |= {"isolation_level": 0, "topics": [{"topic": topic, "partitions": [partition]}]}
    return request(ApiKey.FETCH, 4, correlation, facts | {"replica_id": -1})


def answers(wire: BenchWire) -> list[tuple[int, bytes]]:
    """Take what was written: (correlation id, body) of each answer."""
    data, found = bytes(wire.written), []
    while data:
        size, correlation = struct.unpack_from(">ii", data)
        found.append((correlation, data[8 : 4 + size]))
        data = data[4 + size :]
    wire.written.clear()
    return found


@pytest.fixture
def bench() -> AdapterBench:
    made = AdapterBench()
    made.topics.create_topic("t", 1, (), UUID, lambda _reply: None)
    return made


def test_answers_leave_in_the_order_of_their_requests_however_the_bytes_come(
    bench: AdapterBench,
) -> None:
    wire = bench.connect()
    stream = produce(1, [b"a"]) + fetch(2) + produce(3, [b"b"]) + fetch(4, 1)
    for byte in stream:
        wire.handler.received(bytes((byte,)))
        bench.turn()
    found = answers(wire)
    assert [correlation for correlation, _ in found] == [1, 2, 3, 4]
    assert b"a" in found[1][1] and b"b" in found[3][1]


def test_an_answer_that_is_ready_waits_for_those_before_it(bench: AdapterBench) -> None:
    held: list[Any] = []
    append = bench.topics.append

    def hold_first(prg: int, batches: Any, done: Any) -> None:
        if held:
            append(prg, batches, done)
        else:
            held.append((prg, batches, done))

    bench.topics.append = hold_first  # type: ignore[method-assign]
    wire = bench.connect()
    wire.handler.received(produce(1, [b"a"]) + produce(2, [b"b"]))
    bench.turn()
    assert not wire.written
    append(*held[0])
    bench.turn()
    assert [correlation for correlation, _ in answers(wire)] == [1, 2]


def test_nothing_overtakes_a_request_that_cannot_begin_yet(bench: AdapterBench) -> None:
    """A batch that entered the log before the one sent before it would be out of order."""
    bench.topics.knows = False
    wire = bench.connect()
    wire.handler.received(produce(1, [b"a"]))
    bench.turn()
    bench.topics.knows = True
    wire.handler.received(produce(2, [b"b"]) + fetch(3))
    bench.turn()
    assert not wire.written
    bench.turn(30)
    found = answers(wire)
    assert [correlation for correlation, _ in found] == [1, 2, 3]
    assert found[2][1].index(b"a") < found[2][1].index(b"b")


def fetch_by(
    correlation: int, *, epoch: int = -1, isolation: int = 0, bytes_max: int = 9_999
) -> bytes:
    """Fetch from the start of `t`, as newer clients do."""
    partition = {"partition": 0, "current_leader_epoch": epoch, "fetch_offset": 0}
    partition |= {"log_start_offset": -1, "partition_max_bytes": bytes_max}
    facts: dict[str, Any] = {"replica_id": -1, "max_wait": 0, "min_bytes": 1, "max_bytes": 9_999}
    facts |= {"isolation_level": isolation, "session_id": 0, "session_epoch": -1, "rack_id": ""}
    facts |= {"topics": [{"topic": "t", "partitions": [partition]}], "forgotten_topics_data": []}
    return request(ApiKey.FETCH, 11, correlation, facts)


def fetched(bench: AdapterBench, **how: int) -> Any:
    wire = bench.connect()
    wire.handler.received(fetch_by(1, **how))
    bench.turn()
    ((_, body),) = answers(wire)
    answer: Any = decode(load_response_schema(ApiKey.FETCH, 11), body)
    return answer.responses[0].partitions[0]


@pytest.mark.parametrize(
    ("epoch", "code"),
    [
        (-1, KafkaCode.none),
        (2, KafkaCode.fenced_leader_epoch),
        (3, KafkaCode.none),
        (4, KafkaCode.unknown_leader_epoch),
    ],
    ids=["untold", "before", "now", "future"],
)
def test_who_fetches_by_another_leader_s_epoch_is_told_so(
    bench: AdapterBench, epoch: int, code: KafkaCode
) -> None:
    assert fetched(bench, epoch=epoch).error_code is code


def test_the_first_batch_is_given_whatever_its_size(bench: AdapterBench) -> None:
    wire = bench.connect()
    wire.handler.received(produce(1, [b"large" * 100]) + produce(2, [b"next"]))
    bench.turn()
    records = fetched(bench, bytes_max=1).records
    assert b"large" in records and b"next" not in records


def test_what_the_log_refuses_is_refused(bench: AdapterBench) -> None:
    wire = bench.connect()
    records = [KafkaRecord(0, 1_000, None, b"x")]
    for correlation, sequence in enumerate((0, 7)):
        batch = build_batch(records, producer_id=5, producer_epoch=0, base_sequence=sequence)
        row = {"name": "t", "partition_data": [{"index": 0, "records": batch}]}
        facts = {"transactional_id": None, "acks": -1, "timeout": 1_000, "topic_data": [row]}
        wire.handler.received(request(ApiKey.PRODUCE, 8, correlation, facts))
    bench.topics.append = lambda prg, batches, done: done(None)  # type: ignore[method-assign]
    wire.handler.received(produce(2, [b"nobody knows"]))
    bench.turn()
    told = []
    for _, body in answers(wire):
        answer: Any = decode(load_response_schema(ApiKey.PRODUCE, 8), body)
        told.append(answer.responses[0].partition_responses[0].error_code)
    lost, late = KafkaCode.not_leader_or_follower, KafkaCode.out_of_order_sequence_number
    assert told == [KafkaCode.none, late, lost]


def test_a_refused_partition_has_records_of_no_length_and_no_null(bench: AdapterBench) -> None:
    bench.topics.led_by = 2
    wire = bench.connect()
    wire.handler.received(fetch(1))
    bench.turn()
    ((_, body),) = answers(wire)
    found: Any = decode(load_response_schema(ApiKey.FETCH, 4), body)
    partition = found.responses[0].partitions[0]
    assert partition.error_code is KafkaCode.not_leader_or_follower
    assert partition.records == b""  # librdkafka ends the connection for a null


@pytest.mark.parametrize(
    ("asked", "told"), [(2, (2, 0)), (3, (3, 0)), (4, (-1, -1))], ids=["before", "now", "future"]
)
def test_an_epoch_that_appended_nothing_ended_where_the_log_starts(
    bench: AdapterBench, asked: int, told: tuple[int, int]
) -> None:
    row = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": asked}
    facts = {"replica_id": -1, "topics": [{"topic": "t", "partitions": [row]}]}
    wire = bench.connect()
    wire.handler.received(request(ApiKey.OFFSET_FOR_LEADER_EPOCH, 3, 1, facts))
    bench.turn()
    ((_, body),) = answers(wire)
    found: Any = decode(load_response_schema(ApiKey.OFFSET_FOR_LEADER_EPOCH, 3), body)
    partition = found.topics[0].partitions[0]
    assert (partition.leader_epoch, partition.end_offset) == told


def test_a_fetch_waits_for_what_comes_and_nothing_behind_it_is_begun(bench: AdapterBench) -> None:
    wire, other = bench.connect(), bench.connect()
    wire.handler.received(fetch(1, 0, 5_000) + produce(2, [b"behind"]))
    bench.turn()
    assert not wire.written
    topic = bench.topics.topic("t")
    assert topic is not None
    view = bench.topics.partition(topic, 0)
    assert view is not None and view.high_watermark == 0
    other.handler.received(produce(9, [b"news"]))
    bench.turn()
    bench.turn()
    found = answers(wire)
    assert [correlation for correlation, _ in found] == [1, 2]
    assert b"news" in found[0][1]


def test_a_fetch_without_news_is_answered_when_its_time_is_over(bench: AdapterBench) -> None:
    wire = bench.connect()
    wire.handler.received(fetch(1, 0, 500))
    bench.turn(499)
    assert not wire.written
    bench.turn(2)
    assert [correlation for correlation, _ in answers(wire)] == [1]


def test_who_does_not_read_its_answers_is_not_read(bench: AdapterBench) -> None:
    wire = bench.connect()
    wire.writable = False
    wire.handler.received(fetch(1))
    bench.turn()
    assert wire.paused and not wire.written
    wire.writable = True
    wire.handler.writable_again()
    bench.turn()
    assert [correlation for correlation, _ in answers(wire)] == [1]
    assert not wire.paused


def test_so_many_requests_are_open_and_no_more() -> None:
    bench = AdapterBench(KafkaLimits(requests_open_max=4))
    bench.topics.create_topic("t", 1, (), UUID, lambda _reply: None)
    held: list[Any] = []
    bench.topics.append = lambda prg, batches, done: held.append((batches, done))  # type: ignore[method-assign]
    wire = bench.connect()
    wire.handler.received(b"".join(produce(n, [b"x"]) for n in range(10)))
    assert len(held) == 4 and wire.paused


def test_a_node_that_knows_no_topics_yet_lets_requests_wait(bench: AdapterBench) -> None:
    bench.topics.knows = False
    wire = bench.connect()
    wire.handler.received(produce(1, [b"early"]) + fetch(2))
    bench.turn(1_000)
    assert not wire.written
    bench.topics.knows = True
    bench.turn(30)
    found = answers(wire)
    assert [correlation for correlation, _ in found] == [1, 2]
    assert b"early" in found[1][1]


def test_acks_zero_is_stored_and_not_answered(bench: AdapterBench) -> None:
    wire = bench.connect()
    wire.handler.received(produce(1, [b"quiet"], acks=0) + fetch(2))
    bench.turn()
    ((correlation, body),) = answers(wire)
    assert correlation == 2 and b"quiet" in body


@pytest.mark.parametrize(
    "data",
    {
        "an api that is none": framed(struct.pack(">hhih", 999, 0, 1, -1)),
        "a version of the future": framed(struct.pack(">hhih", ApiKey.FETCH, 99, 1, -1)),
        "a negative length": b"\xff\xff\xff\xff",
        "a length beyond the bound": b"\x7f\xff\xff\xff",
        "a length without a header": b"\x00\x00\x00\x01\x00",
        "an api of shares, unserved": framed(struct.pack(">hhih", 76, 0, 1, -1)),
        "message sets before version 2": framed(struct.pack(">hhih", ApiKey.PRODUCE, 1, 1, -1)),
    }.items(),
    ids=lambda each: each[0],
)
def test_what_has_no_answer_ends_its_connection_and_is_told(
    bench: AdapterBench, data: tuple[str, bytes]
) -> None:
    wire, other = bench.connect(), bench.connect()
    wire.handler.received(data[1])
    bench.turn()
    assert not wire.is_open
    assert bench.adapter.faults and bench.host.refused
    other.handler.received(fetch(7))
    bench.turn()
    assert [correlation for correlation, _ in answers(other)] == [7]


def test_a_batch_with_a_wrong_checksum_is_answered_with_its_code(bench: AdapterBench) -> None:
    data = bytearray(produce(1, [b"damaged"]))
    data[-2] ^= 1
    wire = bench.connect()
    wire.handler.received(bytes(data))
    bench.turn()
    ((_, body),) = answers(wire)
    found: Any = decode(load_response_schema(ApiKey.PRODUCE, 8), body)
    assert found.responses[0].partition_responses[0].error_code is KafkaCode.corrupt_message
    assert wire.is_open and bench.adapter.faults == {"checksum mismatch": 1}


def test_a_leader_elsewhere_is_named_with_the_refusal(bench: AdapterBench) -> None:
    bench.adapter.addresses["tcp"] = {1: ("here", 1), 2: ("there", 9_292)}
    bench.topics.led_by = 2
    facts: dict[str, Any] = {"transactional_id": None, "acks": -1, "timeout": 1_000}
    batch = build_batch([KafkaRecord(0, 1, None, b"x")])
    row = {"name": "t", "partition_data": [{"index": 0, "records": batch}]}
    wire = bench.connect()
    wire.handler.received(request(ApiKey.PRODUCE, 10, 1, facts | {"topic_data": [row]}))
    bench.turn()
    ((_, body),) = answers(wire)
    found: Any = decode(load_response_schema(ApiKey.PRODUCE, 10), body, 1)
    partition = found.responses[0].partition_responses[0]
    assert partition.error_code is KafkaCode.not_leader_or_follower
    assert partition.current_leader.leader_id == 2
    assert [(each.node_id, each.host, each.port) for each in found.node_endpoints] == [
        (2, "there", 9_292)
    ]


def obey(bench: AdapterBench, *rules: dict[str, Any]) -> None:
    described = describe_tenants({"tenants": {"dev": {"acl": list(rules)}}})
    bench.tenant.guard.change(described["dev"], 0)


def test_who_may_not_see_a_topic_hears_what_it_hears_of_none(bench: AdapterBench) -> None:
    rule = {"effect": "allow", "action": "produce", "resource": "stream", "name": "mine"}
    obey(bench, rule)
    wire = bench.connect()
    told = []
    for correlation, name in enumerate(("t", "never")):
        facts = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
        wire.handler.received(request(ApiKey.METADATA, 4, correlation, facts))
        bench.turn()
        ((_, body),) = answers(wire)
        answer: Any = decode(load_response_schema(ApiKey.METADATA, 4), body)
        told.append((answer.topics[0].error_code, answer.topics[0].partitions))
    assert told[0] == told[1]
    wire.handler.received(produce(9, [b"x"], "t") + fetch(10, topic="t"))
    bench.turn()
    produced, fetched = answers(wire)
    response: Any = decode(load_response_schema(ApiKey.PRODUCE, 8), produced[1])
    denied = KafkaCode.topic_authorization_failed
    assert response.responses[0].partition_responses[0].error_code is denied
    assert b"x" not in fetched[1][20:]


def feed(seed: int, count: int) -> tuple[int, int]:
    """Send damaged real requests, each on its own connection; count the answered and the ended."""
    rng = random.Random(seed)
    real = golden.requests()
    bench = AdapterBench()
    bench.topics.create_topic("t", 1, (), UUID, lambda _reply: None)
    answered = ended = 0
    for _ in range(count):
        wire = bench.connect()
        wire.handler.received(framed(mutated(rng, rng.choice(real))))
        bench.turn(10)
        bench.turn(70_000)
        answered += bool(wire.written)
        ended += not wire.is_open
        wire.close()
        assert bench.adapter.connections == 0
    return answered, ended


@pytest.mark.parametrize("seed", range(5))
def test_a_thousand_mutated_requests_are_answered_or_end_their_connection(seed: int) -> None:
    assert contained.raising, "an error of our own fails this test"
    answered, ended = feed(seed, 1_000)
    print(f"seed {seed}: {answered} answered, {ended} ended")
    assert answered > 200 and ended > 200


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 150))
def test_half_a_million_mutated_requests_reach_no_error_of_ours(seed: int) -> None:
    print(f"seed {seed}: {feed(seed, 10_000)}")


def test_all_that_is_said_to_be_spoken_is_answered() -> None:
    assert not set(HANDLERS) & HIDDEN and not HIDDEN, "all that has a row is served"
    assert len(HANDLERS) > 30


def test_lists_that_java_s_client_wants_are_empty_and_not_null(bench: AdapterBench) -> None:
    wire = bench.connect()
    facts = {"topics": [{"name": "t"}], "response_partition_limit": 10, "cursor": None}
    wire.handler.received(request(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 1, facts))
    bench.turn()
    ((_, body),) = answers(wire)
    schema = load_response_schema(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0)
    told: Any = decode(schema, body, 1)
    (partition,) = told.topics[0].partitions
    assert (partition.eligible_leader_replicas, partition.last_known_elr) == ((), ())
