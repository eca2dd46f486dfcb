"""Whatever clients, leaders and networks do: each acknowledged publish has its row, once.

The worlds of `tests/quantum/broker` run with lost, repeated and reordered packets, changes of
leaders, reconnecting clients and full queues; their logs are read back as a lake would.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from quantum.archive.types import PrgId
from quantum.broker import Broker, attaching, publishing
from quantum.broker.message import Message
from quantum.broker.state import BrokerState
from quantum.lake.judging import Judge, ReplayJudge
from quantum.lake.loose_judging import LooseJudge
from quantum.lake.rows import RowBuilder
from quantum.lake.schema import LOGGED, MESSAGE, WILL
from tests.quantum.broker.partition import Partition
from tests.quantum.broker.world import Plan, World, peopled_world
from tests.quantum.lake.memory_source import MemorySource

GROWING = Plan(partitions=2, replicas=1, publishes=20)
PLANS = {
    "one partition": Plan(partitions=1, replicas=1),
    "three partitions": Plan(replicas=1),
    "short queues": Plan(queue_messages_max=8, replicas=1),
    "short streams": Plan(channel_items_max=6, partitions=2, replicas=1),
    "a ring that grows": GROWING,
}
COLUMNS = ["raft_index", "sub_index", "topic", "payload", "qos", "publisher", "row_kind"]
Row = tuple[int, int, str, bytes, int, str, str]


def run_world(seed: int, plan: Plan, steps: int = 800) -> World:
    world = peopled_world(seed, plan)
    world.checks_digests = False
    world.run(steps)
    if plan == GROWING:
        world.grow(plan.partitions + 2)
        world.run(steps)
    world.settle()
    return world


def rows_of(partition: Partition, judge: Judge, first: int = 1, begin: int = 1) -> list[Row]:
    """Read a log from `first`, with the entries from `begin` on for the judge."""
    prg = PrgId("dev", partition.number)
    source = MemorySource()
    source.append(prg, partition.log)
    builder = RowBuilder(prg, judge, COLUMNS)
    for index, entry in sorted(source.logs[prg].items()):
        if begin <= index < first:
            builder.learn(entry)
        elif index >= first:
            builder.add(entry)
    batch = builder.take()
    return [tuple(row.values()) for row in batch.to_pylist()]


def one_ring(world: World) -> Callable[[bytes], int]:
    """Return who owns which topic, of a ring that never changed."""
    return lambda topic: world.owner(topic, world.plan.partitions)


def all_rows(world: World) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    for partition in world.partitions:
        rows = rows_of(partition, ReplayJudge(partition.settings))
        assert {row[-1] for row in rows} <= {MESSAGE, WILL}
        assert all((row[3] == b"will") == (row[-1] == WILL) for row in rows)
        found.update(row[3] for row in rows if row[-1] == MESSAGE)
        places = [row[:2] for row in rows]
        assert places == sorted(set(places)), "a row without a place of its own"
        if not world.rings:
            owner = one_ring(world)
            assert all(owner(row[2].encode()) == partition.number for row in rows)
    return found


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("seed", range(6))
def test_each_acknowledged_publish_has_its_row(name: str, seed: int) -> None:
    world = run_world(seed, PLANS[name])
    found = all_rows(world)
    acknowledged = 0
    for message in world.messages.values():
        key = b"%b|%b|%d|%d" % (message.publisher, message.topic, message.qos, message.number)
        count = found.pop(key, 0)
        if message.qos == 0:
            assert count <= 1, (seed, message)
        elif message.acknowledged:
            acknowledged += 1
            assert count >= 1, (seed, message)
            assert message.qos == 1 or count == 1, (seed, message)
    assert not found, "rows that nobody published"
    assert acknowledged, "a world in which nothing happened"


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("seed", range(4))
def test_each_will_has_its_row_in_the_partition_of_its_topic(
    name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted where the machine says them, found where their topics are."""
    world = run_world(seed, PLANS[name])
    said: Counter[bytes] = Counter()
    publish = publishing.publish_anywhere

    def count(state: BrokerState, message: Message) -> None:
        said[message.topic] += 1
        publish(state, message)

    with monkeypatch.context() as patch:
        patch.setattr(attaching, "publish_anywhere", count)
        for partition in world.partitions:
            broker = Broker(partition.settings)
            for index, commands in enumerate(partition.log, 1):
                broker.apply_batch(index, commands)
    found: Counter[bytes] = Counter()
    for partition in world.partitions:
        rows = rows_of(partition, ReplayJudge(partition.settings))
        found.update(row[2].encode() for row in rows if row[-1] == WILL)
    assert found == said, (seed, name)


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("seed", range(3))
def test_a_task_from_a_snapshot_gives_the_rows_of_the_whole(name: str, seed: int) -> None:
    """However a log is cut, each part knows from its anchor what the whole knew."""
    world = run_world(seed, PLANS[name])
    for partition in world.partitions:
        whole = rows_of(partition, ReplayJudge(partition.settings))
        middle = len(partition.log) // 2
        before = Broker(partition.settings)
        for index, commands in enumerate(partition.log[: middle - 5], 1):
            before.apply_batch(index, commands)
        judge = ReplayJudge(partition.settings)
        judge.restore(before.snapshot())
        rest = rows_of(partition, judge, first=middle, begin=middle - 4)
        assert rest == [row for row in whole if row[0] >= middle], (seed, partition.number)


@pytest.mark.parametrize("name", [each for each in PLANS if PLANS[each] != GROWING])
@pytest.mark.parametrize("seed", range(4))
def test_without_the_state_nothing_is_lost(name: str, seed: int) -> None:
    """A reader that begins in the middle of nowhere shows too much, never too little.

    Passed-on publishes and streams have their rows in their own places; a QoS 2 publish that was
    refused and came again may be shown where it was refused. Wills that were said here are not
    known without the machine.
    """
    world = run_world(seed, PLANS[name])
    for partition in world.partitions:
        exact = rows_of(partition, ReplayJudge(partition.settings))
        for first in (1, len(partition.log) // 3, len(partition.log) // 2):
            loose = rows_of(partition, LooseJudge(partition.number, one_ring(world)), first=first)
            assert {row[-1] for row in loose} <= {LOGGED}
            kept = {row[:2] for row in loose}
            missing = [
                row
                for row in exact
                if row[0] >= first and row[:2] not in kept and row[-1] == MESSAGE
            ]
            assert all(row[4] == 2 for row in missing), (seed, partition.number, missing)
            again = Counter(row[3] for row in loose)
            assert all(again[row[3]] for row in missing), (seed, partition.number, missing)


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("seed", range(2))
def test_where_nobody_knows_the_ring_everything_is_shown(name: str, seed: int) -> None:
    """A partition may have been closed when a message came first: it is shown wherever it came."""
    world = run_world(seed, PLANS[name])
    for partition in world.partitions:
        exact = rows_of(partition, ReplayJudge(partition.settings))
        for first in (1, len(partition.log) // 2):
            loose = {
                row[:2] for row in rows_of(partition, LooseJudge(partition.number, None), first)
            }
            wanted = {row[:2] for row in exact if row[0] >= first and row[-1] == MESSAGE}
            assert wanted <= loose, (seed, partition.number)
