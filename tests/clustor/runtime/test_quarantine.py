"""A damaged replica on real files: fenced, held over restarts, replaced, and nothing deleted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from clustor.log.metadata import BOOT_RECORD_FILE
from clustor.log.types import IoWriterMode, PartitionId
from clustor.raft.errors import DataLost
from clustor.raft.types import RoutingEpoch
from clustor.replica import RepairPhase, ReplicaDamaged
from clustor.runtime.boot_record import boot_record_of, write_boot_record
from clustor.runtime.cluster_file import ClusterFile, NodeEntry
from clustor.runtime.data_directory import DataDirectory, open_data_directory
from clustor.runtime.disk import Disk, open_disk
from clustor.runtime.disk.checks import DiskFindingKind, DiskPicture, check_disk
from clustor.runtime.errors import DataDirectoryRefused
from clustor.runtime.pki.identity import NodeId, cluster_id
from clustor.runtime.repair.quarantine import QuarantineRecord, QuarantineRecords
from clustor.runtime.repair.repair_mode import repair_status
from clustor.runtime.repair.scrub_reading import read_rest
from tests.clustor.runtime.hosting import GROUP, Host, files, filled, turn_bit

RECORD = QuarantineRecord(7, "Integrity", "a bit turned", 12)


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


def test_a_damaged_replica_is_fenced_changed_in_nothing_and_replaced_in_place(
    disk: Disk, data: DataDirectory
) -> None:
    _, settings = filled(disk, data)
    before = turn_bit(data.state(GROUP))
    host = Host(disk, data, settings)
    group = host.open()
    assert isinstance(group.damage, ReplicaDamaged)
    assert group.replica.failed is not None and group.replica.is_damaged
    host.now_ms += 10_000
    group.replica.tick(host.now_ms)
    assert group.replica.take().messages == []
    assert files(data.state(GROUP)) == before, "nothing was touched"
    group.adopt(group.rejoined(RoutingEpoch(3), host.now_ms))
    host.settle()
    assert group.replica.ready and group.replica.group.core.hard.rejoining
    aside = files(data.state(GROUP) / "set-aside" / "1")
    assert {name: before[name] for name in aside} == aside
    assert any("segment" in name for name in aside)
    group.close()
    again = Host(disk, data, settings).open()
    assert again.damage is None and again.replica.group.core.hard.rejoining
    again.close()


def test_what_was_held_in_quarantine_is_not_opened_because_it_reads_well(
    disk: Disk, data: DataDirectory
) -> None:
    _, settings = filled(disk, data)
    records = QuarantineRecords(data.root)
    records.write(RECORD)
    host = Host(disk, data, settings)
    held = QuarantineRecords(data.root).held(host.group.storage, GROUP)
    assert held == "a bit turned"
    group = host.open(held)
    assert group.damage is not None and group.replica.failed is not None
    group.adopt(group.rejoined(RoutingEpoch(1), host.now_ms))
    host.settle()
    assert records.held(group.storage, GROUP) is None, "from here on it is the new log"
    group.close()


def test_records_outlive_the_process_and_one_that_cannot_be_read_still_holds(
    tmp_path: Path,
) -> None:
    records = QuarantineRecords(tmp_path)
    assert records.partitions() == [] and records.view(GROUP) is None
    records.write(RECORD)
    records.write(msgspec.structs.replace(RECORD, phase=RepairPhase.REMOVING))
    found = QuarantineRecords(tmp_path)
    assert found.find(GROUP) == msgspec.structs.replace(RECORD, phase=RepairPhase.REMOVING)
    (tmp_path / "quarantine" / "7.json").write_bytes(b"{")
    broken = QuarantineRecords(tmp_path).find(GROUP)
    assert broken is not None and broken.phase is RepairPhase.QUARANTINED
    found.forget(GROUP)
    found.forget(GROUP)
    assert QuarantineRecords(tmp_path).partitions() == []


def test_a_state_that_is_gone_as_a_whole_is_not_damage_of_a_partition(
    disk: Disk, data: DataDirectory
) -> None:
    data.require_state()
    unused = [data.is_unused]
    filled(disk, data)
    data.require_state()
    assert [*unused, data.is_unused] == [True, False]
    (data.root / "state").rename(data.root / "elsewhere")
    with pytest.raises(DataLost, match="empty where data was"):
        data.require_state()


def test_each_start_is_recorded_and_counted(disk: Disk, data: DataDirectory) -> None:
    _, settings = filled(disk, data)
    group = Host(disk, data, settings).open()
    for seq in (1, 2):
        record = write_boot_record(boot_record_of(group, "ab" * 32))
        assert record.boot_seq == seq
    written = json.loads((group.directory / BOOT_RECORD_FILE).read_bytes())
    assert int(written["durable_index"]) >= 5 and written["scrub_state"] == "Healthy"
    assert written["selftest_digest"] == "ab" * 32
    (group.directory / BOOT_RECORD_FILE).write_bytes(b"{}")
    assert write_boot_record(boot_record_of(group, "")).boot_seq == 1
    group.close()


def test_a_scrub_reads_the_small_files_of_a_live_replica(disk: Disk, data: DataDirectory) -> None:
    _, settings = filled(disk, data)
    group = Host(disk, data, settings).open()
    assert read_rest(group.storage, group.replica.log.ledger_bytes) is None
    path = group.directory / "hard_state.json"
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)
    assert isinstance(read_rest(group.storage, None), ReplicaDamaged)
    group.close()


def described(**more: object) -> ClusterFile:
    entry = NodeEntry(1, "127.0.0.1", 1, 2, "00" * 32)
    return msgspec.structs.replace(ClusterFile("dev", 1, (entry,)), **more)


def test_repair_mode_looks_at_every_group_that_is_there(disk: Disk, data: DataDirectory) -> None:
    _, settings = filled(disk, data)
    turn_bit(data.state(GROUP))
    data.state(PartitionId(9))
    found = repair_status(described(), NodeId(1), data, settings.keys, pid=5)
    states = {group.partition_id: group.state for group in found.groups}
    assert states == {1: "Absent", 7: "Quarantine", 9: "Absent"}


BAD = DiskPicture("tmpfs", "tmpfs", frozenset(), "unknown", (), 4096, 1)


@pytest.mark.parametrize(
    ("cluster", "refused"),
    [
        (described(), False),
        (described(admin_tls=True), True),
        (described(admin_tls=True, disk_override="it is a test"), False),
    ],
    ids=["development", "production", "an operator says why"],
)
def test_a_node_is_not_made_on_a_disk_that_forgets(
    cluster: ClusterFile,
    refused: bool,
    disk: Disk,
    data: DataDirectory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("clustor.runtime.disk.checks.look", lambda _root: BAD)
    if refused:
        with pytest.raises(DataDirectoryRefused, match="UnsupportedMount"):
            check_disk(data, cluster)
        filled(disk, data)
    kinds = [each.kind for each in check_disk(data, cluster).findings]
    assert kinds == [DiskFindingKind.UNSUPPORTED_MOUNT], "one that has data is only told"
