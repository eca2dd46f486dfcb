"""The background scrub beside a real group: what it reads, when it waits, and whom it stops."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from clustor.log.ledger import LEDGER_FILE
from clustor.log.metadata import BOOT_RECORD_FILE
from clustor.log.scrub import ROUND_MS
from clustor.log.types import IoWriterMode
from clustor.runtime.data_directory import DataDirectory, open_data_directory
from clustor.runtime.disk import Disk, open_disk
from clustor.runtime.group import HostedGroup
from clustor.runtime.node import Node
from clustor.runtime.pki.identity import NodeId, cluster_id
from clustor.runtime.repair.scrub import Scrubber
from tests.clustor.runtime.hosting import GROUP, Host, filled, turn_bit

DEADLINE_SECONDS = 180.0


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataDirectory]:
    found = open_data_directory(tmp_path / "node", cluster_id("dev"), NodeId(1))
    yield found
    found.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    found = open_disk(tmp_path, best=IoWriterMode.BLOCKING)
    yield found
    found.close()


class Stage:
    """What a scrub asks of its node, with a clock that the test moves."""

    def __init__(self, group: HostedGroup) -> None:
        self.groups = {GROUP: group}
        self.settings = SimpleNamespace(keys=group.replica.settings.keys)
        self.node_id = 1
        self.clock_ms = 1_000
        self.touched = 0

    def now_ms(self) -> int:
        return self.clock_ms

    def touch(self, _group: HostedGroup) -> None:
        self.touched += 1


def scrubbing(
    group: HostedGroup, story: Callable[[Stage, Scrubber], Coroutine[Any, Any, None]]
) -> None:
    async def run() -> None:
        stage = Stage(group)
        scrubber = Scrubber(cast("Node", stage), "cd" * 32)
        scrubber.start()
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                await story(stage, scrubber)
        finally:
            scrubber.close()

    asyncio.run(run())


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.002)


def test_all_of_a_group_is_read_when_somebody_asks(disk: Disk, data: DataDirectory) -> None:
    _, settings = filled(disk, data)
    group = Host(disk, data, settings).open()

    async def story(_stage: Stage, scrubber: Scrubber) -> None:
        before = scrubber.scrub_now(group)
        assert before["running"] and before["asked_passes"] == 0
        await until(lambda: scrubber.row(group)["asked_passes"] == 1)
        row = scrubber.row(group)
        assert row["problem"] == "" and not row["running"] and row["read_bytes"] > 1_000
        code, page = scrubber.page("/scrub", {}) or (0, {})
        assert code == 200 and cast("dict[str, Any]", page)["groups"] == [row]
        assert scrubber.page("/else", {}) is None

    scrubbing(group, story)
    assert group.replica.ready
    written = json.loads((group.directory / BOOT_RECORD_FILE).read_bytes())
    assert written["selftest_digest"] == "cd" * 32
    group.close()


def test_a_round_is_read_when_its_time_has_come_and_none_before(
    disk: Disk, data: DataDirectory
) -> None:
    _, settings = filled(disk, data)
    group = Host(disk, data, settings).open()

    async def story(stage: Stage, scrubber: Scrubber) -> None:
        await until(lambda: scrubber.row(group)["boot"] is not None)
        assert scrubber.row(group)["passes"] == 0
        stage.clock_ms += 3 * ROUND_MS
        assert scrubber.coverage_age_days() == pytest.approx(0.75)
        await until(lambda: scrubber.row(group)["passes"] == 1)
        assert scrubber.row(group)["asked_passes"] == 0 and scrubber.read_bytes > 0

    scrubbing(group, story)
    group.close()


def test_a_turned_bit_stops_the_replica_at_once(disk: Disk, data: DataDirectory) -> None:
    _, settings = filled(disk, data)
    group = Host(disk, data, settings).open()
    turn_bit(group.directory)

    async def story(stage: Stage, scrubber: Scrubber) -> None:
        scrubber.scrub_now(group)
        await until(lambda: group.replica.failed is not None)
        assert group.replica.is_damaged and stage.touched == 1
        await until(lambda: not scrubber.row(group)["running"])
        assert "a block is not what was written" in scrubber.row(group)["problem"]
        assert scrubber.faults == 1

    scrubbing(group, story)
    group.close()


@pytest.mark.parametrize("heals", [True, False], ids=["for a moment", "for good"])
def test_a_failed_checksum_is_read_three_times_more(
    heals: bool, disk: Disk, data: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clustor.runtime.repair.scrub._RETRY_SECONDS", 0.001)
    _, settings = filled(disk, data)
    group = Host(disk, data, settings).open()
    ledger = group.directory / LEDGER_FILE
    _turn(ledger)

    async def story(_stage: Stage, scrubber: Scrubber) -> None:
        scrubber.scrub_now(group)
        if heals:
            await until(lambda: scrubber.faults > 0)
            _turn(ledger)
        await until(lambda: scrubber.row(group)["asked_passes"] == 1)
        if heals:
            assert group.replica.ready and scrubber.row(group)["problem"] == ""
        else:
            assert group.replica.failed is not None and scrubber.faults == 4

    if heals:
        monkeypatch.setattr("clustor.runtime.repair.scrub._RETRY_SECONDS", 0.1)
    scrubbing(group, story)
    group.close()


def _turn(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[60] ^= 2
    with path.open("r+b") as file:
        file.write(content)


def test_nothing_is_read_while_a_group_is_at_the_disk(
    disk: Disk, data: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, settings = filled(disk, data)
    group = Host(disk, data, settings).open()
    busy, looks = [True], [0]

    def is_idle(_group: HostedGroup) -> bool:
        looks[0] += 1
        return not busy[0]

    monkeypatch.setattr(HostedGroup, "idle", property(is_idle))
    monkeypatch.setattr("clustor.runtime.repair.scrub._YIELDS_MAX", 10_000)
    monkeypatch.setattr("clustor.runtime.repair.scrub._YIELD_SECONDS", 0.001)

    async def story(_stage: Stage, scrubber: Scrubber) -> None:
        scrubber.scrub_now(group)
        await until(lambda: looks[0] > 50)
        assert scrubber.read_bytes == 0 and scrubber.row(group)["running"]
        busy[0] = False
        await until(lambda: scrubber.row(group)["asked_passes"] == 1)

    scrubbing(group, story)
    group.close()
