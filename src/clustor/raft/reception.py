"""What a message does: Raft's rule of terms first, then one handler for each kind."""

from __future__ import annotations

from typing import assert_never

from clustor.log.types import DurabilityModeEpoch
from clustor.raft.core import Core
from clustor.raft.election import Election
from clustor.raft.following import Following
from clustor.raft.leadership import Leadership
from clustor.raft.messages import (
    AppendEntries,
    AppendResponse,
    DurabilityAck,
    InstallSnapshot,
    Message,
    ModeConflict,
    PreVoteRequest,
    PreVoteResponse,
    RepairEntries,
    RepairRequest,
    SnapshotResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from clustor.raft.output import NoteKind
from clustor.raft.repair import Repair
from clustor.raft.replication import Replication
from clustor.raft.types import ReplicaId, Role


class Reception:
    """Hands each message to the part that knows it."""

    def __init__(
        self,
        core: Core,
        election: Election,
        following: Following,
        *,
        replication: Replication,
        leadership: Leadership,
        repair: Repair,
    ) -> None:
        self._core = core
        self._election = election
        self._following = following
        self._replication = replication
        self._leadership = leadership
        self._repair = repair

    def admit(self, message: Message) -> bool:
        """Apply Raft's rule of terms; return whether the message is to be handled."""
        term = self._core.hard.term
        if isinstance(message, PreVoteRequest | RepairRequest | RepairEntries):
            return True
        if message.term > term:
            return self._admit_newer(message)
        if message.term == term:
            return True
        return self._answer_older(message)

    def _admit_newer(self, message: Message) -> bool:
        core = self._core
        if isinstance(message, PreVoteResponse) and message.vote_granted:
            return True  # the term that was asked for, not the sender's
        if isinstance(message, VoteRequest) and self._election.is_disruptive(message):
            return False
        leads = isinstance(message, AppendEntries | InstallSnapshot)
        core.become_follower(message.term, message.sender if leads else None, "a newer term")
        return True

    def _answer_older(self, message: Message) -> bool:
        """Tell an old leader or candidate what term it is; let go of the rest."""
        core = self._core
        if isinstance(message, VoteRequest):
            core.send(message.sender, VoteResponse(core.hard.term, core.id, vote_granted=False))
        elif isinstance(message, AppendEntries):
            self._following.refuse_older(message)
        elif isinstance(message, InstallSnapshot):
            core.send(
                message.sender,
                SnapshotResponse(core.hard.term, core.id, message.base_index, ok=False),
            )
        elif isinstance(message, DurabilityAck) and core.leads:
            core.note(NoteKind.STALE_DURABILITY_ACK, sender=message.sender, term=message.term)
        return False

    def dispatch(self, message: Message) -> None:
        match message:
            case DurabilityAck():
                if self._core.leads:
                    self._replication.on_ack(message)
            case AppendEntries():
                self._on_append(message)
            case AppendResponse():
                if self._core.leads:
                    self._replication.on_response(message)
            case PreVoteRequest():
                self._election.on_pre_vote_request(message)
            case PreVoteResponse():
                self._election.on_pre_vote_response(message)
            case VoteRequest():
                self._election.on_vote_request(message)
            case VoteResponse():
                self._election.on_vote_response(message)
            case InstallSnapshot():
                self._on_install(message)
            case SnapshotResponse():
                if self._core.leads:
                    self._replication.on_snapshot_response(message)
            case TimeoutNow():
                self._election.on_timeout_now(message)
            case ModeConflict():
                self._on_mode_conflict(message)
            case RepairRequest():
                self._on_repair_request(message)
            case RepairEntries():
                self._repair.on_entries(message)
            case _:
                assert_never(message)

    def _on_append(self, message: AppendEntries) -> None:
        if self._follow(message.sender, message.durability_mode_epoch):
            self._election.heard_leader(message)
            self._following.on_append(message)

    def _on_install(self, message: InstallSnapshot) -> None:
        if self._follow(message.sender, message.durability_mode_epoch):
            self._core.last_leader_ms = self._core.now_ms
            self._election.draw_deadline()
            self._following.on_install(message)

    def _follow(self, leader: ReplicaId, epoch: DurabilityModeEpoch) -> bool:
        """Follow the leader of this term, unless its epoch is older than one committed here."""
        core = self._core
        if core.leads:
            return False  # two leaders of one term cannot be; a forged one changes nothing
        if self._following.conflicts(leader, epoch):
            return False
        if core.role is not Role.FOLLOWER or core.leader_id != leader:
            core.become_follower(core.hard.term, leader, "a leader was heard")
        return True

    def _on_mode_conflict(self, message: ModeConflict) -> None:
        """Step down: a voter has committed a transition that this log does not hold."""
        core = self._core
        if message.durability_mode_epoch > core.log_epoch and core.role is not Role.FOLLOWER:
            core.note(
                NoteKind.DURABILITY_MODE_EPOCH_CONFLICT,
                sender=message.sender,
                theirs=message.durability_mode_epoch,
                ours=core.log_epoch,
            )
            self._leadership.step_down("an older durability mode epoch")

    def _on_repair_request(self, message: RepairRequest) -> None:
        core = self._core
        progress = core.progress.get(message.sender)
        if core.leads and progress is not None and message.first_index <= core.log.base_index:
            self._replication.offer_snapshot(message.sender, progress)
        else:
            self._repair.on_request(message)
