"""What can go wrong with a snapshot.

SnapshotError
├── SnapshotMisuse                our caller asked for something that a snapshot cannot mean
├── ManifestRejected              a manifest that is not believed
│   ├── MalformedManifest             not the canonical JSON of a manifest
│   ├── ManifestTooLarge              refused before it is parsed
│   ├── ManifestHashMismatch          `content_hash` is not the hash of the rest
│   ├── ManifestSignatureInvalid      no trusted SnapshotManifestKey signed it
│   └── SnapshotVersionUnsupported    `version_id` is out of bounds
├── SnapshotInvalidated           it was good once; `reason` says what ended that (clustor §11.1)
│   └── SnapshotDeltaRetired          its parent is known, and no longer the newest
├── SnapshotSuperseded            this replica already has it, or a newer one
├── CorruptSnapshot               bytes are not what was written
│   ├── SnapshotChunkAuthFailure      a digest or an AEAD tag failed
│   ├── SnapshotFileMissing           a file that an authorisation proves must be there is not
│   └── CorruptAuthorizationLog       the hash chain is broken before its end
└── SnapshotDeterminismViolation  the restored state is not the state that was emitted
"""

from __future__ import annotations

from clustor.snapshot.types import InvalidationReason, SnapshotKind


class SnapshotFailure(Exception):
    """Root of the snapshots' errors: a sentence for people, and `facts` for machines."""

    def __init__(self, reason: str, **facts: object) -> None:
        super().__init__(reason)
        self.reason = reason
        self.facts = facts

    def __str__(self) -> str:
        details = ", ".join(f"{name}={value}" for name, value in self.facts.items())
        return f"{self.reason} ({details})" if details else self.reason


class SnapshotMisuse(SnapshotFailure):
    """Our caller asked for something that a snapshot cannot mean."""


class ManifestRejected(SnapshotFailure):
    """A manifest that is not believed; nothing that it names is read."""


class MalformedManifest(ManifestRejected):
    """The bytes are not the canonical JSON of a manifest of this schema."""


class ManifestTooLarge(ManifestRejected):
    """More bytes than a manifest may have."""


class ManifestHashMismatch(ManifestRejected):
    """`content_hash` is not the hash of the other members."""


class ManifestSignatureInvalid(ManifestRejected):
    """No trusted key signed this manifest."""


class SnapshotVersionUnsupported(ManifestRejected):
    """`version_id` is outside the bounds that this release reads."""


class SnapshotInvalidated(SnapshotFailure):
    """A snapshot that no longer counts: clustor's `snapshot_{full,delta}_invalidated`."""

    def __init__(self, kind: SnapshotKind, reason: InvalidationReason, **facts: object) -> None:
        super().__init__(f"snapshot_{kind.value.lower()}_invalidated: {reason.value}", **facts)
        self.kind = kind
        self.invalidation = reason


class SnapshotDeltaRetired(SnapshotInvalidated):
    """A delta whose parent is known here, and is no longer the newest snapshot."""

    def __init__(self, **facts: object) -> None:
        super().__init__(SnapshotKind.DELTA, InvalidationReason.DELTA_CHAIN_VIOLATION, **facts)


class SnapshotSuperseded(SnapshotFailure):
    """The offered snapshot is authorised here already, or a newer one is."""


class CorruptSnapshot(SnapshotFailure):
    """Bytes on disk or from a peer are not what was written."""


class SnapshotChunkAuthFailure(CorruptSnapshot):
    """A chunk's digest, length or AEAD tag does not match; its plaintext was overwritten."""


class SnapshotFileMissing(CorruptSnapshot):
    """A file that an authorised manifest needs is not there."""


class CorruptAuthorizationLog(CorruptSnapshot):
    """A record before the end of the authorisation log is damaged, or the chain does not hold."""


class SnapshotDeterminismViolation(SnapshotFailure):
    """The restored state's digests are not those of the manifest (clustor §10.7)."""
