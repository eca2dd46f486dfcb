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
from .names import catalog_name
from .types import EXPERIMENTAL, EXPLAIN_BODY_BYTES_MAX, Dialect


class MessageFamily(Enum):
    """Where a message travels."""

    SYSTEM_LOG = "system_log"  # the payload of a log entry
    CONNECTION = "connection"  # frames that speak for a connection, not for a group
    RAFT = "raft"  # behind a stream header
    ENVELOPE = "envelope"  # behind a stream header, or as JSON
    EXPLAIN = "explain"  # as ENVELOPE, but 32 KiB at most, whatever was negotiated
    RECORD = "record"  # written to a file of its own


_STREAM_FAMILIES = frozenset({MessageFamily.RAFT, MessageFamily.ENVELOPE, MessageFamily.EXPLAIN})


@dataclass(frozen=True, slots=True)
class WireRow:
    """One message of the catalog."""

    message_id: int
    message: type[Any]
    family: MessageFamily
    section: str
    name: str
    codec: Codec[Any]
    on_stream: bool
    """Whether it travels behind a stream header."""
    names_route: bool
    """Whether its body repeats what its route says, and must agree with it."""

    def body_bytes_max(self, dialect: Dialect) -> int:
        """Return how long a body of this message may be."""
        if self.family is MessageFamily.EXPLAIN:
            return min(EXPLAIN_BODY_BYTES_MAX, dialect.body_bytes_max)
        return dialect.body_bytes_max


def _row(
    message_id: int,
    message: type[Any],
    family: MessageFamily,
    section: str,
    name: str | None = None,
) -> WireRow:
    assert message_id not in EXPERIMENTAL
    name = name or catalog_name(message)
    on_stream = family in _STREAM_FAMILIES
    names_route = issubclass(message, (m.DurabilityAckBody, e.EnvelopeHeader))
    codec = codec_of(message)
    return WireRow(message_id, message, family, section, name, codec, on_stream, names_route)


BATCH_ID = 0x0F  # many packets in one frame; see `stream`

TABLE: tuple[WireRow, ...] = (
    _row(0x01, m.MembershipChange, MessageFamily.SYSTEM_LOG, "§9.9"),
    _row(0x02, m.MembershipRollback, MessageFamily.SYSTEM_LOG, "§9.9"),
    _row(0x03, m.DurabilityTransitionBody, MessageFamily.SYSTEM_LOG, "§7.1"),
    _row(0x04, m.FenceCommit, MessageFamily.SYSTEM_LOG, "§9.9"),
    _row(0x05, m.DefineActivateBody, MessageFamily.SYSTEM_LOG, "§9.7"),
    _row(0x08, Handshake, MessageFamily.CONNECTION, "§8.3"),
    _row(0x09, NegotiationRecord, MessageFamily.RECORD, "§14.2", "bundle_negotiation_log"),
    _row(0x10, m.PreVoteRequestBody, MessageFamily.RAFT, "§10.1"),
    _row(0x11, m.PreVoteResponseBody, MessageFamily.RAFT, "§8.2"),
    _row(0x12, m.RequestVoteRequest, MessageFamily.RAFT, "§9.2"),
    _row(0x13, m.RequestVoteResponse, MessageFamily.RAFT, "§9.1"),
    _row(0x14, m.AppendEntriesRequest, MessageFamily.RAFT, "§9.2"),
    _row(0x15, m.AppendEntriesResponse, MessageFamily.RAFT, "§9.2"),
    _row(0x16, m.Heartbeat, MessageFamily.RAFT, "§9.3"),
    _row(0x17, m.HeartbeatResponse, MessageFamily.RAFT, "§9.3"),
    _row(0x18, m.DurabilityAckBody, MessageFamily.RAFT, "§7.1"),
    _row(0x19, m.InstallSnapshotBegin, MessageFamily.RAFT, "§9.5"),
    _row(0x1A, m.InstallSnapshotChunk, MessageFamily.RAFT, "§9.5"),
    _row(0x1B, m.InstallSnapshotResponse, MessageFamily.RAFT, "§9.5"),
    _row(0x1C, m.TimeoutNowBody, MessageFamily.RAFT, "§9.2"),
    _row(0x1D, m.TransferLeader, MessageFamily.RAFT, "§9.2"),
    _row(0x1E, m.OfferSnapshot, MessageFamily.RAFT, "§9.5"),
    _row(0x1F, m.OfferSnapshotResponse, MessageFamily.RAFT, "§9.5"),
    _row(0x20, m.EpochConflict, MessageFamily.RAFT, "§7.1"),
    _row(0x21, m.RepairRequestBody, MessageFamily.RAFT, "§9.4"),
    _row(0x22, m.RepairEntriesBody, MessageFamily.RAFT, "§9.4"),
    _row(0x23, m.RepairingAck, MessageFamily.RAFT, "§9.4"),
    _row(0x24, m.SnapshotTransfer, MessageFamily.RAFT, "§9.5"),
    _row(0x25, m.ServiceMessage, MessageFamily.RAFT, "App. A"),
    _row(0x40, e.RoutingEpochMismatch, MessageFamily.ENVELOPE, "§11.1"),
    _row(0x41, e.ModeConflictEnvelope, MessageFamily.ENVELOPE, "§11.1"),
    _row(0x42, e.ControlPlaneUnavailable, MessageFamily.ENVELOPE, "§11.1"),
    _row(
        0x43,
        e.SnapshotFullInvalidated,
        MessageFamily.ENVELOPE,
        "§11.1",
        "snapshot_full_invalidated",
    ),
    _row(
        0x44,
        e.SnapshotDeltaInvalidated,
        MessageFamily.ENVELOPE,
        "§11.1",
        "snapshot_delta_invalidated",
    ),
    _row(0x45, e.ThrottleEnvelopeBody, MessageFamily.EXPLAIN, "§11.1"),
    _row(0x46, e.FollowerCapabilityRevoked, MessageFamily.ENVELOPE, "§11.1"),
    _row(0x47, e.SnapshotChunkAuthFailureEnvelope, MessageFamily.ENVELOPE, "§11.1"),
    _row(0x48, e.SnapshotDeltaRetiredEnvelope, MessageFamily.ENVELOPE, "§11.1"),
    _row(0x49, e.NonceReservationGapWarning, MessageFamily.ENVELOPE, "§11.1"),
    _row(0x4A, e.OverrideStrictOnlyBackpressure, MessageFamily.ENVELOPE, "§11.1"),
    _row(0x4B, e.OverrideLedgerEntry, MessageFamily.ENVELOPE, "§8.2"),
    _row(0x50, e.WhyNotLeader, MessageFamily.EXPLAIN, "§13.2"),
    _row(0x51, e.WhyCreditZero, MessageFamily.EXPLAIN, "§13.2"),
    _row(0x52, e.WhySnapshotBlocked, MessageFamily.EXPLAIN, "§13.2"),
    _row(0x53, e.WhyDiskBlocked, MessageFamily.EXPLAIN, "§13.2"),
    _row(0x54, e.WhyQuarantinedEnvelope, MessageFamily.EXPLAIN, "§13.2"),
    _row(0x55, e.WhyCreditHint, MessageFamily.EXPLAIN, "§13.2"),
)

ROW_BY_ID: dict[int, WireRow] = {row.message_id: row for row in TABLE}
ROW_BY_CLASS: dict[type[Any], WireRow] = {row.message: row for row in TABLE}
assert len(ROW_BY_ID) == len(ROW_BY_CLASS) == len(TABLE)
assert BATCH_ID not in ROW_BY_ID


def row_of_id(message_id: int) -> WireRow:
    """Return the row of an id that a peer sent, or raise WireUnknownField."""
    try:
        return ROW_BY_ID[message_id]
    except KeyError:
        raise WireUnknownField("unknown message id", message_id=message_id) from None
