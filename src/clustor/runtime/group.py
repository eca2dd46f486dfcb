"""One replica on this node's disk: its plans in order, its jobs, its storages."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from clustor.log.types import IoWriterMode, LogId, PartitionId
from clustor.raft.errors import DataLost
from clustor.raft.membership import Membership
from clustor.raft.output import Note, NoteKind
from clustor.raft.types import ReplicaId, RoutingEpoch
from clustor.replica import (
    DiskToken,
    DiskWork,
    Home,
    NoReplica,
    ReplicaDamaged,
    ReplicaSettings,
    quarantined_replica,
)
from clustor.runtime.admission import FlowNumbers, GroupAdmission
from clustor.runtime.disk import Completion, DirectoryStorage, Disk, PlanToken
from clustor.runtime.repair.fenced_replica import FencedReplica
from clustor.runtime.telemetry.loop_watch import LoopWatch
from clustor.telemetry.meters import NodeMeters

Entropy: TypeAlias = Callable[[int], bytes]

LOG_ID_BYTES: Final = 16
_NS_PER_MS: Final = 1_000_000

journal = logging.getLogger("clustor.node")


@dataclass(frozen=True, slots=True)
class _Opening:
    """What a replica here is opened with, now and after a repair."""

    settings: ReplicaSettings
    replica_id: ReplicaId
    entropy: Entropy
    flow: FlowNumbers


@dataclass(frozen=True, slots=True)
class QuarantineView:
    """What people are told of a quarantine while it lasts."""

    phase: str
    cause: str
    detail: str
    since_ms: int  # on the wall clock

    def __str__(self) -> str:
        return f"{self.phase}: {self.detail}"


class HostedGroup:
    """A replica and the two directories it lives in. The node's loop owns it."""

    def __init__(self, disk: Disk, partition_id: PartitionId, state: Path, identity: Path) -> None:
        self.partition_id = partition_id
        self.directory = state
        self._disk = disk
        self.storage = DirectoryStorage(state)
        self._identity_storage = DirectoryStorage(identity)
        self._partitions = {
            Home.PARTITION: disk.open_partition(state),
            Home.NODE: disk.open_partition(identity),
        }
        self._waiting: deque[DiskWork] = deque()
        self._under_way: deque[DiskToken] = deque()
        self._home = Home.PARTITION  # of the plans under way
        self.stream_tokens: deque[DiskToken] = deque()
        """The plans of its streams that their lane has."""
        self.syncs = 0
        """How many syncs its plans have done."""
        self.meters: NodeMeters | None = None
        """Where they are timed, if anywhere."""
        self.loop_watch: LoopWatch | None = None
        """Where it is noted what the device took, and what we did."""
        self.replica: FencedReplica
        self.admission: GroupAdmission
        """Who asks it before `Replica.propose` is told when to slow down, and why."""
        self._last_note: Note | None = None
        self.rolled_back = ""
        """Why the last change of members that this replica led was given up."""
        self.led_term = 0
        """The term that it led when it last said so; 0: it does not lead."""
        self.paused = False
        """Whether it hangs on purpose: it hears nothing, says nothing, and its time stands."""
        self.is_recorded = False
        """Whether a thread writes a file beside the plans: no rejoin may move that away."""
        self.damage: Exception | None = None
        """Why the replica that was here could not be opened; it is fenced."""
        self.quarantine: QuarantineView | None = None
        """Set from the first doubt about its bytes until a repair is over."""
        self._opening: _Opening | None = None

    def numbers(self) -> tuple[int, int]:
        """Return the disk's numbers of both directories, by which completions find this group."""
        home, node = self._partitions[Home.PARTITION], self._partitions[Home.NODE]
        return home.number, node.number

    def open(
        self,
        settings: ReplicaSettings,
        replica_id: ReplicaId,
        bootstrap: Membership | None,
        entropy: Entropy,
        now_ms: int,
        *,
        flow: FlowNumbers,
        rejoin_epoch: RoutingEpoch | None = None,
        held: str | None = None,
    ) -> None:
        """Open the replica that was here, or make a new one where none ever was.

        Without `bootstrap` a new one waits to be made a member. Where data was and is lost, only
        `rejoin_epoch` lets it start: empty, without a vote, until the group takes it in again.
        Without one it is fenced, and so it is where it is `held` in quarantine from before.
        """
        self._opening = _Opening(settings, replica_id, entropy, flow)
        try:
            if held is not None:
                raise ReplicaDamaged(held)
            self._use(self._found_or_made(bootstrap, now_ms))
        except (DataLost, ReplicaDamaged) as error:
            if rejoin_epoch is not None:
                self._use(self.rejoined(rejoin_epoch, now_ms))
                return
            self.damage = error
            self._use(self._fenced(str(error), now_ms))

    def _found_or_made(self, bootstrap: Membership | None, now_ms: int) -> FencedReplica:
        try:
            return self.reopened(now_ms)
        except NoReplica:
            opening = self._how
            return FencedReplica.create(
                opening.settings,
                self.storage,
                self._identity_storage,
                replica_id=opening.replica_id,
                partition_id=self.partition_id,
                log_id=LogId(opening.entropy(LOG_ID_BYTES)),
                bootstrap=bootstrap,
                now_ms=now_ms,
            )

    @property
    def _how(self) -> _Opening:
        assert self._opening is not None, "not opened"
        return self._opening

    def _fenced(self, reason: str, now_ms: int) -> FencedReplica:
        opening = self._how
        return quarantined_replica(
            FencedReplica,
            opening.settings,
            replica_id=opening.replica_id,
            partition_id=self.partition_id,
            log_id=LogId(opening.entropy(LOG_ID_BYTES)),
            reason=reason,
            now_ms=now_ms,
        )

    def reopened(self, now_ms: int) -> FencedReplica:
        """Read the replica that is here, from any thread; raises what `Replica.open` raises."""
        storages = (self.storage, self._identity_storage)
        return FencedReplica.open(self._how.settings, *storages, now_ms=now_ms)

    def rejoined(self, rejoin_epoch: RoutingEpoch, now_ms: int) -> FencedReplica:
        """Return an empty replica without a vote; its first plan sets the old files aside."""
        return FencedReplica.rejoin(
            self._how.settings,
            self.storage,
            self._identity_storage,
            log_id=LogId(self._how.entropy(LOG_ID_BYTES)),
            rejoin_epoch=rejoin_epoch,
            now_ms=now_ms,
        )

    def adopt(self, replica: FencedReplica) -> None:
        """Go on with another replica in the place of one that failed; nothing is under way.

        The disk's files are opened anew: names will be given to other files, and what fenced one
        of them was about the old one.
        """
        assert self.replica.failed is not None and self.idle
        for home, partition in self._partitions.items():
            self._disk.close_partition(partition)
            self._partitions[home] = self._disk.open_partition(partition.root)
        self._home = Home.PARTITION
        self.damage = None
        self._use(replica)

    def _use(self, replica: FencedReplica) -> None:
        self.replica = replica
        self.admission = GroupAdmission(replica, self._how.flow)

    def say(self, note: Note) -> None:
        """Write a note to the journal, unless it only repeats the last one."""
        if note != self._last_note:
            self._last_note = note
            facts = " ".join(f"{name}={value}" for name, value in note.facts)
            if note.kind is NoteKind.MEMBERSHIP_ROLLED_BACK:
                self.rolled_back = facts
            journal.info("group %d: %s %s", self.partition_id, note.kind, facts)

    def submit(self, works: list[DiskWork], *, alone: bool) -> bool:
        """Start plans in order. The disk orders those of one directory; across both we do.

        `alone`: nobody else has work for the disk now. Returns whether a plan is over already.
        """
        self._waiting.extend(works)
        return self._start(alone=alone)

    def completed(self, completion: Completion) -> None:
        """Take the disk's word on the oldest plan under way, and start what waited for it."""
        self._conclude(completion)
        self._start(alone=False)

    def _conclude(self, completion: Completion) -> None:
        token = self._under_way.popleft()
        assert PlanToken(token) == completion.token, "plans of one directory end in their order"
        replica = self.replica
        if completion.error is not None:
            replica.disk_failed(token, completion.error)
            self._waiting.clear()
            return
        self.syncs += len(completion.sync_durations)
        if self.meters is not None:
            for duration in completion.sync_durations:
                self.meters.fsync_latency_ms.observe(duration / _NS_PER_MS)
        slowest = max(completion.sync_durations, default=0)
        if self.loop_watch is not None:
            self.loop_watch.appended(sum(completion.sync_durations) / _NS_PER_MS)
            self.loop_watch.disk_queue_ms.observe(completion.queued_ns / _NS_PER_MS)
            self.loop_watch.disk_seen_late_ms.observe(completion.seen_late_ns / _NS_PER_MS)
        replica.disk_done(token, slowest / _NS_PER_MS)

    def answer_for(self, call: Callable[[], object]) -> bool:
        """Do something on which the word of this group rests; its error fences the group."""
        try:
            call()
        except Exception as error:  # noqa: BLE001  # what it has told clients is not known now
            self.replica.fence(error)
            return False
        return True

    def use_mode(self, mode: IoWriterMode) -> None:
        """Let the ledger say how the disk writes now."""
        self.replica.log.io_writer_mode = mode

    @property
    def idle(self) -> bool:
        """Whether no plan is waiting or under way."""
        return not self._waiting and not self._under_way and not self.stream_tokens

    def close(self) -> None:
        """Close the files; no plan may be under way."""
        for partition in self._partitions.values():
            self._disk.close_partition(partition)
        self.storage.close()
        self._identity_storage.close()

    def _start(self, *, alone: bool) -> bool:
        over = False
        while self._waiting and (not self._under_way or self._waiting[0].home is self._home):
            work = self._waiting.popleft()
            self._home = work.home
            self._under_way.append(work.token)
            completion = self._disk.submit(
                self._partitions[work.home], work.plan, PlanToken(work.token), alone=alone
            )
            if completion is not None:
                self._conclude(completion)
                over = True
        return over
