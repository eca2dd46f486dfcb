"""Streams out of an archive: from which entry on their records are whole, and when they are not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clustor.log.types import DurabilityMode, DurabilityModeEpoch, Entry, EntryKind, LogIndex, Term
from clustor.raft.membership import Membership
from clustor.raft.types import RoutingEpoch
from clustor.replica.batch import encode_batch
from clustor.replica.header import SnapshotHeader, encode_header
from clustor.streams.changes import StreamAppend, StreamChange, StreamExtent, StreamTrim
from quantum.archive import AppliedWith, ArchiveMissing, PrgId, read_listing
from quantum.archive.backups import Backup, BackupPoint, write_backup
from quantum.archive.names import record_name, record_of
from quantum.archive.objects import DirectoryObjects
from quantum.archive.retention import Wanted, drop, plan_retention
from quantum.broker import (
    Broker,
    CreateStream,
    TrimStreams,
    encode_command,
    encode_publishes,
    encode_record,
)
from quantum.broker.commands import OWN_ORIGIN
from quantum.cli.app import build
from quantum.node.archived_log import PointInTime
from quantum.node.archived_state import (
    ArchivedState,
    lacks_streams,
    needed_for_streams,
    replay_archive,
    replay_streams,
)
from quantum.tenants.broker_file import TenantEntry
from quantum.tenants.partition_settings import broker_settings
from tests.quantum.lake.archive.boxes import FIRST_MS, PRG, LogBox, keys_at

FILE = 1 << 20
SNAPSHOTS = (8, 14)
TO_SEVEN, TO_THIRTEEN = 21, 22
"""The entries that trim the stream; the one before it has all twenty records but the first."""


def command(index: int) -> bytes:
    now_ms = FIRST_MS + index
    if index == 1:
        return encode_command(CreateStream(now_ms, b"log", [b"t"]))
    if index >= TO_SEVEN:
        start = 7 if index == TO_SEVEN else 13
        return encode_command(TrimStreams(now_ms, [(1, start)]))
    return encode_publishes(
        now_ms, OWN_ORIGIN, 0, 0, [encode_record(b"t", b"%d" % index, 1, b"", 0, b"c", 0, 0)]
    )


def filled(box: LogBox, objects: DirectoryObjects) -> None:
    broker = Broker(broker_settings(TenantEntry("dev", 1), 0))
    archiver = box.archiver(objects)
    archiver.applied_with = lambda: AppliedWith(1, 1_000, 64 << 20)
    first = 1
    for last in (*SNAPSHOTS, TO_THIRTEEN):
        for index in range(first, last + 1):
            payload = encode_batch([command(index)])
            box.append([Entry(Term(1), LogIndex(index), payload, EntryKind.DATA)])
            broker.apply_batch(index, [command(index)])
        box.seal()
        if last in SNAPSHOTS:
            box.emit(last, content(broker, last))
        for _ in range(2):
            archiver.step(box.view(), box.opened.storage, FIRST_MS)
        first = last + 1


def content(broker: Broker, index: int) -> bytes:
    header = SnapshotHeader(
        LogIndex(index),
        Membership(voters=frozenset()),
        LogIndex(0),
        RoutingEpoch(0),
        DurabilityMode.STRICT,
        DurabilityModeEpoch(0),
    )
    return encode_header(header) + b"".join(broker.snapshot())


class Bench:
    """An archive with a stream, two snapshots, and a log from its first entry on."""

    def __init__(self, box: LogBox, root: Path) -> None:
        self.keys = box.keys
        self.root = root
        self.objects = DirectoryObjects(root)
        filled(box, self.objects)

    def state(self, index: int) -> ArchivedState:
        return replay_archive(self.objects, PRG, self.keys, PointInTime(index=index))

    def retain(self, *options: str) -> str:
        """Let go of what is old, by the command."""
        keys = str(self.root.parent / "keys")
        command = ["archive", "retain", self.root.as_uri(), "--keys", keys, "--delete"]
        done = CliRunner().invoke(
            build(["archive"]), [*command, "--older-than-days", "1", "--json", *options]
        )
        assert done.exit_code == 0, done.output
        return done.output

    def first(self) -> int:
        return read_listing(self.objects, PRG, self.keys).first


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with LogBox(tmp_path / "log", keys_at(tmp_path)) as box:
        yield Bench(box, tmp_path / "archive")


class Sink:
    """Keeps what it is fed, as the files of a replica would."""

    def __init__(self) -> None:
        self.base = 0
        self.start = self.next = 0
        self.fed: list[int] = []

    def begin(self, raft_index: int, extents: Iterable[StreamExtent]) -> None:
        self.base = raft_index
        for extent in extents:
            self.start = self.next = extent.next

    def feed(self, _raft_index: int, changes: Iterable[StreamChange]) -> None:
        for change in changes:
            if isinstance(change, StreamAppend):
                assert change.first == self.next, "no record is missing, none comes twice"
                self.next += change.count
                self.fed.append(change.first)
            elif isinstance(change, StreamTrim):
                self.start = max(self.start, change.start)


def fed(bench: Bench, index: int) -> Sink:
    sink = Sink()
    replay_streams(bench.objects, bench.keys, bench.state(index), sink)
    return sink


@pytest.mark.parametrize(("index", "base"), [(20, 0), (TO_SEVEN, 8), (TO_THIRTEEN, 14)])
def test_it_begins_at_the_newest_snapshot_before_all_that_is_still_held(
    bench: Bench, index: int, base: int
) -> None:
    sink, held = fed(bench, index), bench.state(index).extents[FILE]
    assert sink.base == base
    assert (sink.start, sink.next) == (held.start, held.next), "and has all of it"


def test_what_went_with_the_archive_s_beginning_is_said_and_not_half_restored(bench: Bench) -> None:
    assert not lacks_streams(bench.objects, bench.state(20), bench.keys)
    listing = read_listing(bench.objects, PRG, bench.keys)
    going = plan_retention(listing, Wanted(age_ms_max=1), FIRST_MS + 10**9)
    assert going is not None and going.through == 14
    drop(bench.objects, listing, going, bench.keys, "test", FIRST_MS)
    assert lacks_streams(bench.objects, bench.state(20), bench.keys)
    assert lacks_streams(bench.objects, bench.state(TO_SEVEN), bench.keys)
    with pytest.raises(ArchiveMissing, match="still hold"):
        fed(bench, 20)
    assert fed(bench, TO_THIRTEEN).fed == list(range(13, 19))


def test_retention_keeps_what_streams_hold_now_and_at_the_oldest_backup(bench: Bench) -> None:
    assert needed_for_streams(bench.objects, PRG, bench.keys, None) == 15
    assert needed_for_streams(bench.objects, PRG, bench.keys, 20) == 1
    point = BackupPoint(str(PRG), 20, bench.state(20).digest)
    backup = Backup(5, (point,), int(bench.keys.mac_epoch))
    write_backup(bench.objects, backup, bench.keys)
    bench.retain()
    assert bench.first() == 1, "the backup's stream has its first record yet"
    bench.retain("--past-streams")
    assert bench.first() == 15, "its state can be gone back to, and its stream can not"


@pytest.mark.parametrize("tenant", ["dev", "Acme_1.b", "acme~2049000", "control", "x" * 128])
def test_every_tenant_s_records_are_found_again_by_their_names(tenant: str) -> None:
    prg = PrgId(tenant, 3)
    assert record_of(record_name(prg, 7)) == (prg, 7)
    assert record_of(f"_groups/{record_name(prg, 7)}") is None
