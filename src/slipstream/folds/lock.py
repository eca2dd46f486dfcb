"""One process, one fold: two that follow a bucket into the same files would tear holes in it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from slipstream.errors import FoldInUse, SnapshotIo


class FoldLock:
    """A lock beside the fold; the system releases it when its process dies."""

    def __init__(self, fold: Path) -> None:
        self._path = fold.with_name(f".{fold.name}.lock")
        self._descriptor = self._acquire(fold)

    def _acquire(self, fold: Path) -> int:
        while True:
            try:
                descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except OSError as error:
                raise SnapshotIo("cannot lock the fold", file=str(fold)) from error
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(descriptor)
                raise FoldInUse("another process follows into this fold", file=str(fold)) from error
            if self._is_named(descriptor):
                return descriptor
            os.close(descriptor)  # Its holder took the name away just before letting go.

    def _is_named(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), self._path.stat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Let go, the name first: whoever waits for the name finds a file of their own."""
        if self._descriptor >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = -1
