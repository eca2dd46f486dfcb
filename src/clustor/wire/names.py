"""What the catalog calls a class: the specification's word, which other rooms use for their own.

A name in the catalog is agreed with every peer and every reader of the JSON mirrors; a name in
the code is ours. Where the code says more (`…Body`, `…Envelope`, `…Code`), the catalog's word
stands here.
"""

from __future__ import annotations

from typing import Final

_AGREED: Final = {
    "CacheStateCode": "CacheState",
    "CreditHintCode": "CreditHint",
    "DefineActivateBody": "DefineActivate",
    "DurabilityAckBody": "DurabilityAck",
    "DurabilityStatusCode": "DurabilityStatus",
    "DurabilityTransitionBody": "DurabilityTransition",
    "ExplanationEnvelope": "Explanation",
    "IdPageBody": "IdPage",
    "IngestStatusCode": "IngestStatus",
    "MembersBody": "Members",
    "ModeConflictEnvelope": "ModeConflict",
    "PreVoteRequestBody": "PreVoteRequest",
    "PreVoteResponseBody": "PreVoteResponse",
    "QuarantineReasonCode": "QuarantineReason",
    "RepairEntriesBody": "RepairEntries",
    "RepairRequestBody": "RepairRequest",
    "SnapshotChunkAuthFailureEnvelope": "SnapshotChunkAuthFailure",
    "SnapshotDeltaRetiredEnvelope": "SnapshotDeltaRetired",
    "SnapshotKindCode": "SnapshotKind",
    "ThrottleEnvelopeBody": "ThrottleEnvelope",
    "ThrottleReasonCode": "ThrottleReason",
    "TimeoutNowBody": "TimeoutNow",
    "VoteAnnotationCode": "VoteAnnotation",
    "WhyQuarantinedEnvelope": "WhyQuarantined",
}


def catalog_name(kind: type) -> str:
    """Return the agreed name of a message, record or enumeration."""
    return _AGREED.get(kind.__name__, kind.__name__)
