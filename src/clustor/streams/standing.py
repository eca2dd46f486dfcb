"""Through where a partition is on its own quorum, where a policy asks for more than a majority.

What is fed here is committed: a majority has it durably, and a policy that any majority meets needs
nothing more. The others are judged by the leader, from how far each member's log is durable: an
entry is on a partition's quorum when the members that have it are one (segmented-quorum, Quorum
Evaluation). What a start does not find in its log counts as being on its quorum. The log is not
held back for a policy: a member that lacks what was cut fetches it, and attests it then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from clustor.raft.types import ReplicaId
from clustor.streams.changes import StreamAppend
from clustor.streams.files import StreamFiles
from clustor.streams.quorum import (
    PolicyRegistry,
    QuorumPolicy,
    Replicas,
    is_met_by_majority,
    predicate_of,
)

PENDING_MAX: Final = 4096  # entries of a partition that are looked at one by one


def quorum_index(
    policy: QuorumPolicy, durable: Mapping[ReplicaId, int], registry: PolicyRegistry
) -> int:
    """Return the highest log index that members enough have durably. Raises UnknownPolicy."""
    replicas = Replicas(durable)
    is_quorum = predicate_of(policy, replicas, registry)
    mask = 0
    for index, replica in sorted(((at, who) for who, at in durable.items()), reverse=True):
        mask |= replicas.bit(replica)
        if is_quorum(mask):
            return index
    return 0


class StreamQuorums:
    """What waits for its quorum in the partitions whose policy asks for more than a commit."""

    def __init__(self, registry: PolicyRegistry) -> None:
        self._registry = registry
        self._pending: dict[int, list[tuple[int, int]]] = {}  # raft index, and next after it
        self._reached: dict[int, int] = {}

    def taken(self, raft_index: int, change: StreamAppend) -> None:
        """Note a batch of a partition that has a policy of its own."""
        pending = self._pending.setdefault(change.partition, [])
        self._reached.setdefault(change.partition, change.first)
        next_index = change.first + change.count
        if pending and pending[-1][0] >= raft_index:
            pending[-1] = (pending[-1][0], max(pending[-1][1], next_index))
        else:
            pending.append((raft_index, next_index))
        if len(pending) > PENDING_MAX:
            del pending[:-1:2]  # what stays speaks for what stood before it: later, never earlier

    def readable_next(self, files: StreamFiles, durable: Mapping[ReplicaId, int]) -> int:
        """Return the first index that is not on the partition's quorum yet.

        Who does not lead knows nobody's durability but its own: it shows what it knew.
        """
        pending = self._pending.get(files.partition)
        if pending:
            policy = files.definition.quorum_policy()
            through = pending[-1][0]
            if not durable or not is_met_by_majority(policy, Replicas(durable)):
                through = quorum_index(policy, durable, self._registry)
            done = sum(1 for index, _ in pending if index <= through)
            if done:
                self._reached[files.partition] = pending[done - 1][1]
                del pending[:done]
        if not pending:
            self._pending.pop(files.partition, None)
            self._reached.pop(files.partition, None)
            return files.next_index
        return self._reached[files.partition]

    def forget(self, partition: int) -> None:
        self._pending.pop(partition, None)
        self._reached.pop(partition, None)
