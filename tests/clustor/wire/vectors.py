"""Every message beside its bytes, written by hand with no help from the codecs."""

from __future__ import annotations

from clustor import wire as w
from clustor.wire import BASELINE, Dialect

WIDE_COUNT = Dialect(wide_count=True)
LEGACY = Dialect(minor=0)


def u16(value: int) -> bytes:
    return value.to_bytes(2, "little")


def u32(value: int) -> bytes:
    return value.to_bytes(4, "little")


def u64(value: int) -> bytes:
    return value.to_bytes(8, "little")


def text(value: str) -> bytes:
    return u32(len(value.encode())) + value.encode()


P, R, T = w.PartitionId, w.ReplicaId, w.Term
INDEX, EPOCH, ROUTING = w.LogIndex, w.DurabilityModeEpoch, w.RoutingEpoch
NODES = [R(1), R(2), R(3)]
DIGEST = bytes(range(32))
METADATA = w.HeartbeatMetadata(w.IoWriterMode.BLOCKING, INDEX(7), INDEX(9), INDEX(5))
METADATA_BYTES = b"\x03" + u64(7) + u64(9) + u64(5)
APPEND = (
    *(INDEX(10), T(2), INDEX(9), INDEX(8)),
    *(w.LeaseEpoch(2), 3, 70_000, 15, INDEX(6), INDEX(4)),
)
APPEND_BYTES = b"".join(map(u64, (10, 2, 9, 8, 2, 3, 70_000, 15, 6, 4)))
ANSWER = (INDEX(9), 3, 70_000, INDEX(7), INDEX(5), w.IoWriterMode.BLOCKING, True, False)
ANSWER_BYTES = b"".join(map(u64, (9, 3, 70_000, 7, 5))) + b"\x03\x01\x00"

HEADER = (1, w.UnixMs(1_700_000_000_123), P(8), ROUTING(9), EPOCH(10))
HEADER_BYTES = u16(1) + u64(1_700_000_000_123) + u64(8) + u64(9) + u32(10)
PAGE = w.IdPageBody(["a", "b"], 3, w.ContinuationToken("dG9rZW4="))
PAGE_BYTES = u16(2) + text("a") + text("b") + u32(3) + b"\1" + text("dG9rZW4=")
WHY = (w.TraceId("trace"), [w.GuardrailDelta("lag_bytes", 70, 64)], w.IdPageBody())
WHY_BYTES = text("trace") + u16(1) + text("lag_bytes") + u64(70) + u64(64) + bytes(2 + 4 + 1)

BOTH_WAYS: dict[str, tuple[object, Dialect, bytes]] = {
    "MembershipChange": (
        w.MembershipChange(NODES, [R(1), R(4)], ROUTING(6), DIGEST),
        BASELINE,
        u16(3) + u64(1) + u64(2) + u64(3) + u16(2) + u64(1) + u64(4) + u64(6) + DIGEST,
    ),
    "MembershipChange, WideCount": (
        w.MembershipChange([R(2**64 - 1)], [], ROUTING(6), DIGEST),
        WIDE_COUNT,
        u32(1) + b"\xff" * 8 + u32(0) + u64(6) + DIGEST,
    ),
    "MembershipRollback": (
        w.MembershipRollback(w.RollbackReason.STRUCTURAL_LAG, [R(4)], "OVR-7"),
        BASELINE,
        b"\x02" + u16(1) + u64(4) + b"\x01" + text("OVR-7"),
    ),
    "MembershipRollback, no override": (
        w.MembershipRollback(w.RollbackReason.CATCH_UP_FAILED, []),
        BASELINE,
        b"\x01" + u16(0) + b"\x00",
    ),
    "DurabilityTransition": (
        w.DurabilityTransitionBody(
            w.DurabilityMode.STRICT, w.DurabilityMode.GROUP_FSYNC, EPOCH(4), INDEX(77)
        ),
        BASELINE,
        b"\x01\x02" + u32(4) + u64(77),
    ),
    "FenceCommit": (
        w.FenceCommit("fence", T(3), INDEX(99), ROUTING(6), EPOCH(4), DIGEST),
        BASELINE,
        text("fence") + u64(3) + u64(99) + u64(6) + u32(4) + DIGEST,
    ),
    "DefineActivate": (
        w.DefineActivateBody("bundle", "barrier", 12, DIGEST, bytes(32)),
        BASELINE,
        text("bundle") + text("barrier") + u64(12) + DIGEST + bytes(32),
    ),
    "Handshake": (
        w.Handshake(w.CatalogVersion(0, 1), 4 << 20, 1 << 0x10 | 1 << 0x20, 2),
        BASELINE,
        b"\x00\x01" + u32(4 << 20) + u64(0x1_0001_0000) + b"\x01\x02",
    ),
    "NegotiationRecord": (
        w.NegotiationRecord(
            w.UnixMs(5),
            "node-2",
            w.Handshake(w.CatalogVersion(0, 1), 4 << 20, 0),
            w.Handshake(w.CatalogVersion(1, 0), 4 << 20, 0),
            w.NegotiationOutcome.REFUSED,
            1010,
        ),
        BASELINE,
        u64(5)
        + text("node-2")
        + (b"\x00\x01" + u32(4 << 20) + u64(0) + b"\x00")
        + (b"\x01\x00" + u32(4 << 20) + u64(0) + b"\x00")
        + (b"\x02\x01" + u16(1010)),
    ),
    "PreVoteRequest": (
        w.PreVoteRequestBody(T(42), INDEX(100), T(41)),
        BASELINE,
        u64(42) + u64(100) + u64(41),
    ),
    "PreVoteResponse, nothing to say of RTT": (
        w.PreVoteResponseBody(T(42), vote_granted=False),
        BASELINE,
        u64(42) + b"\x00\x00",
    ),
    "RequestVoteRequest": (
        w.RequestVoteRequest(T(42), INDEX(100), T(41), leadership_transfer=True),
        BASELINE,
        u64(42) + u64(100) + u64(41) + b"\x01",
    ),
    "RequestVoteResponse, barred": (
        w.RequestVoteResponse(T(42), True, w.VoteAnnotationCode.STRICT_FALLBACK_BARRED),  # noqa: FBT003
        BASELINE,
        u64(42) + b"\x01\x01\x01",
    ),
    "RequestVoteResponse, legacy": (
        w.RequestVoteResponse(T(42), vote_granted=True),
        LEGACY,
        u64(42) + b"\x01",
    ),
    "AppendEntriesRequest": (
        w.AppendEntriesRequest(*APPEND, [b"one", b"", b"three"]),
        BASELINE,
        APPEND_BYTES + u16(3) + u32(3) + b"one" + u32(0) + u32(5) + b"three",
    ),
    "AppendEntriesRequest, WideCount": (
        w.AppendEntriesRequest(*APPEND, [b"one"]),
        WIDE_COUNT,
        APPEND_BYTES + u32(1) + u32(3) + b"one",
    ),
    "AppendEntriesResponse": (
        w.AppendEntriesResponse(False, INDEX(10), *ANSWER, INDEX(7), T(1)),  # noqa: FBT003
        BASELINE,
        b"\x00" + u64(10) + ANSWER_BYTES + b"\x01" + u64(7) + b"\x01" + u64(1),
    ),
    "AppendEntriesResponse, success": (
        w.AppendEntriesResponse(True, INDEX(10), *ANSWER),  # noqa: FBT003
        BASELINE,
        b"\x01" + u64(10) + ANSWER_BYTES + b"\x00\x00",
    ),
    "Heartbeat": (
        w.Heartbeat(3, INDEX(10), INDEX(9), w.LeaseEpoch(2), METADATA),
        BASELINE,
        u64(3) + u64(10) + u64(9) + u64(2) + METADATA_BYTES,
    ),
    "HeartbeatResponse": (
        w.HeartbeatResponse(3, w.LeaseEpoch(2), METADATA),
        BASELINE,
        u64(3) + u64(2) + METADATA_BYTES,
    ),
    "DurabilityAck": (
        w.DurabilityAckBody(P(1), R(2), INDEX(3), w.SegmentSeq(4), w.IoWriterMode.FIXED_URING),
        BASELINE,
        u64(1) + u64(2) + u64(3) + u64(4) + b"\x01",
    ),
    "RepairingAck": (
        w.RepairingAck(P(1), R(2), INDEX(3), w.SegmentSeq(4), w.IoWriterMode.BLOCKING),
        BASELINE,
        u64(1) + u64(2) + u64(3) + u64(4) + b"\x03",
    ),
    "OfferSnapshot": (
        w.OfferSnapshot(
            T(7),
            INDEX(4096),
            w.MembersBody([R(1), R(2)], [R(1)], [R(3)], [], [R(4)], auto_leave=True),
            INDEX(4000),
            ROUTING(5),
            w.DurabilityMode.GROUP_FSYNC,
            w.DurabilityModeEpoch(6),
        ),
        BASELINE,
        u64(7)
        + u64(4096)
        + (u16(2) + u64(1) + u64(2) + u16(1) + u64(1) + u16(1) + u64(3) + u16(0))
        + (u16(1) + u64(4) + b"\x01")
        + u64(4000)
        + u64(5)
        + b"\x02"
        + u32(6),
    ),
    "OfferSnapshotResponse": (
        w.OfferSnapshotResponse(INDEX(4096), installed=True),
        BASELINE,
        u64(4096) + b"\x01",
    ),
    "ServiceMessage": (w.ServiceMessage(b"said"), BASELINE, u32(4) + b"said"),
    "SnapshotTransfer": (w.SnapshotTransfer(b"chunk"), BASELINE, u32(5) + b"chunk"),
    "EpochConflict": (w.EpochConflict(), BASELINE, b""),
    "RepairRequest": (w.RepairRequestBody(INDEX(3), INDEX(9)), BASELINE, u64(3) + u64(9)),
    "RepairEntries": (w.RepairEntriesBody([b"one"]), BASELINE, u16(1) + u32(3) + b"one"),
    "InstallSnapshotBegin": (
        w.InstallSnapshotBegin(
            w.ManifestId("m"), T(7), INDEX(4096), w.SnapshotKindCode.DELTA, 1 << 40, b"{}"
        ),
        BASELINE,
        text("m") + u64(7) + u64(4096) + b"\x02" + u64(1 << 40) + u32(2) + b"{}",
    ),
    "InstallSnapshotChunk": (
        w.InstallSnapshotChunk(w.ManifestId("m"), 2, 65_536, True, 0xE3069283, b"123456789"),  # noqa: FBT003
        BASELINE,
        text("m") + u32(2) + u64(65_536) + b"\x01" + u32(0xE3069283) + u32(9) + b"123456789",
    ),
    "InstallSnapshotResponse": (
        w.InstallSnapshotResponse(w.ManifestId("m"), w.InstallState.RECEIVING, 2, 65_536),
        BASELINE,
        text("m") + b"\x01" + u32(2) + u64(65_536),
    ),
    "TimeoutNow": (w.TimeoutNowBody(), BASELINE, b""),
    "TransferLeader": (w.TransferLeader(R(2), 5_000), BASELINE, u64(2) + u64(5_000)),
    "RoutingEpochMismatch": (
        w.RoutingEpochMismatch(*HEADER, ROUTING(9), w.LeaseEpoch(2), ROUTING(8)),
        BASELINE,
        HEADER_BYTES + u64(9) + u64(2) + b"\x01" + u64(8),
    ),
    "RoutingEpochMismatch, none given": (
        w.RoutingEpochMismatch(*HEADER, ROUTING(9), w.LeaseEpoch(2)),
        BASELINE,
        HEADER_BYTES + u64(9) + u64(2) + b"\x00",
    ),
    "ModeConflict": (
        w.ModeConflictEnvelope(*HEADER, w.ModeConflictReason.STRICT_FALLBACK, EPOCH(3), EPOCH(4)),
        BASELINE,
        HEADER_BYTES + b"\x02" + u32(3) + u32(4),
    ),
    "ControlPlaneUnavailable": (
        w.ControlPlaneUnavailable(
            *HEADER,
            w.UnavailableReason.NEEDED_FOR_READ_INDEX,
            250,
            w.CacheStateCode.CACHED,
            61_000,
            w.TraceId("trace"),
        ),
        BASELINE,
        HEADER_BYTES + b"\x03" + u32(250) + b"\x02" + u64(61_000) + text("trace"),
    ),
    "SnapshotFullInvalidated": (
        w.SnapshotFullInvalidated(
            *HEADER, w.SnapshotInvalidReason.SCHEMA_BUMP, w.ManifestId("m"), INDEX(4096)
        ),
        BASELINE,
        HEADER_BYTES + b"\x02" + text("m") + u64(4096),
    ),
    "SnapshotDeltaInvalidated": (
        w.SnapshotDeltaInvalidated(
            *HEADER, w.SnapshotInvalidReason.DELTA_CHAIN, w.ManifestId("m"), w.ManifestId("p"), 3
        ),
        BASELINE,
        HEADER_BYTES + b"\x05" + text("m") + text("p") + u32(3),
    ),
    "ThrottleEnvelope": (
        w.ThrottleEnvelopeBody(
            *HEADER,
            w.ThrottleReasonCode.WAL_DEVICE,
            *(250, 1_000, 2, 3, 4, 5),
            w.CreditHintCode.SHED,
            w.IngestStatusCode.THROTTLED,
            w.DurabilityStatusCode.HEALTHY,
            w.IoWriterMode.BLOCKING,
            w.TraceId("trace"),
            PAGE,
        ),
        BASELINE,
        HEADER_BYTES
        + (b"\x02" + u32(250) + u64(1_000) + u64(2) + u64(3) + u64(4) + u64(5))
        + (b"\x03\x02\x01\x03" + text("trace") + PAGE_BYTES),
    ),
    "FollowerCapabilityRevoked": (
        w.FollowerCapabilityRevoked(
            *HEADER, w.Capability.OBSERVER, w.RevocationReason.PROOF_MISMATCH
        ),
        BASELINE,
        HEADER_BYTES + b"\x02\x03",
    ),
    "SnapshotChunkAuthFailure": (
        w.SnapshotChunkAuthFailureEnvelope(*HEADER, w.ManifestId("m"), "c", 3),
        BASELINE,
        HEADER_BYTES + text("m") + text("c") + u32(3),
    ),
    "SnapshotDeltaRetired": (
        w.SnapshotDeltaRetiredEnvelope(*HEADER, w.ManifestId("m"), 8, 30_000),
        BASELINE,
        HEADER_BYTES + text("m") + u32(8) + u64(30_000),
    ),
    "NonceReservationGapWarning": (
        w.NonceReservationGapWarning(*HEADER, w.SegmentSeq(7), 5 << 20, 4 << 20),
        BASELINE,
        HEADER_BYTES + u64(7) + u64(5 << 20) + u64(4 << 20),
    ),
    "OverrideStrictOnlyBackpressure": (
        w.OverrideStrictOnlyBackpressure(*HEADER, 9_000, 8_000, "OVR-7"),
        BASELINE,
        HEADER_BYTES + u64(9_000) + u64(8_000) + b"\x01" + text("OVR-7"),
    ),
    "OverrideLedgerEntry": (
        w.OverrideLedgerEntry(
            *HEADER, "OVR-7", "durability", "ada", "t:1", "why", w.UnixMs(1), w.UnixMs(2), b"sig"
        ),
        BASELINE,
        HEADER_BYTES
        + (text("OVR-7") + text("durability") + text("ada") + text("t:1") + text("why"))
        + (u64(1) + u64(2) + u32(3) + b"sig"),
    ),
    "WhyNotLeader": (
        w.WhyNotLeader(*HEADER, *WHY, w.NotLeaderReason.FOLLOWER, R(3)),
        BASELINE,
        HEADER_BYTES + WHY_BYTES + b"\x01\x01" + u64(3),
    ),
    "WhyCreditZero": (
        w.WhyCreditZero(*HEADER, *WHY, w.ThrottleReasonCode.FOLLOWER_LAG, 0, 16, 70),
        BASELINE,
        HEADER_BYTES + WHY_BYTES + b"\x03" + u64(0) + u64(16) + u64(70),
    ),
    "WhySnapshotBlocked": (
        w.WhySnapshotBlocked(*HEADER, *WHY, w.SnapshotBlockedReason.BANDWIDTH, w.UnixMs(12)),
        BASELINE,
        HEADER_BYTES + WHY_BYTES + b"\x04" + u64(12),
    ),
    "WhyDiskBlocked": (
        w.WhyDiskBlocked(*HEADER, *WHY, w.ThrottleReasonCode.DISK_HARD, 1, 2),
        BASELINE,
        HEADER_BYTES + WHY_BYTES + b"\x05" + u64(1) + u64(2),
    ),
    "WhyQuarantined": (
        w.WhyQuarantinedEnvelope(*HEADER, *WHY, w.QuarantineReasonCode.APPLY_FAULT, w.UnixMs(12)),
        BASELINE,
        HEADER_BYTES + WHY_BYTES + b"\x03" + u64(12),
    ),
    "WhyCreditHint": (
        w.WhyCreditHint(*HEADER, *WHY, w.CreditHintCode.HOLD, w.ThrottleReasonCode.APPLY_BUDGET),
        BASELINE,
        HEADER_BYTES + WHY_BYTES + b"\x02\x01\x01",
    ),
}
