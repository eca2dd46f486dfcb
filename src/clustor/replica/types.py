"""The words of a replica: what goes out, in the order in which it is started."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType, Protocol, TypeAlias

from clustor.log.steps import Plan, Storage
from clustor.log.types import LogIndex
from clustor.raft.hard_state import MembershipAck
from clustor.raft.messages import Outbound
from clustor.raft.output import Note, RoleChange, SnapshotSend
from clustor.raft.reads import FailedClause, ReadRefusal
from clustor.raft.types import DurabilityTuple, ReplicaId
from clustor.replica.transfer import Transfer

RequestId = NewType("RequestId", int)  # the caller's own, unique among its open requests
DiskToken = NewType("DiskToken", int)  # counts the plans of one replica from 1
ReadToken = NewType("ReadToken", int)  # counts the jobs that read from disk


class Home(StrEnum):
    """Which directory a plan is for. Both may be the same one."""

    PARTITION = "Partition"
    NODE = "Node"  # keeps `replica.json`, and should not be on the partition's disk


@dataclass(slots=True)
class DiskWork:
    """One plan. A replica's plans are run whole, one after another, in the order of their tokens.

    `disk_done` when all of it is durable; `disk_failed` when a step failed, and then no later
    plan of this replica may be run any more.
    """

    token: DiskToken
    plan: Plan
    home: Home = Home.PARTITION


class DiskJob(Protocol):
    """Something to read from the partition's directory. It touches nothing but the storage, so
    it may run on any thread; what it returns or raises is handed back as it is."""

    def run(self, storage: Storage, /) -> object: ...


@dataclass(frozen=True, slots=True)
class DiskRead:
    """A job: `disk_read(token, job.run(storage))`, or `disk_read_failed(token, error)`."""

    token: ReadToken
    job: DiskJob


# What became of requests. One object for all requests of a batch, none for each of them.


@dataclass(slots=True)
class Applied:
    """Committed, durable on a quorum, applied; `replies[n]` answers `request_ids[n]`."""

    index: LogIndex
    request_ids: list[RequestId]
    replies: list[bytes]


@dataclass(slots=True)
class NotLeader:
    """Nothing happened, and nothing will; `leader_id` may know better."""

    request_ids: list[RequestId]
    leader_id: ReplicaId | None


@dataclass(slots=True)
class Unknown:
    """Leadership was lost: the commands may be applied later, once, or never."""

    request_ids: list[RequestId]


@dataclass(slots=True)
class RequestsRefused:
    """Nothing happened, and nothing will, for a reason that this leader names."""

    request_ids: list[RequestId]
    reason: str


Outcome: TypeAlias = Applied | NotLeader | Unknown | RequestsRefused


@dataclass(slots=True)
class ReadReady:
    """Read from the machine now: it has applied everything through `index`, or more."""

    request_id: RequestId
    index: LogIndex


@dataclass(slots=True)
class ReadDenied:
    request_id: RequestId
    refusal: ReadRefusal
    failed_clause: FailedClause = FailedClause.NONE
    leader_id: ReplicaId | None = None


ReadOutcome: TypeAlias = ReadReady | ReadDenied


@dataclass(frozen=True, slots=True)
class Delay:
    """Call `write_delayed(number, …)` after so long: a batch waits on purpose (Group-Fsync)."""

    number: int
    delay_ms: int


@dataclass(slots=True)
class ReplicaOutput:
    """Work for the driver, to be started in the order of the fields.

    Nothing here waits for anything else here: what rests on the disk appears only after
    `disk_done`. `failed` says that this replica has stopped for good; open it anew.
    """

    disk: list[DiskWork] = field(default_factory=list)
    stream_disk: list[DiskWork] = field(default_factory=list)  # a lane, tokens and order of its own
    messages: list[Outbound] = field(default_factory=list)
    transfers: list[tuple[ReplicaId, Transfer]] = field(default_factory=list)
    snapshot_sends: list[SnapshotSend] = field(default_factory=list)  # how fast chunks may leave
    disk_reads: list[DiskRead] = field(default_factory=list)
    replies: list[Outcome] = field(default_factory=list)
    reads: list[ReadOutcome] = field(default_factory=list)
    delay: Delay | None = None
    publish_proof: DurabilityTuple | None = None
    record_membership: MembershipAck | None = None
    role: RoleChange | None = None
    notes: list[Note] = field(default_factory=list)
    failed: str | None = None
    stream_news: set[int] = field(default_factory=set)  # partitions of streams that changed
    more: bool = False  # commands wait that would have made this output too large: ask again
