"""Why a consumer group is behind, and why messages wait in a queue: facts in, sentences out, pure.

The first cause is the one to look at. Nothing is guessed: where nothing is in the way, nothing is
said.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from quantum.node.kafka_rows import KafkaGroupInfo, KafkaLagRow
from quantum.node.queue_rows import QueueInfo
from quantum.node.rows import WaitCause

_SHARING_OUT: Final = frozenset({"PreparingRebalance", "CompletingRebalance", "Reconciling"})
_NAMED_MAX: Final = 5


def explain_group(info: KafkaGroupInfo) -> list[WaitCause]:
    """Say what a consumer group waits for."""
    return list(_group_causes(info))


def explain_queue(info: QueueInfo) -> list[WaitCause]:
    """Say what a queue's messages wait for."""
    return list(_queue_causes(info))


def _group_causes(info: KafkaGroupInfo) -> Iterator[WaitCause]:
    if info.coordinator is None:
        yield WaitCause(
            clause="NoCoordinator",
            sentence="no node leads the partition that keeps the group",
            remedy="wait for a leader; `quantum why` says what a partition waits for",
        )
    yield from _ills_of_partitions(info.partitions)
    if info.lag and not info.members:
        yield WaitCause(
            clause="NoMembers",
            sentence=f"nobody reads for the group, and {_counted(info.lag, 'record waits')}",
            remedy="start a consumer: it goes on where the group committed",
        )
    if info.state in _SHARING_OUT:
        yield WaitCause(
            clause="Rebalancing",
            sentence=f"the group shares its partitions out anew ({info.state})",
            remedy="wait; a member that joins again and again exceeds max.poll.interval.ms",
            is_wrong=False,
        )
    elif info.members:
        yield from _ills_of_members(info)


def _ills_of_partitions(rows: list[KafkaLagRow]) -> Iterator[WaitCause]:
    gone = [each for each in rows if each.end is None]
    if gone:
        yield WaitCause(
            clause="PartitionUnknown",
            sentence=f"this node knows no end of {_named(gone)}: the topic is gone, or elsewhere",
            remedy="forget what was committed of topics that are gone",
        )
    led = [each for each in rows if each.end is not None and each.leader is None]
    if led:
        yield WaitCause(
            clause="NoLeader",
            sentence=f"nobody leads {_named(led)}: nothing can be read there",
            remedy="wait for a leader; `quantum why` says what a partition waits for",
        )
    for each in rows:
        if each.committed is not None and each.start is not None and each.committed < each.start:
            missed = each.start - each.committed
            yield WaitCause(
                clause="OffsetGone",
                sentence=f"retention took {_counted(missed, 'record')} of {_named([each])} "
                "that the group had not read",
                remedy="the consumer goes on as its auto.offset.reset says; raise retention.ms",
            )


def _ills_of_members(info: KafkaGroupInfo) -> Iterator[WaitCause]:
    behind = [each for each in info.partitions if each.lag]
    ownerless = [each for each in behind if each.member_id is None]
    if ownerless:
        yield WaitCause(
            clause="NotAssigned",
            sentence=f"no member of the group reads {_named(ownerless)}",
            remedy="subscribe to the topic again, or forget what was committed of it",
        )
    idle = [each for each in info.members if not each.partitions]
    if idle:
        yield WaitCause(
            clause="IdleMembers",
            sentence=f"{len(idle)} of {len(info.members)} members have no partition to read",
            remedy="a topic feeds as many members as it has partitions",
            is_wrong=False,
        )
    clients = {each.member_id: each.client_id for each in info.members}
    for each in sorted(behind, key=lambda row: -(row.lag or 0))[:_NAMED_MAX]:
        if each.member_id is not None:
            yield WaitCause(
                clause="MemberBehind",
                sentence=f"{clients.get(each.member_id, each.member_id)} has not committed "
                f"{_counted(each.lag or 0, 'record')} of {_named([each])}",
                remedy="it is slow, or commits seldom: look at its own log, or add consumers",
                is_wrong=False,
            )


def _queue_causes(info: QueueInfo) -> Iterator[WaitCause]:
    if info.leader is None:
        yield WaitCause(
            clause="NoLeader",
            sentence="no node leads the queue's partition: nothing is taken or given",
            remedy="wait for a leader; `quantum why` says what a partition waits for",
        )
    is_full = (info.messages_max and info.messages >= info.messages_max) or (
        info.bytes_max and info.bytes >= info.bytes_max
    )
    if is_full:
        yield WaitCause(
            clause="QueueFull",
            sentence="the queue has no room: senders are refused",
            remedy="receive from it, purge it, or raise messages_max or bytes_max",
        )
    if info.messages:
        yield from _ills_of_receivers(info)
    if info.dead_letters:
        yield WaitCause(
            clause="DeadLetters",
            sentence=f"{_counted(info.dead_letters, 'dead letter')}: each says what it died of",
            remedy="look at them; then revive, move or purge them",
        )


def _ills_of_receivers(info: QueueInfo) -> Iterator[WaitCause]:
    waiting = _counted(info.messages, "message waits")
    if info.receivers is None or info.unsettled is None:
        if info.leader is not None:
            yield WaitCause(
                clause="LedByAnother",
                sentence=f"node {info.leader} leads the queue, and knows who receives from it",
                remedy=f"ask {info.leader_admin}" if info.leader_admin else "ask that node",
                is_wrong=False,
            )
    elif not info.receivers:
        yield WaitCause(
            clause="NoReceivers",
            sentence=f"nobody receives from the queue, and {waiting}",
            remedy="start a receiver",
        )
    elif info.unsettled:
        yield WaitCause(
            clause="NotSettled",
            sentence=f"receivers hold {_counted(info.unsettled, 'message')} and have settled none "
            f"of these; {waiting} in all",
            remedy="a receiver is slow, or does not settle: look at its own log",
            is_wrong=False,
        )
    else:
        yield WaitCause(
            clause="NoCredit",
            sentence=f"{waiting}, and no receiver has credit for what is there",
            remedy="give credit; a receiver with a selector is not given what does not match",
        )


def _named(rows: list[KafkaLagRow]) -> str:
    names = [f"{each.topic}/{each.partition}" for each in rows[:_NAMED_MAX]]
    more = len(rows) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


def _counted(number: int, what: str) -> str:
    """Count things in words; `what` is one of them."""
    noun, _, verb = what.rpartition(" ") if what.endswith("waits") else (what, "", "")
    if number == 1:
        return f"1 {what}"
    return f"{number} {noun}s{' wait' if verb else ''}"
