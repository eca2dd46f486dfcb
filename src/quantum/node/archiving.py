"""The archiver of a node: one thread beside the loop, for its partitions and its audit log in turn.

The leader of a partition archives it. A follower steps in when the archive stands still although
it has something for it: its leader may lack what it has, or have no archiver. Whoever writes,
the chain of records cannot fork, so being wrong about who leads costs bytes and no more.

The loop is asked for views of the logs and told how far they may be compacted; nothing else of a
replica is touched from here, and a store that is slow, full or gone delays nobody but the archive.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateAnswer
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from clustor.log.steps import Storage
from clustor.log.types import LogIndex
from clustor.replica.jobs import frozen_map
from clustor.runtime.audit.writer import AUDIT_DIRECTORY
from clustor.runtime.control.records import CONTROL_PARTITION
from clustor.runtime.errors import DataDirectoryRefused
from clustor.runtime.keys.holds import hold_keys
from clustor.runtime.telemetry.node import NodeTelemetry
from clustor.snapshot.bandwidth import observer_bytes_per_second
from clustor.wall_clock import wall_clock_ms
from quantum.archive import (
    AppliedWith,
    ArchiveError,
    ArchiveUnreachable,
    AuditExporter,
    PrgArchiver,
    PrgId,
    ReplicaLog,
    forget_export,
    groups_url,
    open_objects,
)
from quantum.node.archive_lane import ArchiveSettings, Lane
from quantum.node.audit_lane import AuditLane
from quantum.node.outflow import facts_of, outflow
from quantum.partition.leader import PartitionLeader
from quantum.tenants.broker_file import ArchiveEntry

if TYPE_CHECKING:
    from clustor.runtime.group import HostedGroup
    from clustor.runtime.node import Node
    from quantum.node.service import BrokerService

_ANSWER_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.1
_JOIN_SECONDS: Final = 2.0

journal = logging.getLogger("quantum.archive")

Found = TypeVar("Found")


class Stopped(Exception):
    """The node stops: what is under way is given up, and done again by whoever comes next."""


class Pacer:
    """Keeps an average rate by waiting; wakes up at once when the node stops."""

    def __init__(self, bytes_per_second: int, stop: threading.Event) -> None:
        self._rate = bytes_per_second
        self._stop = stop
        self._free_at = 0.0

    def __call__(self, size: int) -> None:
        now = time.monotonic()
        self._free_at = max(self._free_at, now) + size / self._rate
        if self._stop.wait(max(0.0, self._free_at - now - 0.05)):
            raise Stopped


class Archiving:
    """The archiver of one node. Made and closed in the loop's thread."""

    def __init__(self, node: Node, prgs: list[PartitionLeader], settings: ArchiveSettings) -> None:
        """Open the store's address; raises ArchiveError. Nothing is read from it yet."""
        self.settings = settings
        self._node = node
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._objects = open_objects(settings.url)
        peer = node.settings.profile.replication.snapshot_bytes_per_second_max
        share = observer_bytes_per_second(peer) * max(1, len(prgs))  # each partition's own
        self._pacer = Pacer(max(1, min(share, peer // 2)), self._stop)
        self._lanes = [(prg, self._lane(prg)) for prg in prgs]
        self._own_lanes = self._lanes_of_node()
        """The cluster's own groups: the control plane's, and the key-value store's."""
        self.audit = None if node.audit is None else self._audit_lane()
        """The node's audit log on its way; None: it has none."""
        self._thread = threading.Thread(target=self._run, name="archiver", daemon=True)

    def add(self, prg: PartitionLeader) -> None:
        """Archive a partition that was added to its tenant's ring; its log is held from now on."""
        self._lanes.append((prg, self._lane(prg)))

    def _lane(self, prg: PartitionLeader) -> Lane:
        prg.group.replica.snapshots.hold_log(LogIndex(0))  # until the archive was read
        archiver = PrgArchiver(
            self._objects,
            self._node.settings.keys,
            PrgId(prg.tenant.life, prg.number),
            prg.group.partition_id,
            self._node.cluster.birth,
            self._pacer,
        )
        port = _PrgPort(self, self._node, prg)
        archiver.applied_with = port.applied_with
        return Lane(port, archiver, self.settings, clock=time.monotonic, now_ms=wall_clock_ms)

    def _lanes_of_node(self) -> list[tuple[HostedGroup, Lane]]:
        """Archive what is no tenant's in a place of its own: readers of messages look elsewhere."""
        objects = open_objects(groups_url(self.settings.url))
        tenants = {prg.group.partition_id for prg, _ in self._lanes}
        lanes = []
        for number, group in sorted(self._node.groups.items()):
            if number in tenants:
                continue
            group.replica.snapshots.hold_log(LogIndex(0))  # until the archive was read
            name = "control" if number == CONTROL_PARTITION else "kv"
            archiver = PrgArchiver(
                objects,
                self._node.settings.keys,
                PrgId(name, 0 if name == "control" else int(number)),
                number,
                self._node.cluster.birth,
                self._pacer,
            )
            port = _GroupPort(self, self._node, group)
            lanes.append(
                (
                    group,
                    Lane(port, archiver, self.settings, clock=time.monotonic, now_ms=wall_clock_ms),
                )
            )
        return lanes

    def _audit_lane(self) -> AuditLane:
        exporter = AuditExporter(
            self._objects,
            self.settings.url,
            self._node.data_root / AUDIT_DIRECTORY,
            int(self._node.node_id),
            self._pacer,
        )
        flush_seconds = self.settings.flush_seconds
        return AuditLane(exporter, flush_seconds=flush_seconds, clock=time.monotonic)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Let the thread end; what it is at is done again after the next start."""
        self._stop.set()
        self._thread.join(_JOIN_SECONDS)

    def status(self) -> dict[str, Any]:
        """Say how far each partition's archive is, and what it waits for."""
        rows: list[dict[str, Any]] = []
        for prg, lane in self._lanes:
            replica = prg.group.replica
            committed = outflow(facts_of(replica)).through
            rows.append(lane.status(committed) | {"leads": replica.leads})
        return {
            "archive": self.settings.url,
            "node": int(self._node.node_id),
            "partitions": rows,
            "groups": [
                lane.status(outflow(facts_of(group.replica)).through)
                | {"leads": group.replica.leads}
                for group, lane in self._own_lanes
            ],
            "audit": None if self.audit is None else self.audit.status(),
        }

    def committed(self) -> dict[str, int]:
        """Return how far each log is committed; in the loop's thread."""
        hosted = [(prg.group, lane) for prg, lane in self._lanes]
        return {
            _name(lane): outflow(facts_of(group.replica)).through
            for group, lane in (*hosted, *self._own_lanes)
        }

    def archived(self) -> dict[str, int]:
        """Return how far the archive has each log, as it was last looked at; from any thread."""
        listings = {_name(lane): lane.archiver.listing for lane in self._all_lanes()}
        return {name: 0 if found is None else found.last for name, found in listings.items()}

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                busy = [lane.turn() for lane in self._all_lanes() if not self._stop.is_set()]
                busy.append(self.audit is not None and self.audit.turn())
                if not any(busy):
                    self._stop.wait(self.settings.poll_seconds)
        except Stopped:
            pass
        except Exception:  # noqa: BLE001  # our own bug ends neither the node nor in silence
            journal.exception("the archiver has stopped")
            why = "the archiver has stopped: see the journal"
            for lane in self._all_lanes():
                lane.give_up(why)
            if self.audit is not None:
                self.audit.give_up(why)

    def _all_lanes(self) -> list[Lane]:
        return [lane for _, lane in (*self._lanes, *self._own_lanes)]

    def ask(self, question: Callable[[], Found]) -> Found:
        """Call something in the loop's thread and wait for what it returns."""
        answer: Future[Found] = Future()

        def call() -> None:
            try:
                answer.set_result(question())
            except Exception as error:  # noqa: BLE001  # it is raised where it was asked
                answer.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError as error:
            raise Stopped from error  # the loop is closed
        deadline = time.monotonic() + _ANSWER_SECONDS
        while not self._stop.is_set():
            try:
                return answer.result(_LOOK_SECONDS)
            except LateAnswer:
                if time.monotonic() >= deadline:
                    raise ArchiveUnreachable("the loop did not answer") from None
        raise Stopped  # the loop may be waiting for us


def _name(lane: Lane) -> str:
    """Name a lane's log: two groups of the cluster may be called as tenants are."""
    archiver = lane.archiver
    return f"{archiver.prg} (group {archiver.partition})"


class _GroupPort:
    """A group's log for its lane: every touch of the replica happens in the loop's thread."""

    def __init__(self, archiving: Archiving, node: Node, group: HostedGroup) -> None:
        self._archiving = archiving
        self._node = node
        self._group = group
        self._seen: tuple[object, ...] = ()

    def look(self, *, due: bool) -> tuple[ReplicaLog | None, str]:
        return self._archiving.ask(lambda: self._look(due=due))

    def look_again(self) -> None:
        self._seen = ()

    def hold(self, through: int | None) -> None:
        wanted = None if through is None else LogIndex(through)
        self._archiving.ask(lambda: self._group.replica.snapshots.hold_log(wanted))

    def seal(self) -> None:
        self._archiving.ask(self._seal)

    @contextmanager
    def storage(self) -> Iterator[Storage]:
        storage = self._group.storage.again()
        try:
            yield storage
        finally:
            storage.close()

    def _look(self, *, due: bool) -> tuple[ReplicaLog | None, str]:
        replica = self._group.replica
        flow = outflow(facts_of(replica))
        if flow.refusal:
            return None, flow.refusal
        log, leads = replica.log, replica.leads
        closed, snapshots = log.closed_segments(), replica.catalog.snapshots
        seen = (flow.through, leads, closed, log.entries.base_index, len(snapshots))
        if seen == self._seen and not due:
            return None, ""
        self._seen = seen
        core = replica.group.core
        return ReplicaLog(
            frozen_map(log.entries),
            frozenset(closed),
            flow.through,
            leads,
            f"node {self._node.node_id}, term {core.hard.term}",
            core.log.bytes_total,
            snapshots,
        ), ""

    def _seal(self) -> None:
        self._group.replica.seal_segment()
        self._node.touch(self._group)


class _PrgPort(_GroupPort):
    """A tenant's partition: its numbers are archived with its log."""

    def __init__(self, archiving: Archiving, node: Node, prg: PartitionLeader) -> None:
        super().__init__(archiving, node, prg.group)
        self._prg = prg

    def applied_with(self) -> AppliedWith:
        numbers = self._prg.broker.settings
        return AppliedWith(
            numbers.prg_count,
            numbers.queue_messages_max,
            numbers.queue_bytes_max,
            tuple(ring.prg_count for ring in self._prg.tenant.rings),
            numbers.dedupe_horizon_ms // 1_000,
        )


def start_archiving(
    node: Node, service: BrokerService, entry: ArchiveEntry | None
) -> Archiving | None:
    """Start the archiver that a broker's description asks for; raises DataDirectoryRefused."""
    if entry is None:
        forget_export(node.data_root / AUDIT_DIRECTORY)
        return None
    prgs = [prg for tenant in service.tenants.values() for prg in tenant.prgs]
    settings = ArchiveSettings(entry.url, entry.flush_seconds, entry.hold_bytes_max)
    try:
        archiving = Archiving(node, prgs, settings)
    except (ArchiveError, OSError) as error:
        raise DataDirectoryRefused("the archive cannot be used", cause=error) from error
    hold_keys(node.keys_directory, "archive")  # its segments are sealed with them
    service.on_hosted = archiving.add
    if archiving.audit is not None and isinstance(node.watch, NodeTelemetry):
        node.watch.sources.append(archiving.audit.families)
    archiving.start()
    return archiving


def closing(
    first: Callable[[], None], archiving: Archiving | None, *last: Callable[[], None]
) -> Callable[[], None]:
    """Return what closes all of them, in order."""

    def close() -> None:
        first()
        if archiving is not None:
            archiving.close()
        for each in last:
            each()

    return close
