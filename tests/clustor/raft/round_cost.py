"""Print the CPU of a leader's group for one round: `python -m tests.clustor.raft.round_cost`.

A round is: propose a batch of 256 B payloads, take, a DurabilityAck from each follower, the own
receipt, take (entries to apply, ack), and the state machine's word.
"""

from __future__ import annotations

import time

from clustor.log.types import Entry, IoWriterMode, LogId, LogIndex, PartitionId, SegmentSeq, Term
from clustor.raft.group import Group
from clustor.raft.membership import Membership
from clustor.raft.messages import DurabilityAck, PreVoteResponse, VoteResponse
from clustor.raft.output import LogAppend, Output
from clustor.raft.profiles import THROUGHPUT
from clustor.raft.types import HardStateStored, LogStored, ReplicaId, ReplicaIdentity

TERM = Term(1)


def elected(size: int) -> Group:
    """Return a leader of `size` voters whose followers have everything."""
    voters = frozenset(ReplicaId(number) for number in range(1, size + 1))
    identity = ReplicaIdentity(ReplicaId(1), PartitionId(1), LogId(b"x" * 16), holds_data=False)
    group = Group.start(
        identity,
        THROUGHPUT,
        lambda low, high: low,
        now_ms=0,
        bootstrap=Membership(voters=voters),
    )
    group.tick(200)
    group.take()
    for voter in range(2, size + 1):
        group.receive(PreVoteResponse(TERM, ReplicaId(voter), vote_granted=True))
    hard = group.take().hard_state
    assert hard is not None
    group.stored(HardStateStored(hard.seq))
    for voter in range(2, size + 1):
        group.receive(VoteResponse(TERM, ReplicaId(voter), vote_granted=True))
    finish_round(group, group.take().appends[0], size)
    return group


def finish_round(group: Group, batch: LogAppend, size: int) -> Output:
    last: Entry = batch.entries[-1]
    for voter in range(2, size + 1):
        group.receive(
            DurabilityAck(
                TERM,
                PartitionId(1),
                ReplicaId(voter),
                last.index,
                SegmentSeq(1),
                IoWriterMode.FIXED_URING,
            )
        )
    group.stored(
        LogStored(batch.write_seq, TERM, last.index, SegmentSeq(1), IoWriterMode.FIXED_URING)
    )
    output = group.take()
    if output.apply:
        group.applied(LogIndex(output.apply[-1].index))
    return output


def microseconds_per_round(size: int, batch: int, rounds: int = 1_000) -> float:
    group = elected(size)
    payloads = [b"x" * 256] * batch
    best = float("inf")
    for _ in range(5):
        start = time.process_time()
        for _ in range(rounds):
            group.propose(payloads)
            output = finish_round(group, group.take().appends[0], size)
            assert output.acked is not None
        best = min(best, (time.process_time() - start) / rounds * 1e6)
    return best


if __name__ == "__main__":
    for voters_count in (3, 5):
        for entries_count in (1, 64, 256):
            cost = microseconds_per_round(voters_count, entries_count)
            print(f"{voters_count} voters, {entries_count:3d} entries: {cost:6.1f} us per round")
