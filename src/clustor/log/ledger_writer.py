"""Plans what is added to the durability ledger, and its replacement by a shorter one."""

from __future__ import annotations

from collections.abc import Sequence

from clustor.log.config import LogConfig
from clustor.log.ledger import (
    LEDGER_FILE,
    RECORD_BYTES,
    DurabilityRecord,
    LedgerBody,
    LedgerHead,
    LedgerIdentity,
    LedgerRecord,
    encode_proof,
    encode_record,
)
from clustor.log.steps import Plan, Sync, WriteFile, plan_replace
from clustor.log.types import DurabilityModeEpoch, IoWriterMode


class LedgerWriter:
    """Knows where the next record goes. Records are true only after the plan's sync."""

    def __init__(
        self,
        config: LogConfig,
        *,
        write_offset: int,
        next_record_seq: int,
        io_writer_mode: IoWriterMode,
        durability_mode_epoch: DurabilityModeEpoch,
    ) -> None:
        self._config = config
        self.write_offset = write_offset
        self.next_record_seq = next_record_seq
        self._zeroed_bytes = write_offset  # the file reads as zeros from `write_offset` to here
        self.io_writer_mode = io_writer_mode
        self.durability_mode_epoch = durability_mode_epoch

    def plan_records(self, bodies: Sequence[LedgerBody]) -> Plan:
        """Plan one write of these records, and the sync that makes them true."""
        data = self._encode(bodies, self.next_record_seq)
        offset = self.write_offset
        self.write_offset += len(data)
        self.next_record_seq += len(bodies)
        # There is always a record's worth of zeros at the end, so that a cut is noticed.
        if self.write_offset + RECORD_BYTES > self._zeroed_bytes:
            zeros = max(self._config.ledger_zero_ahead_bytes, RECORD_BYTES)
            self._zeroed_bytes = self.write_offset + zeros
            data += bytes(zeros)
        return (WriteFile(LEDGER_FILE, offset, data), Sync(LEDGER_FILE))

    def plan_rewrite(self, identity: LedgerIdentity, bodies: Sequence[LedgerBody]) -> Plan:
        """Plan the atomic replacement of the whole ledger by these records."""
        count = len(bodies) + 1
        data = self._encode([LedgerHead(identity, count), *bodies], 0)
        zeros = max(self._config.ledger_zero_ahead_bytes, RECORD_BYTES)
        self.write_offset = len(data)
        self.next_record_seq = count
        self._zeroed_bytes = len(data) + zeros
        return plan_replace(LEDGER_FILE, data + bytes(zeros))

    def _encode(self, bodies: Sequence[LedgerBody], first_seq: int) -> bytes:
        mode, epoch = self.io_writer_mode, self.durability_mode_epoch
        records = [
            encode_proof(first_seq + nth, nth, mode, epoch, body)
            if type(body) is DurabilityRecord
            else encode_record(LedgerRecord(first_seq + nth, nth, mode, epoch, body))
            for nth, body in enumerate(bodies)
        ]
        return records[0] if len(records) == 1 else b"".join(records)
