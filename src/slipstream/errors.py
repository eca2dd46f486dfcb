"""What can go wrong between a bucket, a fold and an artifact.

SlipstreamError
├── Misuse                    our caller asked for something that cannot be meant
│   ├── InvalidKey                a key or prefix that no backend can carry
│   ├── NotConnected              the connection is not open
│   ├── MissingExtra              an optional dependency is not installed; names the extra
│   └── DestinationExists         an import or export would write over something
├── KvError                   the store, or the way to it
│   ├── ConnectionFailed          no server, or it refused us
│   ├── Timeout                   no answer within the operation's time
│   ├── BucketUnavailable         the bucket is not there and could not be made
│   ├── AlreadyExists             a create met a live key
│   ├── RevisionMismatch          a conditional write lost its race
│   ├── CursorExpired             the log no longer holds what follows the cursor
│   │   └── StoreReplaced             the cursor belongs to another life of this bucket
│   ├── WatchError                a live watch cannot go on without losing something
│   └── StoreFailure              any other refusal by the backend
├── SnapshotError             a fold on disk
│   ├── SnapshotIo                the disk refused; a poisoned writer says so too
│   ├── FoldInUse                 another process follows into the same fold
│   ├── Corrupted                 bytes are not what was written
│   └── InvalidFormat             not a fold of this kind or version
└── ArtifactError             an export, or its transport
    ├── ArtifactInvalid           torn, tampered with, or of another kind
    ├── ArtifactMissing           nothing is published under this key
    ├── PointerContention         eight rivals in a row moved the pointer first
    ├── PointerForeign            the pointer belongs to another life of the bucket
    └── ConditionalPutUnsupported the object store cannot swap a pointer atomically
"""

from __future__ import annotations


class SlipstreamError(Exception):
    """Root of the library's errors: a sentence for people, and `facts` for machines."""

    def __init__(self, reason: str, **facts: object) -> None:
        super().__init__(reason)
        self.reason = reason
        self.facts = facts

    def __str__(self) -> str:
        details = ", ".join(f"{name}={value}" for name, value in self.facts.items())
        return f"{self.reason} ({details})" if details else self.reason


class Misuse(SlipstreamError):
    """Our caller asked for something that cannot be meant."""


class InvalidKey(Misuse):
    """A key or prefix that the backend cannot carry."""


class NotConnected(Misuse):
    """The connection is not open."""


class MissingExtra(Misuse):
    """An optional dependency is not installed; `facts["extra"]` names what to install."""

    def __init__(self, extra: str) -> None:
        super().__init__(
            f"this needs an optional dependency: pip install 'quantum-mq[{extra}]'", extra=extra
        )

    def __str__(self) -> str:
        return self.reason


class DestinationExists(Misuse):
    """An import or export would write over what is already there."""


class KvError(SlipstreamError):
    """The store, or the way to it."""


class ConnectionFailed(KvError):
    """No server answers at this address, or it refused us."""


class Timeout(KvError):
    """The backend gave no answer in time; the outcome of a write is unknown."""


class BucketUnavailable(KvError):
    """The bucket does not exist and could not be created."""


class AlreadyExists(KvError):
    """A create met a key that is alive."""


class RevisionMismatch(KvError):
    """A conditional write lost: the key has moved on. Read `entry()`, resolve, try again."""


class CursorExpired(KvError):
    """The log no longer holds everything that follows the cursor."""


class StoreReplaced(CursorExpired):
    """The bucket was recreated or restored: the cursor names revisions of another life."""


class WatchError(KvError):
    """A live watch cannot go on without losing something; start it again."""


class StoreFailure(KvError):
    """The backend refused for a reason of its own."""


class SnapshotError(SlipstreamError):
    """A fold on disk."""


class SnapshotIo(SnapshotError):
    """The disk refused an operation, or the writer was poisoned by an earlier refusal."""


class FoldInUse(SnapshotError):
    """Another process, or another object of this one, has the fold open."""


class Corrupted(SnapshotError):
    """Bytes in the middle of a fold are not what was written; delete it and replay."""


class InvalidFormat(SnapshotError):
    """Not a fold of this kind, or of a version that this release does not know."""


class ArtifactError(SlipstreamError):
    """An exported fold, or the store that carries it."""


class ArtifactInvalid(ArtifactError):
    """The artifact is torn, tampered with, or of another backend or format."""


class ArtifactMissing(ArtifactError):
    """Nothing is published under this key."""


class PointerContention(ArtifactError):
    """The pointer moved under us every time we tried to swap it."""


class PointerForeign(ArtifactError):
    """The published pointer belongs to another life of the bucket; publish under a new key."""


class ConditionalPutUnsupported(ArtifactError):
    """The object store has no conditional put, so a pointer could go backwards."""
