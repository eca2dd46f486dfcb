"""Reading and continuing a partition's chain of records in a store."""

from __future__ import annotations

from collections.abc import Iterable

from clustor.log.keys import KeyRing
from quantum.archive.errors import (
    ArchiveConflict,
    ArchiveDamaged,
    ArchiveForeign,
    ArchiveMissing,
)
from quantum.archive.listing import Listing, begin_with, follow, pages_through, to_list
from quantum.archive.names import MANIFEST_FOLDER, manifest_folder, record_name, record_of
from quantum.archive.objects import Objects
from quantum.archive.records import (
    FORMAT_VERSION,
    RECORD_BYTES_MAX,
    RETENTION_VERSION,
    AppliedWith,
    ChainRecord,
    DroppedRow,
    Row,
    check_mac,
    decode_record,
    digest_of,
    encode_record,
)
from quantum.archive.types import PrgId


def archived_prgs(objects: Objects) -> list[PrgId]:
    """List the partitions that have a chain; objects are not looked at, there may be many."""
    return sorted(
        PrgId(tenant, int(number))
        for tenant in objects.folders("")
        for number in objects.folders(f"{tenant}/")
        if number.isdecimal() and MANIFEST_FOLDER in objects.folders(f"{tenant}/{number}/")
    )


def read_listing(objects: Objects, prg: PrgId, keys: KeyRing | None) -> Listing:
    """Read what a partition's archive holds: its pages, and what follows the last one.

    With keys each record's MAC is checked as well. Raises ArchiveDamaged, ArchiveFormatUnknown,
    KeyUnavailable.
    """
    names = objects.names(manifest_folder(prg))
    seqs = [found[1] for found in map(record_of, names) if found is not None]
    if not seqs:
        return Listing(prg)
    pages = [_read(objects, prg, seq, keys) for seq in pages_through(max(seqs))]
    listing = Listing(prg)
    if pages:
        listing = begin_with(prg, [record for record, _ in pages], pages[-1][1])
    for seq in range(listing.seq + 1, max(seqs) + 1):
        record, digest = _read(objects, prg, seq, keys)
        listing = follow(listing, record, digest)
    return listing


def refreshed(objects: Objects, listing: Listing, keys: KeyRing | None) -> Listing:
    """Return the listing with what was added to the chain since."""
    while True:
        try:
            record, digest = _read(objects, listing.prg, listing.seq + 1, keys)
        except ArchiveMissing:
            return listing
        listing = follow(listing, record, digest)


def read_record(objects: Objects, prg: PrgId, seq: int) -> tuple[ChainRecord, str]:
    """Read one record as it is, and its digest."""
    return _read(objects, prg, seq, None)


def _read(objects: Objects, prg: PrgId, seq: int, keys: KeyRing | None) -> tuple[ChainRecord, str]:
    try:
        data = objects.get(record_name(prg, seq), RECORD_BYTES_MAX)
        record = decode_record(data)
    except ArchiveDamaged as error:
        error.facts.update(prg=prg, record_seq=seq)
        raise
    if keys is not None:
        check_mac(record, keys)
    return record, digest_of(data)


def check_owner(listing: Listing, cluster: str, partition: int) -> None:
    """Raise ArchiveForeign where a listing is of another cluster, or of another partition."""
    if listing.cluster and (listing.cluster, listing.partition) != (cluster, partition):
        raise ArchiveForeign(
            "this is the archive of another cluster",
            prg=listing.prg,
            archived=f"{listing.cluster}/{listing.partition}",
            ours=f"{cluster}/{partition}",
        )


def next_record(
    listing: Listing,
    rows: Iterable[Row],
    *,
    cluster: str,
    partition: int,
    writer: str,
    now_ms: int,
    mac_epoch: int,
    applied_with: AppliedWith | None = None,
) -> ChainRecord:
    """Make the record that would continue a listing. Raises ArchiveForeign."""
    check_owner(listing, cluster, partition)
    seq = listing.seq + 1
    added, listed = tuple(rows), to_list(listing)
    drops = any(isinstance(row, DroppedRow) for row in (*added, *(listed or ())))
    return ChainRecord(
        format_version=RETENTION_VERSION if drops else FORMAT_VERSION,
        cluster=cluster,
        prg=str(listing.prg),
        partition=partition,
        seq=seq,
        previous=listing.digest,
        writer=writer,
        written_at_ms=now_ms,
        added=added,
        listed=listed,
        applied_with=applied_with,
        mac_epoch=mac_epoch,
    )


def append_record(
    objects: Objects, listing: Listing, record: ChainRecord, keys: KeyRing
) -> Listing:
    """Continue the chain, or raise ArchiveConflict: another archiver was first.

    A creation whose answer was lost counts as ours when the very bytes are there.
    """
    data = encode_record(record, keys)
    sealed = decode_record(data)
    after = follow(listing, sealed, digest_of(data))
    name = record_name(listing.prg, record.seq)
    if not objects.create(name, data) and objects.get(name, RECORD_BYTES_MAX) != data:
        raise ArchiveConflict("another archiver was first", prg=listing.prg, record_seq=record.seq)
    return after
