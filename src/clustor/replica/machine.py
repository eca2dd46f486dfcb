"""What a replica replicates: a deterministic machine that takes bytes and gives bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeAlias


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


NewMachine: TypeAlias = Callable[[], StateMachine]
"""Makes an empty machine. A snapshot is restored into a new one, which replaces the old one
only when all of it has been believed."""
