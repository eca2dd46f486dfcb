"""Retention of topics: what is too old or too much is trimmed by the log, and nothing else."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from clustor.runtime.stream_reads import ReaderBusy
from clustor.streams import StreamOutOfRange, UnknownStream
from quantum.broker.streams import StreamRefusal
from quantum.node.topic_files import TopicFiles, TopicRetention
from tests.quantum.serving.test_topics_leader import UUID, TopicLab


class Disk:
    """A partition's files: where each time begins, and an arrival while it is asked."""

    def __init__(self, first: int | None, arrives: Any = None) -> None:
        self._first = first
        self._arrives = arrives
        self.asked: list[int] = []

    async def find_time(self, _file_id: int, time_ms: int) -> int | None:
        self.asked.append(time_ms)
        if self._arrives is not None:
            self._arrives()
        return self._first


def retained(configs: dict[str, str], disk: Disk, sizes: tuple[int, ...] = ()) -> tuple[int, int]:
    """Keep one partition of 6 records within its retention; say where it starts and ends then."""
    lab = TopicLab(prgs=1)
    told: list[Any] = []
    pairs = tuple(configs.items())
    lab.topics.create_topic("orders", 1, pairs, UUID, told.append)
    lab.settle()
    topic = lab.topics.topic("orders")
    assert topic is not None
    for _ in range(3):
        lab.append(topic, 0, count=2)
    segments = [
        SimpleNamespace(next_index=2 * n, size_bytes=size, max_timestamp=0)
        for n, size in enumerate(sizes, 1)
    ]
    files = SimpleNamespace(segments=segments)
    prg = lab.service.tenants["dev"].prgs[0]
    store = SimpleNamespace(partitions={lab.topics.file_id(topic, 0): files})
    cast("Any", prg.group.replica).streams = SimpleNamespace(store=store)
    retention = TopicRetention(lambda _prg: cast("Any", disk))
    asyncio.run(retention.trim(prg, 10_000))
    lab.settle()
    view = lab.topics.partition(topic, 0)
    assert view is not None
    return view.start, view.high_watermark


def test_what_is_too_old_goes_by_the_log() -> None:
    disk = Disk(4)
    assert retained({"retention.ms": "1000"}, disk) == (4, 6)
    assert disk.asked == [9_000]


def test_everything_may_be_too_old_but_what_came_meanwhile() -> None:
    assert retained({"retention.ms": "1000"}, Disk(None)) == (6, 6)


def test_without_bounds_everything_stays() -> None:
    disk = Disk(None)
    assert retained({"retention.ms": "-1"}, disk) == (0, 6)
    assert disk.asked == []


def test_what_is_too_much_goes_in_whole_files() -> None:
    configs = {"retention.ms": "-1", "retention.bytes": "150"}
    assert retained(configs, Disk(None), (100, 100, 100)) == (2, 6)
    assert retained(configs | {"retention.bytes": "1000"}, Disk(None), (100, 100, 100)) == (0, 6)


def test_by_default_a_week_is_kept() -> None:
    disk = Disk(0)
    assert retained({}, disk) == (0, 6)
    assert disk.asked == [10_000 - 7 * 86_400_000]


@pytest.mark.parametrize(
    ("error", "refusal"),
    [
        (StreamOutOfRange("gone"), StreamRefusal.OFFSET_OUT_OF_RANGE),
        (UnknownStream("gone"), StreamRefusal.TOPIC_UNKNOWN),
        (ReaderBusy("many"), StreamRefusal.BUSY),
    ],
)
def test_a_read_that_fails_is_told_as_a_refusal(error: Exception, refusal: StreamRefusal) -> None:
    class Failing:
        async def read(self, *_facts: int) -> list[Any]:
            raise error

    async def story() -> list[Any]:
        told: list[Any] = []
        files = TopicFiles(lambda _prg: cast("Any", Failing()))
        files.read_file(cast("Any", None), 1, 2, 3, told.append)
        for _ in range(5):
            await asyncio.sleep(0)
        return told

    assert asyncio.run(story()) == [refusal]
