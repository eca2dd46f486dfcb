"""Groups of the classic protocol, story by story, and what they commit."""

from __future__ import annotations

from typing import Any

import pytest

from quantum.broker.streams import (
    AdmitGroupTransaction,
    ClassicGroup,
    CommitInTransaction,
    CommitOffsets,
    CommittedOffset,
    CompleteJoin,
    ConsumerHeartbeat,
    DeleteGroup,
    DeleteOffsets,
    EndInGroup,
    ExpireMember,
    ExpireOffsets,
    GroupCoordinator,
    GroupSettings,
    JoinCompleted,
    JoinedGeneration,
    JoinGroup,
    LeaveGroup,
    MemberFenced,
    MemberWaits,
    NewMemberId,
    RebalanceBegun,
    StreamRefusal,
    SyncCompleted,
    SyncedAssignment,
    SyncGroup,
    decode_group_command,
    encode_command,
)

R = StreamRefusal
RANGE = (("range", b"r"),)
BOTH = (("sticky", b"s"), ("range", b"r"))
SUBSCRIBED = (("range", b"\0\1\0\0\0\1\0\1t"),)
PREPARING = RebalanceBegun("g")


def join(
    member: str = "",
    fresh: str = "",
    *,
    protocols: Any = RANGE,
    instance: str | None = None,
    known: bool = False,
    at: int = 0,
) -> JoinGroup:
    timing = (10_000, 5_000)
    return JoinGroup(
        at, "g", member, fresh, *timing, "consumer", protocols, instance, needs_known_id=known
    )


def sync(member: str, generation: int, instance: str | None = None, **assignments: bytes) -> Any:
    return SyncGroup(0, "g", generation, member, tuple(assignments.items()), instance)


def leave(*members: str) -> LeaveGroup:
    return LeaveGroup(0, "g", tuple((each, None) for each in members))


def joined(
    generation: int, member: str, *members: str, leader: str = "a", protocol: str = "range"
) -> JoinedGeneration:
    data = {"range": b"r", "sticky": b"s"}[protocol]
    rows = tuple((each, None, data) for each in members)
    return JoinedGeneration(generation, "consumer", protocol, leader, member, rows)


def commit(generation: int, member: str, offset: int = 5, at: int = 0, instance: Any = None) -> Any:
    rows = ((("t", 0), CommittedOffset(offset)),)
    return CommitOffsets(at, "g", generation, member, rows, instance)


def in_tx(producer: int, epoch: int, offset: int, generation: int = -1, member: str = "") -> Any:
    rows = ((("t", 0), CommittedOffset(offset)),)
    return CommitInTransaction(0, "g", generation, member, producer, epoch, rows)


ALONE: list[tuple[Any, Any, list[Any]]] = [
    (join(fresh="a"), joined(1, "a", "a"), [PREPARING, JoinCompleted("g", 1)]),
    (sync("a", 1, a=b"all"), SyncedAssignment(b"all"), [SyncCompleted("g", 1)]),
]
TWO: list[tuple[Any, Any, list[Any]]] = [
    *ALONE,
    (join(fresh="b"), MemberWaits("b"), [PREPARING]),
    (join("a"), joined(2, "a", "a", "b"), [JoinCompleted("g", 2)]),
    (sync("b", 2), MemberWaits("b"), []),
    (sync("a", 2, a=b"1", b=b"2"), SyncedAssignment(b"1"), [SyncCompleted("g", 2)]),
    (sync("b", 2), SyncedAssignment(b"2"), []),
]
STORIES: dict[str, list[tuple[Any, Any, list[Any]]]] = {
    "one alone": ALONE,
    "two, one after the other": TWO,
    "an id must be known first": [
        (join(fresh="a", known=True), NewMemberId("a"), []),
        (join("x"), R.UNKNOWN_MEMBER, []),
        (join("a"), joined(1, "a", "a"), [PREPARING, JoinCompleted("g", 1)]),
    ],
    "an id that nobody uses holds the join up until it expires": [
        *ALONE,
        (join(fresh="b", known=True), NewMemberId("b"), []),
        (join("a"), MemberWaits("a"), [PREPARING]),
        (ExpireMember(0, "g", "b", 0), None, [JoinCompleted("g", 2)]),
    ],
    "who is late is left behind": [
        *TWO,
        (join("a"), MemberWaits("a"), [PREPARING]),
        (CompleteJoin(0, "g", 1), None, []),
        (CompleteJoin(0, "g", 2), None, [JoinCompleted("g", 3)]),
        (sync("b", 2), R.UNKNOWN_MEMBER, []),
        (join("b"), R.UNKNOWN_MEMBER, []),
    ],
    "a leader that is left behind is replaced": [
        *TWO,
        (join(fresh="c"), MemberWaits("c"), [PREPARING]),
        (join("b"), MemberWaits("b"), []),
        (CompleteJoin(0, "g", 2), None, [JoinCompleted("g", 3)]),
        (join("b"), joined(3, "b", "b", "c", leader="b"), []),
        (sync("c", 3), MemberWaits("c"), []),
        (sync("b", 3), SyncedAssignment(b""), [SyncCompleted("g", 3)]),
    ],
    "a lost answer to a join is given again": [
        (join(fresh="a"), joined(1, "a", "a"), [PREPARING, JoinCompleted("g", 1)]),
        (join("a"), joined(1, "a", "a"), []),
    ],
    "a follower that comes again unchanged gets what stands, a leader rebalances": [
        *TWO,
        (join("b"), joined(2, "b"), []),
        (join("b", protocols=BOTH), MemberWaits("b"), [PREPARING]),
    ],
    "who leaves is gone, the last one ends the group": [
        *TWO,
        (leave("b", "nobody"), (None, R.UNKNOWN_MEMBER), [PREPARING]),
        (join("a"), joined(3, "a", "a"), [JoinCompleted("g", 3)]),
        (leave("a"), (None,), [PREPARING, JoinCompleted("g", 4)]),
        (join(fresh="c"), joined(5, "c", "c", leader="c"), [PREPARING, JoinCompleted("g", 5)]),
    ],
    "an expiry that was overtaken by a join is nothing": [
        *TWO,
        (ExpireMember(0, "g", "b", 2), None, []),
        (join("b", protocols=RANGE), joined(2, "b"), []),
        (ExpireMember(0, "g", "b", 1), None, []),
        (ExpireMember(0, "g", "b", 2), None, [PREPARING]),
    ],
    "old generations and early syncs are refused": [
        *TWO,
        (sync("a", 1), R.STALE_GENERATION, []),
        (sync("a", 3), R.STALE_GENERATION, []),
        (join(fresh="c"), MemberWaits("c"), [PREPARING]),
        (sync("b", 2), R.REBALANCING, []),
    ],
    "protocols must meet": [
        *ALONE,
        (join(fresh="b", protocols=(("sticky", b"s"),)), R.INCONSISTENT_PROTOCOL, []),
        (join(fresh="b", protocols=()), R.INCONSISTENT_PROTOCOL, []),
    ],
    "the protocol that most like best, of those all know": [
        (
            join(fresh="a", protocols=BOTH),
            joined(1, "a", "a", protocol="sticky"),
            [PREPARING, JoinCompleted("g", 1)],
        ),
        (join(fresh="b", protocols=BOTH[::-1]), MemberWaits("b"), [PREPARING]),
        (join("a", protocols=BOTH[::-1]), joined(2, "a", "a", "b"), [JoinCompleted("g", 2)]),
        (join(fresh="c", protocols=BOTH[:1]), MemberWaits("c"), [PREPARING]),
        (join("a", protocols=BOTH[::-1]), MemberWaits("a"), []),
        (
            join("b", protocols=BOTH[::-1]),
            joined(3, "b", protocol="sticky"),
            [JoinCompleted("g", 3)],
        ),
    ],
    "two votes against one": [
        (
            join(fresh="a", protocols=BOTH[::-1]),
            joined(1, "a", "a"),
            [PREPARING, JoinCompleted("g", 1)],
        ),
        (join(fresh="b", protocols=BOTH), MemberWaits("b"), [PREPARING]),
        (join(fresh="c", protocols=BOTH), MemberWaits("c"), []),
        (
            join("a", protocols=BOTH[::-1]),
            joined(2, "a", "a", "b", "c", protocol="sticky"),
            [JoinCompleted("g", 2)],
        ),
    ],
    "a static member comes back to its place, and fences its old self": [
        (
            join(fresh="a", instance="i"),
            JoinedGeneration(1, "consumer", "range", "a", "a", (("a", "i", b"r"),)),
            [PREPARING, JoinCompleted("g", 1)],
        ),
        (sync("a", 1, "i", a=b"x"), SyncedAssignment(b"x"), [SyncCompleted("g", 1)]),
        (
            join(fresh="b", instance="i"),
            JoinedGeneration(1, "consumer", "range", "b", "b", (("b", "i", b"r"),)),
            [MemberFenced("g", "a")],
        ),
        (sync("a", 1, "i"), R.FENCED_INSTANCE, []),
        (join("a", instance="i"), R.FENCED_INSTANCE, []),
        (sync("b", 1, "i"), SyncedAssignment(b"x"), []),
        (LeaveGroup(0, "g", (("", "i"),)), (None,), [PREPARING, JoinCompleted("g", 2)]),
    ],
    "a static member is not left behind by a rebalance": [
        (
            join(fresh="a", instance="i"),
            JoinedGeneration(1, "consumer", "range", "a", "a", (("a", "i", b"r"),)),
            [PREPARING, JoinCompleted("g", 1)],
        ),
        (join(fresh="b"), MemberWaits("b"), [PREPARING]),
        (CompleteJoin(0, "g", 1), None, [JoinCompleted("g", 2)]),
        (
            join("b"),
            JoinedGeneration(
                2, "consumer", "range", "b", "b", (("a", "i", b"r"), ("b", None, b"r"))
            ),
            [],
        ),
    ],
    "a full group takes nobody": [
        *ALONE,
        (join(fresh="b"), MemberWaits("b"), [PREPARING]),
        (join(fresh="c"), MemberWaits("c"), []),
        (join(fresh="d"), R.GROUP_FULL, []),
    ],
    "offsets are for members of this generation": [
        (commit(-1, ""), (None,), []),
        *ALONE,
        (commit(1, "a"), (None,), []),
        (commit(0, "a"), R.STALE_GENERATION, []),
        (commit(1, "x"), R.UNKNOWN_MEMBER, []),
        (commit(-1, ""), R.UNKNOWN_MEMBER, []),
        (join(fresh="b"), MemberWaits("b"), [PREPARING]),
        (commit(1, "a"), (None,), []),
        (join("a"), joined(2, "a", "a", "b"), [JoinCompleted("g", 2)]),
        (commit(2, "a"), R.REBALANCING, []),
    ],
    "a group that nobody knows": [
        (commit(1, "a"), R.STALE_GENERATION, []),
        (sync("a", 1), R.UNKNOWN_MEMBER, []),
        (leave("a"), (R.UNKNOWN_MEMBER,), []),
        (CompleteJoin(0, "g", 0), None, []),
        (DeleteGroup(0, "g"), R.GROUP_UNKNOWN, []),
        (DeleteOffsets(0, "g", (("t", 0),)), R.GROUP_UNKNOWN, []),
    ],
    "offsets in a transaction": [
        (in_tx(7, 0, 9), R.TRANSACTION_NOT_OPEN, []),
        (AdmitGroupTransaction(0, "g", 7, 0), None, []),
        (in_tx(7, 1, 9), R.TRANSACTION_NOT_OPEN, []),
        (in_tx(7, 0, 9), (None,), []),
        (DeleteGroup(0, "g"), R.GROUP_NOT_EMPTY, []),
        (EndInGroup(0, "g", 7, 1, commit=True), None, []),
        (EndInGroup(0, "g", 7, 1, commit=True), None, []),
        (in_tx(7, 0, 9), R.TRANSACTION_NOT_OPEN, []),
        (AdmitGroupTransaction(0, "g", 7, 1), None, []),
        (AdmitGroupTransaction(0, "g", 7, 2), R.WRONG_TRANSACTION_STATE, []),
    ],
    "a group is deleted when it is empty": [
        *ALONE,
        (DeleteGroup(0, "g"), R.GROUP_NOT_EMPTY, []),
        (leave("a"), (None,), [PREPARING, JoinCompleted("g", 2)]),
        (DeleteGroup(0, "g"), None, []),
        (DeleteGroup(0, "g"), R.GROUP_UNKNOWN, []),
    ],
    "offsets of topics that are read stay": [
        (
            join(fresh="a", protocols=SUBSCRIBED),
            JoinedGeneration(1, "consumer", "range", "a", "a", (("a", None, SUBSCRIBED[0][1]),)),
            [PREPARING, JoinCompleted("g", 1)],
        ),
        (DeleteOffsets(0, "g", (("t", 0), ("u", 0))), (R.SUBSCRIBED, None), []),
    ],
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES.keys())
def test_what_a_group_says(story: list[tuple[Any, Any, list[Any]]]) -> None:
    settings = GroupSettings(members_max=3, initial_delay_ms=0)
    coordinator = GroupCoordinator(settings)
    for step, (command, answer, events) in enumerate(story):
        assert decode_group_command(encode_command(command)) == command
        twin = GroupCoordinator(settings)
        twin.restore(coordinator.snapshot())
        result = coordinator.apply(command)
        assert (result.answer, list(result.events)) == (answer, events), step
        assert twin.apply(command) == result, step
        assert twin.digest() == coordinator.digest(), step


def classic(coordinator: GroupCoordinator) -> ClassicGroup:
    group = coordinator.get("g")
    assert group is not None
    assert isinstance(group.members, ClassicGroup)
    return group.members


def test_heartbeats_are_judged_and_not_logged() -> None:
    coordinator = GroupCoordinator(GroupSettings(initial_delay_ms=0))
    assert coordinator.check_heartbeat("g", "a", None, 1) is R.UNKNOWN_MEMBER
    for command, _, _ in TWO:
        coordinator.apply(command)
    before = coordinator.digest()
    answers = [
        coordinator.check_heartbeat("g", *each)
        for each in (("a", None, 2), ("a", None, 1), ("x", None, 2), ("b", "i", 2))
    ]
    assert answers == [None, R.STALE_GENERATION, R.UNKNOWN_MEMBER, None]
    assert coordinator.digest() == before
    coordinator.apply(join(fresh="c"))
    assert coordinator.check_heartbeat("g", "a", None, 2) is R.REBALANCING


def test_the_first_join_waits_for_others() -> None:
    coordinator = GroupCoordinator(GroupSettings(initial_delay_ms=3_000))
    assert coordinator.apply(join(fresh="a", at=100)).answer == MemberWaits("a")
    assert coordinator.apply(join(fresh="b", at=200)).answer == MemberWaits("b")
    group = classic(coordinator)
    assert group.deadline_ms() == 3_100
    coordinator.apply(CompleteJoin(3_100, "g", 0))
    assert group.joined("a").members == (("a", None, b"r"), ("b", None, b"r"))
    assert group.joined("b").members == ()
    assert group.deadline_ms() is None
    coordinator.apply(sync("a", 1))
    coordinator.apply(join("a", at=4_000))
    assert group.deadline_ms() == 9_000


def test_offsets_age_only_while_nobody_is_there() -> None:
    coordinator = GroupCoordinator(GroupSettings(initial_delay_ms=0, offsets_retention_ms=1_000))
    coordinator.apply(join(fresh="a", at=0))
    coordinator.apply(sync("a", 1))
    coordinator.apply(commit(1, "a", at=10))
    coordinator.apply(ExpireOffsets(50_000))
    group = coordinator.get("g")
    assert group is not None
    assert group.offsets.get(("t", 0)) == CommittedOffset(5, -1, "", 10)
    coordinator.apply(LeaveGroup(60_000, "g", (("a", None),)))
    coordinator.apply(ExpireOffsets(61_000))
    assert coordinator.names() == ["g"]
    coordinator.apply(ExpireOffsets(61_001))
    assert coordinator.names() == []


def test_a_transactions_offsets_count_when_it_commits() -> None:
    coordinator = GroupCoordinator()
    coordinator.apply(commit(-1, "", offset=1))
    group = coordinator.get("g")
    assert group is not None
    for producer, ends in ((7, False), (8, True)):
        coordinator.apply(AdmitGroupTransaction(0, "g", producer, 0))
        coordinator.apply(in_tx(producer, 0, producer))
        assert group.offsets.get(("t", 0), stable=True) is R.UNSTABLE_OFFSETS
        assert group.offsets.get(("t", 0)) == CommittedOffset(1)
        coordinator.apply(EndInGroup(0, "g", producer, 1, commit=ends))
    assert group.offsets.get(("t", 0), stable=True) == CommittedOffset(8)


def test_metadata_is_bounded_one_by_one() -> None:
    coordinator = GroupCoordinator()
    rows = ((("t", 0), CommittedOffset(1, -1, "x" * 4_097)), (("t", 1), CommittedOffset(2)))
    answer = coordinator.apply(CommitOffsets(0, "g", -1, "", rows)).answer
    assert answer == (R.METADATA_TOO_LARGE, None)
    group = coordinator.get("g")
    assert group is not None
    assert group.offsets.get(("t", 0)) is None


def test_who_is_refused_leaves_nothing_behind() -> None:
    coordinator = GroupCoordinator()
    long = CommittedOffset(1, -1, "x" * 5_000)
    refused: list[Any] = [
        join(fresh="a", protocols=()),
        ConsumerHeartbeat(0, "g", "a", 0, assignor="none"),
        CommitOffsets(0, "g", -1, "", ((("t", 0), long),)),
        CommitOffsets(0, "g", 3, "a", ()),
    ]
    for command in refused:
        coordinator.apply(command)
        assert coordinator.names() == [], command
