"""Groups of KIP-848: the server assigns, and no partition changes hands before it was given up."""

from __future__ import annotations

import random
from typing import Any

import pytest

from quantum.broker.streams import (
    CommitOffsets,
    CommittedOffset,
    ConsumerHeartbeat,
    GroupCoordinator,
    GroupSettings,
    HeartbeatAnswer,
    JoinGroup,
    LeaveGroup,
    SetPartitionCounts,
    StreamRefusal,
    decode_group_command,
    encode_command,
)
from quantum.broker.streams.assignors import ASSIGNORS, assign_range, assign_uniform

R = StreamRefusal


def parts(*numbers: int) -> tuple[tuple[str, int], ...]:
    return tuple(("t", each) for each in numbers)


def beat(member: str, epoch: int, owned: Any = None, **more: Any) -> ConsumerHeartbeat:
    if epoch == 0:
        more = {"topics": ("t",)} | more
        owned = () if owned is None else owned
    return ConsumerHeartbeat(0, "g", member, epoch, owned=owned, **more)


def told(member: str, epoch: int, *numbers: int, nothing: bool = False) -> HeartbeatAnswer:
    return HeartbeatAnswer(member, epoch, None if nothing else parts(*numbers))


FOUR = (SetPartitionCounts(0, (("t", 4),)), None)
ALONE = [FOUR, (beat("a", 0), told("a", 1, 0, 1, 2, 3))]
TWO = [
    *ALONE,
    (beat("b", 0), told("b", 2)),
    (beat("a", 1), told("a", 1, 0, 1)),
    (beat("b", 2), told("b", 2, nothing=True)),
    (beat("a", 1, parts(0, 1)), told("a", 2, nothing=True)),
    (beat("b", 2), told("b", 2, 2, 3)),
]


STORIES: dict[str, list[tuple[Any, Any]]] = {
    "one alone": ALONE,
    "what one must give up, the other gets after that": TWO,
    "who did not give up keeps the old epoch": [
        *ALONE,
        (beat("b", 0), told("b", 2)),
        (beat("a", 1), told("a", 1, 0, 1)),
        (beat("a", 1, parts(0, 1, 2, 3)), told("a", 1, 0, 1)),
        (beat("b", 2), told("b", 2, nothing=True)),
    ],
    "who leaves gives all up": [
        *TWO,
        (beat("a", -1), told("a", -1, nothing=True)),
        (beat("b", 2), told("b", 3, 0, 1, 2, 3)),
        (beat("a", 2), R.UNKNOWN_MEMBER),
    ],
    "another epoch is fenced, and a lost answer is not": [
        *TWO,
        (beat("a", 3), R.STALE_MEMBER_EPOCH),
        (beat("a", 3, parts(0, 1)), R.STALE_MEMBER_EPOCH),
        (beat("a", 1), R.STALE_MEMBER_EPOCH),
        (beat("a", 1, parts(0, 1)), told("a", 2, nothing=True)),
        (beat("a", 1, parts(0, 1, 2)), R.STALE_MEMBER_EPOCH),
    ],
    "topics that grow or go": [
        *ALONE,
        (SetPartitionCounts(0, (("t", 5), ("u", 9))), None),
        (beat("a", 1), told("a", 2, 0, 1, 2, 3, 4)),
        (SetPartitionCounts(0, (("t", 0),)), None),
        (beat("a", 2), told("a", 2)),
        (beat("a", 2, ()), told("a", 3, nothing=True)),
    ],
    "a static member comes back to what it had": [
        FOUR,
        (beat("a", 0, instance_id="i"), told("a", 1, 0, 1, 2, 3)),
        (beat("b", 0, instance_id="i"), R.UNRELEASED_INSTANCE),
        (beat("a", -2), R.FENCED_INSTANCE),
        (beat("a", -2, instance_id="i"), told("a", -2, nothing=True)),
        (beat("b", 0, instance_id="i"), told("b", 1, 0, 1, 2, 3)),
        (beat("a", 1, instance_id="i"), R.UNKNOWN_MEMBER),
    ],
    "assignors by name": [
        FOUR,
        (beat("a", 0, assignor="none"), R.UNKNOWN_ASSIGNOR),
        (beat("a", 0, assignor="range"), told("a", 1, 0, 1, 2, 3)),
    ],
    "the two protocols do not mix while anybody is there": [
        *ALONE,
        (JoinGroup(0, "g", "", "x", 1, 1, "consumer", (("range", b""),)), R.INCONSISTENT_PROTOCOL),
        (LeaveGroup(0, "g", (("a", None),)), (R.UNKNOWN_MEMBER,)),
    ],
    "offsets are for members under their epoch": [
        *ALONE,
        (CommitOffsets(0, "g", 1, "a", ((("t", 0), CommittedOffset(1)),)), (None,)),
        (CommitOffsets(0, "g", 0, "a", ((("t", 0), CommittedOffset(1)),)), R.STALE_MEMBER_EPOCH),
        (CommitOffsets(0, "g", 1, "b", ((("t", 0), CommittedOffset(1)),)), R.UNKNOWN_MEMBER),
    ],
    "a full group takes nobody": [
        *TWO,
        (beat("c", 0), R.GROUP_FULL),
    ],
    "nobody is known before a group is there": [(beat("a", 4), R.UNKNOWN_MEMBER)],
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES.keys())
def test_what_a_consumer_group_says(story: list[tuple[Any, Any]]) -> None:
    settings = GroupSettings(members_max=2)
    coordinator = GroupCoordinator(settings)
    for step, (command, answer) in enumerate(story):
        assert decode_group_command(encode_command(command)) == command
        twin = GroupCoordinator(settings)
        twin.restore(coordinator.snapshot())
        assert coordinator.apply(command).answer == answer, step
        assert twin.apply(command).answer == answer, step
        assert twin.digest() == coordinator.digest(), step


def naive_fair(loads: list[int]) -> bool:
    return max(loads) - min(loads) <= 1


@pytest.mark.parametrize("name", ASSIGNORS)
@pytest.mark.parametrize("seed", range(60))
def test_every_partition_has_one_reader_that_wants_it(name: str, seed: int) -> None:
    rng = random.Random(seed)
    counts = {f"t{nth}": rng.randint(0, 9) for nth in range(4)}
    names = [f"m{nth}" for nth in range(rng.randint(1, 6))]
    subscriptions = {
        each: frozenset(rng.sample(sorted(counts), rng.randint(0, 4))) for each in names
    }
    current: dict[str, set[tuple[str, int]]] = {"gone": {("t0", 0)}}
    result = ASSIGNORS[name](subscriptions, counts, current)
    wanted = {
        (topic, n)
        for topic in counts
        if any(topic in each for each in subscriptions.values())
        for n in range(counts[topic])
    }
    given = [part for each in result.values() for part in each]
    assert sorted(given) == sorted(wanted), seed
    assert all(part[0] in subscriptions[m] for m, rows in result.items() for part in rows), seed
    shuffled = dict(sorted(subscriptions.items(), key=lambda _: rng.random()))
    assert ASSIGNORS[name](shuffled, counts, current) == result, "order must not count"


@pytest.mark.parametrize("seed", range(60))
def test_the_uniform_assignor_is_fair_and_moves_no_more_than_it_must(seed: int) -> None:
    rng = random.Random(seed)
    counts = {"t": rng.randint(1, 30), "u": rng.randint(1, 30)}
    topics = frozenset(counts)
    members = {f"m{nth}": topics for nth in range(rng.randint(1, 6))}
    before = assign_uniform(members, counts, {})
    assert naive_fair([len(each) for each in before.values()])
    assert assign_uniform(members, counts, before) == before
    more = members | {"new": topics}
    after = assign_uniform(more, counts, before)
    assert naive_fair([len(each) for each in after.values()])
    moved = sum(len(before[each] - after[each]) for each in members)
    assert moved == len(after["new"]), "what moves, moves to the one who came"


def test_ranges_are_next_to_each_other() -> None:
    subscriptions = {"a": frozenset({"t"}), "b": frozenset({"t", "u"})}
    result = assign_range(subscriptions, {"t": 5, "u": 2}, {})
    assert sorted(result["a"]) == [("t", 0), ("t", 1), ("t", 2)]
    assert sorted(result["b"]) == [("t", 3), ("t", 4), ("u", 0), ("u", 1)]
