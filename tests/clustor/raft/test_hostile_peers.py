"""A peer cannot make a group raise, whatever it sends; nor make it forget what is committed."""

from __future__ import annotations

import random
from typing import Any

import pytest

from clustor.log.types import (
    DurabilityMode,
    DurabilityModeEpoch,
    Entry,
    EntryKind,
    IoWriterMode,
    LogId,
    LogIndex,
    PartitionId,
    SegmentSeq,
    Term,
)
from clustor.raft.group import Group
from clustor.raft.hard_state import HardState
from clustor.raft.membership import Membership
from clustor.raft.memory_log import MemoryLog
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
from clustor.raft.profiles import THROUGHPUT
from clustor.raft.types import (
    HardStateStored,
    LeaseEpoch,
    LogStored,
    ReadSeq,
    ReplicaId,
    ReplicaIdentity,
    RoutingEpoch,
)


class Liar:
    """Draws messages that nobody honest would send."""

    def __init__(self, rng: random.Random, group: Group) -> None:
        self._rng = rng
        self._group = group

    def index(self) -> LogIndex:
        last = self._group.core.log.last_index
        somewhere = self._rng.randint(0, 20)
        return LogIndex(self._rng.choice((0, 1, last, last + 1, last + 7, somewhere)))

    def term(self) -> Term:
        near = self._group.core.hard.term + self._rng.choice((-2, -1, 0, 0, 0, 0, 1))
        return Term(max(0, near))

    def entries(self) -> list[Entry]:
        rng, first = self._rng, self.index()
        return [
            Entry(
                self.term(),
                LogIndex(first + at + rng.choice((0, 0, 0, 1))),
                rng.choice((b"", b"junk")),
                rng.choice(list(EntryKind)),
            )
            for at in range(rng.randint(0, 4))
        ]

    def chain(self, prev: LogIndex) -> list[Entry]:
        """Draw entries that do follow each other, but need not mean anything."""
        term = self.term()
        kinds = (EntryKind.DATA, EntryKind.NO_OP, EntryKind.FENCE_COMMIT)
        return [
            Entry(term, LogIndex(prev + at), b"x", self._rng.choice(kinds))
            for at in range(1, self._rng.randint(1, 4))
        ]

    def message(self) -> Message:
        rng = self._rng
        term, sender = self.term(), ReplicaId(rng.randint(2, 6))
        epoch = DurabilityModeEpoch(rng.randint(0, 1))
        yes = rng.random() < 0.6
        prev = self.index()
        choices: list[Any] = [
            PreVoteRequest(term, sender, self.term(), self.index(), epoch),
            PreVoteResponse(term, sender, yes, rng.choice((None, True, False))),
            VoteRequest(term, sender, self.term(), self.index(), epoch, rng.random() < 0.2),
            VoteResponse(term, sender, yes),
            self._append(term, sender, prev, epoch, self.entries()),
            self._append(term, sender, prev, epoch, self.chain(prev)),
            self._response(term, sender, ok=yes),
            DurabilityAck(
                term,
                PartitionId(1),
                sender,
                self.index(),
                SegmentSeq(1),
                rng.choice(list(IoWriterMode)),
                rng.random() < 0.2,
            ),
            self._install(term, sender, epoch),
            SnapshotResponse(term, sender, self.index(), yes),
            TimeoutNow(term, sender),
            ModeConflict(term, sender, epoch),
            RepairRequest(term, sender, self.index(), self.index()),
            RepairEntries(term, sender, self.entries()),
        ]
        message: Message = rng.choice(choices)
        return message

    def _append(
        self,
        term: Term,
        sender: ReplicaId,
        prev: LogIndex,
        epoch: DurabilityModeEpoch,
        entries: list[Entry],
    ) -> AppendEntries:
        known = self._group.core.log.term_at(prev)
        prev_term = known if known is not None and self._rng.random() < 0.7 else self.term()
        return AppendEntries(
            term,
            sender,
            prev_term,
            prev,
            entries,
            self.index(),
            self.index(),
            epoch,
            ReadSeq(self._rng.randint(0, 3)),
            self._rng.randint(0, 1000),
            self._rng.randint(0, 500),
            LeaseEpoch(0),
            self.index(),
            self.index(),
        )

    def _response(self, term: Term, sender: ReplicaId, *, ok: bool) -> AppendResponse:
        return AppendResponse(
            term,
            sender,
            ok,
            self.index(),
            self.index(),
            self.term(),
            self.index(),
            ReadSeq(self._rng.randint(0, 99)),
            self._rng.randint(0, 1000),
            self.index(),
            self.index(),
            IoWriterMode.FIXED_URING,
            self._rng.random() < 0.1,
            self._rng.random() < 0.1,
        )

    def _install(
        self, term: Term, sender: ReplicaId, epoch: DurabilityModeEpoch
    ) -> InstallSnapshot:
        return InstallSnapshot(
            term,
            sender,
            self.term(),
            self.index(),
            Membership(voters=frozenset((ReplicaId(1), sender))),
            self.index(),
            RoutingEpoch(0),
            DurabilityMode.STRICT,
            epoch,
            epoch,
        )


@pytest.mark.parametrize("seed", range(150))
def test_a_liar_cannot_make_a_group_raise_or_lose_a_commit(seed: int) -> None:
    rng = random.Random(seed)
    log = MemoryLog(evict_entries_min=1)
    log.append([Entry(Term(t), LogIndex(i), b"x") for i, t in enumerate((1, 1, 2, 2, 3), 1)])
    voters = frozenset(ReplicaId(n) for n in (1, 2, 3))
    group = Group.start(
        ReplicaIdentity(ReplicaId(1), PartitionId(1), LogId(b"x" * 16), holds_data=False),
        THROUGHPUT,
        rng.randint,
        now_ms=0,
        log=log,
        hard_state=HardState(term=Term(3), membership=Membership(voters=voters)),
    )
    liar, now, committed = Liar(rng, group), 0, 0
    for _ in range(300):
        now += rng.choice((0, 0, 5, 40))
        if rng.random() < 0.3:
            group.tick(now)
        group.receive(liar.message())
        if group.core.leads and rng.random() < 0.3:
            group.propose([b"y"])
        _drive(group, rng)
        assert group.core.commit_index >= committed
        committed = group.core.commit_index


def _drive(group: Group, rng: random.Random) -> None:
    output = group.take()
    if output.hard_state is not None:
        group.stored(HardStateStored(output.hard_state.seq))
    for batch in output.appends:
        if batch.entries:
            last = batch.entries[-1]
            group.stored(
                LogStored(
                    batch.write_seq, last.term, last.index, SegmentSeq(1), IoWriterMode.FIXED_URING
                )
            )
    if output.install is not None:
        group.snapshot_installed(output.install, ok=rng.random() < 0.5)
    if output.apply:
        group.applied(output.apply[-1].index)
