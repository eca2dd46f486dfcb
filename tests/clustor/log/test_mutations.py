"""Bugs planted on purpose: the harness must catch each of them, and none without them.

A mutation changes one plan or one decision, as a careless change of the code would. If one ever
survives, the tests have a hole: add the scenario that kills it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import pytest

from clustor.log import image, ledger_writer
from clustor.log.config import LogConfig
from clustor.log.errors import LogError
from clustor.log.keys import KeyRing
from clustor.log.ledger import (
    LEDGER_FILE,
    DurabilityRecord,
    LedgerBody,
    LedgerScan,
    LogBase,
    NonceReservationRange,
    Truncation,
    decode_record,
    scan_ledger,
)
from clustor.log.ledger_writer import LedgerWriter
from clustor.log.log import AppendPlan, Log
from clustor.log.recovery import Recovery, recover
from clustor.log.segment_writer import SegmentWriter
from clustor.log.steps import (
    DeleteFile,
    FileName,
    Plan,
    Step,
    Storage,
    Sync,
    SyncDirectory,
    WriteFile,
    plan_replace,
)
from clustor.log.types import BlockCounter, Entry, IoWriterMode, LogIndex
from tests.clustor.log import harness
from tests.clustor.log.detectors import DETECTORS
from tests.clustor.log.harness import (
    SMALL,
)

# Mutations: each plants one bug with the monkeypatch it is given.

Patch = pytest.MonkeyPatch
_plan_append = Log.plan_append
_plan_compact = Log.plan_compact
_plan_records = LedgerWriter.plan_records
_seal = SegmentWriter.plan_seal
_create = SegmentWriter.plan_create


def _reorder_appends(patch: Patch, change: Callable[[list[Step]], Sequence[Step]]) -> None:
    def plan_append(log: Log, entries: Sequence[Entry]) -> AppendPlan:
        planned = _plan_append(log, entries)
        return AppendPlan(tuple(change(list(planned.steps))), planned.receipt)

    patch.setattr(Log, "plan_append", plan_append)


def ledger_before_the_wal_sync(patch: Patch) -> None:
    _reorder_appends(patch, lambda steps: [*steps[:-3], steps[-2], steps[-1], steps[-3]])


def no_wal_sync(patch: Patch) -> None:
    _reorder_appends(patch, lambda steps: [*steps[:-3], *steps[-2:]])


def no_ledger_sync(patch: Patch) -> None:
    _reorder_appends(patch, lambda steps: steps[:-1])


def proof_instead_of_the_wal_write(patch: Patch) -> None:
    """The ledger speaks before the bytes were even written."""
    _reorder_appends(patch, lambda steps: [*steps[:-4], *steps[-2:], *steps[-4:-2]])


def reservation_not_synced(patch: Patch) -> None:
    def plan_records(writer: LedgerWriter, bodies: Sequence[LedgerBody]) -> Plan:
        plan = _plan_records(writer, bodies)
        alone = all(isinstance(body, NonceReservationRange) for body in bodies)
        return plan[:1] if alone else plan

    patch.setattr(LedgerWriter, "plan_records", plan_records)


def reservation_not_recorded(patch: Patch) -> None:
    def reserve(writer: SegmentWriter) -> NonceReservationRange:
        """Believe in twice as much as the record says."""
        start, blocks = writer.reserved_blocks, SMALL.reservation_blocks
        writer.reserved_blocks += 2 * blocks
        return NonceReservationRange(writer.header.segment_seq, BlockCounter(start), blocks)

    patch.setattr(SegmentWriter, "reserve", reserve)


def counters_used_again_after_recovery(patch: Patch) -> None:
    restart = Log.plan_restart

    def going_on(log: Log, proof: DurabilityRecord) -> Plan:
        segment, log._parts.open_segment = log._parts.open_segment, None
        steps = restart(log, proof)
        log._parts.open_segment = segment
        return steps

    patch.setattr(Log, "plan_restart", going_on)


def truncation_after_the_overwrite(patch: Patch) -> None:
    def late(steps: list[Step]) -> Sequence[Step]:
        if not _is_truncation(steps[0]):
            return steps
        return [*steps[2:-2], *steps[:2], *steps[-2:]]

    _reorder_appends(patch, late)


def truncation_not_recorded(patch: Patch) -> None:
    def silent(writer: LedgerWriter, bodies: Sequence[LedgerBody]) -> Plan:
        return () if isinstance(bodies[0], Truncation) else _plan_records(writer, bodies)

    patch.setattr(LedgerWriter, "plan_records", silent)


def _is_truncation(step: Step) -> bool:
    if not isinstance(step, WriteFile) or step.file != LEDGER_FILE:
        return False
    return isinstance(decode_record(step.data[:64]).body, Truncation)


def _reorder_compaction(patch: Patch, change: Callable[[Plan], Plan]) -> None:
    patch.setattr(Log, "plan_compact", lambda log, floor: change(_plan_compact(log, floor)))


def deletion_before_the_ledger_knows(patch: Patch) -> None:
    def eager(plan: Plan) -> Plan:
        gone = [s for s in plan if isinstance(s, DeleteFile) and not s.file.endswith(".tmp")]
        return (*gone, *(step for step in plan if step not in gone))

    _reorder_compaction(patch, eager)


def new_ledger_not_synced_into_its_directory(patch: Patch) -> None:
    def hasty(file: FileName, data: bytes) -> Plan:
        return tuple(
            step for step in plan_replace(file, data) if not isinstance(step, SyncDirectory)
        )

    patch.setattr(ledger_writer, "plan_replace", hasty)


def new_ledger_not_synced(patch: Patch) -> None:
    def hasty(file: FileName, data: bytes) -> Plan:
        return tuple(step for step in plan_replace(file, data) if not isinstance(step, Sync))

    patch.setattr(ledger_writer, "plan_replace", hasty)


def old_ledger_deleted_first(patch: Patch) -> None:
    def careless(file: FileName, data: bytes) -> Plan:
        return (DeleteFile(file), *plan_replace(file, data))

    patch.setattr(ledger_writer, "plan_replace", careless)


def compaction_one_entry_too_far(patch: Patch) -> None:
    _first = Log._first_segment_from

    def greedy(log: Log, floor: LogIndex) -> object:
        return _first(log, LogIndex(floor + 1))

    patch.setattr(Log, "_first_segment_from", greedy)


def proven_tail_cut(patch: Patch) -> None:
    patch.setattr(image._Reading, "_check_proof", lambda reading, problem: None)


def damaged_ledger_taken_for_torn(patch: Patch) -> None:
    def gullible(data: bytes) -> LedgerScan:
        return replace(scan_ledger(data), damaged_at=None)

    patch.setattr(image, "scan_ledger", gullible)


def seal_not_synced(patch: Patch) -> None:
    patch.setattr(
        SegmentWriter,
        "plan_seal",
        lambda writer: tuple(step for step in _seal(writer) if not isinstance(step, Sync)),
    )


def segment_name_not_synced(patch: Patch) -> None:
    patch.setattr(SegmentWriter, "plan_create", lambda writer: _create(writer)[:-1])


def trailer_that_counts_wrong(patch: Patch) -> None:
    def plan_seal(writer: SegmentWriter) -> Plan:
        writer._tally.entry_count += 1
        return _seal(writer)

    patch.setattr(SegmentWriter, "plan_seal", plan_seal)


def recovery_that_trusts_an_unfinished_ledger(patch: Patch) -> None:
    class Trusting:
        def __init__(self, storage: Storage) -> None:
            self._storage = storage
            self.names = storage.names

        def _of(self, file: FileName) -> FileName:
            unfinished = "durability.log.tmp" in self._storage.names("wal")
            return FileName(file + ".tmp") if unfinished and file == LEDGER_FILE else file

        def size(self, file: FileName) -> int:
            return self._storage.size(self._of(file))

        def read(self, file: FileName, offset: int, length: int) -> bytes:
            return self._storage.read(self._of(file), offset, length)

    def trusting(
        storage: Storage, keys: KeyRing, config: LogConfig, mode: IoWriterMode
    ) -> Recovery | None:
        return recover(Trusting(storage), keys, config, mode)

    patch.setattr(harness, "recover", trusting)


def recovery_that_syncs_nothing(patch: Patch) -> None:
    def hasty(
        storage: Storage, keys: KeyRing, config: LogConfig, mode: IoWriterMode
    ) -> Recovery | None:
        found = recover(storage, keys, config, mode)
        if found is not None:
            found.plan = tuple(step for step in found.plan if not isinstance(step, Sync))
        return found

    patch.setattr(harness, "recover", hasty)


def recovery_that_proves_nothing_anew(patch: Patch) -> None:
    restart = Log.plan_restart
    patch.setattr(Log, "plan_restart", lambda log, proof: restart(log, log.durable))


def segment_number_used_again(patch: Patch) -> None:
    fold = image._fold

    def forgetful(facts: image.LedgerFacts, body: LedgerBody) -> None:
        highest = facts.highest_segment_seq
        fold(facts, body)
        if isinstance(body, LogBase):
            facts.highest_segment_seq = highest

    patch.setattr(image, "_fold", forgetful)


MUTATIONS = [
    ledger_before_the_wal_sync,
    no_wal_sync,
    no_ledger_sync,
    proof_instead_of_the_wal_write,
    reservation_not_synced,
    reservation_not_recorded,
    counters_used_again_after_recovery,
    truncation_after_the_overwrite,
    truncation_not_recorded,
    deletion_before_the_ledger_knows,
    new_ledger_not_synced_into_its_directory,
    new_ledger_not_synced,
    old_ledger_deleted_first,
    compaction_one_entry_too_far,
    proven_tail_cut,
    damaged_ledger_taken_for_torn,
    seal_not_synced,
    segment_name_not_synced,
    trailer_that_counts_wrong,
    recovery_that_trusts_an_unfinished_ledger,
    recovery_that_syncs_nothing,
    recovery_that_proves_nothing_anew,
    segment_number_used_again,
]


def caught_by(seed: int) -> str | None:
    """Name the detector that notices something, or None."""
    for detector in DETECTORS:
        try:
            detector(Random(seed))
        except (AssertionError, LogError):
            return detector.__name__
    return None


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_planted_bug_is_caught(mutation: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutation(monkeypatch)
    assert caught_by(seed=1) is not None


@pytest.mark.parametrize("detector", DETECTORS, ids=lambda detector: detector.__name__)
def test_nothing_is_caught_where_no_bug_was_planted(detector: Callable[[Random], None]) -> None:
    detector(Random(1))
