"""What goes into an archive comes out of it, and nothing else does."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clustor.log.types import Entry
from quantum.archive import ArchiveConflict, Objects, open_objects, read_listing, verify_prg
from quantum.archive.chain import read_record
from quantum.archive.names import record_name
from quantum.lake.archive import DirectoryKeys, IndexRange, LogSource
from quantum.lake.errors import DamagedBlock, LogGone, UnknownFormat, WrongKey
from quantum.lake.opening import open_source
from tests.quantum.lake.archive.boxes import FIRST_MS, PRG, LogBox, entries, keys_at


def source_at(url: str, tmp_path: Path) -> LogSource:
    return open_source(url, DirectoryKeys(str(tmp_path)))


def read_all(source: LogSource, first: int, last: int) -> list[Entry]:
    return list(source.entries(IndexRange(PRG, first, last)))


def fill(box: LogBox, last: int, first: int = 1, term: int = 1, step: int = 50) -> list[Entry]:
    """Append in runs of some entries, and close the last segment."""
    everything: list[Entry] = []
    for start in range(first, last + 1, step):
        batch = entries(start, min(last, start + step - 1), term)
        box.append(batch)
        everything += batch
    box.seal()
    return everything


def test_what_was_archived_is_read_back_by_whoever_opens_it(
    url: str, objects: Objects, tmp_path: Path
) -> None:
    with LogBox(tmp_path / "log", keys_at(tmp_path)) as box:
        written = fill(box, 2_000)
        box.archive(objects)
    source = source_at(url, tmp_path)
    assert source.prgs() == [PRG]
    bounds = source.bounds(PRG)
    assert (bounds.first, bounds.last) == (1, 2_000)
    assert len(bounds.pieces) > 1
    assert read_all(source, 1, 2_000) == written
    again: LogSource = pickle.loads(pickle.dumps(source))
    for piece in bounds.pieces:
        assert read_all(again, piece.first, piece.last) == written[piece.first - 1 : piece.last]
        assert piece.first_time_ms is not None and piece.last_time_ms is not None
        assert piece.first_time_ms <= FIRST_MS + piece.first
        assert FIRST_MS + piece.last <= piece.last_time_ms
    verified = verify_prg(objects, PRG, keys_at(tmp_path))
    assert (verified.findings, verified.entries) == ((), 2_000)


def test_two_archivers_race_and_one_chain_comes_of_it(tmp_path: Path) -> None:
    """In earnest, each in its thread and with its own segments."""
    keys, url = keys_at(tmp_path), (tmp_path / "archive").as_uri()

    def archive(name: str, step: int) -> int:
        conflicts = 0
        with LogBox(tmp_path / name, keys, segment_bytes=1 << 13) as box:
            fill(box, 3_000, step=step)
            gate.wait()
            ours = box.archiver(open_objects(url))
            while ours.refresh().last < 3_000:
                try:
                    ours.step(box.view(name), box.opened.storage, FIRST_MS)
                except ArchiveConflict:
                    conflicts += 1
        return conflicts

    gate = threading.Barrier(2)
    with ThreadPoolExecutor(2) as threads:
        racing = [threads.submit(archive, "one", 20), threads.submit(archive, "two", 33)]
        conflicts = sum(each.result() for each in racing)
    print(f"{conflicts} conflicts")
    verified = verify_prg(open_objects(url), PRG, keys)
    assert verified.sound, verified.findings
    assert (verified.listing.last, verified.entries) == (3_000, 3_000)
    writers = {read_record(open_objects(url), PRG, seq)[0].writer for seq in range(10)}
    assert writers <= {"one", "two"}


def test_nothing_above_the_commit_index_and_no_open_segment_leaves(
    directory: Objects, tmp_path: Path
) -> None:
    with LogBox(tmp_path / "log", keys_at(tmp_path)) as box:
        fill(box, 100)
        box.append(entries(101, 150), commit=False)
        box.seal()
        assert box.archive(directory).listing is not None
        assert read_listing(directory, PRG, box.keys).last == 100
        box.committed = 149  # one entry of the segment may still be replaced
        box.archive(directory)
        assert read_listing(directory, PRG, box.keys).last == 100
        box.committed = 150
        box.append(entries(151, 160))
        box.archive(directory)
        assert read_listing(directory, PRG, box.keys).last == 150


def test_a_truncated_suffix_is_archived_as_what_replaced_it(
    directory: Objects, tmp_path: Path
) -> None:
    """The void run stands before the live one, in the same segment and in one before it."""
    with LogBox(tmp_path / "log", keys_at(tmp_path)) as box:
        kept = entries(1, 40)
        box.append(kept)
        box.append(entries(41, 60, term=1), commit=False)
        live = entries(41, 50, term=2)
        box.append(live, commit=False)
        box.append(entries(51, 70, term=2), commit=False)
        box.seal()
        last = entries(61, 90, term=3)
        box.append(last)
        box.seal()
        box.archive(directory)
        keys = box.keys
    source = source_at((tmp_path / "archive").as_uri(), tmp_path)
    found = read_all(source, 1, 90)
    assert [each.index for each in found] == list(range(1, 91))
    assert [each.term for each in found] == [1] * 40 + [2] * 20 + [3] * 30
    assert read_all(source, 45, 45) == [live[4]]
    assert verify_prg(directory, PRG, keys).sound


def test_a_new_leader_goes_on_where_the_old_one_was(directory: Objects, tmp_path: Path) -> None:
    """Its segments begin elsewhere: what both hold is listed once."""
    keys = keys_at(tmp_path)
    with (
        LogBox(tmp_path / "old", keys) as old,
        LogBox(tmp_path / "new", keys) as new,
    ):
        written = fill(old, 130)
        fill(new, 90, step=30)
        fill(new, 200, first=91, step=30)
        old.archive(directory)
        new.archive(directory)
        old.archive(directory)
    listing = read_listing(directory, PRG, keys)
    assert [(row.first, row.last) for row in listing.stretches] == [(1, 130), (131, 200)]
    assert len({row.log_id for row in listing.segments}) == 2
    source = source_at((tmp_path / "archive").as_uri(), tmp_path)
    assert [each.index for each in read_all(source, 1, 200)] == list(range(1, 201))
    assert read_all(source, 1, 130) == written
    assert verify_prg(directory, PRG, keys).sound


def test_an_object_that_is_there_in_part_is_put_again(directory: Objects, tmp_path: Path) -> None:
    """No store of ours leaves one; whoever copies archives about may."""
    with LogBox(tmp_path / "log", keys_at(tmp_path)) as box:
        fill(box, 100)
        box.archive(directory)
        row = read_listing(directory, PRG, box.keys).segments[0]
        copy = open_objects((tmp_path / "copy").as_uri())
        copy.put(row.object, [directory.get(row.object, 1 << 30)[:-1]])
        box.archive(copy)
        assert verify_prg(copy, PRG, box.keys).findings == ()


def test_two_archivers_at_once_never_fork_the_chain(
    url: str, objects: Objects, tmp_path: Path
) -> None:
    """The other one finishes a whole step just before our record is created."""
    keys = keys_at(tmp_path)
    with LogBox(tmp_path / "one", keys) as one, LogBox(tmp_path / "two", keys) as two:
        for box, step in ((one, 20), (two, 35)):
            for start in range(0, 600, 100):
                fill(box, start + 100, first=start + 1, step=step)
        rival = two.archiver(open_objects(url))
        conflicts = 0

        def overtake(step: str) -> None:
            if step == "segment put" and len(taken) < 3:
                taken.append(step)
                rival.step(two.view("node 2, term 2"), two.opened.storage, FIRST_MS)

        taken: list[str] = []
        ours = one.archiver(objects, overtake)
        while ours.refresh().last < 600:
            try:
                ours.step(one.view(), one.opened.storage, FIRST_MS)
            except ArchiveConflict:
                conflicts += 1
        assert conflicts == len(taken) == 3
    listing = read_listing(objects, PRG, keys)
    assert listing.last == 600
    verified = verify_prg(objects, PRG, keys)
    assert verified.sound
    assert verified.entries == 600


def test_a_log_that_was_compacted_first_is_a_gap_that_readers_are_told_of(
    directory: Objects, tmp_path: Path
) -> None:
    with LogBox(tmp_path / "log", keys_at(tmp_path)) as box:
        fill(box, 100)
        box.archive(directory)
        fill(box, 200, first=101)
        fill(box, 300, first=201)
        box.compact(201)
        archiver = box.archiver(directory)
        archiver.step(box.view(), box.opened.storage, FIRST_MS)
        assert archiver.refresh().last == 100, "an archiver does not skip by itself"
        archiver.record_gap(box.view(), 101, 200, "nobody has it", FIRST_MS)
        box.archive(directory)
    source = source_at((tmp_path / "archive").as_uri(), tmp_path)
    assert source.bounds(PRG).last == 300
    found: list[int] = []
    with pytest.raises(LogGone) as gone:
        found.extend(each.index for each in source.entries(IndexRange(PRG, 90, 300)))
    assert found == list(range(90, 101))
    assert (gone.value.first, gone.value.last, gone.value.readable_from) == (101, 200, 201)
    assert pickle.loads(pickle.dumps(gone.value)).readable_from == 201
    assert str(gone.value).startswith("nobody has it (prg=dev/0, index=101")
    assert [each.index for each in read_all(source, 201, 300)] == list(range(201, 301))


def test_what_is_beyond_or_before_the_archive_is_gone_and_not_empty(
    directory: Objects, tmp_path: Path
) -> None:
    with LogBox(tmp_path / "log", keys_at(tmp_path)) as box:
        fill(box, 100)
        fill(box, 200, first=101)
        box.compact(101)
        box.archive(directory)
    source = source_at((tmp_path / "archive").as_uri(), tmp_path)
    with pytest.raises(LogGone) as early:
        read_all(source, 50, 150)
    assert (early.value.first, early.value.last, early.value.readable_from) == (50, 100, 101)
    with pytest.raises(LogGone) as late:
        read_all(source, 150, 201)
    assert (late.value.first, late.value.last, late.value.readable_from) == (201, 201, None)


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "a bit in a block": lambda data: flip(data, len(data) // 2),
    "a bit in the header": lambda data: flip(data, 20),
    "a cut tail": lambda data: data[: len(data) // 2],
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_segment_is_named_with_its_index(
    damage: Callable[[bytes], bytes], url: str, objects: Objects, tmp_path: Path
) -> None:
    with LogBox(tmp_path / "log", keys_at(tmp_path)) as box:
        fill(box, 1_000)
        box.archive(objects)
    listing = read_listing(objects, PRG, None)
    row = listing.segments[1]
    objects.put(row.object, [damage(objects.get(row.object, 1 << 30))])
    source = source_at(url, tmp_path)
    found: list[int] = []
    with pytest.raises(DamagedBlock) as damaged:
        found.extend(each.index for each in source.entries(IndexRange(PRG, 1, 1_000)))
    assert found == list(range(1, len(found) + 1))
    assert damaged.value.prg == PRG
    assert damaged.value.index == len(found) + 1
    assert row.first <= len(found) + 1 <= row.last
    verified = verify_prg(objects, PRG, None)
    assert [(each.kind, each.object, each.index) for each in verified.findings] == [
        ("altered", row.object, row.first)
    ]


def test_a_missing_segment_is_named_with_its_index(tmp_path: Path) -> None:
    url = (tmp_path / "archive").as_uri()
    with LogBox(tmp_path / "log", keys_at(tmp_path)) as box:
        fill(box, 2_000)
        box.archive(open_objects(url))
    row = read_listing(open_objects(url), PRG, None).segments[1]
    (tmp_path / "archive" / row.object).unlink()
    with pytest.raises(LogGone) as gone:
        read_all(source_at(url, tmp_path), 1, 2_000)
    assert (gone.value.prg, gone.value.index) == (PRG, row.first)
    assert (gone.value.last, gone.value.readable_from) == (row.last, row.last + 1)
    found = verify_prg(open_objects(url), PRG, keys_at(tmp_path)).findings
    assert [(each.kind, each.index) for each in found] == [("missing", row.first)]


def test_a_record_of_an_unknown_version_is_refused_by_name(tmp_path: Path) -> None:
    url = (tmp_path / "archive").as_uri()
    with LogBox(tmp_path / "log", keys_at(tmp_path)) as box:
        fill(box, 100)
        box.archive(open_objects(url))
    path = tmp_path / "archive" / record_name(PRG, 0)
    path.write_bytes(path.read_bytes().replace(b'"format_version":1', b'"format_version":9'))
    with pytest.raises(UnknownFormat) as refused:
        source_at(url, tmp_path).bounds(PRG)
    assert refused.value.prg == PRG
    assert refused.value.facts["format_version"] == "9"
    found = verify_prg(open_objects(url), PRG, None).findings
    assert [each.kind for each in found] == ["unknown format"]


def test_an_altered_record_and_another_key_are_told_apart(tmp_path: Path) -> None:
    url = (tmp_path / "archive").as_uri()
    with LogBox(tmp_path / "log", keys_at(tmp_path)) as box:
        fill(box, 100)
        box.archive(open_objects(url))
    (tmp_path / "other").mkdir()
    keys_at(tmp_path / "other")
    with pytest.raises(WrongKey):
        source_at(url, tmp_path / "other").bounds(PRG)
    path = tmp_path / "archive" / record_name(PRG, 0)
    path.write_bytes(path.read_bytes().replace(b'"last_term":1', b'"last_term":2'))
    with pytest.raises(DamagedBlock):
        source_at(url, tmp_path).bounds(PRG)


def test_keys_are_in_no_text(tmp_path: Path) -> None:
    keys_at(tmp_path)
    kek = (tmp_path / "keys" / "kek.key").read_text().strip()
    (tmp_path / "archive").mkdir()
    source = source_at((tmp_path / "archive").as_uri(), tmp_path)
    assert kek not in repr(source)
    assert bytes.fromhex(kek) not in pickle.dumps(source)
    assert kek.encode() not in pickle.dumps(source)
