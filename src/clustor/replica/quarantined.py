"""A replica that stands where data was lost or cannot be believed: it is there, and does nothing.

It hears nothing, says nothing and writes nothing, so that a node can host it beside others until
it is repaired (clustor §9.4: the scope of a quarantine is one partition).
"""

from __future__ import annotations

from typing import TypeVar

from clustor.log.errors import ChecksumMismatch
from clustor.log.types import LogId, LogState, PartitionId
from clustor.raft.types import ReplicaId, ReplicaIdentity
from clustor.replica.opening import prepare_fenced
from clustor.replica.replica import Replica
from clustor.replica.settings import ReplicaSettings

_R = TypeVar("_R", bound=Replica)


def quarantined_replica(
    kind: type[_R],
    settings: ReplicaSettings,
    *,
    replica_id: ReplicaId,
    partition_id: PartitionId,
    log_id: LogId,
    reason: str,
    now_ms: int,
) -> _R:
    """Return a replica that failed before it began. `log_id` is of no log: none is written."""
    identity = ReplicaIdentity(replica_id, partition_id, log_id, holds_data=True)
    replica = kind(settings, prepare_fenced(settings, identity), now_ms)
    replica.log_damaged(reason)
    return replica


def is_checksum_fault(error: Exception) -> bool:
    """Say whether only a CRC failed, which may read well the next time (clustor §9.4)."""
    facts: dict[str, object] = getattr(error, "facts", {})
    return facts.get("state") is LogState.NEEDS_REPAIR or isinstance(
        error.__cause__, ChecksumMismatch
    )
