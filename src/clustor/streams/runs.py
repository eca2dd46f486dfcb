"""The bytes of a partition file (`streams/parts/<partition>-<file_seq>.seg`).

    header   magic:8 "SEGPART1" version:u16 zero:u16 dek_epoch:u32 group:u64 partition:u64
             file_seq:u64 first_index:u64 store_id:16 zero:4 crc32c:u32            = 72 bytes
    run      a clear head, then one sealed message
    …        the metadata log says where the last run ends; what stands behind that is void

    run head magic:4 "SRUN" batch_count:u32 writer_seq:u64 block_counter:u64 first_index:u64
             next_index:u64 max_timestamp:i64 payload_bytes:u32 crc32c:u32         = 56 bytes
    sealed   table  batch_count × first_index:u64 count:u32 length:u32 timestamp:i64
             payloads, back to back in the order of the table, payload_bytes in all
             tag:16

All little-endian. A run is one AES-256-GCM message under the partition's own key. Its IV is
clustor's block IV of (dek_epoch, writer_seq, block_counter); `nonces.py` says why no pair is used
twice. What it is bound to is the file's header, its offset in the file and its own head, so a
run that is moved, copied or relabelled does not open. Payloads stand together, so that a reader
hands on the bytes of a whole run without looking at any of them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from clustor.log.cipher import TAG_BYTES, wal_block_iv
from clustor.log.errors import AuthenticationFailed, ChecksumMismatch, UnsupportedFormat
from clustor.log.frame import FRAME_BODY_BYTES_MAX
from clustor.log.steps import FileName
from clustor.log.types import DekEpoch, PartitionId
from clustor.streams.types import FileSeq, StoreId, StreamPartitionId, WriterSeq

PARTS_DIRECTORY: Final = "streams/parts"
FILE_HEADER_BYTES: Final = 72
RUN_HEAD_BYTES: Final = 56
ROW_BYTES: Final = 24
RUN_BYTES_MAX: Final = 4 * FRAME_BODY_BYTES_MAX  # of one run's plaintext

_FILE_MAGIC: Final = b"SEGPART1"
_RUN_MAGIC: Final = b"SRUN"
_VERSION: Final = 1
_FILE: Final = struct.Struct("<8sHHIQQQQ16s4s")
_RUN: Final = struct.Struct("<4sIQQQQqI")
ROW: Final = struct.Struct("<QIIq")
_CRC: Final = struct.Struct("<I")
_OFFSET: Final = struct.Struct("<Q")


def part_file(partition: int, file_seq: int) -> FileName:
    return FileName(f"{PARTS_DIRECTORY}/{partition:016x}-{file_seq:016x}.seg")


def index_file(partition: int, file_seq: int) -> FileName:
    return FileName(f"{PARTS_DIRECTORY}/{partition:016x}-{file_seq:016x}.idx")


@dataclass(frozen=True, slots=True)
class FileHeader:
    """Whose file this is; every run in it is bound to these bytes."""

    group: PartitionId
    store_id: StoreId
    partition: StreamPartitionId
    file_seq: FileSeq
    dek_epoch: DekEpoch
    first_index: int


def encode_file_header(header: FileHeader) -> bytes:
    body = _FILE.pack(
        _FILE_MAGIC,
        _VERSION,
        0,
        header.dek_epoch,
        header.group,
        header.partition,
        header.file_seq,
        header.first_index,
        header.store_id,
        bytes(4),
    )
    return body + _CRC.pack(crc32c(body))


def decode_file_header(data: bytes) -> FileHeader:
    """Raises ChecksumMismatch for damaged or missing bytes, UnsupportedFormat for later ones."""
    if len(data) < FILE_HEADER_BYTES:
        raise ChecksumMismatch("a partition file's header is cut short", given_bytes=len(data))
    if _CRC.unpack_from(data, _FILE.size)[0] != crc32c(data[: _FILE.size]):
        raise ChecksumMismatch("a partition file's header does not match its CRC")
    magic, version, _, epoch, group, partition, file_seq, first, store_id, _ = _FILE.unpack_from(
        data
    )
    if magic != _FILE_MAGIC or version != _VERSION:
        raise UnsupportedFormat("not a partition file that this release reads", version=version)
    return FileHeader(
        group=PartitionId(group),
        store_id=StoreId(store_id),
        partition=StreamPartitionId(partition),
        file_seq=FileSeq(file_seq),
        dek_epoch=DekEpoch(epoch),
        first_index=first,
    )


@dataclass(slots=True)
class RunHead:
    """What a run holds, and which nonce sealed it."""

    batch_count: int
    writer_seq: WriterSeq
    block_counter: int
    first_index: int
    next_index: int
    max_timestamp: int
    payload_bytes: int

    @property
    def sealed_bytes(self) -> int:
        """The length of the message that follows this head."""
        return self.batch_count * ROW_BYTES + self.payload_bytes + TAG_BYTES


def encode_run_head(head: RunHead) -> bytes:
    body = _RUN.pack(
        _RUN_MAGIC,
        head.batch_count,
        head.writer_seq,
        head.block_counter,
        head.first_index,
        head.next_index,
        head.max_timestamp,
        head.payload_bytes,
    )
    return body + _CRC.pack(crc32c(body))


def decode_run_head(data: bytes) -> RunHead:
    """Raises ChecksumMismatch unless `data` starts with a run's head as it was written."""
    if len(data) < RUN_HEAD_BYTES:
        raise ChecksumMismatch("a run's head is cut short", given_bytes=len(data))
    if _CRC.unpack_from(data, _RUN.size)[0] != crc32c(data[: _RUN.size]):
        raise ChecksumMismatch("a run's head does not match its CRC")
    magic, count, writer_seq, counter, first, following, timestamp, payload_bytes = (
        _RUN.unpack_from(data)
    )
    head = RunHead(
        count, WriterSeq(writer_seq), counter, first, following, timestamp, payload_bytes
    )
    if magic != _RUN_MAGIC or not count or head.sealed_bytes > RUN_BYTES_MAX + TAG_BYTES:
        raise ChecksumMismatch("not a run's head", batch_count=count)
    return head


class FileCipher:
    """Seals and opens the runs of one partition file."""

    __slots__ = ("_aead", "_epoch", "_file", "_header")

    def __init__(self, key: bytes, header: FileHeader) -> None:
        self._aead = AESGCM(key)
        self._header = encode_file_header(header)
        self._epoch = header.dek_epoch
        self._file = part_file(header.partition, header.file_seq)

    def seal(self, head: RunHead, plaintext: bytes, offset: int) -> bytes:
        """Return the run's bytes for `offset`. The caller never used this nonce before."""
        encoded = encode_run_head(head)
        iv = wal_block_iv(self._epoch, head.writer_seq, head.block_counter)
        return encoded + self._aead.encrypt(iv, plaintext, self._bound(encoded, offset))

    def open_into(self, head: RunHead, run: memoryview, offset: int, plaintext: memoryview) -> None:
        """Open the run whose head and message `run` is, into a buffer of just its plaintext.

        Raises AuthenticationFailed unless it was sealed for exactly this place; the buffer then
        holds nothing that anyone may look at.
        """
        iv = wal_block_iv(self._epoch, head.writer_seq, head.block_counter)
        bound = self._bound(bytes(run[:RUN_HEAD_BYTES]), offset)
        try:
            self._aead.decrypt_into(iv, run[RUN_HEAD_BYTES:], bound, plaintext)
        except InvalidTag:
            raise AuthenticationFailed(
                "a run is not what was written", file=self._file, offset=offset
            ) from None

    def _bound(self, encoded_head: bytes, offset: int) -> bytes:
        return self._header + _OFFSET.pack(offset) + encoded_head
