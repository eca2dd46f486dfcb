"""How far stopped replicas' logs are known to be committed. Pure.

A log on disk proves what is durable here, not what a quorum has. Durable is committed where
there is one voter. With more of them an entry counts when a quorum holds it in the newest term
that any of them knows: no later leader was chosen, and every later one must have it (Raft §5.4).
An entry of an older term may still be replaced, however many hold it, so it counts only below
such an entry, or where a replica wrote down that it was committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from clustor.log.errors import LogError
from clustor.log.logmap import LogMap
from clustor.log.types import Entry, EntryKind, LogIndex
from clustor.raft.hard_state import HardState
from clustor.raft.membership import Membership, decode_membership
from clustor.raft.types import ReplicaId


@dataclass(frozen=True, slots=True)
class StoppedReplica:
    """What one replica left on its disk."""

    hard: HardState
    proven_index: LogIndex  # by its ledger
    entries: LogMap
    problem: LogError | None = None  # what is wrong behind the entries that could be read


def committed_index(replicas: Mapping[ReplicaId, StoppedReplica], config: Membership) -> int:
    """Return the highest index that is certainly committed, 0 where none is.

    `config` is the newest in the longest log: it holds from the moment it is there.
    """
    if not replicas:
        return 0
    known = max(
        max(each.hard.durable_commit_index, each.entries.base_index) for each in replicas.values()
    )
    if len(config.all_voters) == 1:
        voter = replicas.get(next(iter(config.all_voters)))
        return known if voter is None else max(known, voter.proven_index)
    if not config.voters:
        return known
    newest_term = max(each.hard.term for each in replicas.values())

    def reached(member: ReplicaId) -> int:
        replica = replicas.get(member)
        if replica is None:
            return 0
        last = min(replica.proven_index, replica.entries.last_index)
        in_term = last > replica.entries.base_index and replica.entries.term_of(last) == newest_term
        return last if in_term else 0

    return max(known, config.reached(reached))


def longest(replicas: Mapping[ReplicaId, StoppedReplica]) -> ReplicaId:
    """Return the replica that would win an election: it has everything committed."""

    def rank(replica_id: ReplicaId) -> tuple[int, int]:
        entries = replicas[replica_id].entries
        return entries.last_term, entries.last_index

    return max(replicas, key=rank)


def newest_configuration(hard: HardState, entries: Iterable[Entry]) -> Membership:
    """Return who votes after the entries of a log, as a replica that opens it would decide."""
    config, index = hard.membership, hard.membership_index
    for entry in entries:
        if entry.kind is EntryKind.MEMBERSHIP_CHANGE and entry.index > index:
            config, index = decode_membership(entry.payload).after, entry.index
    return config
