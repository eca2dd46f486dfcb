"""Scheduled backups of a node: one thread beside the loop and the archiver's.

Who leads the control plane carries them out: a cluster has one such node at a time, whatever its
tenants are, and another one follows it by itself. That two may believe it for a moment costs a
backup too many and no more. The others look at the store now and then, so that each of them can
say how old the newest backup is.

Logs are applied again in this process, for its keys cannot leave it, one partition at a time: so
it needs as much memory as the largest one, and works a quarter of the time at most.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from clustor.runtime.control.records import CONTROL_PARTITION
from clustor.runtime.errors import DataDirectoryRefused
from clustor.runtime.telemetry.node import NodeTelemetry
from clustor.wall_clock import wall_clock_ms
from quantum.archive.backup_planning import BackupSchedule
from quantum.archive.roots import open_roots
from quantum.node.archiving import Archiving, Stopped
from quantum.node.backup_lane import BackupClocks, BackupLane
from quantum.tenants.broker_file import BackupsEntry

if TYPE_CHECKING:
    from clustor.runtime.node import Node

_POLL_SECONDS: Final = (0.5, 5.0)
_JOIN_SECONDS: Final = 2.0
_WORK_SECONDS: Final = 0.004
_REST_SHARE: Final = 3
_PATIENCE_SECONDS: Final = 300.0
_DAY_MS: Final = 86_400_000

journal = logging.getLogger("quantum.backup")


class Resting:
    """Lets others work: after a few milliseconds it rests three times as long.

    All time since the last rest counts as work, waiting for the store as well.
    """

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._since = time.monotonic()

    def __call__(self, _size: int) -> None:
        worked = time.monotonic() - self._since
        if worked >= _WORK_SECONDS:
            if self._stop.wait(min(1.0, _REST_SHARE * worked)):
                raise Stopped
            self._since = time.monotonic()


class ScheduledBackups:
    """The backups of one node. Made and closed in the loop's thread."""

    def __init__(self, node: Node, archiving: Archiving, entry: BackupsEntry) -> None:
        self._stop = threading.Event()
        least, most = _POLL_SECONDS
        self._poll_seconds = min(most, max(least, entry.interval_seconds / 100))
        schedule = BackupSchedule(
            entry.interval_seconds * 1_000, entry.keep_count, entry.keep_days * _DAY_MS
        )
        self.lane = BackupLane(
            _NodePort(node, archiving),
            open_roots(archiving.settings.url),
            node.settings.keys,
            schedule,
            BackupClocks(wall_clock_ms, time.monotonic, Resting(self._stop)),
            patience_seconds=_PATIENCE_SECONDS + 2 * archiving.settings.flush_seconds,
        )
        self._thread = threading.Thread(target=self._run, name="backups", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Let the thread end; what it is at is taken up by whoever comes next."""
        self._stop.set()
        self._thread.join(_JOIN_SECONDS)

    def status(self) -> dict[str, Any]:
        return self.lane.status()

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._poll_seconds):
                self.lane.turn()
        except Stopped:
            pass
        except Exception:  # noqa: BLE001  # our own bug ends neither the node nor in silence
            journal.exception("there are no more backups")
            self.lane.give_up("backups have stopped: see the journal, and restart the node")


class _NodePort:
    """A node for its lane: every touch of a replica happens in the loop's thread."""

    def __init__(self, node: Node, archiving: Archiving) -> None:
        self._node = node
        self._archiving = archiving

    def carries_out(self) -> bool:
        return self._archiving.ask(self._leads)

    def committed(self) -> Mapping[str, int]:
        return self._archiving.ask(self._archiving.committed)

    def archived(self) -> Mapping[str, int]:
        return self._archiving.archived()

    def _leads(self) -> bool:
        group = self._node.groups.get(CONTROL_PARTITION)
        return group is not None and group.replica.leads


def no_archive() -> DataDirectoryRefused:
    """Say why nothing can be backed up."""
    return DataDirectoryRefused(
        "backups need an archive: say where it is (archive = URL), or turn them off "
        "(backup_interval_seconds = 0)"
    )


def start_backups(
    node: Node, archiving: Archiving | None, entry: BackupsEntry | None
) -> ScheduledBackups | None:
    """Start the schedule that a broker's description asks for; raises DataDirectoryRefused."""
    if entry is None:
        return None
    if archiving is None:
        raise no_archive()
    backups = ScheduledBackups(node, archiving, entry)
    if isinstance(node.watch, NodeTelemetry):
        node.watch.sources.append(backups.lane.families)
    backups.start()
    return backups
