"""Why a group is behind and why messages wait: one sentence for each cause, none without one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from quantum.node.kafka_rows import KafkaGroupInfo, KafkaLagRow, KafkaMemberRow
from quantum.node.queue_rows import QueueInfo
from quantum.node.wait_causes import explain_group, explain_queue

READER = KafkaMemberRow(
    member_id="m1", instance_id=None, client_id="app", host="/10.0.0.1", partitions=["t/0"]
)


def part(**facts: Any) -> KafkaLagRow:
    members: dict[str, Any] = {"topic": "t", "partition": 0, "group": 7, "leader": 1, "start": 0}
    members |= {"committed": 4, "end": 10, "lag": 6, "member_id": "m1"}
    return KafkaLagRow(**members | facts)


def group(
    *parts: KafkaLagRow, members: tuple[KafkaMemberRow, ...] = (READER,), **facts: Any
) -> Any:
    known: dict[str, Any] = {"name": "g", "state": "Stable", "kind": "classic", "coordinator": 1}
    known |= {"member_count": len(members), "committed": len(parts), "generation": 3}
    known |= {"lag": sum(each.lag or 0 for each in parts), "protocol": "range"}
    return KafkaGroupInfo(**known | facts, members=list(members), partitions=list(parts))


@pytest.mark.parametrize(
    ("info", "clauses", "words"),
    [
        (group(part(lag=0, committed=10)), [], ""),
        (group(part()), ["MemberBehind"], "app has not committed 6 records of t/0"),
        (
            group(part(member_id=None), members=(), state="Empty"),
            ["NoMembers"],
            "nobody reads for the group, and 6 records wait",
        ),
        (
            group(part(lag=1, end=5, member_id=None), members=(), state="Empty"),
            ["NoMembers"],
            "nobody reads for the group, and 1 record waits",
        ),
        (group(part(), state="PreparingRebalance"), ["Rebalancing"], "(PreparingRebalance)"),
        (group(part(member_id=None)), ["NotAssigned"], "no member of the group reads t/0"),
        (group(part(leader=None)), ["NoLeader", "MemberBehind"], "nobody leads t/0"),
        (group(part(end=None, lag=None)), ["PartitionUnknown"], "no end of t/0"),
        (group(part(start=6)), ["OffsetGone", "MemberBehind"], "retention took 2 records of t/0"),
        (group(part(lag=0), coordinator=None), ["NoCoordinator"], "no node leads"),
        (
            group(part(lag=0), members=(READER, msgspec.structs.replace(READER, partitions=[]))),
            ["IdleMembers"],
            "1 of 2 members have no partition",
        ),
    ],
)
def test_a_group_that_is_behind_says_what_it_waits_for(
    info: KafkaGroupInfo, clauses: list[str], words: str
) -> None:
    causes = explain_group(info)
    assert [each.clause for each in causes] == clauses
    assert words in " ".join(each.sentence for each in causes)


def queue(**facts: Any) -> QueueInfo:
    known: dict[str, Any] = {"name": "q", "partition": 0, "messages": 3, "dead_letters": 0}
    known |= {"bytes": 30, "oldest_ms": 1, "leader": 1, "leader_admin": "h:1", "unsettled": 0}
    known |= {"receivers": 1, "messages_max": 10, "bytes_max": 100, "deliveries_max": 5}
    known |= {"ttl_ms": 0, "keeps_expired": False, "dynamic": False, "created_ms": 0}
    return QueueInfo(**known | {"expired": 0, "file_bytes": 0} | facts)


@pytest.mark.parametrize(
    ("info", "clauses"),
    [
        (queue(messages=0, receivers=0), []),
        (queue(receivers=0), ["NoReceivers"]),
        (queue(unsettled=2), ["NotSettled"]),
        (queue(), ["NoCredit"]),
        (queue(messages=10, receivers=0), ["QueueFull", "NoReceivers"]),
        (queue(bytes=100, unsettled=1), ["QueueFull", "NotSettled"]),
        (queue(messages=0, dead_letters=1), ["DeadLetters"]),
        (queue(leader=None, receivers=None, unsettled=None), ["NoLeader"]),
        (queue(leader=2, receivers=None, unsettled=None), ["LedByAnother"]),
        (queue(messages_max=0, bytes_max=0, unsettled=3), ["NotSettled"]),
    ],
)
def test_a_queue_in_which_messages_wait_says_what_they_wait_for(
    info: QueueInfo, clauses: list[str]
) -> None:
    assert [each.clause for each in explain_queue(info)] == clauses
