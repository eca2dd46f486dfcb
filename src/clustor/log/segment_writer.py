"""Plans the writes of the one segment that is open: its runs, its counters, its end."""

from __future__ import annotations

from dataclasses import dataclass

from clustor.log.cipher import SegmentCipher, blocks_needed
from clustor.log.config import LogConfig
from clustor.log.frame import RUN_HEADER_BYTES, EncodedFrames
from clustor.log.keys import KeyRing
from clustor.log.ledger import AbandonReason, NonceReservationAbandon, NonceReservationRange
from clustor.log.segment import (
    SEGMENT_HEADER_BYTES,
    TRAILER_BYTES,
    WAL_DIRECTORY,
    RunHeader,
    SegmentHeader,
    SegmentTally,
    encode_index,
    encode_run_header,
    encode_segment_header,
    encode_trailer,
    index_file,
    segment_file,
)
from clustor.log.steps import (
    Create,
    DeleteFile,
    FileName,
    Plan,
    Sync,
    SyncDirectory,
    Truncate,
    WriteFile,
)
from clustor.log.types import BlockCounter, LogIndex


@dataclass(slots=True)
class PlannedRun:
    """A run that was given its place."""

    write: WriteFile
    offset: int
    end_offset: int


class SegmentWriter:
    """The open segment. A counter below `reserved_blocks` is reserved; each is used once."""

    def __init__(
        self,
        config: LogConfig,
        keys: KeyRing,
        header: SegmentHeader,
        *,
        tally: SegmentTally | None = None,
        write_offset: int = SEGMENT_HEADER_BYTES,
        next_block_counter: int = 0,
        reserved_blocks: int = 0,
    ) -> None:
        self._config = config
        self._keys = keys
        self.header = header
        self.file: FileName = segment_file(header.segment_seq)
        self._cipher = SegmentCipher(
            keys.log_key(header.dek_epoch, header.partition, header.log_id),
            header.partition,
            header.dek_epoch,
            header.segment_seq,
        )
        self._tally = tally or SegmentTally()
        self.write_offset = write_offset
        self._zeroed_bytes = write_offset  # the file reads as zeros from `write_offset` to here
        self.next_block_counter = next_block_counter
        self.reserved_blocks = reserved_blocks

    @property
    def entry_count(self) -> int:
        return self._tally.entry_count

    def plan_create(self) -> Plan:
        """Plan the file, with its room reserved, so that its name and its header are durable."""
        return (
            Create(self.file, self._config.segment_bytes),
            WriteFile(self.file, 0, encode_segment_header(self.header)),
            Sync(self.file),
            SyncDirectory(WAL_DIRECTORY),
        )

    def fits(self, plaintext_bytes: int) -> bool:
        """Say whether a run goes in here. A run longer than a segment gets one of its own."""
        end = self.write_offset + RUN_HEADER_BYTES + plaintext_bytes + TRAILER_BYTES
        end += blocks_needed(plaintext_bytes) * 16
        return end <= self._config.segment_bytes or not self._tally.entry_count

    def uses_newest_keys(self) -> bool:
        return (self.header.dek_epoch, self.header.mac_epoch) == (
            self._keys.dek_epoch,
            self._keys.mac_epoch,
        )

    def reserve(self) -> NonceReservationRange:
        """Extend the reservation by one range; it counts once its record is durable."""
        start = BlockCounter(self.reserved_blocks)
        self.reserved_blocks += self._config.reservation_blocks
        return NonceReservationRange(
            self.header.segment_seq, start, self._config.reservation_blocks
        )

    def runs_low(self) -> bool:
        """Say whether the next range should be reserved along with what is written anyway."""
        return self.reserved_blocks - self.next_block_counter < self._config.reservation_blocks // 2

    def plan_run(self, first_index: LogIndex, frames: EncodedFrames) -> PlannedRun:
        """Seal frames behind the last run and plan their write; the sync is the caller's."""
        blocks = blocks_needed(len(frames.plaintext))
        assert self.next_block_counter + blocks <= self.reserved_blocks, "unreserved counters"
        header = RunHeader(
            plaintext_bytes=len(frames.plaintext),
            first_block_counter=BlockCounter(self.next_block_counter),
            first_index=first_index,
            entry_count=len(frames.starts),
        )
        sealed = self._cipher.seal(frames.plaintext, self.next_block_counter)
        offset = self.write_offset
        self.next_block_counter += blocks
        self.write_offset += RUN_HEADER_BYTES + header.sealed_bytes
        self._tally.add(first_index, offset, frames.covered, frames.starts)
        data = b"".join((encode_run_header(header), *sealed, self._zeros_behind(offset)))
        return PlannedRun(WriteFile(self.file, offset, data), offset, self.write_offset)

    def _zeros_behind(self, run_offset: int) -> bytes:
        if self.write_offset <= self._zeroed_bytes:
            return b""
        self._zeroed_bytes = self.write_offset
        if self.write_offset - run_offset > self._config.zero_ahead_run_bytes_max:
            return b""
        ahead = self.write_offset + self._config.zero_ahead_bytes
        ahead -= ahead % self._config.fs_block_bytes
        zeros = min(ahead, self._config.segment_bytes) - self.write_offset
        self._zeroed_bytes += max(zeros, 0)
        return bytes(max(zeros, 0))

    def plan_seal(self) -> Plan:
        """Plan the end of the segment: its trailer, its exact length, and its index."""
        header = self.header
        key = self._keys.mac_key(header.mac_epoch, header.partition, header.log_id)
        trailer = encode_trailer(self._tally.trailer(header.segment_seq), key)
        index = index_file(header.segment_seq)
        return (
            WriteFile(self.file, self.write_offset, trailer),
            Truncate(self.file, self.write_offset + len(trailer)),
            Sync(self.file),
            # The index is not synced: it is checked when read, and rebuilt where it is bad.
            DeleteFile(index),
            Create(index),
            WriteFile(index, 0, encode_index(header.segment_seq, bytes(self._tally.offsets))),
        )

    def abandon(self, reason: AbandonReason) -> NonceReservationAbandon:
        """Give up the counters that are left; none of them will be used."""
        return NonceReservationAbandon(
            self.header.segment_seq, BlockCounter(self.next_block_counter), reason
        )
