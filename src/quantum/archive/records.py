"""The manifest of a partition: a chain of records, each created once and never changed. Pure.

A record lists what was added. Every 64th also lists what the 64 before it added, and every 4096th
what the 4096 before it added: so a reader of a long chain reads few of them, and no row is written
more than three times. A record names the digest of the one before, so none can be exchanged, and is
created only where its number is free, so two archivers cannot both continue the chain. A MAC
under the tenant's keys vouches for it: whoever may write to the store cannot list anything else.
"""

from __future__ import annotations

import hmac
from typing import Annotated, Any, Final, TypeAlias

import msgspec
import rfc8785
from blake3 import blake3
from msgspec import Meta

from clustor.log.errors import KeyUnavailable
from clustor.log.keys import KeyRing
from clustor.log.types import LogId, MacEpoch, PartitionId
from quantum.archive.errors import ArchiveDamaged, ArchiveFormatUnknown

FORMAT: Final = "quantum-archive"
FORMAT_VERSION: Final = 1
RETENTION_VERSION: Final = 2
"""Of records that say, or list, that something was dropped: older releases must not read on."""
PAGE_RECORDS: Final = 64
BOOK_RECORDS: Final = 4096
RECORD_BYTES_MAX: Final = 64 << 20
NO_DIGEST: Final = "0" * 64
_MAC_DOMAIN: Final = LogId(b"quantum archive\x01")

_Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**53 - 1)]
_Index: TypeAlias = Annotated[int, Meta(ge=1, le=2**53 - 1)]
_Digest: TypeAlias = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
_Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=512)]


class ExtentRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Live entries that stand one after another in a segment, as `clustor.log.logmap.Extent`.

    `marks` are pairs of an index and the offset of the run that begins with it, the first and
    then one every few MiB: where a reader may begin.
    """

    first: _Index
    last: _Index
    end_offset: _Count
    marks: Annotated[tuple[tuple[_Index, _Count], ...], Meta(min_length=1)]


class SegmentRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="segment"):
    """A segment. It stands for the entries from `first` through `last`; it may hold others, that
    an earlier row stands for or that were truncated.

    Times are of the stamps in its commands, both None where none has one.
    """

    object: _Name
    bytes: _Count
    blake3: _Digest
    first: _Index
    last: _Index
    first_term: _Count
    last_term: _Count
    first_time_ms: _Count | None
    last_time_ms: _Count | None
    segment_seq: _Count
    log_id: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    dek_epoch: _Count
    mac_epoch: _Count
    extents: Annotated[tuple[ExtentRow, ...], Meta(min_length=1)]


class SnapshotRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="snapshot"):
    """The state after `base_index`, in one object."""

    object: _Name
    bytes: _Count
    blake3: _Digest
    base_index: _Count
    base_term: _Count
    manifest_id: _Name
    content_bytes: _Count
    dek_epoch: _Count


class GapRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="gap"):
    """Entries that no replica had any more when their turn came: they are in no archive."""

    first: _Index
    last: _Index
    reason: _Name


class DroppedRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="dropped"):
    """Nothing through this index is kept any more: neither segments nor the snapshots before it."""

    through: _Index
    reason: _Name


Row: TypeAlias = SegmentRow | SnapshotRow | GapRow | DroppedRow


class AppliedWith(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The numbers under which a tenant's brokers apply their logs, as `broker.json` has them.

    They are not in the log, and without them nobody can say what a full queue refused.
    """

    prgs: _Count
    queue_messages_max: _Count
    queue_bytes_max: _Count
    rings: tuple[_Count, ...] = ()
    """How many partitions the rings had that followed the first one."""
    dedupe_horizon_seconds: _Count = 259_200


class ChainRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One record of the chain. `listed` is what the records before it added, in pages and books."""

    format: str = FORMAT
    format_version: int = FORMAT_VERSION
    cluster: _Name
    prg: _Name
    partition: _Count
    seq: _Count
    previous: _Digest
    writer: _Name
    written_at_ms: _Count
    added: Annotated[tuple[Row, ...], Meta(min_length=1)]
    listed: tuple[Row, ...] | None = None
    applied_with: AppliedWith | None = None
    mac_epoch: _Count
    key_name: str = ""
    """Tells the key of the MAC from others, without giving it away."""
    mac: str = ""


class _Version(msgspec.Struct):
    format: str = ""
    format_version: int = 0


_decoder = msgspec.json.Decoder(ChainRecord, strict=True)


def _canonical(record: ChainRecord) -> bytes:
    members: Any = msgspec.to_builtins(record)
    return rfc8785.dumps(members)


def _key(record: ChainRecord, keys: KeyRing) -> bytes:
    epoch, partition = MacEpoch(record.mac_epoch), PartitionId(record.partition)
    return keys.mac_key(epoch, partition, _MAC_DOMAIN)


def _key_name(key: bytes) -> str:
    return hmac.digest(key, b"quantum archive key name", "sha256").hex()[:16]


def _mac(record: ChainRecord, key: bytes) -> str:
    bare = _canonical(msgspec.structs.replace(record, mac=""))
    return hmac.digest(key, bare, "sha256").hex()


def encode_record(record: ChainRecord, keys: KeyRing) -> bytes:
    """Seal a record and return its bytes."""
    key = _key(record, keys)
    named = msgspec.structs.replace(record, key_name=_key_name(key))
    return _canonical(msgspec.structs.replace(named, mac=_mac(named, key)))


def decode_record(data: bytes) -> ChainRecord:
    """Read a record, strictly. Raises ArchiveFormatUnknown and ArchiveDamaged.

    Nothing vouches for it yet: `check_mac` does, with the keys.
    """
    try:
        version = msgspec.json.decode(data, type=_Version)
        known = version.format_version in (FORMAT_VERSION, RETENTION_VERSION)
        if version.format != FORMAT or not known:
            raise ArchiveFormatUnknown(
                "a record of a format that this release does not know",
                format=version.format,
                format_version=version.format_version,
            )
        record = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ArchiveDamaged("a record cannot be read", cause=error) from error
    if _canonical(record) != data:
        raise ArchiveDamaged("a record is not in its canonical form", seq=record.seq)
    return record


def check_mac(record: ChainRecord, keys: KeyRing) -> None:
    """Raise ArchiveDamaged unless somebody with the tenant's keys wrote this very record.

    Raises KeyUnavailable without the key of its epoch, or with another one.
    """
    key = _key(record, keys)
    if record.key_name != _key_name(key):
        raise KeyUnavailable(
            "the archive was written with another key",
            integrity_mac_epoch=record.mac_epoch,
            wanted=record.key_name,
            given=_key_name(key),
        )
    if not hmac.compare_digest(record.mac, _mac(record, key)):
        raise ArchiveDamaged("a record's MAC does not match", record_seq=record.seq, prg=record.prg)


def digest_of(data: bytes) -> str:
    return blake3(data).hexdigest()
