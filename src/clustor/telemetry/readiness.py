"""Readiness: whether all that a hosted group holds is durable, and a write would be taken.

A group at rest writes nothing for it. Who leads is in touch with a quorum, or it would lead no
more; everything in its log is fsynced there. Who follows has fsynced all that it holds, and its
leader says that it is committed. What waits longer than it may makes a group not ready: a disk or
a quorum stands still. A disk that stops while nobody writes shows with the next write.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Final

import rfc8785


@dataclass(frozen=True, slots=True)
class ReadinessNumbers:
    """How long what a group holds may wait to become durable."""

    unsettled_ms_max: int = 15_000


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
    last_index: int
    """The newest entry that it holds; where it is proven too, nothing waits."""
    refusal: str = ""
    """Why a leader would refuse a small write now."""
    ingest_blocked: bool = False
    quarantine: str = ""
    """How far its repair is, and what was found; empty: its bytes are believed."""

    @property
    def is_settled(self) -> bool:
        return self.has_leader and self.proven_index >= self.last_index


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

    __slots__ = ("led", "proven_index", "proven_ms", "sight", "term")

    def __init__(self, sight: GroupSight) -> None:
        self.term = sight.term
        self.led = sight.leads
        self.proven_index = sight.proven_index
        self.proven_ms: int | None = None
        """When it was last seen to be settled, or to get further."""
        self.sight = sight


class ReadinessWatch:
    """All groups of one node. `look` is called every now and then; it writes nothing."""

    def __init__(
        self,
        numbers: ReadinessNumbers = ReadinessNumbers(),  # noqa: B008 — frozen
    ) -> None:
        self.numbers = numbers
        self._groups: dict[int, _Watched] = {}

    def look(self, sights: list[GroupSight], now_ms: int) -> None:
        """Take what every hosted group looks like now."""
        gone = self._groups.keys() - {sight.partition_id for sight in sights}
        for partition_id in gone:
            del self._groups[partition_id]
        for sight in sights:
            self._see(sight, now_ms)

    def _see(self, sight: GroupSight, now_ms: int) -> None:
        watched = self._groups.get(sight.partition_id)
        if watched is None:
            watched = self._groups[sight.partition_id] = _Watched(sight)
        watched.sight = sight
        if sight.term != watched.term or sight.leads != watched.led:
            _begin_anew(watched, sight)
        moved = sight.proven_index > watched.proven_index
        if moved:
            watched.proven_index = sight.proven_index
        if moved or sight.is_settled:
            watched.proven_ms = now_ms

    def readiness(self, hosted: Iterable[int], now_ms: int) -> list[GroupReadiness]:
        """Judge every hosted group, in the order of their ids; who was never seen is not ready."""
        limit_ms = self.numbers.unsettled_ms_max
        return [self._judged(partition, limit_ms, now_ms) for partition in sorted(hosted)]

    def _judged(self, partition: int, limit_ms: int, now_ms: int) -> GroupReadiness:
        watched = self._groups.get(partition)
        if watched is not None:
            return _judge(watched, limit_ms, now_ms)
        unseen = "nobody has looked at it yet"
        return GroupReadiness(partition, NotReady.NO_PROOF, unseen, None, leads=False)


def _begin_anew(watched: _Watched, sight: GroupSight) -> None:
    """Begin a term, or another role in it.

    A leader's mark begins at nothing and passes every older one with its term's first entry.
    A follower's is moved by leaders alone, but one that led knows more than a quorum told it.
    """
    if watched.led and not sight.leads:
        watched.proven_index = sight.proven_index
    watched.term, watched.led = sight.term, sight.leads


def _judge(watched: _Watched, limit_ms: int, now_ms: int) -> GroupReadiness:
    sight = watched.sight
    age_ms = None if watched.proven_ms is None else now_ms - watched.proven_ms
    reason, detail = _reason(sight, age_ms, limit_ms)
    return GroupReadiness(sight.partition_id, reason, detail, age_ms, sight.leads)


def _reason(sight: GroupSight, age_ms: int | None, limit_ms: int) -> tuple[NotReady | None, str]:
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
    if sight.leads and sight.refusal:
        return NotReady.WRITE_REFUSED, sight.refusal
    if age_ms is None:
        return NotReady.NO_PROOF, "what it holds was not seen to be durable yet"
    if age_ms > limit_ms:
        return NotReady.PROOF_TOO_OLD, f"what it holds has not become durable for {age_ms} ms"
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
    body: ReadyBody, groups: list[GroupReadiness], numbers: ReadinessNumbers
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
        "proof_age_ms_max": numbers.unsettled_ms_max,
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
