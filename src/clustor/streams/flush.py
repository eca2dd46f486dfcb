"""Plans what is written into partition files: sealed runs, new files, closed ones."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Final

import msgspec

from clustor.log.cipher import TAG_BYTES
from clustor.log.keys import KeyRing
from clustor.log.steps import Create, DeleteFile, Step, Truncate, WriteFile
from clustor.log.types import DekEpoch, LogId, PartitionId
from clustor.streams.config import StreamConfig
from clustor.streams.files import StreamFiles
from clustor.streams.index import SparseIndex
from clustor.streams.metadata import SegmentMeta, StoreRecord
from clustor.streams.nonces import Writer
from clustor.streams.piece import BatchPiece
from clustor.streams.runs import (
    FILE_HEADER_BYTES,
    RUN_HEAD_BYTES,
    FileCipher,
    FileHeader,
    RunHead,
    encode_file_header,
    index_file,
    part_file,
)
from clustor.streams.types import FileSeq, StoreId, StreamPartitionId

TIMESTAMP_MIN: Final = -(2**63)
_KEY_LABEL: Final = b"clustor segmented partition v1"


def file_header(
    group: PartitionId, store_id: StoreId, partition: StreamPartitionId, segment: SegmentMeta
) -> FileHeader:
    """Say what the header of a file must be; runs are bound to it, so no reader trusts the disk."""
    return FileHeader(
        group=group,
        store_id=store_id,
        partition=partition,
        file_seq=FileSeq(segment.file_seq),
        dek_epoch=DekEpoch(segment.dek_epoch),
        first_index=segment.first_index,
    )


def partition_key(keys: KeyRing, header: FileHeader) -> bytes:
    """Derive the key of one partition of one store; no log and no other store shares it."""
    mixed = _KEY_LABEL + header.store_id + header.partition.to_bytes(8, "little")
    log_id = LogId(sha256(mixed).digest()[:16])
    return keys.log_key(header.dek_epoch, header.group, log_id)


class FileWriter:
    """Writes the files of a store under one writer's nonces."""

    def __init__(
        self,
        config: StreamConfig,
        keys: KeyRing,
        record: StoreRecord,
        next_file_seq: Callable[[], FileSeq],
        writer: Writer,
    ) -> None:
        self._config = config
        self._keys = keys
        self._record = record
        self._next_file_seq = next_file_seq
        self._writer = writer

    def write(self, files: StreamFiles, piece: BatchPiece, steps: list[Step]) -> None:
        """Plan a piece behind the last segment, in as many runs and files as it takes."""
        for part in piece.cut(self._config.run_bytes):
            self._prepare(files, part, steps)
            self._write_run(files, part, steps)

    def _prepare(self, files: StreamFiles, piece: BatchPiece, steps: list[Step]) -> None:
        """See that the last segment takes the piece."""
        last = files.segments[-1] if files.segments else None
        if last is not None and (files.cipher is not None or files.resumable):
            run_bytes = RUN_HEAD_BYTES + piece.size_bytes + TAG_BYTES
            fits = last.size_bytes + run_bytes <= self._config.segment_bytes
            if last.dek_epoch == self._keys.dek_epoch and fits:
                self._resume(files, last, steps)
                return
            self.close(files, steps)
        self._create(files, piece, steps)

    def _resume(self, files: StreamFiles, last: SegmentMeta, steps: list[Step]) -> None:
        if files.cipher is not None:
            return
        # What an earlier start wrote behind the checkpoint is void; the nonces are new anyway.
        steps.append(Truncate(part_file(files.partition, last.file_seq), last.size_bytes))
        files.cipher = self._cipher(files, last)

    def _create(self, files: StreamFiles, piece: BatchPiece, steps: list[Step]) -> None:
        segment = SegmentMeta(
            file_seq=self._next_file_seq(),
            first_index=piece.first_index,
            next_index=piece.first_index,
            size_bytes=FILE_HEADER_BYTES,
            max_timestamp=TIMESTAMP_MIN,
            dek_epoch=self._keys.dek_epoch,
        )
        file = part_file(files.partition, segment.file_seq)
        header = file_header(self._record.group, self._record.store_id, files.partition, segment)
        steps += (Create(file), WriteFile(file, 0, encode_file_header(header)))
        files.segments.append(segment)
        files.cipher = self._cipher(files, segment)
        files.index = SparseIndex(self._config.index_interval_bytes, FILE_HEADER_BYTES)

    def _cipher(self, files: StreamFiles, segment: SegmentMeta) -> FileCipher:
        header = file_header(self._record.group, self._record.store_id, files.partition, segment)
        return FileCipher(partition_key(self._keys, header), header)

    def _write_run(self, files: StreamFiles, piece: BatchPiece, steps: list[Step]) -> None:
        last = files.segments[-1]
        assert files.cipher is not None
        newest = piece.max_timestamp
        head = RunHead(
            batch_count=piece.batch_count,
            writer_seq=self._writer.writer_seq,
            block_counter=self._writer.take_counter(),
            first_index=piece.first_index,
            next_index=piece.next_index,
            max_timestamp=newest,
            payload_bytes=piece.size_bytes - piece.table_bytes,
        )
        data = files.cipher.seal(head, piece.plaintext(), last.size_bytes)
        file = part_file(files.partition, last.file_seq)
        steps.append(WriteFile(file, last.size_bytes, data))
        end = last.size_bytes + len(data)
        if files.index is not None:
            files.index.add(piece.first_index, newest, last.size_bytes, end)
        files.segments[-1] = msgspec.structs.replace(
            last,
            next_index=piece.next_index,
            size_bytes=end,
            max_timestamp=max(last.max_timestamp, newest),
        )
        files.touched[last.file_seq] = None
        files.unsynced[file] = None

    def close(self, files: StreamFiles, steps: list[Step]) -> None:
        """Let the next run start a new file; write down where things are in this one."""
        if files.index is not None:
            seq = files.segments[-1].file_seq
            file = index_file(files.partition, seq)
            # Not synced: it is checked when read, and done without where it is bad.
            steps += (DeleteFile(file), Create(file), WriteFile(file, 0, files.index.encode(seq)))
        files.close_segment()
