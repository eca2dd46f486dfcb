"""Readiness: whether a write of each hosted group became durable on a quorum a moment ago.

A write of a client proves as much as one of ours, so a busy group writes no canary. An idle one
writes a no-op entry once a period: it is fsynced by a quorum like every entry, and no machine
sees it. Who leads proves by `wal_committed_index`; who follows by how far it has fsynced what
its leader says is committed, so that a follower whose own disk stands still is not ready either.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Final

import rfc8785


@dataclass(frozen=True, slots=True)
class CanaryNumbers:
    """How often an idle group proves itself, and how old a proof may be.

    Each canary costs a quorum two fsyncs, so a node with many groups spreads them: it writes no
    more than one in `pace_ms`, and the period grows with the number of its groups.
    """

    period_ms: int = 5_000
    pace_ms: int = 20
    age_periods_max: int = 3
    led_ms_min: int = 100
    """A new leader's first entry is a proof by itself: it gets so long before a canary."""
    retry_ms: int = 1_000
    """So long after a canary that was not heard of the next one is written."""

    def period_for(self, groups: int) -> int:
        return max(self.period_ms, self.pace_ms * groups)

    def age_ms_max(self, groups: int) -> int:
        """Return how old a proof may be, here and where another node leads."""
        return self.age_periods_max * self.period_for(groups)


class NotReady(StrEnum):
    """Why a group is not ready; the first that holds is named."""

    FAILED = "Failed"
    MENDING = "Mending"
    REJOINING = "Rejoining"
    QUARANTINED = "Quarantined"
    NO_LEADER = "NoLeader"
    INGEST_BLOCKED = "IngestBlocked"
    WRITE_REFUSED = "WriteRefused"
    NO_PROOF = "NoProofYet"
    PROOF_TOO_OLD = "ProofTooOld"


@dataclass(slots=True)
class GroupSight:
    """What one look at a group sees."""

    partition_id: int
    term: int
    leads: bool
    has_leader: bool
    ready: bool  # its replica has mended what a start mends
    failed: str | None
    rejoining: bool
    proven_index: int
    """A leader's `wal_committed_index`; a follower's commit index as far as it is fsynced here."""
    ingest_blocked: bool = False
    quarantine: str = ""
    """How far its repair is, and what was found; empty: its bytes are believed."""


@dataclass(frozen=True, slots=True)
class GroupReadiness:
    """The verdict on one group."""

    partition_id: int
    reason: NotReady | None
    detail: str
    proof_age_ms: int | None
    leads: bool

    @property
    def ready(self) -> bool:
        return self.reason is None


class _Watched:
    """What is remembered of one group."""

    __slots__ = ("asked_ms", "led", "proven_index", "proven_ms", "refused", "sight", "term")

    def __init__(self) -> None:
        self.term = -1
        self.led = False
        self.proven_index = 0
        self.proven_ms: int | None = None
        self.asked_ms = 0
        self.refused = ""
        self.sight: GroupSight | None = None


class CanaryWatch:
    """All groups of one node. `look` is called every now and then; it says who writes a canary."""

    def __init__(self, numbers: CanaryNumbers = CanaryNumbers()) -> None:  # noqa: B008 — frozen
        self.numbers = numbers
        self._groups: dict[int, _Watched] = {}
        self._next_ms = 0
        self.written_total = 0

    def look(self, sights: list[GroupSight], now_ms: int) -> list[int]:
        """Take what every hosted group looks like now; return which leaders write a canary."""
        gone = self._groups.keys() - {sight.partition_id for sight in sights}
        for partition_id in gone:
            del self._groups[partition_id]
        due = [s.partition_id for s in sights if self._see(s, len(sights), now_ms)]
        return self._paced(due, now_ms)

    def _see(self, sight: GroupSight, groups: int, now_ms: int) -> bool:
        watched = self._groups.get(sight.partition_id)
        if watched is None:
            watched = self._groups[sight.partition_id] = _Watched()
            watched.term, watched.led, watched.asked_ms = sight.term, sight.leads, now_ms
            watched.proven_index = sight.proven_index
        watched.sight = sight
        if sight.term != watched.term or sight.leads != watched.led:
            self._begin_anew(watched, sight, now_ms)
        if sight.proven_index > watched.proven_index:
            watched.proven_index, watched.proven_ms = sight.proven_index, now_ms
            watched.refused = ""
        if not sight.leads or not sight.ready or sight.failed is not None:
            return False
        numbers, period_ms = self.numbers, self.numbers.period_for(groups)
        idle = watched.proven_ms is None or now_ms - watched.proven_ms >= period_ms
        pause_ms = numbers.led_ms_min if watched.proven_ms is None else numbers.retry_ms
        return idle and now_ms - watched.asked_ms >= pause_ms

    @staticmethod
    def _begin_anew(watched: _Watched, sight: GroupSight, now_ms: int) -> None:
        """Begin a term, or another role in it.

        A leader's mark begins at nothing and passes every older one with its term's first entry.
        A follower's is moved by leaders alone, but one that led knows more than a quorum told it.
        """
        if watched.led and not sight.leads:
            watched.proven_index = sight.proven_index
        watched.term, watched.led = sight.term, sight.leads
        watched.asked_ms, watched.refused = now_ms, ""

    def _paced(self, due: list[int], now_ms: int) -> list[int]:
        """Let those go that waited longest, no more at once than the pace allows."""
        if not due:
            return []
        self._next_ms = max(self._next_ms, now_ms - 1_000)
        count = max(0, (now_ms - self._next_ms) // self.numbers.pace_ms)
        due.sort(key=lambda each: self._groups[each].asked_ms)
        chosen = due[:count]
        self._next_ms += self.numbers.pace_ms * len(chosen)
        for partition_id in chosen:
            self._groups[partition_id].asked_ms = now_ms
        return chosen

    def wrote(self, partition_id: int) -> None:
        """A canary is in the leader's log."""
        self.written_total += 1
        self._groups[partition_id].refused = ""

    def refused(self, partition_id: int, reason: str) -> None:
        """The group would not take a write, for this reason."""
        self._groups[partition_id].refused = reason

    def readiness(self, hosted: Iterable[int], now_ms: int) -> list[GroupReadiness]:
        """Judge every hosted group, in the order of their ids; who was never seen is not ready."""
        limit_ms = self.numbers.age_ms_max(len(self._groups))
        return [self._judged(partition, limit_ms, now_ms) for partition in sorted(hosted)]

    def _judged(self, partition: int, limit_ms: int, now_ms: int) -> GroupReadiness:
        watched = self._groups.get(partition)
        if watched is not None and watched.sight is not None:
            return _judge(watched, limit_ms, now_ms)
        unseen = "nobody has looked at it yet"
        return GroupReadiness(partition, NotReady.NO_PROOF, unseen, None, leads=False)


def _judge(watched: _Watched, limit_ms: int, now_ms: int) -> GroupReadiness:
    sight = watched.sight
    assert sight is not None
    age_ms = None if watched.proven_ms is None else now_ms - watched.proven_ms
    reason, detail = _reason(watched, sight, age_ms, limit_ms)
    return GroupReadiness(sight.partition_id, reason, detail, age_ms, sight.leads)


def _reason(
    watched: _Watched, sight: GroupSight, age_ms: int | None, limit_ms: int
) -> tuple[NotReady | None, str]:
    if sight.quarantine:
        return NotReady.QUARANTINED, sight.quarantine
    if sight.failed is not None:
        return NotReady.FAILED, sight.failed
    if not sight.ready:
        return NotReady.MENDING, "its first plan is not durable yet"
    if sight.rejoining:
        return NotReady.REJOINING, "its data was lost: it has no vote until it is a member anew"
    if not sight.has_leader:
        return NotReady.NO_LEADER, "no replica leads it, as far as this node knows"
    if sight.leads and sight.ingest_blocked:
        return NotReady.INGEST_BLOCKED, "an operator's hard block refuses every write"
    if sight.leads and watched.refused:
        return NotReady.WRITE_REFUSED, watched.refused
    if age_ms is None:
        return NotReady.NO_PROOF, "no write of it was seen to become durable yet"
    if age_ms > limit_ms:
        return NotReady.PROOF_TOO_OLD, f"the last durable write was {age_ms} ms ago"
    return None, ""


GROUPS_SHOWN_MAX: Final = 32


@dataclass(slots=True)
class ReadyBody:
    """What `/readyz` says (§8.2, §13.1). A member that is None has its reason in `absent`."""

    node_id: int
    mode: str
    members: dict[str, object]
    absent: dict[str, str]


def ready_body(
    body: ReadyBody, groups: list[GroupReadiness], numbers: CanaryNumbers
) -> tuple[bool, dict[str, object]]:
    """Judge a node by its groups; return whether it is ready, and the whole body."""
    waiting = [group for group in groups if not group.ready]
    reasons: dict[str, int] = {}
    for group in waiting:
        reasons[str(group.reason)] = reasons.get(str(group.reason), 0) + 1
    ready = not waiting and body.mode == "Serving"
    return ready, {
        "ready": ready,
        "node_id": body.node_id,
        "mode": body.mode,
        "partitions": len(groups),
        "partition_ready_ratio": _ratio(len(groups) - len(waiting), len(groups)),
        "readiness_digest": readiness_digest(groups),
        "canary_period_ms": numbers.period_for(len(groups)),
        "proof_age_ms_max": numbers.age_ms_max(len(groups)),
        "reasons": reasons,
        "not_ready": [_row(group) for group in waiting[:GROUPS_SHOWN_MAX]],
        "truncated_ids_count": max(0, len(waiting) - GROUPS_SHOWN_MAX),
        **body.members,
        "absent": body.absent,
    }


def _row(group: GroupReadiness) -> dict[str, object]:
    return {
        "partition_id": group.partition_id,
        "reason": group.reason,
        "detail": group.detail,
        "proof_age_ms": group.proof_age_ms,
        "leads": group.leads,
    }


def _ratio(part: int, whole: int) -> float:
    return 1.0 if whole == 0 else round(part / whole, 6)


def readiness_digest(groups: list[GroupReadiness]) -> str:
    """Digest the verdicts alone: two nodes that see the same agree, whatever the time is."""
    rows = [
        {"partition_id": str(group.partition_id), "reason": str(group.reason or "Ready")}
        for group in sorted(groups, key=lambda each: each.partition_id)
    ]
    return "0x" + sha256(rfc8785.dumps(rows)).hexdigest()
