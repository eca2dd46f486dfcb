"""What a leader knows about one replica, and how much it may send it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

from clustor.log.types import IoWriterMode, LogIndex
from clustor.raft.membership import MemberKind, Membership
from clustor.raft.types import NO_INDEX, NO_ROUND, ReadSeq, ReplicaId


class ProgressState(StrEnum):
    PROBE = "StateProbe"  # one message at a time, until we know where the logs meet
    REPLICATE = "StateReplicate"  # pipelined
    SNAPSHOT = "StateSnapshot"  # nothing but heartbeats, until the snapshot is in


@dataclass(slots=True)
class Progress:
    """`match_index` is what the replica's log has in common with ours, durably there.

    `durable_index` is what it attested by DurabilityAck in this term. Invariant:
    `match_index < next_index` except in a snapshot, and the two only fall when the replica
    itself says that it repairs damage.
    """

    kind: MemberKind
    next_index: LogIndex
    match_index: LogIndex = NO_INDEX
    durable_index: LogIndex = NO_INDEX
    state: ProgressState = ProgressState.PROBE
    probe_sent: bool = False
    fetching: bool = False  # entries below the window are on their way from disk
    snapshot_index: LogIndex = NO_INDEX
    snapshot_offered_ms: int = 0
    inflight: deque[tuple[LogIndex, int]] = field(default_factory=deque)
    inflight_bytes: int = 0
    last_contact_ms: int = 0
    echoed_ms: int = -1  # when we sent the newest message that it answered
    rtt_ms: int = 0
    read_seq: ReadSeq = NO_ROUND
    applied_index: LogIndex = NO_INDEX
    sm_durable_index: LogIndex = NO_INDEX
    io_writer_mode: IoWriterMode | None = None
    behind_since_ms: int | None = None  # since when it lacks what was committed then
    behind_mark: LogIndex = NO_INDEX  # what was committed then

    def watch_lag(self, commit_index: LogIndex, now_ms: int) -> None:
        """Measure how long the replica takes to get what is committed: not a load, a lag."""
        if self.match_index >= self.behind_mark:
            self.behind_mark = commit_index
            self.behind_since_ms = now_ms if self.match_index < commit_index else None

    def may_send(self, messages_max: int, bytes_max: int) -> bool:
        if self.state is ProgressState.REPLICATE:
            return len(self.inflight) < messages_max and self.inflight_bytes < bytes_max
        return self.state is ProgressState.PROBE and not self.probe_sent

    def sent(self, last_index: LogIndex, size_bytes: int) -> None:
        """Count a message on its way; in REPLICATE the next one starts behind it."""
        if self.state is ProgressState.PROBE:
            self.probe_sent = True
            return
        self.next_index = LogIndex(last_index + 1)
        self.inflight.append((last_index, size_bytes))
        self.inflight_bytes += size_bytes

    def matched(self, index: LogIndex) -> bool:
        """Note that the logs are equal through `index`; say whether that is news."""
        if self.state is ProgressState.PROBE or (
            self.state is ProgressState.SNAPSHOT and index >= self.snapshot_index
        ):
            self.become_replicate(index)
        while self.inflight and self.inflight[0][0] <= index:
            self.inflight_bytes -= self.inflight.popleft()[1]
        if index <= self.match_index:
            return False
        self.match_index = index
        if self.next_index <= index:
            self.next_index = LogIndex(index + 1)
        return True

    def become_replicate(self, match_index: LogIndex) -> None:
        self.state = ProgressState.REPLICATE
        self.probe_sent = False
        self.next_index = LogIndex(max(self.match_index, match_index) + 1)

    def become_probe(self, next_index: int) -> None:
        self.state = ProgressState.PROBE
        self.next_index = LogIndex(max(next_index, self.match_index + 1))
        self.probe_sent = False
        self.inflight.clear()
        self.inflight_bytes = 0

    def become_snapshot(self, snapshot_index: LogIndex) -> None:
        self.become_probe(snapshot_index + 1)
        self.state = ProgressState.SNAPSHOT
        self.snapshot_index = snapshot_index

    def fell_back(self, durable_index: LogIndex) -> None:
        """Believe a replica that repairs: it holds less than it said, for now."""
        self.match_index = min(self.match_index, durable_index)
        self.durable_index = min(self.durable_index, durable_index)


def adopt_members(
    progress: dict[ReplicaId, Progress], config: Membership, last_index: LogIndex, now_ms: int
) -> None:
    """Make `progress` hold exactly the members of `config`; who stays keeps what is known."""
    for gone in progress.keys() - config.members:
        del progress[gone]
    for member in config.members:
        kind = config.kind_of(member)
        assert kind is not None
        if member in progress:
            progress[member].kind = kind
        else:
            progress[member] = Progress(
                kind, next_index=LogIndex(max(last_index, 1)), last_contact_ms=now_ms
            )
