"""The background scrub of a node: every log, the snapshot that it begins behind, and the streams
beside it, are read again before anybody needs them (clustor §9.4).

Each group has a round every six hours, which reads at least a hundredth of each segment, some of
the snapshot's chunks and manifests, some of the streams' files, and so much that all of it is read
once in seven days. A round is cut into pieces of some 100 KiB, or a chunk, or a file of a stream. A
piece is read beside the loop by a thread that yields to everybody, and none begins while a group
is at the disk, unless that lasts. What fails a CRC is read again, three times; what is found to be
damaged stops its replica: a leader steps down, and the repair begins (`repairing`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from clustor.log.errors import ChecksumMismatch
from clustor.log.extent_bounds import readable_segments
from clustor.log.health import REPAIR_ATTEMPTS_MAX
from clustor.log.metadata import BootRecord
from clustor.log.scrub import Scrub, SegmentSlice, SliceResult
from clustor.log.segment import segment_file
from clustor.log.types import PartitionId, SegmentSeq
from clustor.replica import Replica, ReplicaDamaged
from clustor.runtime.admin.commands import Answer
from clustor.runtime.boot_record import Booted, boot_record_of, write_boot_record
from clustor.runtime.containment import contained
from clustor.runtime.group import HostedGroup
from clustor.runtime.repair.scrub_reading import (
    read_piece,
    read_rest,
    read_snapshot_piece,
    read_stream_part,
    scrub_thread,
)
from clustor.snapshot.errors import CorruptSnapshot
from clustor.snapshot.scrub import SnapshotFile, SnapshotScrub, pieces_of
from clustor.streams.scrub import StreamPart, StreamScrub, view_of_part
from clustor.telemetry import MetricFamily, counter, gauge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clustor.runtime.node import Node

PIECE_BYTES: Final = 128 << 10
_LOOK_SECONDS: Final = 1.0
_REST_FACTOR: Final = 9  # a tenth of one processor at most, while nobody waits for it
_REST_SECONDS_MIN: Final = 0.01
_YIELD_SECONDS: Final = 0.02
_YIELDS_MAX: Final = 50
_RETRY_SECONDS: Final = 1.0

journal = logging.getLogger("clustor.node")


@dataclass(slots=True)
class _Watched:
    """The scrub of one replica."""

    replica: Replica
    scrub: Scrub
    snapshots: SnapshotScrub = field(default_factory=SnapshotScrub)
    waiting: deque[SegmentSlice] = field(default_factory=deque)
    pieces: deque[SnapshotFile] = field(default_factory=deque)
    """Of snapshots; they are read when no segment waits."""
    streams: StreamScrub = field(default_factory=StreamScrub)
    parts: deque[StreamPart] = field(default_factory=deque)
    """Of streams; they are read when nothing else waits."""
    is_asked: bool = False  # somebody waits: no rest between the pieces
    passes: int = 0
    """How often a round, or all that somebody asked for, was read to its end."""
    asked_passes: int = 0
    read_bytes: int = 0
    problem: str = ""

    def coverage_age_days(self, now_ms: int) -> float:
        ages = (self.scrub.coverage_age_days(now_ms), self.snapshots.coverage_age_days(now_ms))
        return max(*ages, self.streams.coverage_age_days(now_ms))

    @property
    def has_reads(self) -> bool:
        return bool(self.waiting or self.pieces or self.parts)

    def drop_reads(self) -> None:
        self.waiting.clear()
        self.pieces.clear()
        self.parts.clear()

    def ask(self, sizes: list[tuple[SegmentSeq, int]], now_ms: int) -> None:
        """Let everything be read now."""
        self.waiting = deque(self.scrub.take_all(sizes))
        self.pieces = deque(self.snapshots.take_all(now_ms, pieces_of(self.replica.catalog)))
        if self.replica.streams is not None:
            self.parts = deque(self.streams.take_all(now_ms, self.replica.streams.store))
        self.problem = ""
        self.is_asked = True

    def begin_round(self, sizes: list[tuple[SegmentSeq, int]], now_ms: int) -> None:
        self.waiting = deque(self.scrub.take_round(now_ms, sizes))
        self.pieces = deque(self.snapshots.take_round(now_ms, pieces_of(self.replica.catalog)))
        if self.replica.streams is not None:
            self.parts = deque(self.streams.take_round(now_ms, self.replica.streams.store))


class Scrubber:
    """All groups of one node, one piece at a time."""

    def __init__(self, node: Node, selftest_digest: str = "") -> None:
        self._node = node
        self._selftest_digest = selftest_digest
        self._unrecorded: deque[Booted] = deque()
        self._boots: dict[PartitionId, BootRecord] = {}
        self._loop = asyncio.get_running_loop()
        self._thread = scrub_thread()
        self._watched: dict[PartitionId, _Watched] = {}
        self._awake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.read_bytes = 0
        self.faults = 0

    def start(self) -> None:
        self._task = self._loop.create_task(contained.lasting("duty", self._run))

    def close(self) -> None:
        """Stop; what was read does not have to be read again, because a start reads everything."""
        if self._task is not None:
            self._task.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    # What is asked.

    def scrub_now(self, group: HostedGroup) -> dict[str, Any]:
        """Begin to read a whole group; `row` tells when `asked_passes` has grown."""
        watched = self._watch(group)
        if watched is None:
            return self.row(group)
        watched.ask(self._sizes(group), self._node.now_ms())
        self._awake.set()
        return self.row(group)

    def row(self, group: HostedGroup) -> dict[str, Any]:
        """Say how far the scrub of a group is."""
        watched = self._watched.get(group.partition_id)
        held = group.quarantine
        found: dict[str, Any] = {
            "partition_id": int(group.partition_id),
            "quarantine": None if held is None else str(held),
            "failed": group.replica.failed,
            "boot": self._boots.get(group.partition_id),
        }
        if watched is None:
            return found | {"asked_passes": 0, "passes": 0, "running": False, "problem": ""}
        return found | {
            "asked_passes": watched.asked_passes,
            "passes": watched.passes,
            "running": watched.is_asked,
            "problem": watched.problem,
            "read_bytes": watched.read_bytes,
            "coverage_age_days": round(watched.coverage_age_days(self._node.now_ms()), 6),
        }

    def page(self, path: str, _query: dict[str, str]) -> Answer | None:
        """Answer `GET /scrub`."""
        if path != "/scrub":
            return None
        groups = sorted(self._node.groups.values(), key=lambda each: each.partition_id)
        return 200, {
            "node_id": int(self._node.node_id),
            "coverage_age_days": round(self.coverage_age_days(), 6),
            "groups": [self.row(group) for group in groups],
        }

    def coverage_age_days(self) -> float:
        """The age of the oldest reading that any byte of any log or snapshot here relies on."""
        now_ms = self._node.now_ms()
        ages = (each.coverage_age_days(now_ms) for each in self._watched.values())
        return max(ages, default=0.0)

    def age_days(self, partition: PartitionId) -> float | None:
        """The same of one group; None while it is not watched: it is damaged, or just opened."""
        watched = self._watched.get(partition)
        if watched is None or not watched.replica.ready:
            return None
        return round(watched.coverage_age_days(self._node.now_ms()), 6)

    def families(self) -> Iterator[MetricFamily | None]:
        """Give the metrics."""
        age = self.coverage_age_days()
        yield gauge("clustor.scrub.coverage_age_days", age, "Oldest reading that a log relies on")
        yield counter("clustor.scrub.read_bytes_total", self.read_bytes, "Read again")
        yield counter("clustor.scrub.faults_total", self.faults, "Readings that failed")
        held = sum(1 for each in self._node.groups.values() if each.quarantine is not None)
        yield gauge("clustor.scrub.quarantined_groups", held, "Replicas here that are repaired")

    # What is due.

    def _watch(self, group: HostedGroup) -> _Watched | None:
        """Return a healthy group's scrub; a replica that was repaired begins a new one."""
        replica = group.replica
        if not replica.ready:
            return None
        known = self._watched.get(group.partition_id)
        if known is not None and known.replica is replica:
            return known
        fresh = _Watched(replica, Scrub(self._node.now_ms()))
        if known is not None:  # a repair has replaced it: what was told stays told
            fresh.passes, fresh.asked_passes = known.passes, known.asked_passes
            fresh.problem = known.problem
        self._watched[group.partition_id] = fresh
        self._unrecorded.append(boot_record_of(group, self._selftest_digest))
        return fresh

    def _sizes(self, group: HostedGroup) -> list[tuple[SegmentSeq, int]]:
        """Return the segments with durable runs, and how long they are."""
        found = []
        for seq, until in readable_segments(group.replica.log, at_rest=group.idle).items():
            with suppress(FileNotFoundError):  # a compaction is under way
                size = group.storage.size(segment_file(seq)) if until is None else until
                found.append((seq, size))
        return found

    async def _run(self) -> None:
        while True:
            group = self._next()
            if self._unrecorded:
                await self._record(self._unrecorded.popleft())
                continue
            if group is None:
                self._awake.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_SECONDS):
                        await self._awake.wait()
                continue
            await self._work(group)

    def _next(self) -> HostedGroup | None:
        """Return a group that has something to read: those that are waited for go first."""
        now_ms = self._node.now_ms()
        due: HostedGroup | None = None
        for group in self._node.groups.values():
            watched = self._watch(group)
            if watched is None:
                continue
            if watched.is_asked:
                return group
            if not watched.has_reads and now_ms >= watched.scrub.next_deadline_ms():
                watched.begin_round(self._sizes(group), now_ms)
            if watched.has_reads:
                due = group
        return due

    async def _record(self, booted: Booted) -> None:
        """Write down what a start found; a disk that takes it not is no reason to stop."""
        await self._yield()
        group = booted.group
        if not group.replica.ready:
            return  # it stopped meanwhile: what is damaged is left as it is
        group.is_recorded = True
        try:
            record = await self._loop.run_in_executor(self._thread, write_boot_record, booted)
            self._boots[group.partition_id] = record
        except OSError as error:
            number = group.partition_id
            journal.warning("group %d: its boot record is not written: %s", number, error)
        finally:
            group.is_recorded = False

    # Reading.

    async def _work(self, group: HostedGroup) -> None:
        watched = self._watched[group.partition_id]
        await self._yield()
        began = self._loop.time()
        if watched.waiting:
            await self._read_piece(group, watched)
        elif watched.pieces:
            await self._read_snapshots(group, watched)
        elif watched.parts:
            await self._read_streams(group, watched)
        if not watched.has_reads:
            await self._read_rest(group, watched)
            self._pass_ended(watched)
        spent = self._loop.time() - began
        if not watched.is_asked:
            await asyncio.sleep(max(_REST_SECONDS_MIN, _REST_FACTOR * spent))

    @staticmethod
    def _pass_ended(watched: _Watched) -> None:
        watched.passes += 1
        watched.asked_passes += watched.is_asked
        watched.is_asked = False

    async def _yield(self) -> None:
        """Let writes go first, for a second at the most: the promise of seven days stands too."""
        for _ in range(_YIELDS_MAX):
            if all(group.idle for group in self._node.groups.values()):
                return
            await asyncio.sleep(_YIELD_SECONDS)

    async def _read_piece(self, group: HostedGroup, watched: _Watched) -> None:
        wanted = watched.waiting[0]
        keys = self._node.settings.keys
        for attempt in range(REPAIR_ATTEMPTS_MAX + 1):
            bounds = readable_segments(group.replica.log, at_rest=group.idle)
            if wanted.segment_seq not in bounds or group.replica is not watched.replica:
                watched.waiting.popleft()  # compacted away, or replaced: nothing is left to read
                return
            piece = replace(
                wanted,
                bytes_min=min(wanted.bytes_min, PIECE_BYTES),
                until_offset=bounds[wanted.segment_seq],
            )
            found = await self._loop.run_in_executor(
                self._thread, read_piece, group.storage, keys, piece
            )
            if found is None or found.problem is None:
                self._read_well(watched, piece, found)
                return
            if not await self._is_read_again(group, watched, found.problem, attempt):
                return

    def _read_well(self, watched: _Watched, piece: SegmentSlice, found: SliceResult | None) -> None:
        wanted = watched.waiting.popleft()
        if found is None:
            return
        watched.scrub.on_read(piece, found, self._node.now_ms())
        done = found.end_offset - piece.from_offset
        watched.read_bytes += done
        self.read_bytes += done
        left = wanted.bytes_min - done
        if left > 0 and not found.reached_end:
            rest = replace(wanted, from_offset=found.end_offset, bytes_min=left)
            watched.waiting.appendleft(rest)

    async def _read_snapshots(self, group: HostedGroup, watched: _Watched) -> None:
        """Read the next file of the snapshots; its hash is signed, so one reading is enough."""
        piece = watched.pieces.popleft()
        problem = await self._loop.run_in_executor(
            self._thread, read_snapshot_piece, group.storage, piece
        )
        if group.replica is not watched.replica or not group.replica.ready:
            watched.pieces.clear()
        elif problem is None:
            watched.snapshots.on_read(piece, self._node.now_ms())
            done = 0 if piece.chunk is None else piece.chunk.len
            watched.read_bytes += done
            self.read_bytes += done
        elif piece in pieces_of(group.replica.catalog):  # else it was superseded, and collected
            self.faults += 1
            self._found_damage(group, watched, problem)

    async def _read_streams(self, group: HostedGroup, watched: _Watched) -> None:
        """Read the next file of a stream; it is sealed, so one reading is enough."""
        part = watched.parts.popleft()
        streams = group.replica.streams
        if group.replica is not watched.replica or not group.replica.ready or streams is None:
            watched.parts.clear()
            return
        view = view_of_part(streams.store, part)
        if view is None:
            return  # trimmed meanwhile
        pin = streams.pin(view)
        settings = group.replica.settings
        try:
            problem = await self._loop.run_in_executor(
                self._thread,
                read_stream_part,
                *(group.storage, settings.keys, settings.stream_config, view),
            )
        finally:
            streams.unpin(pin)
        if problem is None:
            watched.streams.on_read(part, self._node.now_ms())
            watched.read_bytes += part.size_bytes
            self.read_bytes += part.size_bytes
        elif group.replica is watched.replica:
            self.faults += 1
            self._found_damage(group, watched, problem)

    async def _read_rest(self, group: HostedGroup, watched: _Watched) -> None:
        for attempt in range(REPAIR_ATTEMPTS_MAX + 1):
            if group.replica is not watched.replica or not group.replica.ready:
                return
            known = group.replica.log.ledger_bytes if group.idle else None
            problem = await self._loop.run_in_executor(
                self._thread, read_rest, group.storage, known
            )
            if problem is None:
                return
            if not await self._is_read_again(group, watched, problem, attempt):
                return

    async def _is_read_again(
        self, group: HostedGroup, watched: _Watched, problem: Exception, attempt: int
    ) -> bool:
        """Say that what failed a checksum is read again, after a growing pause.

        Anything else, and the last attempt, is damage: the replica stops.
        """
        self.faults += 1
        again = isinstance(problem, ChecksumMismatch | ReplicaDamaged)
        if again and attempt < REPAIR_ATTEMPTS_MAX:
            journal.warning("group %d: read again soon: %s", group.partition_id, problem)
            await asyncio.sleep(_RETRY_SECONDS * 2**attempt)
            return True
        self._found_damage(group, watched, problem)
        return False

    def _found_damage(self, group: HostedGroup, watched: _Watched, problem: Exception) -> None:
        watched.problem = str(problem)
        watched.drop_reads()
        replica = group.replica
        if replica is watched.replica and replica.ready:
            journal.error("group %d: the scrub found damage: %s", group.partition_id, problem)
            of_snapshot = isinstance(problem, CorruptSnapshot)
            replica.damaged("a snapshot" if of_snapshot else "the log", str(problem))
            self._node.touch(group)
