"""Elections: pre-votes, votes, stickiness, and who may campaign at all.

A replica that is barred, damaged, stalled, rejoining or in the middle of a snapshot answers
votes (rejoining excepted) but never asks for one.
"""

from __future__ import annotations

from enum import StrEnum

from clustor.log.types import Term
from clustor.raft.core import Core
from clustor.raft.fallback import StrictFallback
from clustor.raft.lateness import ElectionRange
from clustor.raft.messages import (
    AppendEntries,
    ModeConflict,
    PreVoteRequest,
    PreVoteResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from clustor.raft.output import NoteKind
from clustor.raft.quorum import VoteResult
from clustor.raft.types import ReplicaId, Role, VoteAnnotation

FIRST_DRAWS = 8
"""So often a replica that was never led waits for the shorter time only."""


class CampaignClause(StrEnum):
    """What keeps a replica from asking for votes; the first that holds is named."""

    BARRED = "StrictFallbackBarred"
    NOT_A_VOTER = "NotAVoter"
    REJOINING = "Rejoining"
    DAMAGED = "LogDamaged"
    INSTALLING = "InstallingSnapshot"
    DEVICE_STALLED = "DeviceStalled"
    CLOCK_ALARM = "ClockAlarm"  # its clock jumped or runs away (quantum §6.2)
    HOLDING_OFF = "HoldingOff"  # it gave up leading a moment ago


class Election:
    def __init__(self, core: Core, fallback: StrictFallback) -> None:
        self._core = core
        self._fallback = fallback
        self._votes: dict[ReplicaId, bool] = {}
        self._own_vote_due: Term | None = None  # counts once the hard state with it is durable
        self._slow_heartbeats = 0
        self._hold_off_until_ms = 0  # after a voluntary step-down
        self.high_rtt = False
        self._widened = False
        self._heard_leader = False
        self._first_draws = FIRST_DRAWS
        self.range = ElectionRange(core.profile)
        """From what the timeout is drawn: wider while this node itself is late (C19)."""
        self.deadline_ms = 0
        self.won = False
        self.draw_deadline()

    # Timers.

    def draw_deadline(self) -> None:
        """Draw the next election timeout; a high round trip widens it to the WAN's range.

        A cluster whose nodes are patient with each other need not wait as long for its first
        leader. Only a few times: where a vote takes longer than the shorter time, an election
        would never end.
        """
        core = self._core
        low, high = self.range.bounds(high_rtt=self.high_rtt or self._widened)
        first = core.profile.first_election_timeout_ms
        if self._was_never_led() and self._first_draws and first is not None:
            self._first_draws -= 1
            low, high = first
        self.deadline_ms = core.now_ms + core.draw(low, high)

    def did_not_run(self, missed_ms: int) -> None:
        """Leave out a time in which this node did nothing, and read nothing either (C19)."""
        core = self._core
        self.deadline_ms += missed_ms
        core.last_leader_ms = min(core.now_ms, core.last_leader_ms + missed_ms)

    def hold_off(self) -> None:
        """Do not campaign for `min_leader_term_ms`: this replica just gave up leading."""
        self._hold_off_until_ms = self._core.now_ms + self._core.profile.min_leader_term_ms
        self.draw_deadline()

    def on_tick(self) -> None:
        core = self._core
        if core.leads or core.now_ms < self.deadline_ms:
            return
        self.draw_deadline()
        if self.may_campaign():
            self._ask_pre_votes()

    def may_campaign(self) -> bool:
        core = self._core
        lifted = self._fallback.may_campaign(core.now_ms, core.last_leader_ms)
        return lifted and self._own_clause() is None

    def campaign_clause(self) -> CampaignClause | None:
        """Name what keeps this replica from campaigning; asking changes nothing."""
        core = self._core
        if not self._fallback.lets_campaign(core.now_ms, core.last_leader_ms):
            return CampaignClause.BARRED
        return self._own_clause()

    def _own_clause(self) -> CampaignClause | None:
        core = self._core
        if not core.is_voter:
            return CampaignClause.NOT_A_VOTER
        if core.hard.rejoining:
            return CampaignClause.REJOINING
        if core.damaged is not None:
            return CampaignClause.DAMAGED
        if core.installing is not None:
            return CampaignClause.INSTALLING
        if core.device_stalled:
            return CampaignClause.DEVICE_STALLED
        if core.clock_alarm:
            return CampaignClause.CLOCK_ALARM
        if core.now_ms < self._hold_off_until_ms:
            return CampaignClause.HOLDING_OFF
        return None

    @property
    def answered(self) -> frozenset[ReplicaId]:
        """Who answered the campaign that runs, or the last one, this replica among them."""
        return frozenset(self._votes) | {self._core.id}

    def heard_leader(self, message: AppendEntries) -> None:
        """Note a living leader, and how far away it is (clustor §10.1)."""
        core = self._core
        core.last_leader_ms = core.now_ms
        self._heard_leader = True
        self._fallback.leader_seen()
        if message.rtt_ms >= core.profile.high_rtt_ms:
            self._slow_heartbeats += 1
        else:
            self._slow_heartbeats = 0
            self.high_rtt = self._widened = False
        if self._slow_heartbeats >= core.profile.high_rtt_heartbeats:
            self.high_rtt = True
        self.draw_deadline()

    def leader_is_alive(self) -> bool:
        """Say whether a leader was heard within the shortest election timeout.

        A start counts as one: the process before it may have heard a leader just then.
        """
        core = self._core
        if core.leads:
            return True
        if self._was_never_led():
            return False
        return core.now_ms - core.last_leader_ms < core.profile.election_timeout_ms[0]

    def _was_never_led(self) -> bool:
        """Say whether nobody can have led this replica: the log is empty, now and before."""
        return not self._heard_leader and self._core.log.last_index == 0

    # Asking.

    def _ask_pre_votes(self) -> None:
        core = self._core
        core.become(Role.PRE_CANDIDATE, None, "election timeout")
        self._votes = {core.id: True}
        for voter in sorted(core.config.all_voters - {core.id}):
            core.send(
                voter,
                PreVoteRequest(
                    Term(core.hard.term + 1),
                    core.id,
                    core.log.last_term,
                    core.log.last_index,
                    core.message_epoch,
                ),
            )
        self._count_pre_votes()

    def _count_pre_votes(self) -> None:
        result = self._core.config.vote(self._votes)
        if result is VoteResult.WON:
            self.campaign(transfer=False)
        elif result is VoteResult.LOST:
            self._core.become(Role.FOLLOWER, None, "pre-vote lost")

    def campaign(self, *, transfer: bool) -> None:
        """Stand for the next term. The own vote counts when it is durable."""
        core = self._core
        core.set_hard(term=Term(core.hard.term + 1), voted_for=core.id)
        core.matched_index = core.commit_index
        core.become(Role.CANDIDATE, None, "transfer" if transfer else "pre-vote won")
        self._votes = {}
        self._own_vote_due = core.hard.term
        self.draw_deadline()
        for voter in sorted(core.config.all_voters - {core.id}):
            core.send(
                voter,
                VoteRequest(
                    core.hard.term,
                    core.id,
                    core.log.last_term,
                    core.log.last_index,
                    core.message_epoch,
                    transfer,
                ),
            )

    def hard_state_stored(self) -> None:
        """Count the own vote: everything that is in the hard state is durable now."""
        core = self._core
        if self._own_vote_due == core.hard.term and core.role is Role.CANDIDATE:
            self._own_vote_due = None
            self._votes[core.id] = True
            self._count_votes()

    def _count_votes(self) -> None:
        result = self._core.config.vote(self._votes)
        if result is VoteResult.WON and self._votes.get(self._core.id):
            self.won = True
        elif result is VoteResult.LOST:
            self._core.become(Role.FOLLOWER, None, "vote lost")

    def on_pre_vote_response(self, message: PreVoteResponse) -> None:
        core = self._core
        if message.high_rtt:
            self._widened = True
        asked = core.role is Role.PRE_CANDIDATE
        if asked and (not message.vote_granted or message.term == core.hard.term + 1):
            self._votes.setdefault(message.sender, message.vote_granted)
            self._count_pre_votes()

    def on_vote_response(self, message: VoteResponse) -> None:
        core = self._core
        if core.role is Role.CANDIDATE and message.term == core.hard.term:
            self._votes.setdefault(message.sender, message.vote_granted)
            self._count_votes()

    def on_timeout_now(self, message: TimeoutNow) -> None:
        core = self._core
        if message.term == core.hard.term and self.may_campaign() and not core.leads:
            self.campaign(transfer=True)

    # Answering.

    def on_pre_vote_request(self, message: PreVoteRequest) -> None:
        core = self._core
        if self._conflicts(message):
            return
        granted = (
            message.term > core.hard.term
            and not self.leader_is_alive()
            and not core.hard.rejoining
            and core.is_up_to_date(message.last_log_term, message.last_log_index)
        )
        term = message.term if granted else core.hard.term
        core.send(
            message.sender,
            PreVoteResponse(term, core.id, granted, self.high_rtt, self._annotation()),
        )

    def on_vote_request(self, message: VoteRequest) -> None:
        """Answer in the current term; `Group` has adopted the candidate's if it was newer.

        The vote is set in the hard state even when the term was known before: the answer waits
        until it is durable, or a crash could let this replica vote twice.
        """
        core = self._core
        if self._conflicts(message):
            return
        granted = (
            message.term == core.hard.term
            and core.hard.voted_for in (None, message.sender)
            and core.role in (Role.FOLLOWER, Role.PRE_CANDIDATE)
            and (core.leader_id is None or core.hard.voted_for == message.sender)
            and not core.hard.rejoining
            and core.is_up_to_date(message.last_log_term, message.last_log_index)
        )
        if granted:
            if core.hard.voted_for is None:
                core.set_hard(voted_for=message.sender)
            core.become(Role.FOLLOWER, None, "voted")
            self.high_rtt = self._widened = False
            self.draw_deadline()
        core.send(
            message.sender,
            VoteResponse(core.hard.term, core.id, granted, self._annotation()),
        )

    def is_disruptive(self, message: VoteRequest) -> bool:
        """Say whether a newer term comes from a replica that does not hear a living leader."""
        return not message.transfer and self.leader_is_alive()

    def _conflicts(self, message: PreVoteRequest | VoteRequest) -> bool:
        """Refuse an epoch older than the committed one (clustor §7.1, §9.3)."""
        core = self._core
        if message.durability_mode_epoch >= core.hard.durability_mode_epoch:
            return False
        core.note(
            NoteKind.DURABILITY_MODE_EPOCH_CONFLICT,
            sender=message.sender,
            theirs=message.durability_mode_epoch,
            ours=core.hard.durability_mode_epoch,
        )
        core.send(
            message.sender, ModeConflict(core.hard.term, core.id, core.hard.durability_mode_epoch)
        )
        return True

    def _annotation(self) -> VoteAnnotation:
        barred = self._fallback.barred
        return VoteAnnotation.STRICT_FALLBACK_BARRED if barred else VoteAnnotation.NONE
