"""Fetch sessions (KIP-227): a client says what changed in what it wants, and hears what changed.

A session remembers the partitions of a client and what it was last told of each. Who has no session
says everything each time. Sessions are bounded: where there is no room and nobody is idle long
enough to be put out, none is made, and the client goes on without.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from quantum.protocols.kafka.codec import KafkaCode

FINAL_EPOCH: Final = -1
INITIAL_EPOCH: Final = 0
NO_SESSION: Final = 0
_EPOCH_MAX: Final = (1 << 31) - 1

FetchKey = tuple[bytes, int]
"""A topic, by its name or the 16 bytes of its id as the request has it, and a partition."""


@dataclass(slots=True)
class WantedPartition:
    """What a client wants of one partition, and what it was last told of it."""

    fetch_offset: int
    bytes_max: int
    leader_epoch: int = -1
    last_fetched_epoch: int = -1
    told_high_watermark: int = -1
    told_log_start: int = -1


@dataclass(slots=True)
class FetchedFacts:
    """What there is to say of one partition; `has_records` and `error` are always said."""

    high_watermark: int
    log_start_offset: int
    has_records: bool
    error: int = 0


@dataclass(slots=True)
class _Session:
    epoch: int
    partitions: OrderedDict[FetchKey, WantedPartition]
    used_ms: int


@dataclass(slots=True)
class FetchPlan:
    """What is to be read for one request, in this order; `error` is for the whole request.

    `session_id` is said in the answer; 0 is 'no session'.
    """

    error: KafkaCode = KafkaCode.none
    session_id: int = NO_SESSION
    partitions: OrderedDict[FetchKey, WantedPartition] = field(default_factory=OrderedDict)
    incremental: bool = False


class FetchSessions:
    """The sessions of one tenant on one node. Chance enters by `draw_id`: ids are not guessed."""

    def __init__(
        self,
        draw_id: Callable[[], int],
        *,
        sessions_max: int = 1_000,
        partitions_max: int = 100_000,
        idle_ms_min: int = 120_000,
    ) -> None:
        self._draw_id = draw_id
        self._sessions_max = sessions_max
        self._partitions_max = partitions_max
        self._idle_ms_min = idle_ms_min
        self._sessions: OrderedDict[int, _Session] = OrderedDict()  # least recently used first
        self._held = 0  # partitions of all sessions

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        return self._held

    def plan(
        self,
        session_id: int,
        epoch: int,
        wanted: Iterable[tuple[FetchKey, WantedPartition]],
        forgotten: Iterable[FetchKey],
        now_ms: int,
    ) -> FetchPlan:
        """Decide what a request is about, and remember what it says."""
        if epoch in {FINAL_EPOCH, INITIAL_EPOCH}:
            self._close(session_id)
            partitions = OrderedDict(wanted)
            fresh = NO_SESSION
            if epoch == INITIAL_EPOCH:
                fresh = self._open(partitions.copy(), now_ms)
            return FetchPlan(session_id=fresh, partitions=partitions)
        session = self._sessions.get(session_id)
        if session is None:
            return FetchPlan(KafkaCode.fetch_session_id_not_found)
        if epoch != session.epoch:
            return FetchPlan(KafkaCode.invalid_fetch_session_epoch, session_id)
        if not self._update(session, wanted, forgotten):
            self._close(session_id)
            return FetchPlan(KafkaCode.fetch_session_id_not_found)
        session.epoch = epoch + 1 if epoch < _EPOCH_MAX else 1
        session.used_ms = now_ms
        self._sessions.move_to_end(session_id)
        # A copy: a request on its way must not see what a later one changes.
        return FetchPlan(KafkaCode.none, session_id, session.partitions.copy(), incremental=True)

    def _update(
        self,
        session: _Session,
        wanted: Iterable[tuple[FetchKey, WantedPartition]],
        forgotten: Iterable[FetchKey],
    ) -> bool:
        """Change what a session holds; False where it grew beyond what all may hold."""
        before = len(session.partitions)
        for key, row in wanted:
            known = session.partitions.get(key)
            if known is not None:
                row.told_high_watermark = known.told_high_watermark
                row.told_log_start = known.told_log_start
            session.partitions[key] = row
        for key in forgotten:
            session.partitions.pop(key, None)
        self._held += len(session.partitions) - before
        return self._held <= self._partitions_max

    def _open(self, partitions: OrderedDict[FetchKey, WantedPartition], now_ms: int) -> int:
        if not partitions or not self._make_room(len(partitions), now_ms):
            return NO_SESSION
        session_id = self._draw_id()
        while session_id <= NO_SESSION or session_id in self._sessions:
            session_id = self._draw_id()
        self._sessions[session_id] = _Session(1, partitions, now_ms)
        self._held += len(partitions)
        return session_id

    def _make_room(self, count: int, now_ms: int) -> bool:
        """Put out whoever was idle for long enough, until there is room."""
        if count > self._partitions_max:
            return False
        while (
            len(self._sessions) >= self._sessions_max or self._held + count > self._partitions_max
        ):
            oldest = next(iter(self._sessions))
            if now_ms - self._sessions[oldest].used_ms < self._idle_ms_min:
                return False
            self._close(oldest)
        return True

    def _close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._held -= len(session.partitions)

    def select(self, plan: FetchPlan, facts: dict[FetchKey, FetchedFacts]) -> list[FetchKey]:
        """Say which partitions the answer names, and remember that it told them.

        In a full answer all; in an incremental one those with news. Who had records goes to the
        end of its session: the next answer begins with the others.
        """
        said: list[FetchKey] = []
        session = self._sessions.get(plan.session_id)
        for key, row in plan.partitions.items():
            fact = facts.get(key)
            if fact is None:
                continue
            news = (
                fact.has_records
                or fact.error != 0
                or fact.high_watermark != row.told_high_watermark
                or fact.log_start_offset != row.told_log_start
            )
            if not plan.incremental or news:
                said.append(key)
            self._tell(session, key, fact)
        return said

    def _tell(self, session: _Session | None, key: FetchKey, fact: FetchedFacts) -> None:
        held = None if session is None else session.partitions.get(key)
        if session is None or held is None:
            return
        # What could not be said for an error is news when the error is over.
        failed = fact.error != 0
        held.told_high_watermark = -1 if failed else fact.high_watermark
        held.told_log_start = -1 if failed else fact.log_start_offset
        if fact.has_records:
            session.partitions.move_to_end(key)
