"""Publishes on their way into the log, in batches that know whose they are and no more.

A batch has a token that is its protocol's own (in MQTT the acknowledgements that wait), and an
owner that hears what became of it. Nobody between the two looks at the token.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final, Protocol, TypeAlias

from quantum.partition.ports import Refusals
from quantum.partition.reasons import RefusalReason

COMMAND_BYTES_MAX: Final = 256 << 10
"""Where one command of packed publishes ends and the next begins."""
WINDOW_BYTES: Final = 8 << 20
"""What may be on its way to the owner of topics: more would be dropped between the nodes."""

Token: TypeAlias = Any


def cuts(records: list[bytes]) -> list[tuple[int, int]]:
    """Say where to cut records so that each piece fits a command."""
    found: list[tuple[int, int]] = []
    begin, size = 0, 0
    for at, record in enumerate(records):
        if at > begin and size + len(record) > COMMAND_BYTES_MAX:
            found.append((begin, at))
            begin, size = at, 0
        size += len(record)
    found.append((begin, len(records)))
    return found


class BatchOwner(Protocol):
    """Whoever published, as far as its batches know it."""

    def batch_finished(self) -> None:
        """A batch is done: committed and durable, but for what was refused of it."""

    def batch_refused(self, batch: PublishBatch, number: int, reason: RefusalReason) -> None:
        """One publish of a batch was not taken; the others may be."""

    def batch_lost(self) -> None:
        """A publish is not in the log and never will be; nothing behind it is answered either."""


class PublishBatch:
    """Publishes of one client, one behind the other, for one partition."""

    __slots__ = ("began_ms", "count", "done", "lost", "owner", "refused", "token")

    def __init__(self, owner: BatchOwner, token: Token, count: int) -> None:
        self.owner = owner
        self.token = token
        self.count = count
        self.began_ms = 0  # when its publishes came, by the loop's clock
        self.done = False
        self.lost = False
        self.refused: list[tuple[int, int]] | None = None
        """Which were refused, and why in the words of its protocol: the owner's to fill."""

    def finish(self, index: int = 0) -> None:
        """Let its owner answer; `index` is the entry that has it, 0 where that is not known."""
        del index  # of use to batches whose answers name it
        self.done = True
        self.owner.batch_finished()

    def refuse(self, number: int, reason: RefusalReason) -> None:
        """Say that one of the publishes was refused."""
        self.owner.batch_refused(self, number, reason)


class OpenBatches:
    """Batches whose publishes are in one order: numbered from `first`, finished from the left."""

    __slots__ = ("_batches", "_first", "next_number")

    def __init__(self, first: int) -> None:
        self._batches: deque[PublishBatch] = deque()
        self._first = first
        self.next_number = first

    def __len__(self) -> int:
        return self.next_number - self._first

    def add(self, batch: PublishBatch) -> None:
        self._batches.append(batch)
        self.next_number += batch.count

    def finish(self, through: int, refused: Refusals, index: int) -> None:
        """Finish every batch that ends at or before `through`, whose last is in that entry."""
        for number, reason in refused:
            self._refuse(number, reason)
        while self._batches and self._first + self._batches[0].count - 1 <= through:
            batch = self._batches.popleft()
            self._first += batch.count
            if not batch.lost:
                batch.finish(index)

    def lose(self, first: int, last: int) -> None:
        """Tell the owners of whom a publish of these is not in the log, and never will be.

        Nothing behind it may be answered either: they send it all again.
        """
        at = self._first
        for batch in self._batches:
            if at <= last and at + batch.count > first:
                batch.lost = True
                batch.owner.batch_lost()
            at += batch.count

    def _refuse(self, number: int, reason: int) -> None:
        first = self._first
        for batch in self._batches:
            if number < first + batch.count:
                if number >= first:
                    batch.refuse(number - first, RefusalReason.of(reason))
                return
            first += batch.count
