"""A group's batch for the log becomes a plan, and the receipt that the plan earns."""

from __future__ import annotations

from dataclasses import dataclass

from clustor.log.ledger import DurabilityRecord
from clustor.log.log import Log
from clustor.log.steps import Plan, Step
from clustor.log.types import DurabilityMode, Entry, EntryKind
from clustor.raft.output import LogAppend
from clustor.raft.transition import decode_transition
from clustor.raft.types import LogStored


@dataclass(slots=True)
class PlannedBatch:
    """What to write, and what may be said when all of it is durable."""

    plan: Plan
    stored: LogStored
    record: DurabilityRecord | None  # None for a mere truncation


def plan_batch(log: Log, batch: LogAppend, mode_before: DurabilityMode) -> PlannedBatch:
    """Plan the cut, the entries and the fence of a durability transition, in this order."""
    steps: list[Step] = []
    record: DurabilityRecord | None = None
    if batch.truncate_from is not None and batch.truncate_from <= log.last_index:
        steps += log.plan_truncate(batch.truncate_from)
    if batch.entries:
        planned = log.plan_append(batch.entries)
        steps += planned.steps
        record = planned.receipt
        for entry in batch.entries:
            if entry.kind is EntryKind.DURABILITY_TRANSITION:
                steps += _plan_fence(log, entry, mode_before)
    proof = record or log.durable
    stored = LogStored(
        batch.write_seq, log.last_term, log.last_index, proof.segment_seq, log.io_writer_mode
    )
    return PlannedBatch(tuple(steps), stored, record)


def _plan_fence(log: Log, entry: Entry, mode_before: DurabilityMode) -> Plan:
    """A transition that was cut and comes again has its epoch in the ledger already."""
    transition = decode_transition(entry.payload)
    if transition.durability_mode_epoch <= log.durability_mode_epoch:
        return ()
    return log.plan_transition(
        entry.term,
        entry.index,
        mode_before,
        transition.to_mode,
        transition.durability_mode_epoch,
    )
