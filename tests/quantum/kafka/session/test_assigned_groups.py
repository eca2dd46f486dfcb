"""KIP-848 by bytes: who is refused and how, and that only news reaches the log."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from kio.index import load_response_schema

from quantum.protocols.kafka.codec import ApiKey, KafkaCode, decode
from quantum.protocols.kafka.session.assigned_groups import CALM_MS, MOVING_MS
from quantum.tenancy import describe_tenants
from tests.quantum.kafka.session.adapter_server import AdapterBench
from tests.quantum.kafka.session.test_connection import answers, request

TOPIC = bytes(range(16))
NONE = KafkaCode.none


class Member:
    """One member's connection."""

    def __init__(self, bench: AdapterBench, name: str) -> None:
        self.bench, self.name = bench, name
        self.wire = bench.connect()

    def beat(self, epoch: int, version: int = 1, **other: Any) -> Any:
        facts: dict[str, Any] = {"group_id": "g", "member_id": self.name, "member_epoch": epoch}
        facts |= {"instance_id": None, "rack_id": None, "rebalance_timeout": 60_000}
        facts |= {"subscribed_topic_names": ["t"] if epoch == 0 else None}
        facts |= {"subscribed_topic_regex": None, "server_assignor": None}
        facts |= {"topic_partitions": [] if epoch == 0 else None} | other
        key = ApiKey.CONSUMER_GROUP_HEARTBEAT
        self.wire.handler.received(request(key, version, 1, facts))
        self.bench.turn()
        ((_, body),) = answers(self.wire)
        return decode(load_response_schema(key, version), body, 1)


def owned(*partitions: int) -> list[dict[str, Any]]:
    return [{"topic_id": UUID(bytes=TOPIC), "partitions": partitions}]


def given(told: Any) -> set[int]:
    return {p for each in told.assignment.topic_partitions for p in each.partitions}


@pytest.fixture
def bench() -> AdapterBench:
    made = AdapterBench()
    made.topics.create_topic("t", 4, (), TOPIC, lambda _reply: None)
    return made


def logged(bench: AdapterBench) -> list[Any]:
    """Write down from now on what would be logged of groups."""
    found: list[Any] = []
    coordinate = bench.topics.coordinate

    def noting(prg: int, command: Any, done: Any) -> None:
        found.append(command)
        coordinate(prg, command, done)

    bench.topics.coordinate = noting  # type: ignore[method-assign]
    return found


def test_partitions_change_hands_only_when_they_were_given_up(bench: AdapterBench) -> None:
    first, second = Member(bench, "a"), Member(bench, "b")
    told = first.beat(0)
    assert given(told) == {0, 1, 2, 3} and told.heartbeat_interval.total_seconds() * 1000 == CALM_MS
    epoch = told.member_epoch
    late = second.beat(0)
    assert given(late) == set(), "the first has all of it still"
    assert late.heartbeat_interval.total_seconds() * 1000 == MOVING_MS
    told = first.beat(epoch, topic_partitions=owned(0, 1, 2, 3))
    kept = given(told)
    assert len(kept) == 2
    assert second.beat(late.member_epoch, topic_partitions=[]).assignment is None, "no news"
    told = first.beat(told.member_epoch, topic_partitions=owned(*kept))
    assert given(second.beat(late.member_epoch, topic_partitions=[])) == {0, 1, 2, 3} - kept


def test_a_heartbeat_that_says_nothing_new_is_not_logged_but_heard(bench: AdapterBench) -> None:
    member = Member(bench, "a")
    epoch = member.beat(0).member_epoch
    commands = logged(bench)
    bench.topics.heard_of.clear()
    for _ in range(3):
        told = member.beat(epoch)
        assert (told.error_code, told.member_epoch, told.assignment) == (NONE, epoch, None)
    assert commands == [] and bench.topics.heard_of == [("g", "a")] * 3
    assert given(member.beat(epoch, topic_partitions=owned(0))) == {0, 1, 2, 3}, "it lost some"
    member.beat(epoch, server_assignor="range")
    assert len(commands) == 1, "another assignor is news"
    assert member.beat(-1).member_epoch == -1
    assert member.beat(epoch).error_code is KafkaCode.unknown_member_id


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"group_id": ""}, KafkaCode.invalid_group_id),
        ({"member_id": ""}, KafkaCode.invalid_request),
        ({"subscribed_topic_names": None}, KafkaCode.invalid_request),
        ({"subscribed_topic_regex": "t.*"}, KafkaCode.invalid_regular_expression),
        ({"server_assignor": "sticky"}, KafkaCode.unsupported_assignor),
    ],
)
def test_what_is_refused_leaves_no_group(
    bench: AdapterBench, said: dict[str, Any], code: KafkaCode
) -> None:
    assert Member(bench, "a").beat(0, **said).error_code is code
    assert bench.topics.groups.names() == []


def test_strangers_and_the_past_are_fenced(bench: AdapterBench) -> None:
    member = Member(bench, "a")
    epoch = member.beat(0).member_epoch
    assert member.beat(epoch + 7).error_code is KafkaCode.fenced_member_epoch
    assert Member(bench, "b").beat(epoch).error_code is KafkaCode.unknown_member_id
    assert Member(bench, "").beat(0, version=0).member_id, "before version 1 the server names it"


def test_topics_that_may_not_be_described_are_not_subscribed_to(bench: AdapterBench) -> None:
    rules = [
        {"effect": "allow", "action": "any", "resource": "group", "name": "g"},
        {"effect": "allow", "action": "any", "resource": "stream", "name": "t"},
    ]
    bench.tenant.guard.change(describe_tenants({"tenants": {"dev": {"acl": rules}}})["dev"], 0)
    member = Member(bench, "a")
    for hidden in ("secret", "not-there"):
        told = member.beat(0, subscribed_topic_names=["t", hidden])
        assert told.error_code is KafkaCode.topic_authorization_failed
    assert member.beat(0).error_code is NONE
    assert member.beat(0, group_id="other").error_code is KafkaCode.group_authorization_failed


def test_a_described_group_says_who_has_what_and_a_classic_one_is_not_found(
    bench: AdapterBench,
) -> None:
    Member(bench, "a").beat(0)
    wire = bench.connect()
    facts = {"group_ids": ["g", "nobody"], "include_authorized_operations": False}
    wire.handler.received(request(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, 1, facts))
    bench.turn()
    ((_, body),) = answers(wire)
    told: Any = decode(load_response_schema(ApiKey.CONSUMER_GROUP_DESCRIBE, 1), body, 1)
    found, missing = told.groups
    assert (found.group_state, found.assignor_name) == ("Stable", "uniform")
    assert given(found.members[0]) == {0, 1, 2, 3} and found.members[0].member_id == "a"
    assert missing.error_code is KafkaCode.group_id_not_found
