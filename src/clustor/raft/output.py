"""What a group wants done outside, in the order of the fields.

Who waits for whom is decided inside the group, so that a driver is a dull loop:

- Every message in `messages` may leave at once, in parallel with the disk work of the same
  Output. AppendEntries needs no more than the leader's durable term. Votes, append responses
  and DurabilityAcks rest on the disk; they appear here only after their receipt came in.
- While a hard state is not durable yet, no message but PreVote traffic appears at all.
- `apply`, `acks` and grants rest on a quorum's disks; they too appear only when it holds.

The driver carries out `hard_state` and `appends` in order on one queue of the disk and returns
a receipt for each; nothing else is expected of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from clustor.log.types import DurabilityMode, DurabilityModeEpoch, Entry, LogIndex, Term
from clustor.raft.hard_state import HardState, MembershipAck
from clustor.raft.membership import Membership
from clustor.raft.messages import Outbound
from clustor.raft.reads import ReadGranted, ReadRefused
from clustor.raft.types import (
    DurabilityTuple,
    HardStateSeq,
    ReplicaId,
    Role,
    RoutingEpoch,
    WriteSeq,
)


@dataclass(slots=True)
class LogAppend:
    """One batch for the log: cut first where `truncate_from` says so, then append.

    No batch spans a durability fence; `mode` holds for the whole of it. A cut below the first
    new entry, the entries and their ledger records are durable before the receipt is given.
    """

    write_seq: WriteSeq
    truncate_from: LogIndex | None
    entries: list[Entry]
    mode: DurabilityMode


@dataclass(frozen=True, slots=True)
class PersistHardState:
    seq: HardStateSeq
    state: HardState


@dataclass(frozen=True, slots=True)
class RepairWrite:
    """Write these entries over the damaged ones, in place; then report them repaired."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class SnapshotInstall:
    """Fetch, verify and install the snapshot that `source` offers, then say so.

    A state machine that has applied `base_index` already keeps its state: then the snapshot
    only stands in for damaged entries of the log. A log whose base is at or above `base_index`
    by now keeps it: the installation is done.
    """

    source: ReplicaId
    base_term: Term
    base_index: LogIndex
    configuration: Membership
    configuration_index: LogIndex
    routing_epoch: RoutingEpoch
    durability_mode: DurabilityMode
    durability_mode_epoch: DurabilityModeEpoch
    keeps_suffix: bool  # the log continues this snapshot: entries above the base stay


@dataclass(frozen=True, slots=True)
class SnapshotSend:
    """Stream the newest snapshot to `replica_id`; it was offered at `base_index`."""

    replica_id: ReplicaId
    base_index: LogIndex
    bytes_per_second_max: int


class SnapshotReason(StrEnum):
    LOG_BYTES = "LogBytes"
    FOLLOWER_LAG = "FollowerLag"
    STRUCTURAL_LAG = "StructuralLag"


@dataclass(frozen=True, slots=True)
class SnapshotEmit:
    """Emit a snapshot of the applied state."""

    reason: SnapshotReason


class FetchPurpose(StrEnum):
    REPLICATION = "Replication"
    REPAIR = "Repair"


@dataclass(frozen=True, slots=True)
class EntriesFetch:
    """Read entries below the window from disk for `replica_id`, and hand them back."""

    replica_id: ReplicaId
    first_index: LogIndex
    last_index: LogIndex
    bytes_max: int
    purpose: FetchPurpose = FetchPurpose.REPLICATION


@dataclass(slots=True)
class Acked:
    """Every proposal of this `term` at or below `through` may be acknowledged (clustor §10.4)."""

    term: Term
    through: LogIndex


@dataclass(frozen=True, slots=True)
class RoleChange:
    """The role that the replica has now. Open proposals of a lost term have no known outcome."""

    role: Role
    term: Term
    leader_id: ReplicaId | None
    reason: str


class NoteKind(StrEnum):
    """What telemetry and the incident log should hear about."""

    STEPPED_DOWN = "SteppedDown"
    DURABILITY_MODE_EPOCH_CONFLICT = "DurabilityModeEpochConflict"
    DURABILITY_MODE_CHANGED = "DurabilityModeChanged"
    CONTROL_PLANE_PROOF_MISMATCH = "ControlPlaneProofMismatch"
    CONTROL_PLANE_PROOF_CONFLICT = "ControlPlaneProofConflict"
    COMMITTED_CONFLICT = "CommittedConflict"
    STRICT_FALLBACK = "StrictFallback"
    STRICT_FALLBACK_DEMOTED = "StrictFallbackDemoted"
    STRICT_FALLBACK_BAR_LIFTED = "StrictFallbackBarLifted"
    STALE_DURABILITY_ACK = "StaleDurabilityAck"
    DEVICE_STALLED = "DeviceStalled"
    DEVICE_RECOVERED = "DeviceRecovered"
    LOG_DAMAGED = "LogDamaged"
    LOG_REPAIRED = "LogRepaired"
    MEMBERSHIP_PHASE = "MembershipPhase"
    MEMBERSHIP_FINALIZED = "MembershipFinalized"
    MEMBERSHIP_ROLLED_BACK = "MembershipRolledBack"
    OBSERVERS_REVOKED = "ObserversRevoked"
    FOLLOWER_CAPABILITY_REVOKED = "FollowerCapabilityRevoked"
    CLOCK_GUARD_ALARM = "ClockGuardAlarm"
    SNAPSHOT_CADENCE = "SnapshotCadence"
    MALFORMED_ENTRY = "MalformedEntry"
    TRANSFER_ABORTED = "TransferAborted"
    ELECTIONS_WIDENED = "ElectionsWidened"


@dataclass(frozen=True, slots=True)
class Note:
    kind: NoteKind
    facts: tuple[tuple[str, object], ...] = ()


ReadAnswer: TypeAlias = ReadGranted | ReadRefused


@dataclass(slots=True)
class Output:
    """Work for the driver, to be started in the order the fields are declared."""

    hard_state: PersistHardState | None = None
    appends: list[LogAppend] = field(default_factory=list)
    repair: RepairWrite | None = None
    install: SnapshotInstall | None = None
    messages: list[Outbound] = field(default_factory=list)
    fetches: list[EntriesFetch] = field(default_factory=list)
    snapshot_sends: list[SnapshotSend] = field(default_factory=list)
    apply: list[Entry] = field(default_factory=list)
    wal_committed_index: LogIndex | None = None  # set when it advanced; recorded before any ack
    acked: Acked | None = None
    reads: list[ReadAnswer] = field(default_factory=list)
    publish_proof: DurabilityTuple | None = None
    record_membership: MembershipAck | None = None  # what the control plane must confirm
    emit_snapshot: SnapshotEmit | None = None
    compact_through: LogIndex | None = None  # the log may delete what is at or below it
    role: RoleChange | None = None
    notes: list[Note] = field(default_factory=list)
