"""The jobs that read from disk, and who waits for what they find."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from clustor.replica.errors import ReplicaMisuse
from clustor.replica.types import DiskJob, DiskRead, ReadToken

Found: TypeAlias = Callable[[object], None]
Failed: TypeAlias = Callable[[Exception], None]


class DiskReader:
    """Jobs end in any order; each ends once."""

    def __init__(self) -> None:
        self._next_token = 1
        self.fresh: list[DiskRead] = []
        """Jobs that wait to be handed out."""
        self._outstanding: dict[ReadToken, tuple[Found, Failed]] = {}

    def submit(self, job: DiskJob, found: Found, failed: Failed) -> None:
        token = ReadToken(self._next_token)
        self._next_token += 1
        self.fresh.append(DiskRead(token, job))
        self._outstanding[token] = (found, failed)

    def finish(self, token: ReadToken, result: object) -> None:
        self._take(token)[0](result)

    def fail(self, token: ReadToken, error: Exception) -> None:
        self._take(token)[1](error)

    def _take(self, token: ReadToken) -> tuple[Found, Failed]:
        waiting = self._outstanding.pop(token, None)
        if waiting is None:
            raise ReplicaMisuse("no such job", token=token)
        return waiting

    def take(self) -> list[DiskRead]:
        fresh, self.fresh = self.fresh, []
        return fresh

    def abandon(self) -> None:
        self.fresh.clear()
        self._outstanding.clear()
