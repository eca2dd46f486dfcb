"""One transactional id: its state, and how it stands in a snapshot."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from quantum.broker.streams.errors import SnapshotUnreadable
from quantum.broker.streams.transaction_commands import UNKNOWN, TransactionState
from quantum.broker.streams.types import TopicPartition


@dataclass(slots=True)
class Transaction:
    """One transactional id. `last_*` is who the producer was before its last bump.

    Invariant: `partitions` and `groups` are empty unless ONGOING or PREPARE; in PREPARE they are
    those whose marker has not arrived. `marker_*` is what the markers on their way carry.
    """

    producer_id: int
    epoch: int
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    last_producer_id: int = UNKNOWN
    last_epoch: int = UNKNOWN
    marker_producer_id: int = UNKNOWN
    marker_epoch: int = UNKNOWN
    started_ms: int = 0
    used_ms: int = 0
    partitions: set[TopicPartition] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)


class FrozenTransaction(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The same, with everything in order."""

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    state: int
    last_producer_id: int
    last_epoch: int
    marker_producer_id: int
    marker_epoch: int
    started_ms: int
    used_ms: int
    partitions: list[TopicPartition]
    groups: list[str]


def freeze_transaction(name: str, t: Transaction) -> FrozenTransaction:
    """Freeze one transactional id; equal states give equal rows."""
    return FrozenTransaction(
        name,
        *(t.producer_id, t.epoch, t.timeout_ms, t.state.value),
        *(t.last_producer_id, t.last_epoch, t.marker_producer_id, t.marker_epoch),
        *(t.started_ms, t.used_ms, sorted(t.partitions), sorted(t.groups)),
    )


def thaw_transaction(row: FrozenTransaction) -> Transaction:
    """Make it again. Raises SnapshotUnreadable."""
    try:
        state = TransactionState(row.state)
    except ValueError:
        raise SnapshotUnreadable("a transaction in no state", state=row.state) from None
    return Transaction(
        *(row.producer_id, row.epoch, row.timeout_ms, state),
        *(row.last_producer_id, row.last_epoch),
        *(row.marker_producer_id, row.marker_epoch, row.started_ms, row.used_ms),
        *(set(row.partitions), set(row.groups)),
    )
