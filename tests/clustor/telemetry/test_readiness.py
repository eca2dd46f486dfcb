"""Ready is where nothing waits too long to become durable; a group at rest writes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clustor.telemetry import (
    GroupReadiness,
    GroupSight,
    NotReady,
    ReadinessNumbers,
    ReadinessWatch,
    ReadyBody,
    readiness_digest,
    ready_body,
)

LIMIT_MS = 3_000
NUMBERS = ReadinessNumbers(unsettled_ms_max=LIMIT_MS)
LEADS = GroupSight(
    7,
    3,
    leads=True,
    has_leader=True,
    ready=True,
    failed=None,
    rejoining=False,
    proven_index=5,
    last_index=5,
)
FOLLOWS = replace(LEADS, leads=False)


class Story:
    """One group, looked at every 100 ms."""

    def __init__(self, sight: GroupSight) -> None:
        self.watch = ReadinessWatch(NUMBERS)
        self.sight = sight
        self.now_ms = 10_000

    def run(self, duration_ms: int) -> None:
        until_ms = self.now_ms + duration_ms
        while self.now_ms < until_ms:
            self.now_ms += 100
            self.watch.look([self.sight], self.now_ms)

    def write(self, *, durable: bool = True) -> None:
        last = self.sight.last_index + 1
        proven = last if durable else self.sight.proven_index
        self.sight = replace(self.sight, last_index=last, proven_index=proven)

    @property
    def verdict(self) -> GroupReadiness:
        return self.watch.readiness([7], self.now_ms)[0]


@pytest.mark.parametrize("sight", [LEADS, FOLLOWS], ids=["leads", "follows"])
def test_a_group_at_rest_stays_ready_however_long_it_rests(sight: GroupSight) -> None:
    story = Story(sight)
    story.run(100 * LIMIT_MS)
    assert story.verdict.ready


@pytest.mark.parametrize("sight", [LEADS, FOLLOWS], ids=["leads", "follows"])
def test_what_does_not_become_durable_in_time_makes_a_group_not_ready(sight: GroupSight) -> None:
    story = Story(sight)
    story.run(2_000)
    story.write(durable=False)
    story.run(LIMIT_MS)
    assert story.verdict.ready
    story.run(100)
    assert story.verdict.reason is NotReady.PROOF_TOO_OLD
    story.write()
    story.run(100)
    assert story.verdict.ready


def test_a_busy_group_that_gets_further_is_ready_though_something_always_waits() -> None:
    story = Story(LEADS)
    for _ in range(50):
        story.write(durable=False)
        story.sight = replace(story.sight, proven_index=story.sight.last_index - 1)
        story.run(500)
    assert story.verdict.ready


def test_a_new_leader_is_ready_once_its_first_entry_is_durable() -> None:
    """A leader's mark begins at nothing in its term; a follower's old mark is no news."""
    watch = ReadinessWatch(NUMBERS)
    watch.look([replace(FOLLOWS, proven_index=49, last_index=50)], 1_000)
    watch.look([replace(LEADS, term=4, proven_index=0, last_index=51)], 1_100)
    assert watch.readiness([7], 1_100)[0].reason is NotReady.NO_PROOF
    watch.look([replace(LEADS, term=4, proven_index=51, last_index=51)], 1_200)
    assert watch.readiness([7], 1_200)[0].ready


def test_a_leader_that_stepped_down_is_not_proven_by_its_own_commit_index() -> None:
    watch = ReadinessWatch(NUMBERS)
    watch.look([replace(LEADS, proven_index=5, last_index=9)], 1_000)
    watch.look([replace(FOLLOWS, term=4, proven_index=8, last_index=9)], 1_100)
    assert watch.readiness([7], 1_100)[0].reason is NotReady.NO_PROOF


BAD = {
    "failed": ({"failed": "the disk failed"}, NotReady.FAILED),
    "mending": ({"ready": False}, NotReady.MENDING),
    "rejoining": ({"rejoining": True}, NotReady.REJOINING),
    "no leader": ({"leads": False, "has_leader": False}, NotReady.NO_LEADER),
    "blocked by an operator": ({"ingest_blocked": True}, NotReady.INGEST_BLOCKED),
}


@pytest.mark.parametrize(("changes", "reason"), BAD.values(), ids=BAD.keys())
def test_every_other_cause_beats_a_fresh_proof(
    changes: dict[str, object], reason: NotReady
) -> None:
    story = Story(LEADS)
    story.run(1_000)
    assert story.verdict.ready
    story.sight = replace(story.sight, **changes)  # type: ignore[arg-type]
    story.run(100)
    assert story.verdict.reason is reason


def test_a_leader_that_would_refuse_a_write_says_why() -> None:
    story = Story(replace(LEADS, refusal="MembershipUnacknowledged"))
    story.run(200)
    assert story.verdict.reason is NotReady.WRITE_REFUSED
    assert story.verdict.detail == "MembershipUnacknowledged"
    story.sight = LEADS
    story.run(100)
    assert story.verdict.ready


def test_a_group_that_left_is_forgotten() -> None:
    watch = ReadinessWatch(NUMBERS)
    watch.look([LEADS, replace(LEADS, partition_id=8)], 1_000)
    watch.look([replace(LEADS, partition_id=8)], 1_100)
    assert [each.partition_id for each in watch.readiness([8], 1_100)] == [8]
    assert watch.readiness([7], 1_100)[0].detail == "nobody has looked at it yet"


def test_a_group_that_nobody_looked_at_is_not_ready() -> None:
    """Else a node would be ready before its first look."""
    (verdict,) = ReadinessWatch(NUMBERS).readiness([7], 1_000)
    assert verdict.reason is NotReady.NO_PROOF


def verdict(partition: int, reason: NotReady | None = None) -> GroupReadiness:
    return GroupReadiness(partition, reason, "", 5, leads=True)


def test_the_body_is_ready_only_if_every_group_is() -> None:
    body = ReadyBody(1, "Serving", {"definition_bundle_id": None}, {"definition_bundle_id": "why"})
    ready, content = ready_body(body, [verdict(1), verdict(2)], NUMBERS)
    assert ready and content["partition_ready_ratio"] == 1.0
    groups = [verdict(1), verdict(2, NotReady.NO_LEADER)]
    ready, content = ready_body(body, groups, NUMBERS)
    assert not ready
    assert content["partition_ready_ratio"] == 0.5
    assert content["reasons"] == {"NoLeader": 1}
    assert content["absent"] == {"definition_bundle_id": "why"}
    assert not ready_body(ReadyBody(1, "Stopping", {}, {}), [verdict(1)], NUMBERS)[0]


def test_what_is_not_ready_is_listed_up_to_a_bound() -> None:
    groups = [verdict(n, NotReady.NO_PROOF) for n in range(1, 101)]
    _, content = ready_body(ReadyBody(1, "Serving", {}, {}), groups, NUMBERS)
    shown = content["not_ready"]
    assert isinstance(shown, list) and len(shown) == 32
    assert content["truncated_ids_count"] == 68


def test_the_digest_is_of_verdicts_not_of_times() -> None:
    one = [verdict(1), verdict(2, NotReady.NO_LEADER)]
    other = [replace(one[1], proof_age_ms=99), replace(one[0], leads=False)]
    assert readiness_digest(one) == readiness_digest(other)
    assert readiness_digest(one) != readiness_digest([verdict(1), verdict(2)])
