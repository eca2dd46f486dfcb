"""What archivers and readers decide, case by case."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clustor.log.logmap import LogMap
from clustor.log.types import Entry, EntryKind, LogIndex, SegmentSeq, Term
from clustor.raft.hard_state import HardState
from clustor.raft.membership import Membership, MembershipEntry, encode_membership
from clustor.raft.types import ReplicaId, RoutingEpoch
from quantum.archive import (
    ArchiveSegment,
    CloseSegment,
    Diverged,
    EntriesCompacted,
    Listing,
    Next,
    PrgId,
    ReplicaLog,
    UpToDate,
    decide_hold,
    plan_next,
)
from quantum.archive.records import ExtentRow, GapRow, SegmentRow
from quantum.lake.archive.committed import (
    StoppedReplica,
    committed_index,
    newest_configuration,
)
from quantum.node.outflow import OutflowFacts, outflow

PRG = PrgId("dev", 0)


def log_of(*runs: tuple[int, int, int, int], base: int = 0) -> LogMap:
    """Make a map of runs: (segment, first, last, term)."""
    entries = LogMap(LogIndex(base), Term(1))
    offset = 128
    for seq, first, last, term in runs:
        entries.append_run(SegmentSeq(seq), offset, offset + 100, first, last - first + 1)
        entries.append_terms(first, [term] * (last - first + 1))
        offset += 100
    return entries


def row(first: int, last: int, term: int = 1) -> SegmentRow:
    extent = ExtentRow(first, last, 200, ((first, 128),))
    return SegmentRow(
        "o", 1, "0" * 64, first, last, term, term, None, None, 1, "0" * 32, 1, 1, (extent,)
    )


LOG = log_of((1, 1, 10, 1), (2, 11, 20, 2), (3, 21, 30, 2))
LATE = log_of((2, 15, 30, 2), base=14)
CLOSED = frozenset({SegmentSeq(1), SegmentSeq(2)})
EMPTY = Listing(PRG)
TEN = Listing(PRG, 0, stretches=(row(1, 10),))
TWENTY = Listing(PRG, 1, stretches=(row(1, 10), row(11, 20, 2)))


def view(committed: int, entries: LogMap = LOG) -> ReplicaLog:
    return ReplicaLog(entries, CLOSED, committed, leads=True, writer="w", log_bytes=0)


NEXT: dict[str, tuple[Listing, ReplicaLog, type[Next], object]] = {
    "the first segment": (EMPTY, view(30), ArchiveSegment, 1),
    "nothing is committed": (EMPTY, view(0), UpToDate, None),
    "the second one": (TEN, view(30), ArchiveSegment, 11),
    "its last entry is not committed": (TEN, view(19), UpToDate, None),
    "its last entry is committed": (TEN, view(20), ArchiveSegment, 11),
    "the open one": (TWENTY, view(30), CloseSegment, 21),
    "the open one, nothing of it committed": (TWENTY, view(20), UpToDate, None),
    "compacted": (TEN, view(30, log_of((3, 21, 30, 2), base=20)), EntriesCompacted, 11),
    "begins where the log begins": (EMPTY, view(30, LATE), ArchiveSegment, 15),
    "another history": (Listing(PRG, 0, stretches=(row(1, 10, 7),)), view(30), Diverged, 10),
    "the archive is ahead of what we know": (TWENTY, view(5), UpToDate, None),
    "behind a gap": (
        Listing(PRG, 1, stretches=(row(1, 5), GapRow(6, 10, "gone"))),
        view(30),
        ArchiveSegment,
        11,
    ),
}


@pytest.mark.parametrize(("listing", "seen", "kind", "first"), NEXT.values(), ids=NEXT.keys())
def test_what_is_archived_next(
    listing: Listing, seen: ReplicaLog, kind: type[Next], first: int | None
) -> None:
    following = plan_next(listing, seen)
    assert type(following) is kind
    assert getattr(following, "first", getattr(following, "index", None)) == first


def test_the_log_waits_for_the_archive_and_not_for_ever() -> None:
    assert decide_hold(None, view(30), 100).through == 0
    assert decide_hold(10, view(30), 100).through == 10
    assert "beyond index 10" in decide_hold(10, view(30), 100).reason
    assert decide_hold(30, view(30), 100).reason == ""
    released = decide_hold(10, replace(view(30), log_bytes=101), 100)
    assert released.through is None
    assert "no longer waits" in released.reason


FACTS = OutflowFacts(
    ready=True,
    leads=True,
    has_leader=True,
    strict=True,
    commit_index=LogIndex(30),
    wal_committed_index=LogIndex(20),
    local_wal_durable_index=LogIndex(25),
    control_plane_heard=False,
    observers_allowed=False,
)
FOLLOWER = replace(FACTS, leads=False)
OUTFLOW: dict[str, tuple[OutflowFacts, int, str]] = {
    "a leader: what a quorum has synced": (FACTS, 20, ""),
    "a follower: what is committed and here": (FOLLOWER, 25, ""),
    "a leader without a quorum": (replace(FACTS, wal_committed_index=LogIndex(0)), 0, "no quorum"),
    "a follower without a leader": (replace(FOLLOWER, has_leader=False), 0, "no leader"),
    "a follower under Group-Fsync": (replace(FOLLOWER, strict=False), 0, "Group-Fsync"),
    "a leader under Group-Fsync": (replace(FACTS, strict=False), 20, ""),
    "stopped": (replace(FACTS, ready=False), 0, "not ready"),
    "strict fallback": (replace(FACTS, control_plane_heard=True), 0, "strict fallback"),
    "the gate is open again": (
        replace(FACTS, control_plane_heard=True, observers_allowed=True),
        20,
        "",
    ),
}


@pytest.mark.parametrize(("facts", "through", "reason"), OUTFLOW.values(), ids=OUTFLOW.keys())
def test_how_far_a_log_may_leave(facts: OutflowFacts, through: int, reason: str) -> None:
    flow = outflow(facts)
    assert flow.through == through
    assert reason in flow.refusal and bool(reason) == bool(flow.refusal)


THREE = Membership(voters=frozenset(map(ReplicaId, (1, 2, 3))))


def stopped(term: int, *runs: tuple[int, int, int, int], known: int = 0) -> StoppedReplica:
    entries = log_of(*runs)
    hard = HardState(
        term=Term(term),
        membership=THREE,
        durable_commit_index=LogIndex(known),
    )
    return StoppedReplica(hard, entries.last_index, entries)


COMMITTED: dict[str, tuple[dict[int, StoppedReplica], int]] = {
    "a quorum in the newest term": (
        {1: stopped(2, (1, 1, 9, 2)), 2: stopped(2, (1, 1, 7, 2)), 3: stopped(2, (1, 1, 5, 2))},
        7,
    ),
    "the third is not here": ({1: stopped(2, (1, 1, 9, 2)), 2: stopped(2, (1, 1, 7, 2))}, 7),
    "one of three knows nothing of the others": ({1: stopped(2, (1, 1, 9, 2))}, 0),
    "but what it wrote down counts": ({1: stopped(2, (1, 1, 9, 2), known=4)}, 4),
    "an older term on a quorum, while somebody voted later (Raft, figure 8)": (
        {
            1: stopped(4, (1, 1, 1, 1), (1, 2, 2, 2)),
            2: stopped(4, (1, 1, 1, 1), (1, 2, 2, 2)),
            3: stopped(3, (1, 1, 1, 1), (1, 2, 2, 3)),
        },
        0,
    ),
    "an entry of the newest term carries what is below it": (
        {
            1: stopped(4, (1, 1, 2, 2), (1, 3, 3, 4)),
            2: stopped(4, (1, 1, 2, 2), (1, 3, 3, 4)),
            3: stopped(3, (1, 1, 1, 1)),
        },
        3,
    ),
}


@pytest.mark.parametrize(("replicas", "index"), COMMITTED.values(), ids=COMMITTED.keys())
def test_what_stopped_replicas_prove(replicas: dict[int, StoppedReplica], index: int) -> None:
    found = {ReplicaId(number): replica for number, replica in replicas.items()}
    assert committed_index(found, THREE) == index


def test_a_change_of_members_counts_from_the_moment_it_is_in_the_log() -> None:
    """Two of three voters are a quorum before it, and none of the joint ones."""
    two = {ReplicaId(n): stopped(2, (1, 1, 9, 2)) for n in (1, 2)}
    goal = Membership(voters=frozenset(map(ReplicaId, (1, 4, 5))), outgoing=THREE.voters)
    change = MembershipEntry(THREE, goal, None, RoutingEpoch(1), b"")
    entry = Entry(Term(2), LogIndex(9), encode_membership(change), EntryKind.MEMBERSHIP_CHANGE)
    hard = two[ReplicaId(1)].hard
    assert newest_configuration(hard, []) == THREE
    assert newest_configuration(hard, [entry]) == goal
    assert committed_index(two, THREE) == 9
    assert committed_index(two, goal) == 0


def test_of_a_single_voter_all_that_is_durable_is_committed() -> None:
    alone = stopped(5, (1, 1, 9, 2))
    hard = replace(alone.hard, membership=Membership(voters=frozenset({ReplicaId(1)})))
    assert committed_index({ReplicaId(1): replace(alone, hard=hard)}, hard.membership) == 9
