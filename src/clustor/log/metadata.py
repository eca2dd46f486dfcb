"""`metadata.json` and `boot_record.json`: small files that are replaced whole (clustor §7.3).

Each carries the SHA-256 of its own canonical JSON. They are replaced by a rename, so a crash
leaves the old one or the new one; a file that does not match its digest was damaged later.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final, TypeVar

import msgspec
import rfc8785

from clustor.log.errors import ChecksumMismatch, UnsupportedFormat
from clustor.log.steps import FileName, Plan, Storage, plan_replace
from clustor.log.types import LogId, PartitionId

METADATA_FILE: Final = FileName("metadata.json")
BOOT_RECORD_FILE: Final = FileName("boot_record.json")
_FILE_BYTES_MAX: Final = 1 << 20


class LogMetadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which log this directory holds. Written once, last of all, when the log is created."""

    partition_id: str  # decimal: JSON has no u64
    log_id: str  # hex
    format_version: int = 1

    def __post_init__(self) -> None:
        if self.format_version != 1:
            raise UnsupportedFormat("a log of a later release", version=self.format_version)
        if not re.fullmatch("[0-9]{1,20}", self.partition_id) or self.partition >= 1 << 64:
            raise ValueError("partition_id is a decimal u64")
        if not re.fullmatch("[0-9a-f]{32}", self.log_id):
            raise ValueError("log_id is 32 hex digits")

    @classmethod
    def of(cls, partition: PartitionId, log_id: LogId) -> LogMetadata:
        return cls(partition_id=str(partition), log_id=log_id.hex())

    @property
    def partition(self) -> PartitionId:
        return PartitionId(int(self.partition_id))

    @property
    def identity(self) -> LogId:
        return LogId(bytes.fromhex(self.log_id))


class BootRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the last start found, for audit and readiness."""

    boot_seq: int
    scrub_state: str
    durable_term: str
    durable_index: str
    segment_bytes: int
    fs_block_bytes: int
    crypto_block_bytes: int
    io_writer_mode: str
    selftest_digest: str
    truncated_bytes: int
    findings: tuple[str, ...] = ()


_Document = TypeVar("_Document", LogMetadata, BootRecord)


def plan_document(file: FileName, document: LogMetadata | BootRecord) -> Plan:
    """Plan the atomic replacement of a document with its digest."""
    return plan_replace(file, encode_document(document))


def encode_document(document: LogMetadata | BootRecord) -> bytes:
    """Return a document's bytes, with its digest."""
    members: dict[str, Any] = msgspec.to_builtins(document)
    members["sha256"] = _digest(members)
    return rfc8785.dumps(members) + b"\n"


def read_document(storage: Storage, file: FileName, kind: type[_Document]) -> _Document:
    """Read a document. Raises FileNotFoundError, or ChecksumMismatch where it is damaged."""
    data = storage.read(file, 0, _FILE_BYTES_MAX)
    try:
        members = msgspec.json.decode(data, type=dict[str, Any])
        digest = members.pop("sha256", None)
        if digest != _digest(members):
            raise ChecksumMismatch("a document does not match its digest", file=file)
        return msgspec.convert(members, kind)
    except (
        msgspec.MsgspecError,
        UnicodeDecodeError,
        RecursionError,
        rfc8785.CanonicalizationError,
    ) as error:
        raise ChecksumMismatch("a document cannot be read", file=file) from error


def _digest(members: dict[str, Any]) -> str:
    return hashlib.sha256(rfc8785.dumps(members)).hexdigest()
