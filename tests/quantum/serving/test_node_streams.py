"""What comes while the disk is asked: readers are told of it, and retention does not take it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

from clustor.runtime.stream_reads import StreamReads
from quantum.broker import Broker, CreateStream, encode_command, encode_publishes, encode_record
from quantum.broker.commands import OWN_ORIGIN
from quantum.node.streams import BrokerStreams
from tests.quantum.serving.lab import TENANT, Lab

NOW = 1_763_200_000_000


class LateDisk:
    """Answers as of the moment it was asked, and lets a publish in before it does."""

    def __init__(self, arrives: Callable[[], None], times: int = 1) -> None:
        self._arrives = arrives
        self.left = times

    async def find_time(self, _partition: int, _timestamp: int) -> int | None:
        self._arrives()
        await asyncio.sleep(0)
        return None  # nothing was as new when it was asked

    async def read(self, _partition: int, _offset: int, _bytes_max: int) -> list[Any]:
        if not self.left:
            return [SimpleNamespace(batches=lambda: [batch()])]
        self.left -= 1
        self._arrives()
        return []

    def close(self) -> None:
        """Nothing is open."""


def batch() -> SimpleNamespace:
    payload = b"\x01" + encode_record(b"a", b"new", 1, b"", 0, b"c", 1, 1)
    return SimpleNamespace(payload=payload, first_index=1, timestamp=NOW)


class Stage:
    """A partition with a stream of one old message, and a disk that is slow to answer."""

    def __init__(self, lab: Lab) -> None:
        self.tenant = lab.service.tenants[TENANT]
        self.prg = self.tenant.prgs[0]
        self.publishes = 0
        create = CreateStream(NOW, b"s", [b"#"], retention_ms=1_000)
        self._apply(encode_command(create))
        self.publish()
        self.streams = BrokerStreams(lab.service)
        self.ask(self.prg)

    def ask(self, prg: object) -> None:
        """Let this partition's disk be a slow one."""
        self.streams._reads[cast("Any", prg)] = cast("StreamReads", LateDisk(self.publish))

    def publish(self) -> None:
        self.publishes += 1
        record = encode_record(b"a", b"x", 1, b"", 0, b"c", 1, self.publishes)
        self._apply(encode_publishes(NOW, OWN_ORIGIN, 0, 0, [record]))

    def _apply(self, command: bytes) -> None:
        broker = self.prg.broker
        broker.apply_batch(broker.applied_index + 1, [command])

    @property
    def stream(self) -> Any:
        return self.prg.broker.state.streams.named(b"s")


@dataclass(frozen=True, eq=False)
class Partition:
    """What retention looks at."""

    group: SimpleNamespace
    broker: Broker


def run(story: Callable[[Stage], Any]) -> Any:
    lab = Lab()

    async def carried() -> Any:
        stage = Stage(lab)
        try:
            return await story(stage)
        finally:
            stage.streams.close()

    return asyncio.run(carried())


def test_retention_does_not_take_what_came_while_it_looked() -> None:
    async def story(stage: Stage) -> None:
        files = SimpleNamespace(segments=())
        store = SimpleNamespace(partitions={stage.stream.file_id: files})
        replica = SimpleNamespace(streams=SimpleNamespace(store=store))
        prg = Partition(SimpleNamespace(replica=replica), stage.prg.broker)
        stage.ask(prg)
        first = await stage.streams._first_wanted(cast("Any", prg), stage.stream, NOW + 5_000)
        assert stage.stream.next_offset == 2, "one came meanwhile"
        assert first == 1, "only what was there when it looked is too old"

    run(story)


def test_a_reader_from_a_time_on_gets_what_came_while_it_was_looked_for() -> None:
    async def story(stage: Stage) -> None:
        found = await stage.streams.offset_of_time(stage.tenant, "s", 0, NOW + 1)
        assert (found, stage.stream.next_offset) == (1, 2)

    run(story)


def test_a_reader_does_not_wait_for_what_came_while_it_read() -> None:
    async def story(stage: Stage) -> None:
        async with asyncio.timeout(30):
            found = await stage.streams.read(
                stage.tenant, "s", 0, 1, bytes_max=1_000, wait_ms=3_600_000
            )
        assert [(each.offset, each.body) for each in found.records] == [(1, b"new")]
        assert found.next == 2

    run(story)


def test_who_waits_no_more_leaves_nothing_behind_and_others_still_wait() -> None:
    async def story(stage: Stage) -> None:
        streams, key = stage.streams, (stage.prg, stage.stream.file_id)
        assert not await streams._news(stage.prg, stage.stream, 0.0)
        assert not streams._waiting
        first = asyncio.ensure_future(streams._news(stage.prg, stage.stream, 60))
        await asyncio.sleep(0)
        streams._wake(stage.prg, {key[1]})
        second = asyncio.ensure_future(streams._news(stage.prg, stage.stream, 60))
        assert await first
        await asyncio.sleep(0)
        streams._wake(stage.prg, {key[1]})
        assert await second

    run(story)
