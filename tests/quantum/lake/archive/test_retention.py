"""What an archive lets go of: whole segments below a snapshot, said first, deleted then."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quantum.archive import (
    ArchiveConflict,
    ArchiveDamaged,
    Objects,
    PrgArchiver,
    open_objects,
    read_listing,
    verify_prg,
)
from quantum.archive.backups import Backup, BackupPoint, oldest_need, write_backup
from quantum.archive.chain import append_record, next_record, read_record
from quantum.archive.records import RETENTION_VERSION, DroppedRow
from quantum.archive.retention import Wanted, drop, plan_retention, sweep
from quantum.cli.archive import app
from quantum.cli.exits import Exit
from quantum.lake.archive import DirectoryKeys, IndexRange
from quantum.lake.errors import LogGone
from quantum.lake.opening import open_source
from quantum.lake.table import (
    DirectoryStore,
    OffsetRange,
    StreamName,
    Table,
    TableOperation,
    VersionProposal,
)
from tests.quantum.lake.archive.boxes import FIRST_MS, PRG, LogBox, entries, keys_at

SEGMENTS = [(1, 100), (101, 200), (201, 300), (301, 400), (401, 500)]
BASE = 350
"""Of the newest snapshot: it lies in the fourth segment."""


@pytest.fixture
def box(tmp_path: Path) -> Iterator[LogBox]:
    """Five segments, with snapshots after 150 and BASE."""
    with LogBox(tmp_path / "log", keys_at(tmp_path)) as log:
        for first, last in SEGMENTS:
            log.append(entries(first, last))
            log.seal()
        yield log


def archived(box: LogBox, objects: Objects) -> PrgArchiver:
    for base in (150, BASE):
        box.emit(base, b"state at %d" % base)
        box.archive(objects)
    return box.archive(objects)


DAY_MS = 86_400_000
AGES = {
    "nothing is that old": (Wanted(age_ms_max=DAY_MS), 0),
    "the first one is": (Wanted(age_ms_max=DAY_MS - 150), 100),
    "two are": (Wanted(age_ms_max=DAY_MS - 201), 200),
    "all are: only what is below the snapshot goes": (Wanted(age_ms_max=0), 300),
    "nothing may be left: the same": (Wanted(bytes_max=0), 300),
    "somebody needs the third": (Wanted(age_ms_max=0, keep_from=201), 200),
    "or some of it": (Wanted(age_ms_max=0, bytes_max=0, keep_from=299), 200),
    "or its last entry": (Wanted(age_ms_max=0, keep_from=300), 200),
    "or what comes after it": (Wanted(age_ms_max=0, keep_from=301), 300),
    "somebody needs everything": (Wanted(bytes_max=0, keep_from=1), 0),
    "nothing was asked for": (Wanted(), 0),
    "there is room": (Wanted(bytes_max=1 << 40), 0),
}


def test_what_may_go(box: LogBox, directory: Objects) -> None:
    archived(box, directory)
    listing = read_listing(directory, PRG, box.keys)
    assert [(row.first, row.last) for row in listing.segments] == SEGMENTS
    for name, (wanted, through) in AGES.items():
        going = plan_retention(listing, wanted, FIRST_MS + DAY_MS)
        assert (0 if going is None else going.through) == through, name
    sizes = [row.bytes for row in listing.segments]
    going = plan_retention(listing, Wanted(bytes_max=listing.bytes - 1), FIRST_MS)
    assert going is not None and going.through == 100
    going = plan_retention(listing, Wanted(bytes_max=listing.bytes - sizes[0]), FIRST_MS)
    assert going is not None and going.through == 100
    going = plan_retention(listing, Wanted(bytes_max=listing.bytes - sizes[0] - 1), FIRST_MS)
    assert going is not None and (going.through, len(going.snapshots)) == (200, 1)
    left = sum(sizes[2:]) + listing.snapshots[-1].bytes
    going = plan_retention(listing, Wanted(bytes_max=left), FIRST_MS)
    assert going is not None and going.through == 200, "the older snapshot goes, too"


def test_the_last_segment_stays_although_a_snapshot_covers_it(
    box: LogBox, directory: Objects
) -> None:
    """The archive goes on at it."""
    archived(box, directory)
    box.emit(500, b"state at 500")
    box.archive(directory)
    listing = read_listing(directory, PRG, box.keys)
    going = plan_retention(listing, Wanted(bytes_max=0), FIRST_MS)
    assert going is not None and going.through == 400
    after = drop(directory, listing, going, box.keys, "a test", FIRST_MS)
    assert (after.first, after.last) == (401, 500)


def test_without_a_snapshot_nothing_goes(box: LogBox, directory: Objects) -> None:
    box.archive(directory)
    listing = read_listing(directory, PRG, box.keys)
    assert plan_retention(listing, Wanted(bytes_max=0, age_ms_max=0), FIRST_MS + DAY_MS) is None


def test_what_went_is_gone_and_the_rest_is_whole(
    box: LogBox, url: str, objects: Objects, tmp_path: Path
) -> None:
    archiver = archived(box, objects)
    listing = read_listing(objects, PRG, box.keys)
    going = plan_retention(listing, Wanted(bytes_max=0), FIRST_MS)
    assert going is not None
    drop(objects, listing, going, box.keys, "a test", FIRST_MS)
    source = open_source(url, DirectoryKeys(str(tmp_path)))
    bounds = source.bounds(PRG)
    assert (bounds.first, bounds.last) == (301, 500)
    assert list(source.entries(IndexRange(PRG, 301, 500))) == entries(301, 500)
    assert [int(each.base_index) for each in source.snapshots(PRG)] == [BASE]
    with pytest.raises(LogGone) as gone:
        list(source.entries(IndexRange(PRG, 100, 500)))
    assert (gone.value.first, gone.value.last, gone.value.readable_from) == (100, 300, 301)
    assert verify_prg(objects, PRG, box.keys).findings == ()
    assert len([name for name in objects.names("") if "/segments/" in name]) == 2

    # An archiver that knew the chain before goes on behind it, over a page of records and more.
    for first in range(501, 571):
        box.append(entries(first, first))
        box.seal()
        while archiver.step(box.view(), box.opened.storage, FIRST_MS).__class__.__name__ == (
            "ArchiveSegment"
        ):
            pass
    after = read_listing(objects, PRG, box.keys)
    assert (after.first, after.last, after.dropped_through) == (301, 570, 300)
    assert after.seq > 64
    assert verify_prg(objects, PRG, box.keys).findings == ()
    assert list(source.entries(IndexRange(PRG, 301, 500))) == entries(301, 500)


def test_a_run_that_died_behind_its_record_is_completed(box: LogBox, directory: Objects) -> None:
    archived(box, directory)
    listing = read_listing(directory, PRG, box.keys)
    record = next_record(
        listing,
        [DroppedRow(200, "a test")],
        cluster=listing.cluster,
        partition=listing.partition,
        writer="a test",
        now_ms=FIRST_MS,
        mac_epoch=box.keys.mac_epoch,
    )
    after = append_record(directory, listing, record, box.keys)
    verified = verify_prg(directory, PRG, box.keys)
    assert verified.sound and len(verified.findings) == 3, "unlisted, and harmless"
    assert read_record(directory, PRG, after.seq)[0].format_version == RETENTION_VERSION
    assert len(sweep(directory, after)) == 3
    assert verify_prg(directory, PRG, box.keys).findings == ()
    going = plan_retention(listing, Wanted(bytes_max=0), FIRST_MS)
    assert going is not None
    with pytest.raises(ArchiveConflict):
        drop(directory, listing, going, box.keys, "late", FIRST_MS)
    assert len([name for name in directory.names("") if "/segments/" in name]) == 3


@pytest.mark.parametrize(
    "through", [150, 400, 500, 600], ids=["half a segment", "beyond a snapshot", "all", "more"]
)
def test_a_record_that_drops_what_it_must_not_is_no_record(
    box: LogBox, directory: Objects, through: int
) -> None:
    archived(box, directory)
    listing = read_listing(directory, PRG, box.keys)
    record = next_record(
        listing,
        [DroppedRow(through, "a test")],
        cluster=listing.cluster,
        partition=listing.partition,
        writer="a test",
        now_ms=FIRST_MS,
        mac_epoch=box.keys.mac_epoch,
    )
    with pytest.raises(ArchiveDamaged, match="drops what it must not"):
        append_record(directory, listing, record, box.keys)


def quantum(*arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, [str(each) for each in arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


def test_the_command_keeps_what_a_backup_needs_unless_told_otherwise(
    box: LogBox, directory: Objects, tmp_path: Path
) -> None:
    archived(box, directory)
    url = (tmp_path / "archive").as_uri()

    def back_up(made_ms: int, prg: str, index: int) -> None:
        point = BackupPoint(prg, index, "0" * 64)
        write_backup(directory, Backup(made_ms, (point,), int(box.keys.mac_epoch)), box.keys)

    def through(*more: str) -> int:
        command = ("retain", url, "--keys", tmp_path, "--older-than-days", 1, "--json", *more)
        found: int = json.loads(quantum(*command)[1])["through"]
        return found

    assert through() == 300
    back_up(1, "dev/7", 4)
    assert through() == 300, "it has nothing of this partition"
    back_up(3, str(PRG), 420)
    assert through() == 300, "it begins with the snapshot of 350"
    back_up(2, str(PRG), 260)
    assert through() == 100, "it begins with the snapshot of 150"
    assert (through("--past-backups"), through("--delete")) == (300, 100)
    assert through("--past-backups", "--delete") == 300
    assert through() == 0, "nothing more can go, and what is lost keeps nothing"
    back_up(4, str(PRG), 500)
    need = oldest_need(directory, read_listing(directory, PRG, box.keys))
    assert need is not None and need.first == BASE + 1


def test_the_command_shows_and_deletes_only_when_told(
    box: LogBox, directory: Objects, tmp_path: Path
) -> None:
    archived(box, directory)
    url = (tmp_path / "archive").as_uri()
    before = directory.names("")
    command = ["retain", url, "--keys", tmp_path, "--older-than-days", 1]
    code, out, _ = quantum(*command)
    assert code == 0
    assert "3 segments and 1 snapshots through index 300" in out and "--delete does it" in out
    assert directory.names("") == before
    table = Table.create(DirectoryStore(tmp_path / "table"), schema_version=2, at_ms=0)
    kept = [*command, "--keep-from", tmp_path / "table", "--json"]
    assert json.loads(quantum(*kept, "--delete")[1])["through"] == 0, "it has read nothing yet"
    table.commit(
        VersionProposal(TableOperation.INGEST, 2, {StreamName(str(PRG)): OffsetRange(1, 260)}),
        at_ms=0,
    )
    row = json.loads(quantum(*kept)[1])
    assert (row["through"], row["deleted"]) == (100, False), "it begins with the snapshot of 150"
    assert directory.names("") == before
    row = json.loads(quantum(*kept, "--delete")[1])
    assert (row["through"], row["deleted"], row["first"]) == (100, True, 101)
    assert json.loads(quantum(*kept, "--delete")[1])["through"] == 0
    assert verify_prg(open_objects(url), PRG, box.keys).findings == ()
    code, _, error = quantum("retain", url, "--keys", tmp_path)
    assert (code, "say what is too much" in error) == (Exit.USAGE, True)
    code, _, error = quantum(*command, "--keep-from", tmp_path / "nowhere")
    assert code == Exit.NOT_FOUND
