"""The archiver of a node: one thread beside the loop, for all of its partitions in turn.

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
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateAnswer
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from clustor.log.errors import LogError
from clustor.log.types import LogIndex
from clustor.replica.jobs import frozen_map
from clustor.runtime.errors import DataDirectoryRefused
from clustor.snapshot.bandwidth import observer_bytes_per_second
from clustor.snapshot.errors import SnapshotError
from quantum.archive import (
    ArchiveConflict,
    ArchiveDamaged,
    ArchiveError,
    ArchiveForeign,
    ArchiveFormatUnknown,
    ArchiveMisuse,
    ArchiveSegment,
    ArchiveSnapshot,
    CloseSegment,
    Compacted,
    Diverged,
    Hold,
    LogView,
    PrgArchiver,
    PrgId,
    decide_hold,
    open_objects,
    plan_next,
)
from quantum.archive.segments import SegmentOpen
from quantum.serving.broker_file import ArchiveEntry
from quantum.serving.outflow import facts_of, outflow
from quantum.serving.prg import Prg

if TYPE_CHECKING:
    from clustor.runtime.node import Node
    from quantum.serving.service import BrokerService

_ANSWER_SECONDS: Final = 10.0
_JOIN_SECONDS: Final = 2.0
_RETRY_SECONDS_MAX: Final = 60.0

journal = logging.getLogger("quantum.archive")

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class ArchiveSettings:
    """Where the archive is, and how patient its archivers are."""

    url: str
    flush_seconds: float = 60.0
    """An open segment with something committed in it is closed after so long, to be archived."""
    hold_bytes_max: int = 2 << 30
    """A log that waits for its archive may grow to this."""
    poll_seconds: float = 1.0
    follow_seconds: float = 10.0
    """How often a follower looks how far the archive is."""
    stand_in_seconds: float = 60.0
    gap_seconds: float = 600.0
    """How long a leader waits for a replica that still has what its own log has not."""


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

    def __init__(self, node: Node, prgs: list[Prg], settings: ArchiveSettings) -> None:
        """Open the store's address; raises ArchiveMisuse. Nothing is read or written yet."""
        self.settings = settings
        self._node = node
        self.node_id = int(node.node_id)
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        objects = open_objects(settings.url)
        peer = node.settings.profile.replication.snapshot_bytes_per_second_max
        pacer = Pacer(max(1, observer_bytes_per_second(peer)), self._stop)
        self.lanes = [
            Lane(
                self,
                prg,
                PrgArchiver(
                    objects,
                    node.settings.keys,
                    PrgId(prg.tenant.name, prg.number),
                    prg.group.partition_id,
                    node.cluster.birth,
                    pacer,
                ),
            )
            for prg in prgs
        ]
        for lane in self.lanes:
            lane.hold_all()
        self._thread = threading.Thread(target=self._run, name="archiver", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Let the thread end; what it is at is done again after the next start."""
        self._stop.set()
        self._thread.join(_JOIN_SECONDS)

    def status(self) -> dict[str, Any]:
        """Say how far each partition's archive is, and what it waits for."""
        return {
            "archive": self.settings.url,
            "node": self.node_id,
            "partitions": [lane.status() for lane in self.lanes],
        }

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                busy = [lane.turn() for lane in self.lanes if not self._stop.is_set()]
                if not any(busy):
                    self._stop.wait(self.settings.poll_seconds)
        except Stopped:
            pass
        except Exception:  # noqa: BLE001  # our own bug ends neither the node nor in silence
            journal.exception("the archiver has stopped")
            for lane in self.lanes:
                lane.give_up("the archiver has stopped: see the journal")

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
            return answer.result(_ANSWER_SECONDS)
        except (RuntimeError, LateAnswer) as error:
            if self._stop.is_set():
                raise Stopped from error
            raise ArchiveError("the loop did not answer") from error

    def touch(self, prg: Prg) -> None:
        """Let a group write what it was asked to; in the loop's thread."""
        self._node.touch(prg.group)


class Lane:
    """One partition: what was archived, what is waited for, and why."""

    def __init__(self, archiving: Archiving, prg: Prg, archiver: PrgArchiver) -> None:
        self._archiving = archiving
        self._prg = prg
        self._archiver = archiver
        self._settings = archiving.settings
        self._state = "starting"
        self._reason = ""
        self._hold = Hold(None, "")
        self._released_at_ms: int | None = None
        self._archived_at_ms: int | None = None
        self._leads = False
        self._seen: tuple[object, ...] = ()
        self._retry_at = 0.0
        self._retry_seconds = self._settings.poll_seconds
        self._looked_at = float("-inf")
        self._moved_at = time.monotonic()
        self._last = -1
        self._waits_for: tuple[str, int] = ("", 0)
        self._waits_since = 0.0
        self._given_up = False

    # In the loop's thread.

    def hold_all(self) -> None:
        """Keep the whole log until the archive was read."""
        base = self._prg.group.replica.log.entries.base_index
        self._prg.group.replica.hold_log(base)
        self._hold = Hold(base, "compaction waits: the archive was not read yet")

    def _look(self, *, due: bool) -> tuple[LogView | None, str]:
        """Return the log as it is now, None where nothing changed and nothing is due."""
        replica = self._prg.group.replica
        flow = outflow(facts_of(replica))
        self._leads = replica.leads
        if flow.refusal:
            return None, flow.refusal
        log = replica.log
        snapshots = replica.catalog.snapshots
        held = replica.group.core.log.bytes_total
        seen = (flow.through, self._leads, log.closed_segments(), log.entries.base_index)
        if (*seen, len(snapshots)) == self._seen and not due:
            return None, ""
        self._seen = (*seen, len(snapshots))
        writer = f"node {self._archiving.node_id}, term {replica.group.core.hard.term}"
        return LogView(
            frozen_map(log.entries),
            frozenset(log.closed_segments()),
            flow.through,
            self._leads,
            writer,
            held,
            snapshots,
        ), ""

    def _apply(self, hold: Hold) -> None:
        through = None if hold.through is None else LogIndex(hold.through)
        self._prg.group.replica.hold_log(through)

    def _seal(self) -> None:
        if self._prg.group.replica.leads:
            self._prg.group.replica.seal_segment()
            self._archiving.touch(self._prg)

    # In the archiver's thread.

    def turn(self) -> bool:
        """Do one step; say whether there may be more to do at once."""
        now = time.monotonic()
        if now < self._retry_at:
            return False
        due = bool(self._waits_for[0]) or now - self._looked_at >= self._settings.follow_seconds
        view, refusal = self._archiving.ask(lambda: self._look(due=due))
        if refusal:
            self._say("waiting", refusal)
        if view is None:
            return False
        try:
            return not self._given_up and self._try(view, now)
        finally:
            self._decide_hold(view)

    def _try(self, view: LogView, now: float) -> bool:
        """Work, and turn what goes wrong into a reason and a pause."""
        try:
            more = self._work(view, now)
        except ArchiveConflict:
            self._seen = ()
            return True
        except (ArchiveForeign, ArchiveFormatUnknown, ArchiveDamaged) as error:
            self.give_up(str(error))
        except SegmentOpen:
            self._seen = ()
        except (ArchiveError, LogError, SnapshotError, OSError) as error:
            self._try_again(str(error), now)
        else:
            self._retry_seconds = self._settings.poll_seconds
            return more
        return False

    def _work(self, view: LogView, now: float) -> bool:
        archiver = self._archiver
        if archiver.listing is None or now - self._looked_at >= self._settings.follow_seconds:
            self._looked_at = now
            archiver.refresh()
        assert archiver.listing is not None
        if archiver.listing.last != self._last:
            self._last, self._moved_at = archiver.listing.last, now
        following = plan_next(archiver.listing, view)
        stands_still = now - self._moved_at >= self._settings.stand_in_seconds
        acts = view.leads or (stands_still and isinstance(following, ArchiveSegment))
        done = False
        match following:
            case ArchiveSegment() | ArchiveSnapshot() if acts:
                done = self._archive(view)
            case CloseSegment(first) if acts:
                self._wait_to_close(first, now)
            case Compacted(first, last) if acts:
                self._wait_for_others(view, first, last, now)
            case Diverged(index, archived, ours):
                raise ArchiveForeign(
                    "the archive holds another history of this partition",
                    index=index,
                    archived_term=archived,
                    our_term=ours,
                )
            case _:
                self._waits_for = ("", 0)
                self._say("up to date" if view.leads else "following", "")
        return done

    def _archive(self, view: LogView) -> bool:
        self._say("archiving", "")
        storage = self._prg.group.storage.again()
        try:
            self._archiver.step(view, storage, _now_ms())
        finally:
            storage.close()
        self._archived_at_ms = _now_ms()
        self._moved_at = time.monotonic()
        self._waits_for = ("", 0)
        self._seen = ()
        return True

    def _wait_to_close(self, first: int, now: float) -> None:
        """Close the open segment when its first entry has waited long enough."""
        since = self._waiting(("close", first), now)
        self._say("up to date", "")
        if now - since >= self._settings.flush_seconds:
            self._archiving.ask(self._seal)
            self._waits_since = now

    def _wait_for_others(self, view: LogView, first: int, last: int, now: float) -> None:
        """Let a replica archive what ours has not; write a gap down when none does."""
        since = self._waiting(("gap", first), now)
        left = self._settings.gap_seconds - (now - since)
        reason = f"entries {first} to {last} are not in this replica's log any more"
        if left > 0:
            self._say("waiting", f"{reason}; others have {left:.0f} s to archive them")
            self._looked_at = float("-inf")
            return
        self._archiver.record_gap(view, first, last, "compacted before it was archived", _now_ms())
        journal.error("%s: a gap is archived: %s", self._archiver.prg, reason)

    def _waiting(self, what: tuple[str, int], now: float) -> float:
        """Note what is waited for; return since when."""
        if self._waits_for != what:
            self._waits_for, self._waits_since = what, now
        return self._waits_since

    def _decide_hold(self, view: LogView) -> None:
        listing = None if self._given_up else self._archiver.listing
        archived = None if listing is None else listing.last
        if listing is not None and not listing.stretches:
            archived = view.entries.base_index
        hold = decide_hold(archived, view, self._settings.hold_bytes_max)
        if hold.through is None and self._hold.through is not None:
            self._released_at_ms = _now_ms()
            journal.warning("%s: %s", self._archiver.prg, hold.reason)
        if hold != self._hold:
            self._archiving.ask(lambda: self._apply(hold))
            self._hold = hold

    def _try_again(self, reason: str, now: float) -> None:
        if reason != self._reason:
            journal.warning("%s: %s", self._archiver.prg, reason)
        self._say("retrying", reason)
        self._seen = ()
        self._retry_at = now + self._retry_seconds
        self._retry_seconds = min(2 * self._retry_seconds, _RETRY_SECONDS_MAX)

    def give_up(self, reason: str) -> None:
        """Archive no more until the next start: an operator has to look."""
        journal.error("%s: the archive is left alone: %s", self._archiver.prg, reason)
        self._given_up = True
        self._waits_for = ("", 0)
        self._say("stopped", reason)

    def _say(self, state: str, reason: str) -> None:
        self._state, self._reason = state, reason

    def status(self) -> dict[str, Any]:
        """Say how far it is; in the loop's thread."""
        listing = self._archiver.listing
        archived = 0 if listing is None else listing.last
        replica = self._prg.group.replica
        committed = outflow(facts_of(replica)).through
        return {
            "prg": str(self._archiver.prg),
            "state": self._state,
            "reason": self._reason,
            "leads": replica.leads,
            "committed_index": committed,
            "archived_index": archived,
            "behind": max(0, committed - archived),
            "archived_bytes": 0 if listing is None else listing.bytes,
            "archived_at_ms": self._archived_at_ms,
            "compaction_held_through": self._hold.through,
            "compaction_hold": self._hold.reason,
            "hold_released_at_ms": self._released_at_ms,
        }


def start_archiving(
    node: Node, service: BrokerService, entry: ArchiveEntry | None
) -> Archiving | None:
    """Start the archiver that a broker's description asks for; raises DataDirectoryRefused."""
    if entry is None:
        return None
    prgs = [prg for tenant in service.tenants.values() for prg in tenant.prgs]
    settings = ArchiveSettings(entry.url, entry.flush_seconds, entry.hold_bytes_max)
    try:
        archiving = Archiving(node, prgs, settings)
    except ArchiveMisuse as error:
        raise DataDirectoryRefused("the archive cannot be used", cause=error) from error
    archiving.start()
    return archiving


def closing(first: Callable[[], None], archiving: Archiving | None) -> Callable[[], None]:
    """Return what closes both."""

    def close() -> None:
        first()
        if archiving is not None:
            archiving.close()

    return close


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
