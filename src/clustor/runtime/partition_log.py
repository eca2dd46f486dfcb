"""One partition's log on a real disk: opening it, and appending to it from one thread.

A node drives many logs from its loop and submits their plans itself; tools, tests and
benchmarks use the log as it is here, one append at a time.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from clustor.log.cipher import CRYPTO_BLOCK_BYTES
from clustor.log.config import LogConfig
from clustor.log.errors import ChecksumMismatch, LogError, LogFenced, MissingFile
from clustor.log.keys import KeyRing
from clustor.log.ledger import DurabilityRecord, LedgerIdentity
from clustor.log.log import Log, create_log
from clustor.log.metadata import BOOT_RECORD_FILE, BootRecord, plan_document, read_document
from clustor.log.recovery import Recovery, RecoveryFinding, recover
from clustor.log.steps import Plan, Storage
from clustor.log.types import Entry, IoWriterMode, LogId, LogState, PartitionId
from clustor.runtime.disk import (
    Completion,
    DirectoryStorage,
    Disk,
    DiskError,
    Partition,
    PlanToken,
)

REREAD_ATTEMPTS = 3
_FIRST_PAUSE_SECONDS = 0.05


@dataclass(slots=True)
class PartitionLog:
    """An open log. `append` returns when what it was given is durable, or raises."""

    log: Log
    storage: DirectoryStorage
    findings: list[RecoveryFinding]
    state: LogState
    _disk: Disk
    _partition: Partition

    def append(self, entries: Sequence[Entry]) -> DurabilityRecord:
        """Append a batch durably. Raises LogFenced after a disk error, now and ever after."""
        planned = self.log.plan_append(entries)
        self.execute(planned.steps)
        self.log.stored(planned.receipt)
        return planned.receipt

    def execute(self, plan: Plan) -> None:
        """Carry out a plan of this log; a failure fences it, because the disk is now unknown."""
        try:
            if self._disk.mode is IoWriterMode.BLOCKING:
                self._disk.execute(self._partition, plan)  # cheaper than a hop to its thread
            else:
                self._submit_and_wait(plan)
        except DiskError as error:
            self.log.fence("the disk refused a step", cause=str(error))
            raise LogFenced("the disk refused a step", cause=str(error)) from error
        self.log.io_writer_mode = self._disk.mode

    def submit(self, plan: Plan) -> None:
        """Hand a plan to the disk; its completion comes from there, in the order of the plans."""
        self._disk.submit(self._partition, plan, PlanToken(0))

    def _submit_and_wait(self, plan: Plan) -> None:
        self.submit(plan)
        completions: list[Completion] = []
        while not completions:
            select.select([self._disk.fileno()], [], [])
            completions = self._disk.completions()
        if completions[0].error is not None:
            raise completions[0].error

    def close(self) -> None:
        """Close the files. What was appended is durable already."""
        self._disk.close_partition(self._partition)
        self.storage.close()


def open_partition_log(
    disk: Disk,
    root: Path,
    keys: KeyRing,
    config: LogConfig,
    *,
    create_as: PartitionId | None = None,
    selftest_digest: str = "",
    progress: Callable[[int], None] = lambda _: None,
) -> PartitionLog:
    """Open the log below `root`; mend what a crash left, and write down what was found.

    A directory without a log becomes one where `create_as` names the partition, and is a
    MissingFile otherwise: an empty disk where data was is never taken for a new one. A damaged
    log opens fenced, with its findings.
    """
    storage = DirectoryStorage(root)
    partition = disk.open_partition(root)
    try:
        recovery = _recover(storage, keys, config, disk, progress)
        if recovery is None:
            if create_as is None:
                raise MissingFile("there is no log here", directory=str(root))
            identity = LedgerIdentity(create_as, LogId(os.urandom(16)))
            log, plan = create_log(identity, keys, config, disk.mode)
            state, findings, truncated = LogState.HEALTHY, list[RecoveryFinding](), 0
        else:
            log, plan, state = recovery.log, recovery.plan, recovery.state
            findings, truncated = recovery.findings, recovery.truncated_bytes
        opened = PartitionLog(log, storage, findings, state, disk, partition)
        boot = _boot_record(opened, config, selftest_digest, truncated)
        opened.execute((*plan, *plan_document(BOOT_RECORD_FILE, boot)))
    except (LogError, DiskError, OSError):
        disk.close_partition(partition)
        storage.close()
        raise
    return opened


def _recover(
    storage: Storage,
    keys: KeyRing,
    config: LogConfig,
    disk: Disk,
    progress: Callable[[int], None],
) -> Recovery | None:
    """Read the log, again where only a CRC failed: a bad read is not yet a bad disk (§9.4)."""
    pause = _FIRST_PAUSE_SECONDS
    for _ in range(REREAD_ATTEMPTS):
        recovery = recover(storage, keys, config, disk.mode, progress)
        if recovery is None or recovery.state is not LogState.NEEDS_REPAIR:
            return recovery
        time.sleep(pause)
        pause *= 2
    return recover(storage, keys, config, disk.mode, progress)


def _boot_record(
    opened: PartitionLog, config: LogConfig, selftest_digest: str, truncated_bytes: int
) -> BootRecord:
    try:
        boot_seq = read_document(opened.storage, BOOT_RECORD_FILE, BootRecord).boot_seq + 1
    except (FileNotFoundError, ChecksumMismatch):
        boot_seq = 1
    durable = opened.log.durable
    return BootRecord(
        boot_seq=boot_seq,
        scrub_state=str(opened.state),
        durable_term=str(durable.term),
        durable_index=str(durable.index),
        segment_bytes=config.segment_bytes,
        fs_block_bytes=config.fs_block_bytes,
        crypto_block_bytes=CRYPTO_BLOCK_BYTES,
        io_writer_mode=opened.log.io_writer_mode.name,
        selftest_digest=selftest_digest,
        truncated_bytes=truncated_bytes,
        findings=tuple(f"{finding.kind}: {finding.detail}" for finding in opened.findings),
    )
