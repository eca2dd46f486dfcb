"""The sizes a log is run with."""

from __future__ import annotations

from dataclasses import dataclass

from clustor.log.errors import LogMisuse


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Sizes. The defaults are the specification's; tests and small machines use less."""

    segment_bytes: int = 1 << 30
    reservation_blocks: int = 1024  # `nonce.reservation_max_blocks_profile`
    gap_quarantine_bytes: int = 4 << 20  # `nonce.reservation_gap_quarantine_threshold_bytes`
    merkle: bool = False  # a digest per entry beside its CRC
    fs_block_bytes: int = 4096  # `wal.fs_block_bytes`: zeros are written ahead in whole blocks
    # A sync of bytes that were written before costs about half of one that grows the file,
    # so zeros are written ahead. Long runs amortise their growth and are left alone.
    zero_ahead_bytes: int = 256 << 10
    zero_ahead_run_bytes_max: int = 64 << 10
    ledger_zero_ahead_bytes: int = 64 << 10
    ledger_rewrite_bytes: int = 4 << 20  # closed segments need no history of their syncs

    def __post_init__(self) -> None:
        if self.reservation_blocks < 1 or self.reservation_blocks > 8192:
            raise LogMisuse("reservation_blocks is 1 to 8192", given=self.reservation_blocks)
        if self.segment_bytes < 4096:
            raise LogMisuse("a segment has at least 4096 bytes", given=self.segment_bytes)
