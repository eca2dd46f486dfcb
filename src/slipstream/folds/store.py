"""The contract of a durable fold; `tests/slipstream/test_folds.py` holds every backend to it.

- A fold is a pure function of the log: delete it, replay everything, and it is the same.
- `apply` makes data and cursor durable together; the cursor never names what is absent.
- A fold is a cache: a tail that power loss took is delivered again from the recovered cursor.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from slipstream.types import KvEntry, KvUpdate, WatchCursor


class SnapshotStore(ABC):
    """One fold on disk. Its methods block; call them from one thread at a time."""

    backend: ClassVar[str]  # the name that an artifact's manifest carries
    format_generation: ClassVar[int]
    # The file of an artifact's payload that is the fold, or None when the whole directory is.
    artifact_member: ClassVar[str | None]

    @classmethod
    @abstractmethod
    def load(cls, path: Path | str) -> Self:
        """Open the fold at `path`, or make an empty one; `cursor` is where to resume."""

    @property
    @abstractmethod
    def cursor(self) -> WatchCursor:
        """The position that the data is exactly consistent with."""

    @abstractmethod
    def apply(self, batch: Sequence[KvUpdate], cursor: WatchCursor) -> None:
        """Fold the updates in, in order, and move the cursor: both or neither.

        On an error the fold is as before and the same batch may be applied again.
        """

    @abstractmethod
    def get(self, key: str) -> KvEntry | None:
        """Give the entry of a key, or None."""

    @abstractmethod
    def iterate(self, prefix: str = "") -> Iterator[KvEntry]:
        """Give the entries under a prefix one by one, ordered by the bytes of their keys."""

    @abstractmethod
    def keys(self, prefix: str = "") -> Iterator[str]:
        """Give the keys under a prefix one by one, in order, without reading values."""

    @abstractmethod
    def write_copy(self, directory: Path) -> None:
        """Write a copy of the fold, exactly at `cursor`, into an empty directory."""

    @abstractmethod
    def close(self) -> None:
        """Release files; a second call does nothing."""

    def range(self, prefix: str = "") -> list[KvEntry]:
        """Give the entries under a prefix, ordered by the bytes of their keys."""
        return list(self.iterate(prefix))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def stale_keys(folded: Iterable[str], live: Collection[str]) -> Iterator[str]:
    """Give the keys that a fold still has and the bucket does not."""
    return (key for key in folded if key not in live)


def prefix_end(prefix: bytes) -> bytes | None:
    """Give the least key above every key with this prefix; None when there is none."""
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes([trimmed[-1] + 1]) if trimmed else None
