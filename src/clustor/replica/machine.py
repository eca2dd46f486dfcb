"""What a replica replicates: a deterministic machine that takes bytes and gives bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from clustor.streams.changes import StreamChange, StreamExtent


class StateMachine(Protocol):
    """Equal batches in equal order give equal replies, digests and snapshots, everywhere."""

    def apply_batch(self, index: int, commands: Sequence[bytes], /) -> list[bytes]:
        """Apply the commands of the committed entry at `index`; one reply for each.

        No bytes make it raise: what it cannot understand it answers.
        """

    def snapshot(self) -> Iterator[bytes]:
        """Give the state of this moment; what is applied later does not show in it."""

    def restore(self, chunks: Iterable[bytes], /) -> None:
        """Become what a snapshot says, or raise and be unchanged. Pieces may be cut anywhere."""

    def digest(self) -> bytes:
        """Return bytes that are equal for equal state."""

    @property
    def applied_index(self) -> int:
        """The index of the last batch that was applied."""


@runtime_checkable
class DigestsLater(Protocol):
    """A machine whose digest costs as much as its snapshot: both are made beside the loop."""

    def frozen(self) -> tuple[Iterator[bytes], Callable[[], bytes]]:
        """Give `snapshot`, and what `digest` is of it once all of that was taken."""


@runtime_checkable
class DeltaMachine(StateMachine, Protocol):
    """A machine that knows what changed since a moment it was told to remember.

    Without this a machine's snapshots are whole ones.
    """

    def mark(self, base_index: int, /) -> None:
        """Remember this moment under its index; a few are kept."""

    def delta(self, base_index: int, /) -> Iterator[bytes] | None:
        """Give what changed since that moment, as of now; None where it is not known."""

    def restore_delta(self, chunks: Iterable[bytes], /) -> None:
        """Go on to what a delta ends with, or raise: then it is given up, and may be empty."""


@runtime_checkable
class DigestsDeltas(DeltaMachine, Protocol):
    """A machine whose digest costs as much as its whole state: a delta has one of its own.

    It covers what the delta tells of. What it does not tell of is the snapshot's before it, whose
    own digest was compared: a chain is believed link by link.
    """

    def frozen_delta(
        self, base_index: int, /
    ) -> tuple[Iterator[bytes], Callable[[], bytes]] | None:
        """Give `delta`, and its digest once all of that was taken."""

    def delta_digest(self) -> bytes:
        """Return the digest of the delta that was restored last, made from the state it led to."""


@runtime_checkable
class DefinableMachine(StateMachine, Protocol):
    """A machine whose rules are a document that can be exchanged while it runs (clustor §9.7)."""

    def redefine(self, index: int, definition: bytes, /) -> None:
        """Apply the committed activation at `index`; what is unusable changes nothing."""

    def adopt(self, definition: bytes, /) -> bool:
        """Take a definition into use beside the log; False: it is none of this machine."""

    def is_defined_by(self, definition: bytes, /) -> bool:
        """Say whether a definition is in force."""

    def misfits(self) -> tuple[int, int]:
        """Count what it holds and could not take now, and all that it holds."""

    def is_refusal(self, reply: bytes, /) -> bool:
        """Say whether a reply refuses what was asked."""


@runtime_checkable
class StreamMachine(StateMachine, Protocol):
    """A machine whose entries also append to streams: the replica owns their files and feeds them.

    Offsets are decided by `apply_batch`, so equal entries give equal changes everywhere. Its
    snapshot holds what it says of its streams (`stream_extents`) and no byte of them: those are
    durable in files before a snapshot counts, and travel only to a replica that lacks them.
    """

    def take_stream_changes(self) -> list[StreamChange]:
        """Return what was decided since the last call, in order; after each entry it is asked."""

    def stream_extents(self) -> Iterable[StreamExtent]:
        """Say which partitions there are, each with its first index and the next to come."""


NewMachine: TypeAlias = Callable[[], StateMachine]
"""Makes an empty machine. A snapshot is restored into a new one, which replaces the old one
only when all of it has been believed."""
