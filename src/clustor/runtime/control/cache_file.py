"""A node's copy of the control plane: folded from the local replica, confirmed by the leader,
kept on disk between two lives of the process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from clustor.control import (
    CacheCursor,
    ClockReading,
    ControlCache,
    ImageRefused,
    decode_image,
    encode_image,
)
from clustor.control.draft import scan_records
from clustor.kv import Events, KvMachine, KvRecord
from clustor.log.types import PartitionId
from clustor.raft.profiles import ControlPlaneNumbers
from clustor.runtime.data_directory import write_durably
from clustor.wall_clock import wall_clock_ms

COPY_FILE: Final = "control-copy.bin"
SAVE_SECONDS: Final = 30.0
EVENTS_PER_FOLD: Final = 1_024
_OF_PARTITIONS: Final = (
    b"proof/",
    b"proof_conflict/",
    b"proof_conflict_cleared/",
    b"placement/",
    b"membership/",
    b"durability/",
)
_OF_ALL: Final = (b"key/", b"key_epochs/", b"fence/")

journal = logging.getLogger("clustor.control")


@dataclass(slots=True)
class FoldedChanges:
    """Which groups must hear of what was folded."""

    all: bool = False
    partitions: set[PartitionId] = field(default_factory=set)
    placed: bool = False  # a placement is another now
    binding: bool = False  # keys or fences: a node that starts cut off must have them
    more: bool = False  # there is more to fold: come again


class NodeCopy:
    """The copy, and the file that it outlives the process in."""

    def __init__(self, directory: Path, numbers: ControlPlaneNumbers, now: ClockReading) -> None:
        self._path = directory / COPY_FILE
        self.cache = _read(self._path, numbers, now)
        self._confirmation: tuple[ClockReading, int] | None = None  # waits for its revision
        self._saved: tuple[object, ...] | None = None
        self.saved_revision = 0
        """What outlives the process: the copy up to here."""

    def confirm(self, asked: ClockReading, revision: int) -> None:
        """Note that whoever has `revision` had everything when `asked` was; fold next."""
        self._confirmation = (asked, revision)

    @property
    def awaits_confirmation(self) -> bool:
        return self._confirmation is not None

    def fold(self, store: KvMachine, now: ClockReading) -> FoldedChanges:
        """Take what the local replica has applied since, so much at a time."""
        asked, confirmed = now, False
        if self._confirmation is not None and store.revision >= self._confirmation[1]:
            asked, confirmed = self._confirmation[0], True
        if self.cache.cursor is None:
            changes = self._list(store, asked, confirmed=confirmed)
        else:
            changes = self._poll(store, self.cache.cursor, asked, confirmed=confirmed)
        if confirmed and not changes.more:
            self._confirmation = None
            changes.all = True
        return changes

    def _list(self, store: KvMachine, asked: ClockReading, *, confirmed: bool) -> FoldedChanges:
        if store.revision:
            cursor = CacheCursor(store.store_id, store.revision)
            self.cache.listed(cursor, scan_records(store, b""), asked=asked, confirmed=confirmed)
        return FoldedChanges(all=True)

    def _poll(
        self, store: KvMachine, cursor: CacheCursor, asked: ClockReading, *, confirmed: bool
    ) -> FoldedChanges:
        found = store.events_since(cursor.revision, limit=EVENTS_PER_FOLD)
        self.cache.polled(found, store_id=store.store_id, asked=asked, confirmed=confirmed)
        if self.cache.cursor is None:
            return FoldedChanges(more=True)  # it meant nothing any more: everything is listed next
        if not isinstance(found, Events):
            return FoldedChanges()  # this replica is behind the copy, as after a restart
        changes = touched(found.events)
        changes.more = found.more
        return changes

    # The file.

    async def save(self) -> None:
        """Write the copy beside the loop, if it is another than the last one."""
        cache = self.cache
        state = (cache.cursor, cache.confirmed_unix_ms)
        if cache.cursor is None or state == self._saved:
            return
        self._saved = state
        image = cache.image()
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(None, lambda: write_durably(self._path, encode_image(image)))
            self.saved_revision = image.revision
        except OSError as error:  # the copy is rebuilt without it: no reason to stop a node
            self._saved = None
            journal.warning("cannot keep the copy of the control plane: %s", error)


def touched(events: Iterable[KvRecord]) -> FoldedChanges:
    """Say whom these changes concern."""
    changes = FoldedChanges()
    for event in events:
        prefix, _, name = bytes(event.key).rpartition(b"/")
        if prefix + b"/" in _OF_PARTITIONS:
            changes.partitions.add(PartitionId(int(name)))
            changes.placed |= prefix == b"placement"
        elif event.key.startswith(_OF_ALL):
            changes.all = changes.binding = True
    return changes


def moment(monotonic_ms: int) -> ClockReading:
    """Read the clock on the wall beside the loop's own."""
    return ClockReading(monotonic_ms, wall_clock_ms())


def _read(path: Path, numbers: ControlPlaneNumbers, now: ClockReading) -> ControlCache:
    """Go on from the file. One that is not whole is set aside: everything is listed again."""
    try:
        return ControlCache.from_image(numbers, decode_image(path.read_bytes()), now)
    except FileNotFoundError:
        return ControlCache(numbers)
    except ImageRefused as error:
        journal.warning("the copy of the control plane is not used: %s", error)
        path.rename(path.with_name(path.name + ".refused"))
        return ControlCache(numbers)
