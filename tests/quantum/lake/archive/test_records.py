"""The chain of records: canonical, sealed, without holes, and quick to read from a checkpoint."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from clustor.log.errors import KeyUnavailable
from clustor.log.keys import KeyRing
from clustor.log.types import DekEpoch, MacEpoch
from quantum.archive import (
    ArchiveConflict,
    ArchiveDamaged,
    ArchiveForeign,
    Listing,
    Objects,
    PrgId,
    read_listing,
    verify_prg,
)
from quantum.archive import listing as listing_room
from quantum.archive.chain import append_record, next_record
from quantum.archive.listing import follow
from quantum.archive.names import record_name
from quantum.archive.objects import DirectoryObjects
from quantum.archive.records import (
    ChainRecord,
    GapRow,
    check_mac,
    decode_record,
    digest_of,
    encode_record,
)

PRG = PrgId("dev", 0)


def ring(byte: int = 1) -> KeyRing:
    keys = KeyRing()
    keys.add_dek(DekEpoch(1), bytes([byte]) * 32)
    keys.add_mac(MacEpoch(1), bytes([byte]) * 32)
    return keys


KEYS = ring()


def record_for(listing: Listing, cluster: str = "c") -> ChainRecord:
    first = listing.last + 1
    return next_record(
        listing,
        [GapRow(first, first + 9, "for a test")],
        cluster=cluster,
        partition=1000,
        writer="node 1",
        now_ms=1,
        mac_epoch=1,
    )


def chain(objects: Objects, count: int) -> Listing:
    listing = Listing(PRG)
    for _ in range(count):
        listing = append_record(objects, listing, record_for(listing), KEYS)
    return listing


class Counting(DirectoryObjects):
    """Counts what is read."""

    gets = 0

    def get(self, name: str, bytes_max: int) -> bytes:
        self.gets += 1
        return super().get(name, bytes_max)


def test_a_long_chain_is_read_from_its_pages(tmp_path: Path) -> None:
    objects = Counting(tmp_path)
    written = chain(objects, 150)
    objects.gets = 0
    assert read_listing(objects, PRG, KEYS) == written
    assert objects.gets == len([64, 128]) + len(range(129, 150))
    assert verify_prg(objects, PRG, KEYS).listing == written


def test_a_chain_of_any_length_is_read_as_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With pages of 3 and books of 12; another archiver goes on behind what it read."""
    monkeypatch.setattr(listing_room, "PAGE_RECORDS", 3)
    monkeypatch.setattr(listing_room, "BOOK_RECORDS", 12)
    objects = Counting(tmp_path)
    written = Listing(PRG)
    for count in range(1, 42):
        written = append_record(objects, written, record_for(written), KEYS)
        objects.gets = 0
        found = read_listing(objects, PRG, KEYS)
        assert found == written, count
        assert objects.gets <= count // 12 + 3 + 3
        written = found
    verified = verify_prg(objects, PRG, KEYS)
    assert (verified.sound, verified.listing) == (True, written)


def test_a_page_that_lists_something_else_is_found(tmp_path: Path) -> None:
    objects = DirectoryObjects(tmp_path)
    chain(objects, 64)
    listing = read_listing(objects, PRG, KEYS)
    honest = record_for(listing)
    assert honest.listed is not None
    lying = msgspec.structs.replace(honest, listed=honest.listed[1:])
    objects.create(record_name(PRG, 64), encode_record(lying, KEYS))
    found = verify_prg(objects, PRG, KEYS).findings
    assert [(each.kind, each.index) for each in found if each.kind != "gap"] == [("altered", 641)]


def test_a_record_has_one_encoding_and_one_key() -> None:
    data = encode_record(record_for(Listing(PRG)), KEYS)
    record = decode_record(data)
    check_mac(record, KEYS)
    with pytest.raises(ArchiveDamaged):
        decode_record(data.replace(b",", b", ", 1))
    with pytest.raises(ArchiveDamaged):
        check_mac(decode_record(data.replace(b"node 1", b"node 2")), KEYS)
    with pytest.raises(KeyUnavailable):
        check_mac(record, ring(2))


def test_a_record_that_does_not_follow_is_refused(tmp_path: Path) -> None:
    objects = DirectoryObjects(tmp_path)
    listing = chain(objects, 2)
    with pytest.raises(ArchiveConflict):
        append_record(objects, chain(DirectoryObjects(tmp_path / "other"), 1), other(), KEYS)
    hole = msgspec.structs.replace(record_for(listing), added=(GapRow(22, 30, "a hole"),))
    with pytest.raises(ArchiveDamaged, match="hole"):
        append_record(objects, listing, hole, KEYS)
    with pytest.raises(ArchiveForeign):
        record_for(listing, "another")
    assert len(objects.names("")) == 2 + 1  # the other chain's directory is below this one


def other() -> ChainRecord:
    """A second record with the same number as one that is there, and other content."""
    listing = Listing(PRG)
    data = encode_record(record_for(listing), KEYS)
    after = follow(listing, decode_record(data), digest_of(data))
    return msgspec.structs.replace(record_for(after), writer="node 2")


def test_a_creation_whose_answer_was_lost_is_ours(tmp_path: Path) -> None:
    objects = DirectoryObjects(tmp_path)
    listing = chain(objects, 1)
    record = record_for(listing)
    after = append_record(objects, listing, record, KEYS)
    assert append_record(objects, listing, record, KEYS) == after


def test_a_missing_record_breaks_the_chain_where_it_was(tmp_path: Path) -> None:
    objects = DirectoryObjects(tmp_path)
    chain(objects, 5)
    (tmp_path / record_name(PRG, 2)).unlink()
    found = [each for each in verify_prg(objects, PRG, KEYS).findings if each.kind != "gap"]
    assert [(each.kind, each.index) for each in found] == [("missing", 21)]
