"""The scrub reads the snapshot that a log begins behind: all of it, in time, and whom it stops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clustor.log.scrub import COVERAGE_MS, ROUND_MS
from clustor.log.steps import FileName
from clustor.log.types import IoWriterMode, PartitionId
from clustor.runtime.data_directory import DataDirectory, open_data_directory
from clustor.runtime.disk import Disk, open_disk
from clustor.runtime.group import HostedGroup
from clustor.runtime.pki.identity import NodeId, cluster_id
from clustor.runtime.repair.scrub import Scrubber
from clustor.snapshot.layout import AUTHORIZATION_LOG
from clustor.snapshot.scrub import SnapshotFile, SnapshotScrub
from tests.clustor.runtime.hosting import Host, filled
from tests.clustor.runtime.test_scrubbing import Stage, scrubbing, until


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataDirectory]:
    found = open_data_directory(tmp_path / "node", cluster_id("dev"), NodeId(1))
    yield found
    found.close()


@pytest.fixture
def group(tmp_path: Path, data: DataDirectory) -> Iterator[HostedGroup]:
    """A group that has emitted a snapshot."""
    disk: Disk = open_disk(tmp_path, best=IoWriterMode.BLOCKING)
    _, settings = filled(disk, data)
    host = Host(disk, data, settings)
    found = host.open()
    host.until(lambda: found.replica.leads)
    found.replica.emit_snapshot()
    host.until(lambda: found.replica.catalog.newest is not None)
    host.settle()
    yield found
    found.close()
    disk.close()


def chunk(directory: Path) -> Path:
    return max((directory / "snapshot" / "chunks").iterdir())


def manifest(directory: Path) -> Path:
    (found,) = directory.glob("snapshot/*/manifest.json")
    return found


def authorization(directory: Path) -> Path:
    return directory / AUTHORIZATION_LOG


PLACES: dict[str, tuple[Callable[[Path], Path], int]] = {
    "a chunk's first byte": (chunk, 0),
    "a chunk's last byte": (chunk, -1),
    "a manifest": (manifest, 40),
    "the authorisation log": (authorization, 20),
}


def turn(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(("where", "at"), PLACES.values(), ids=PLACES.keys())
def test_a_turned_bit_stops_the_replica(
    where: Callable[[Path], Path], at: int, group: HostedGroup
) -> None:
    turn(where(group.directory), at)

    async def story(stage: Stage, scrubber: Scrubber) -> None:
        scrubber.scrub_now(group)
        await until(lambda: scrubber.row(group)["problem"] != "")
        assert stage.touched and scrubber.faults == 1

    scrubbing(group, story)
    assert group.replica.is_damaged
    assert "a snapshot is damaged" in str(group.replica.failed)


@pytest.mark.parametrize("where", [chunk, manifest, authorization])
def test_a_file_that_is_gone_stops_it_too(
    where: Callable[[Path], Path], group: HostedGroup
) -> None:
    where(group.directory).unlink()

    async def story(_stage: Stage, scrubber: Scrubber) -> None:
        scrubber.scrub_now(group)
        await until(lambda: scrubber.row(group)["problem"] != "")

    scrubbing(group, story)
    assert group.replica.is_damaged


def test_what_is_whole_is_read_and_said_so(group: HostedGroup) -> None:
    async def story(_stage: Stage, scrubber: Scrubber) -> None:
        scrubber.scrub_now(group)
        await until(lambda: scrubber.row(group)["asked_passes"] == 1)
        assert scrubber.row(group)["problem"] == "" and scrubber.faults == 0

    scrubbing(group, story)
    assert group.replica.ready


def test_a_round_reads_some_of_it_without_being_asked(group: HostedGroup) -> None:
    for where in (chunk, manifest, authorization):
        turn(where(group.directory), 25)
    for path in (group.directory / "snapshot" / "chunks").iterdir():
        turn(path, 30)

    async def story(stage: Stage, scrubber: Scrubber) -> None:
        await until(lambda: scrubber.row(group)["boot"] is not None)
        stage.clock_ms += ROUND_MS
        await until(lambda: scrubber.row(group)["problem"] != "")

    scrubbing(group, story)
    assert group.replica.is_damaged


@pytest.mark.parametrize("count", [1, 26, 27, 28, 1_000])
def test_every_piece_is_read_within_seven_days(count: int) -> None:
    pieces = [SnapshotFile(FileName(f"chunk-{number}"), PartitionId(1)) for number in range(count)]
    scrub, now_ms = SnapshotScrub(), 0
    read_ms = dict.fromkeys((each.file for each in pieces), 0)
    scrub.take_all(now_ms, pieces)
    for _ in range(100):
        now_ms += ROUND_MS
        for piece in scrub.take_round(now_ms, pieces):
            scrub.on_read(piece, now_ms)
            read_ms[piece.file] = now_ms
        assert now_ms - min(read_ms.values()) <= COVERAGE_MS
        assert scrub.coverage_age_days(now_ms) == (now_ms - min(read_ms.values())) / 86_400_000
