"""What the parts of a group share: state, the configuration in force, and the outbox.

The parts (election, replication, following, durability, …) change this state and nothing of
each other; `Group` calls them in order. No part calls back up.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from clustor.log.types import (
    DurabilityMode,
    DurabilityModeEpoch,
    Entry,
    EntryKind,
    IoWriterMode,
    LogIndex,
    Term,
)
from clustor.raft.hard_state import HardState
from clustor.raft.membership import MemberKind, decode_membership
from clustor.raft.memory_log import MemoryLog
from clustor.raft.messages import Message, Outbound
from clustor.raft.output import Note, NoteKind, RoleChange
from clustor.raft.profiles import Profile
from clustor.raft.progress import Progress
from clustor.raft.transition import decode_transition
from clustor.raft.types import NO_INDEX, Draw, ReplicaId, ReplicaIdentity, Role, RoutingEpoch


class Core:
    """One replica's state. Invariant, checked after every input: see `check`."""

    def __init__(
        self,
        identity: ReplicaIdentity,
        profile: Profile,
        *,
        hard: HardState,
        log: MemoryLog,
        draw: Draw,
        now_ms: int,
    ) -> None:
        self.identity = identity
        self.id = identity.replica_id
        self.profile = profile
        self.draw = draw
        self.now_ms = now_ms
        self.hard = hard
        self.log = log
        self.leads = False  # asked so often that it is kept beside the role
        self.role = Role.FOLLOWER
        self.leader_id: ReplicaId | None = None
        self.commit_index = max(log.base_index, hard.durable_commit_index)
        self.snapshot_index = log.base_index
        """What the newest authorised snapshot covers: at the log's base, or above it."""
        self.handed_index = log.base_index  # given to the state machine
        self.applied_index = log.base_index  # reported back by it
        self.sm_durable_index = log.base_index
        self.quorum_applied_index = NO_INDEX  # the leader's, as last heard
        self.quorum_sm_durable_index = NO_INDEX
        self.local_wal_durable_index = log.last_index  # what recovery found is durable
        self.matched_index = self.commit_index  # equal to the current leader's log (C17)
        self.wal_committed_index = LogIndex(0)  # leaders only
        self.term_start = LogIndex(0)  # first index of the leader's own term
        self.leader_since_ms = 0
        self.last_leader_ms = now_ms
        self.io_writer_mode = IoWriterMode.BLOCKING
        self.progress: dict[ReplicaId, Progress] = {}
        self.progress_moved = False  # a watermark may have moved
        self.clock_alarm = False  # this machine's clock is not to be believed
        self.reads_moved = False  # a round of leadership may be complete
        self.installing: LogIndex | None = None
        self.damaged: tuple[LogIndex, LogIndex] | None = None  # first and last
        self.durable_beyond_damage = LogIndex(0)  # durable again once the damage is repaired
        self.device_stalled = False
        self.outbox: list[Outbound] = []
        self.notes: list[Note] = []
        self.role_change: RoleChange | None = None
        self.read_configuration()

    def read_configuration(self) -> None:
        """Take the configuration from the committed one and what the log has after it.

        A MembershipChange holds from the moment it is in the log, committed or not. A rollback
        holds when it is committed, so that the joint quorum commits it (clustor §9.9).
        """
        self.config = self.hard.membership
        self.config_index = self.hard.membership_index
        self.log_epoch = self.hard.durability_mode_epoch
        for entry in self.log.system:
            if entry.kind is EntryKind.MEMBERSHIP_CHANGE and entry.index > self.config_index:
                self.config = decode_membership(entry.payload).after
                self.config_index = entry.index
            elif entry.kind is EntryKind.DURABILITY_TRANSITION:
                epoch = decode_transition(entry.payload).durability_mode_epoch
                self.log_epoch = max(self.log_epoch, epoch)

    def readmit(self, routing_epoch: RoutingEpoch) -> None:
        """End a rejoin when a change that began after it has made this replica a non-voter.

        Entries that it acknowledged before it lost its disk then lie below that change, and
        whoever counts its vote later holds that change, and so all of them.
        """
        since = self.hard.rejoin_epoch
        votes = self.id in self.hard.membership.all_voters
        if since is not None and routing_epoch > since and not votes:
            self.set_hard(rejoin_epoch=None)

    @property
    def role(self) -> Role:
        return self._role

    @role.setter
    def role(self, role: Role) -> None:
        self._role = role
        self.leads = role is Role.LEADER

    @property
    def is_voter(self) -> bool:
        return self.config.kind_of(self.id) is MemberKind.VOTER

    @property
    def message_epoch(self) -> DurabilityModeEpoch:
        """The epoch that messages carry: the newest in the log, committed or not.

        A winner's log holds every committed transition, so it never carries an epoch older than
        one that a voter has committed, even before it knows that it is committed.
        """
        return self.log_epoch

    def durability_mode(self) -> DurabilityMode:
        """Return the mode for new batches: Group only when committed and not being left."""
        if self.log_epoch != self.hard.durability_mode_epoch:
            return DurabilityMode.STRICT
        return self.hard.durability_mode

    def set_hard(self, **changes: Any) -> None:
        """Change the hard state; messages now wait until it is durable."""
        durable = min(self.commit_index, self.local_wal_durable_index)
        durable = max(durable, self.hard.durable_commit_index)
        self.hard = replace(self.hard, durable_commit_index=durable, **changes)

    def send(self, to: ReplicaId, message: Message) -> None:
        self.outbox.append((to, message))

    def note(self, kind: NoteKind, **facts: object) -> None:
        self.notes.append(Note(kind, tuple(facts.items())))

    def become(self, role: Role, leader_id: ReplicaId | None, reason: str) -> None:
        """Take a role. The caller has set the term."""
        self.role = role
        self.leader_id = leader_id
        self.role_change = RoleChange(role, self.hard.term, leader_id, reason)

    def become_follower(self, term: Term, leader_id: ReplicaId | None, reason: str) -> None:
        """Follow in `term`; a newer term means that no vote was given in it yet."""
        assert term >= self.hard.term
        was_leading = self.leads
        if term > self.hard.term:
            self.set_hard(term=term, voted_for=None)
            self.matched_index = self.commit_index
        if self.role is not Role.FOLLOWER or leader_id != self.leader_id:
            self.become(Role.FOLLOWER, leader_id, reason)
        if was_leading:
            self.reads_moved = True
            self.matched_index = self.commit_index
            self.wal_committed_index = NO_INDEX
            self.progress.clear()
            self.note(NoteKind.STEPPED_DOWN, reason=reason, term=term)

    def is_up_to_date(self, last_term: Term, last_index: LogIndex) -> bool:
        """Say whether a log that ends there holds all that this one may have acknowledged."""
        return (last_term, last_index) >= (self.log.last_term, self.log.last_index)

    def read_system_entries(self, entries: list[Entry]) -> bool:
        """Say whether every system entry can be read: what cannot is not taken in."""
        try:
            for entry in entries:
                if entry.kind in (EntryKind.MEMBERSHIP_CHANGE, EntryKind.MEMBERSHIP_ROLLBACK):
                    decode_membership(entry.payload)
                elif entry.kind is EntryKind.DURABILITY_TRANSITION:
                    decode_transition(entry.payload)
        except (msgspec.DecodeError, ValueError):
            self.note(NoteKind.MALFORMED_ENTRY, first=entries[0].index, last=entries[-1].index)
            return False
        return True

    def heal_through(self, index: LogIndex) -> None:
        """Drop the damage that a snapshot covers: nobody needs those entries any more."""
        if self.damaged is None:
            return
        first = max(self.damaged[0], LogIndex(index + 1))
        last = min(self.damaged[1], self.log.last_index)
        self.damaged = (first, last) if first <= last else None
        if self.damaged is None:
            beyond = min(self.durable_beyond_damage, self.log.last_index)
            self.local_wal_durable_index = max(self.local_wal_durable_index, beyond)
            self.durable_beyond_damage = NO_INDEX

    def check(self) -> None:
        """Die before we lie."""
        assert self.commit_index <= self.log.last_index or self.installing is not None
        assert self.applied_index <= self.handed_index <= self.commit_index
        assert self.local_wal_durable_index <= self.log.last_index
        assert not self.leads or self.wal_committed_index <= self.commit_index
