"""Compaction: which log entries an authorised snapshot makes superfluous, and who objects.

A floor is the lowest index that stays: entries below it may go (clustor §10.8), so the entry
at the floor is still there for the term check of an AppendEntries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from clustor.log.compaction import CompactionState, compaction_floor
from clustor.log.types import LogIndex
from clustor.snapshot.errors import SnapshotMisuse


@dataclass(frozen=True, slots=True)
class ProductBound:
    """The lowest index that a part of the product still needs, such as its dedupe tables."""

    name: str
    earliest_index: LogIndex
    carried_by_snapshot: bool = False  # an authorised snapshot holds this part in full


def effective_product_floor(clustor_floor: LogIndex, bounds: Iterable[ProductBound]) -> LogIndex:
    """Return the minimum of the floor and each bound that no snapshot carries (ruling C6)."""
    held = (bound.earliest_index for bound in bounds if not bound.carried_by_snapshot)
    return min((clustor_floor, *held))


def quorum_index(indexes: Sequence[LogIndex], count: int) -> LogIndex:
    """Return the highest index that at least `count` replicas have reached; 0 if fewer report."""
    if count < 1:
        raise SnapshotMisuse("a quorum has at least one replica", count=count)
    return sorted(indexes, reverse=True)[count - 1] if count <= len(indexes) else LogIndex(0)


class CompactionClause(StrEnum):
    """The conditions of clustor §9.6, by their letters."""

    QUORUM_SM_DURABLE = "a:QuorumSmDurable"
    FLOOR = "b:Floor"
    AUTHORIZATION = "c:Authorization"
    LEARNER_RETIREMENT = "d:LearnerRetirement"
    NONCE_RESERVATIONS = "e:NonceReservations"
    INTEGRITY = "f:Integrity"


@dataclass(frozen=True, slots=True)
class CompactionInputs:
    """Everything that can refuse a compaction.

    `snapshot_base_index` counts for the floor only when both `authorized` and `acknowledged`:
    the record and the CompactionAuthAck are durable.
    """

    first_index: LogIndex  # the lowest that the log still has
    snapshot_base_index: LogIndex
    authorized: bool
    acknowledged: bool
    sm_durable_indexes: tuple[LogIndex, ...]  # one per voter
    quorum_ack_count: int  # `compaction.quorum_ack_count`
    quorum_applied_index: LogIndex
    learner_slack_floor: LogIndex | None = None
    learners_retiring: tuple[str, ...] = ()  # still reading the log, not yet released
    nonce_reservations_open: int = 0  # in the segments that would go
    integrity_blocks: tuple[str, ...] = ()  # quarantine, repair, a running scrub finding
    product_bounds: tuple[ProductBound, ...] = ()


@dataclass(frozen=True, slots=True)
class ClauseFailure:
    """One condition that does not hold, with its numbers, for `WhySnapshotBlocked`."""

    clause: CompactionClause
    detail: str


@dataclass(frozen=True, slots=True)
class Compact:
    """Entries below `floor` may be deleted."""

    floor: LogIndex


@dataclass(frozen=True, slots=True)
class CompactionRefused:
    """Nothing may be deleted; every condition that fails is named, in the order of §9.6."""

    failures: tuple[ClauseFailure, ...]


CompactionDecision: TypeAlias = Compact | CompactionRefused


def compaction_decision(inputs: CompactionInputs) -> CompactionDecision:
    """Check conditions (a) to (f), and give the floor when all of them hold."""
    failures = tuple(ClauseFailure(clause, detail) for clause, detail in _failures(inputs))
    return CompactionRefused(failures) if failures else Compact(_floor(inputs))


def _floor(inputs: CompactionInputs) -> LogIndex:
    state = CompactionState(
        inputs.snapshot_base_index,
        inputs.quorum_applied_index,
        quorum_index(inputs.sm_durable_indexes, inputs.quorum_ack_count),
        inputs.learner_slack_floor,
    )
    return effective_product_floor(compaction_floor(state), inputs.product_bounds)


def _failures(inputs: CompactionInputs) -> Iterator[tuple[CompactionClause, str]]:
    base = inputs.snapshot_base_index
    reached = sum(index >= base for index in inputs.sm_durable_indexes)
    if reached < inputs.quorum_ack_count:
        count = f"{reached} of {inputs.quorum_ack_count} replicas"
        yield CompactionClause.QUORUM_SM_DURABLE, f"{count} report sm_durable_index ≥ {base}"
    floor = _floor(inputs)
    if floor <= inputs.first_index:
        yield CompactionClause.FLOOR, f"floor {floor} is not above first index {inputs.first_index}"
    if not (inputs.authorized and inputs.acknowledged):
        missing = "CompactionAuthAck" if inputs.authorized else "SnapshotAuthorizationRecord"
        yield CompactionClause.AUTHORIZATION, f"no {missing} for base {base}"
    if inputs.learners_retiring:
        names = ", ".join(sorted(inputs.learners_retiring))
        yield CompactionClause.LEARNER_RETIREMENT, f"still retiring: {names}"
    if inputs.nonce_reservations_open:
        open_count = inputs.nonce_reservations_open
        yield CompactionClause.NONCE_RESERVATIONS, f"{open_count} neither cleared nor abandoned"
    if inputs.integrity_blocks:
        yield CompactionClause.INTEGRITY, ", ".join(sorted(inputs.integrity_blocks))
