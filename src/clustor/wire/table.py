"""The message table: every id, what it names, where it may travel and how large it may be.

Ids are frozen for v0.1.x (§14.1). One `u8` space holds them all, so that no byte means two
things in two places; 0xF0–0xFF stay unassigned.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from . import envelopes as e
from . import messages as m
from .codec import Codec, codec_of
from .errors import WireUnknownField
from .handshake import Handshake, NegotiationRecord
from .types import EXPERIMENTAL, EXPLAIN_BODY_BYTES_MAX, Dialect


class Family(Enum):
    """Where a message travels."""

    SYSTEM_LOG = "system_log"  # the payload of a log entry
    CONNECTION = "connection"  # frames that speak for a connection, not for a group
    RAFT = "raft"  # behind a stream header
    ENVELOPE = "envelope"  # behind a stream header, or as JSON
    EXPLAIN = "explain"  # as ENVELOPE, but 32 KiB at most, whatever was negotiated
    RECORD = "record"  # written to a file of its own


_STREAM_FAMILIES = frozenset({Family.RAFT, Family.ENVELOPE, Family.EXPLAIN})


@dataclass(frozen=True, slots=True)
class Row:
    """One message of the catalog."""

    message_id: int
    message: type[Any]
    family: Family
    section: str
    name: str
    codec: Codec[Any]
    on_stream: bool
    """Whether it travels behind a stream header."""
    names_route: bool
    """Whether its body repeats what its route says, and must agree with it."""

    def body_bytes_max(self, dialect: Dialect) -> int:
        """Return how long a body of this message may be."""
        if self.family is Family.EXPLAIN:
            return min(EXPLAIN_BODY_BYTES_MAX, dialect.body_bytes_max)
        return dialect.body_bytes_max


def _row(
    message_id: int, message: type[Any], family: Family, section: str, name: str | None = None
) -> Row:
    assert message_id not in EXPERIMENTAL
    name = name or message.__name__
    on_stream = family in _STREAM_FAMILIES
    names_route = issubclass(message, (m.DurabilityAck, e.EnvelopeHeader))
    codec = codec_of(message)
    return Row(message_id, message, family, section, name, codec, on_stream, names_route)


BATCH_ID = 0x0F  # many packets in one frame; see `stream`

TABLE: tuple[Row, ...] = (
    _row(0x01, m.MembershipChange, Family.SYSTEM_LOG, "§9.9"),
    _row(0x02, m.MembershipRollback, Family.SYSTEM_LOG, "§9.9"),
    _row(0x03, m.DurabilityTransition, Family.SYSTEM_LOG, "§7.1"),
    _row(0x04, m.FenceCommit, Family.SYSTEM_LOG, "§9.9"),
    _row(0x05, m.DefineActivate, Family.SYSTEM_LOG, "§9.7"),
    _row(0x08, Handshake, Family.CONNECTION, "§8.3"),
    _row(0x09, NegotiationRecord, Family.RECORD, "§14.2", "bundle_negotiation_log"),
    _row(0x10, m.PreVoteRequest, Family.RAFT, "§10.1"),
    _row(0x11, m.PreVoteResponse, Family.RAFT, "§8.2"),
    _row(0x12, m.RequestVoteRequest, Family.RAFT, "§9.2"),
    _row(0x13, m.RequestVoteResponse, Family.RAFT, "§9.1"),
    _row(0x14, m.AppendEntriesRequest, Family.RAFT, "§9.2"),
    _row(0x15, m.AppendEntriesResponse, Family.RAFT, "§9.2"),
    _row(0x16, m.Heartbeat, Family.RAFT, "§9.3"),
    _row(0x17, m.HeartbeatResponse, Family.RAFT, "§9.3"),
    _row(0x18, m.DurabilityAck, Family.RAFT, "§7.1"),
    _row(0x19, m.InstallSnapshotBegin, Family.RAFT, "§9.5"),
    _row(0x1A, m.InstallSnapshotChunk, Family.RAFT, "§9.5"),
    _row(0x1B, m.InstallSnapshotResponse, Family.RAFT, "§9.5"),
    _row(0x1C, m.TimeoutNow, Family.RAFT, "§9.2"),
    _row(0x1D, m.TransferLeader, Family.RAFT, "§9.2"),
    _row(0x1E, m.OfferSnapshot, Family.RAFT, "§9.5"),
    _row(0x1F, m.OfferSnapshotResponse, Family.RAFT, "§9.5"),
    _row(0x20, m.EpochConflict, Family.RAFT, "§7.1"),
    _row(0x21, m.RepairRequest, Family.RAFT, "§9.4"),
    _row(0x22, m.RepairEntries, Family.RAFT, "§9.4"),
    _row(0x23, m.RepairingAck, Family.RAFT, "§9.4"),
    _row(0x24, m.SnapshotTransfer, Family.RAFT, "§9.5"),
    _row(0x25, m.ServiceMessage, Family.RAFT, "App. A"),
    _row(0x40, e.RoutingEpochMismatch, Family.ENVELOPE, "§11.1"),
    _row(0x41, e.ModeConflict, Family.ENVELOPE, "§11.1"),
    _row(0x42, e.ControlPlaneUnavailable, Family.ENVELOPE, "§11.1"),
    _row(0x43, e.SnapshotFullInvalidated, Family.ENVELOPE, "§11.1", "snapshot_full_invalidated"),
    _row(0x44, e.SnapshotDeltaInvalidated, Family.ENVELOPE, "§11.1", "snapshot_delta_invalidated"),
    _row(0x45, e.ThrottleEnvelope, Family.EXPLAIN, "§11.1"),
    _row(0x46, e.FollowerCapabilityRevoked, Family.ENVELOPE, "§11.1"),
    _row(0x47, e.SnapshotChunkAuthFailure, Family.ENVELOPE, "§11.1"),
    _row(0x48, e.SnapshotDeltaRetired, Family.ENVELOPE, "§11.1"),
    _row(0x49, e.NonceReservationGapWarning, Family.ENVELOPE, "§11.1"),
    _row(0x4A, e.OverrideStrictOnlyBackpressure, Family.ENVELOPE, "§11.1"),
    _row(0x4B, e.OverrideLedgerEntry, Family.ENVELOPE, "§8.2"),
    _row(0x50, e.WhyNotLeader, Family.EXPLAIN, "§13.2"),
    _row(0x51, e.WhyCreditZero, Family.EXPLAIN, "§13.2"),
    _row(0x52, e.WhySnapshotBlocked, Family.EXPLAIN, "§13.2"),
    _row(0x53, e.WhyDiskBlocked, Family.EXPLAIN, "§13.2"),
    _row(0x54, e.WhyQuarantined, Family.EXPLAIN, "§13.2"),
    _row(0x55, e.WhyCreditHint, Family.EXPLAIN, "§13.2"),
)

ROW_BY_ID: dict[int, Row] = {row.message_id: row for row in TABLE}
ROW_BY_CLASS: dict[type[Any], Row] = {row.message: row for row in TABLE}
assert len(ROW_BY_ID) == len(ROW_BY_CLASS) == len(TABLE)
assert BATCH_ID not in ROW_BY_ID


def row_of_id(message_id: int) -> Row:
    """Return the row of an id that a peer sent, or raise WireUnknownField."""
    try:
        return ROW_BY_ID[message_id]
    except KeyError:
        raise WireUnknownField("unknown message id", message_id=message_id) from None
