"""`boot_record.json`: what each start of a replica found, for audit (clustor §7.3).

It is written beside the loop, after the start: nothing rests on it, and a node of many groups
need not wait for it. A damaged directory is left as it is: its quarantine has a record of its own.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import msgspec

from clustor.log.cipher import CRYPTO_BLOCK_BYTES
from clustor.log.errors import ChecksumMismatch
from clustor.log.metadata import BOOT_RECORD_FILE, BootRecord, encode_document, read_document
from clustor.log.types import LogState
from clustor.runtime.data_directory import write_durably
from clustor.runtime.group import HostedGroup

journal = logging.getLogger("clustor.node")


@dataclass(frozen=True, slots=True)
class Booted:
    """A record that is to be written, and where."""

    group: HostedGroup
    record: BootRecord


def boot_record_of(group: HostedGroup, selftest_digest: str) -> Booted:
    """Say what a start found; `boot_seq` is counted on when it is written."""
    replica = group.replica
    durable, config = replica.log.durable, replica.settings.log_config
    record = BootRecord(
        boot_seq=1,
        scrub_state=str(LogState.HEALTHY),
        durable_term=str(durable.term),
        durable_index=str(durable.index),
        segment_bytes=config.segment_bytes,
        fs_block_bytes=config.fs_block_bytes,
        crypto_block_bytes=CRYPTO_BLOCK_BYTES,
        io_writer_mode=replica.log.io_writer_mode.name,
        selftest_digest=selftest_digest,
        truncated_bytes=replica.truncated_bytes,
        findings=tuple(f"{each.kind}: {each.detail}" for each in replica.findings),
    )
    return Booted(group, record)


def write_boot_record(booted: Booted) -> BootRecord:
    """Write a record, one above the last; blocks, so a thread does it. Raises OSError."""
    group, before = booted.group, None
    try:
        before = read_document(group.storage, BOOT_RECORD_FILE, BootRecord)
    except FileNotFoundError:
        pass
    except ChecksumMismatch as error:
        journal.warning("group %d: the last boot record: %s", group.partition_id, error)
    seq = 1 if before is None else before.boot_seq + 1
    record = msgspec.structs.replace(booted.record, boot_seq=seq)
    write_durably(group.directory / BOOT_RECORD_FILE, encode_document(record))
    return record
