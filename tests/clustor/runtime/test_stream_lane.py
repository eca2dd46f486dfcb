"""Streams of one group on real files: written on their lane, read beside the loop, found again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from clustor.log.types import PartitionId
from clustor.raft.membership import Membership
from clustor.raft.types import ReplicaId
from clustor.replica import ReplicaOutput, ReplicaSettings, RequestId
from clustor.replica.streams import ReplicaStreams
from clustor.runtime.admission import FlowNumbers
from clustor.runtime.disk import BlockingDisk, DirectoryStorage
from clustor.runtime.disk.stream_lane import StreamGroup, StreamLane
from clustor.runtime.group import HostedGroup
from clustor.runtime.keys.epochs_in_use import epochs_in_use
from clustor.runtime.repair.scrub import Scrubber
from clustor.runtime.stream_reads import ReaderBusy, StreamReads
from clustor.sim.stream_machine import SimStreamCommand, SimStreamMachine, encode_stream_command
from clustor.streams import (
    PolicyRegistry,
    StoreId,
    StreamAppend,
    StreamConfig,
    StreamDefine,
    StreamOutOfRange,
    UnknownStream,
    create_store,
)
from tests.clustor.log.harness import new_keys
from tests.clustor.replica.harness import Cluster
from tests.clustor.runtime.test_scrubbing import Stage, scrubbing, until

ME, GROUP = ReplicaId(1), PartitionId(7)
CONFIG = StreamConfig(
    segment_bytes=4_000,
    run_bytes=600,
    flush_bytes=2_000,
    checkpoint_bytes=6_000,
    checkpoint_ms=50,
    window_partition_bytes=500,
)


class Hosted:
    """A group of one voter whose lane is driven by the test's own loop."""

    def __init__(self, root: Path) -> None:
        self.disk = BlockingDisk()
        self.lane = StreamLane(asyncio.get_running_loop(), self._settle)
        for name in ("state/7", "identity/7"):
            (root / name).mkdir(parents=True, exist_ok=True)
        self.group = HostedGroup(self.disk, GROUP, root / "state/7", root / "identity/7")
        self.now_ms, self._requests = 1_000, 0
        self.news: set[int] = set()
        self.group.open(
            _settings(),
            ME,
            Membership(voters=frozenset({ME})),
            os.urandom,
            self.now_ms,
            flow=FlowNumbers(),
        )
        self.reads = StreamReads(self.group, reads_max=4)

    def _settle(self, group: StreamGroup, call: Callable[[], None]) -> None:
        assert group is self.group
        call()

    async def settle(self) -> None:
        """Carry out what the replica wants, until it wants nothing."""
        while True:
            output = self.group.replica.take()
            self._carry_out(output)
            if self.group.idle and not output.disk and not output.disk_reads:
                return
            for completion in self.disk.completions():
                self.group.completed(completion)
            await asyncio.sleep(0)

    def _carry_out(self, output: ReplicaOutput) -> None:
        self.news |= output.stream_news
        self.group.submit(output.disk, alone=True)
        if output.stream_disk:
            self.lane.submit(self.group, output.stream_disk)
        for read in output.disk_reads:
            found = read.job.run(self.group.storage)
            self.group.replica.disk_read(read.token, found)

    async def tick(self, times: int) -> None:
        for _ in range(times):
            self.now_ms += 10
            self.group.replica.tick(self.now_ms)
            await self.settle()

    async def until_it_leads(self) -> None:
        for _ in range(500):
            if self.group.replica.leads:
                return
            await self.tick(1)
        raise AssertionError("it never leads")

    async def ask(self, kind: str, partition: int, number: int = 1, payload: bytes = b"") -> None:
        self._requests += 1
        command = SimStreamCommand(self._requests, kind, partition, number, payload)
        self.group.replica.propose(RequestId(self._requests), encode_stream_command(command))
        await self.settle()

    def close(self) -> None:
        self.reads.close()
        self.group.close()
        self.lane.close()
        self.disk.close()


def _settings() -> ReplicaSettings:
    return replace(
        Cluster(1).settings(), new_machine=SimStreamMachine, stream_config=CONFIG, chunk_bytes=4096
    )


def payload(nth: int) -> bytes:
    return b"%d." % nth * 30


async def filled(root: Path, batches: int) -> Hosted:
    hosted = Hosted(root)
    await hosted.until_it_leads()
    await hosted.ask("define", 0)
    for nth in range(batches):
        await hosted.ask("append", 0, 1, payload(nth))
    return hosted


async def read_all(hosted: Hosted, start: int = 0) -> list[bytes]:
    index, found = start, []
    while chunks := await hosted.reads.read(0, index, 1_000):
        found += [batch.payload for chunk in chunks for batch in chunk.batches()]
        index = chunks[-1].next_index
    return found


async def test_streams_are_flushed_read_trimmed_and_found_again(tmp_path: Path) -> None:
    hosted = await filled(tmp_path, 100)
    assert hosted.news == {0}
    assert await read_all(hosted) == [payload(nth) for nth in range(100)]
    assert await hosted.reads.find_time(0, 52) == 50, "the machine stamps the request's number"
    await hosted.tick(20)
    streams = hosted.group.replica.streams
    assert streams is not None
    assert streams.store.durable_raft_index == hosted.group.replica.applied_index
    assert list(epochs_in_use(tmp_path / "state")) == [1]
    hosted.group.replica.emit_snapshot()
    await hosted.settle()
    newest = hosted.group.replica.catalog.newest
    assert newest is not None and newest.manifest.base_index == hosted.group.replica.applied_index
    await hosted.ask("trim", 0, 500)
    await hosted.tick(20)
    with pytest.raises(StreamOutOfRange) as gone:
        await hosted.reads.read(0, 49, 100)
    assert (gone.value.facts["start"], gone.value.facts["next"]) == (50, 100)
    with pytest.raises(UnknownStream):
        await hosted.reads.read(1, 0, 100)
    await hosted.ask("append", 0, 1, payload(100))
    hosted.close()
    again = Hosted(tmp_path)
    await again.until_it_leads()
    assert await read_all(again, 50) == [payload(nth) for nth in range(50, 101)]
    again.close()


async def test_reads_beyond_the_bound_are_told_to_come_again(tmp_path: Path) -> None:
    hosted = await filled(tmp_path, 60)
    await hosted.tick(20)
    assert hosted.group.replica.streams is not None
    hosted.group.replica.streams.store.window.close()
    waiting = [asyncio.ensure_future(hosted.reads.read(0, 0, 500)) for _ in range(4)]
    await asyncio.sleep(0)
    with pytest.raises(ReaderBusy):
        await hosted.reads.read(0, 0, 500)
    await asyncio.gather(*waiting)
    hosted.close()


async def test_a_plan_of_the_streams_that_fails_stops_the_group(tmp_path: Path) -> None:
    hosted = await filled(tmp_path, 20)
    parts = tmp_path / "state/7/streams/parts"
    for file in parts.iterdir():
        file.unlink()
    parts.rmdir()
    for nth in range(20):
        await hosted.ask("append", 0, 1, payload(nth))
    await hosted.tick(20)
    assert hosted.group.replica.failed is not None
    assert "of the streams" in hosted.group.replica.failed
    hosted.close()


async def test_damage_that_a_reader_meets_stops_the_group_as_damaged(tmp_path: Path) -> None:
    hosted = await filled(tmp_path, 60)
    await hosted.tick(20)
    assert hosted.group.replica.streams is not None
    hosted.group.replica.streams.store.window.close()
    oldest = min((tmp_path / "state/7/streams/parts").glob("*.seg"))
    content = bytearray(oldest.read_bytes())
    content[200] ^= 4
    oldest.write_bytes(content)
    with pytest.raises(Exception, match="what was written"):
        await hosted.reads.read(0, 0, 500)
    assert hosted.group.replica.is_damaged
    hosted.close()


async def test_a_new_store_whose_files_have_the_names_of_old_ones_is_read_anew(
    tmp_path: Path,
) -> None:
    """As after a rejoin: the old files are set aside, and still there for who has them open."""
    keys, disk = new_keys(), BlockingDisk()
    replica = SimpleNamespace(settings=SimpleNamespace(keys=keys, stream_config=CONFIG))
    storage = DirectoryStorage(tmp_path)
    group = SimpleNamespace(directory=tmp_path, storage=storage, replica=replica)
    reads = StreamReads(cast("HostedGroup", group), threads=1)
    for nth in range(2):
        files = disk.open_partition(tmp_path)
        made = create_store(GROUP, StoreId(bytes([nth]) * 16), keys, CONFIG)
        disk.execute(files, made.plan)
        made.store.take(1, StreamDefine(0))
        made.store.take(2, StreamAppend(0, 0, 1, 0, payload(nth)))
        plan = made.store.plan_checkpoint()
        disk.execute(files, plan.steps)
        made.store.stored(plan.receipt)
        made.store.window.close()
        replica.streams = ReplicaStreams(made.store, PolicyRegistry(), print)
        replica.stream_view = partial(replica.streams.view, durable=dict)
        (chunk,) = await reads.read(0, 0, 500)
        assert [batch.payload for batch in chunk.batches()] == [payload(nth)]
        disk.close_partition(files)
        (tmp_path / "streams").rename(tmp_path / f"aside-{nth}")
    reads.close()
    storage.close()
    disk.close()


async def at_rest(root: Path) -> Hosted:
    hosted = await filled(root, 60)
    await hosted.tick(20)
    hosted.lane.close()
    return hosted


@pytest.mark.parametrize("is_damaged", [False, True])
def test_the_scrub_reads_every_file_of_a_stream(tmp_path: Path, *, is_damaged: bool) -> None:
    hosted = asyncio.run(at_rest(tmp_path))
    parts = sorted((tmp_path / "state/7/streams/parts").glob("*.seg"))
    if is_damaged:
        content = bytearray(parts[1].read_bytes())
        content[-1] ^= 1
        parts[1].write_bytes(content)

    async def story(stage: Stage, scrubber: Scrubber) -> None:
        del stage
        scrubber.scrub_now(hosted.group)
        await until(lambda: not scrubber.row(hosted.group)["running"] or scrubber.faults > 0)
        if not is_damaged:
            assert scrubber.read_bytes > sum(part.stat().st_size for part in parts)

    scrubbing(hosted.group, story)
    assert hosted.group.replica.is_damaged is is_damaged
    hosted.reads.close()
    hosted.group.close()
    hosted.disk.close()
