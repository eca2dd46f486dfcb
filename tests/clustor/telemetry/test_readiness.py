"""Ready is who saw a write become durable on a quorum a moment ago; idle groups write few."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from clustor.telemetry import (
    CanaryNumbers,
    CanaryWatch,
    GroupReadiness,
    GroupSight,
    NotReady,
    ReadyBody,
    readiness_digest,
    ready_body,
)

NUMBERS = CanaryNumbers(period_ms=1_000, pace_ms=10)
LEADS = GroupSight(
    7,
    3,
    leads=True,
    has_leader=True,
    ready=True,
    failed=None,
    rejoining=False,
    proven_index=0,
)
FOLLOWS = replace(LEADS, leads=False)


class Story:
    """One group, looked at every 100 ms; a canary it writes is durable after `fsync_ms`."""

    def __init__(self, sight: GroupSight, *, fsync_ms: int | None = 0) -> None:
        self.watch = CanaryWatch(NUMBERS)
        self.sight = sight
        self.fsync_ms = fsync_ms  # None: never
        self.now_ms = 10_000
        self.written: list[int] = []
        self._due: list[int] = []

    def run(self, duration_ms: int) -> None:
        until_ms = self.now_ms + duration_ms
        while self.now_ms < until_ms:
            self.now_ms += 100
            for at_ms in [each for each in self._due if each <= self.now_ms]:
                self._due.remove(at_ms)
                self.wrote()
            if self.watch.look([self.sight], self.now_ms):
                self.written.append(self.now_ms)
                self.watch.wrote(7)
                if self.fsync_ms is not None:
                    self._due.append(self.now_ms + self.fsync_ms)

    def wrote(self) -> None:
        self.sight = replace(self.sight, proven_index=self.sight.proven_index + 1)

    @property
    def verdict(self) -> GroupReadiness:
        return self.watch.readiness([7], self.now_ms)[0]


def test_an_idle_leader_writes_once_a_period_and_stays_ready() -> None:
    story = Story(LEADS)
    story.run(20_000)
    assert story.verdict.ready
    assert 15 <= len(story.written) <= 20
    assert story.watch.written_total == len(story.written)


def test_a_busy_leader_writes_none() -> None:
    story = Story(LEADS)
    story.run(300)
    before = len(story.written)
    for _ in range(50):
        story.wrote()
        story.run(500)
    assert len(story.written) == before
    assert story.verdict.ready


def test_a_follower_never_writes_and_lives_by_what_its_leader_tells() -> None:
    story = Story(FOLLOWS)
    story.run(5_000)
    assert (story.written, story.verdict.reason) == ([], NotReady.NO_PROOF)
    story.wrote()
    story.run(100)
    assert story.verdict.ready
    story.run(2_900)
    assert story.verdict.ready
    story.run(200)
    assert story.verdict.reason is NotReady.PROOF_TOO_OLD


def test_a_leader_whose_quorum_stopped_to_fsync_is_not_ready_any_more() -> None:
    story = Story(LEADS)
    story.run(2_000)
    assert story.verdict.ready
    story.fsync_ms = None
    story.run(NUMBERS.age_ms_max(1) + 1_500)
    assert story.verdict.reason is NotReady.PROOF_TOO_OLD
    story.wrote()
    story.run(100)
    assert story.verdict.ready


def test_canaries_that_are_not_heard_of_are_not_piled_up() -> None:
    story = Story(LEADS, fsync_ms=None)
    story.run(1_000)
    story.wrote()
    story.run(100)
    story.written.clear()
    story.run(20_000)
    assert len(story.written) <= 20


def test_an_index_of_an_older_term_proves_nothing_about_a_new_leader() -> None:
    """A leader's mark begins at nothing in its term; a follower's old mark is no news."""
    watch = CanaryWatch(NUMBERS)
    watch.look([replace(FOLLOWS, proven_index=50)], 1_000)
    watch.look([replace(LEADS, term=4, proven_index=0)], 1_100)
    assert watch.readiness([7], 1_100)[0].reason is NotReady.NO_PROOF
    watch.look([replace(LEADS, term=4, proven_index=51)], 1_200)
    assert watch.readiness([7], 1_200)[0].ready


def test_a_leader_that_stepped_down_is_not_proven_by_its_own_commit_index() -> None:
    watch = CanaryWatch(NUMBERS)
    watch.look([replace(LEADS, proven_index=5)], 1_000)
    watch.look([replace(FOLLOWS, term=4, proven_index=9)], 1_100)
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


def test_a_refused_canary_says_why_and_a_durable_write_forgets_it() -> None:
    story = Story(LEADS, fsync_ms=None)
    story.run(200)
    story.watch.refused(7, "MembershipUnacknowledged")
    assert story.verdict.reason is NotReady.WRITE_REFUSED
    assert story.verdict.detail == "MembershipUnacknowledged"
    story.wrote()
    story.run(100)
    assert story.verdict.ready


@pytest.mark.parametrize("seed", range(20))
def test_a_node_of_many_groups_spreads_its_canaries(seed: int) -> None:
    """Never more than the pace at once, nobody starves, and all stay ready."""
    rng = random.Random(seed)
    count = rng.randrange(50, 400)
    watch = CanaryWatch(NUMBERS)
    proven = dict.fromkeys(range(1, count + 1), 0)
    now_ms, most, written = 0, 0, 0
    steps = 6 * NUMBERS.period_for(count) // 100
    for step in range(steps):
        now_ms += 100
        sights = [replace(LEADS, partition_id=p, proven_index=i) for p, i in proven.items()]
        chosen = watch.look(sights, now_ms)
        most, written = max(most, len(chosen)), written + len(chosen)
        for partition in chosen:
            watch.wrote(partition)
            proven[partition] += 1
        if step > steps // 2:
            assert all(each.ready for each in watch.readiness(proven, now_ms)), f"seed {seed}"
    assert most <= 1_000 // NUMBERS.pace_ms
    assert written <= steps * 100 // NUMBERS.pace_ms + 1_000 // NUMBERS.pace_ms
    assert min(proven.values()) >= 3, f"seed {seed}"


def test_nobody_starves_while_no_canary_becomes_durable() -> None:
    """More groups ask than the pace lets through: who waited longest goes first."""
    watch, asked = CanaryWatch(NUMBERS), dict.fromkeys(range(1, 301), 0)
    sights = [replace(LEADS, partition_id=partition) for partition in asked]
    for now_ms in range(0, 10_000, 100):
        for partition in watch.look(sights, now_ms):
            asked[partition] += 1
    assert max(asked.values()) - min(asked.values()) <= 1
    assert min(asked.values()) >= 2


def test_a_group_that_left_is_forgotten() -> None:
    watch = CanaryWatch(NUMBERS)
    watch.look([LEADS, replace(LEADS, partition_id=8)], 1_000)
    watch.look([replace(LEADS, partition_id=8)], 1_100)
    assert [each.partition_id for each in watch.readiness([8], 1_100)] == [8]
    assert watch.readiness([7], 1_100)[0].detail == "nobody has looked at it yet"


def test_a_group_that_nobody_looked_at_is_not_ready() -> None:
    """Else a node would be ready before its first look."""
    (verdict,) = CanaryWatch(NUMBERS).readiness([7], 1_000)
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
