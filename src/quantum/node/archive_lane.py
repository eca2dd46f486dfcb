"""One partition on its way into the archive: what is next, what is waited for, and why.

Decides with a clock that it is given, over two ports: the partition's log, and its archiver.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from clustor.log.errors import LogError
from clustor.log.steps import Storage
from clustor.snapshot.errors import SnapshotFailure
from quantum.archive import (
    ArchiveConflict,
    ArchiveDamaged,
    ArchiveError,
    ArchiveForeign,
    ArchiveFormatUnknown,
    ArchiveSegment,
    ArchiveSnapshot,
    CloseSegment,
    CompactionHold,
    Diverged,
    EntriesCompacted,
    Next,
    PrgArchiver,
    ReplicaLog,
    decide_hold,
    plan_next,
)
from quantum.archive.segments import SegmentOpen

_RETRY_SECONDS_MAX: Final = 60.0
_NEVER: Final = float("-inf")

journal = logging.getLogger("quantum.archive")


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
    """A follower archives, too, when nobody does for so long, and a leader would have flushed."""
    gap_seconds: float = 600.0
    """How long a leader waits for a replica that still has what its own log has not."""


class LogPort(Protocol):
    """A partition's log, as its archiver sees it."""

    def look(self, *, due: bool) -> tuple[ReplicaLog | None, str]:
        """Return the log, None where nothing changed and nothing is due; or why it is not to be
        seen now."""

    def look_again(self) -> None:
        """Let the next `look` return the log, whether it changed or not."""

    def hold(self, through: int | None) -> None:
        """Let the log be compacted through an index; None: as it likes."""

    def seal(self) -> None:
        """Close the open segment."""

    def storage(self) -> AbstractContextManager[Storage]:
        """Open the log's files."""


class Lane:
    """One partition. `turn` is called again and again, from one thread."""

    def __init__(
        self,
        port: LogPort,
        archiver: PrgArchiver,
        settings: ArchiveSettings,
        *,
        clock: Callable[[], float],
        now_ms: Callable[[], int],
    ) -> None:
        self.archiver = archiver
        self._port = port
        self._settings = settings
        self._clock, self._now_ms = clock, now_ms
        self._state, self._reason = "starting", ""
        self._hold = CompactionHold(0, "compaction waits: the archive was not read yet")
        self._released_at_ms: int | None = None
        self._archived_at_ms: int | None = None
        self._retry_at = _NEVER
        self._retry_seconds = settings.poll_seconds
        self._looked_at = _NEVER
        self._waits_for: tuple[str, int] = ("", 0)
        self._waits_since = 0.0
        self._wrote_last = -1
        """Where the archive ended when we last wrote to it."""
        self._given_up = False

    def turn(self) -> bool:
        """Do one step; say whether there may be more to do at once."""
        now = self._clock()
        if now < self._retry_at:
            return False
        try:
            return self._turn(now)
        except ArchiveError as error:  # the log did not answer: its node is busy
            self._try_again(str(error), now)
            return False

    def _turn(self, now: float) -> bool:
        looks = now - self._looked_at >= self._settings.follow_seconds
        due = looks or self._waits_for[0] in ("close", "gap")
        view, refusal = self._port.look(due=due)
        if refusal:
            self._say("waiting", refusal)
        if view is None:
            return False
        try:
            return not self._given_up and self._try(view, now)
        finally:
            self._decide_hold(view)

    def _try(self, view: ReplicaLog, now: float) -> bool:
        """Work, and turn what goes wrong into a reason and a pause."""
        try:
            more = self._work(view, now)
        except ArchiveConflict:
            self._port.look_again()
            return True
        except (ArchiveForeign, ArchiveFormatUnknown, ArchiveDamaged) as error:
            self.give_up(str(error))
        except SegmentOpen:
            self._port.look_again()
        except (ArchiveError, LogError, SnapshotFailure, OSError) as error:
            self._try_again(str(error), now)
        else:
            self._retry_seconds = self._settings.poll_seconds
            return more
        return False

    def _work(self, view: ReplicaLog, now: float) -> bool:
        archiver = self.archiver
        if archiver.listing is None or now - self._looked_at >= self._settings.follow_seconds:
            archiver.refresh()
            self._looked_at = now
        listing = archiver.listing
        assert listing is not None
        following = plan_next(listing, view)
        acts = view.leads or self._stands_in(listing.last, following, now)
        match following:
            case ArchiveSegment() | ArchiveSnapshot() if acts:
                self._archive(view)
                return True
            case CloseSegment(first) if view.leads:
                self._wait_to_close(first, now)
            case CloseSegment() if acts:
                self._port.seal()
            case EntriesCompacted(first, last) if acts:
                self._wait_for_others(view, first, last, now)
            case Diverged(index, archived, ours):
                raise ArchiveForeign(
                    "the archive holds another history of this partition",
                    index=index,
                    archived_term=archived,
                    our_term=ours,
                )
            case _:
                if self._waits_for[0] != "behind":
                    self._waits_for = ("", 0)
                self._say("up to date" if view.leads else "following", "")
        return False

    def _stands_in(self, archived: int, following: Next, now: float) -> bool:
        """Say whether a follower has had something for long that nobody archives."""
        if not isinstance(following, ArchiveSegment | CloseSegment):
            self._waits_for = ("", 0)
            return False
        if isinstance(following, ArchiveSegment) and archived == self._wrote_last:
            return True  # we stand in already, and nobody came back
        since = self._waiting(("behind", archived), now)
        return now - since >= self._settings.flush_seconds + self._settings.stand_in_seconds

    def _archive(self, view: ReplicaLog) -> None:
        self._say("archiving", "")
        with self._port.storage() as storage:
            self.archiver.step(view, storage, self._now_ms())
        assert self.archiver.listing is not None
        self._wrote_last = self.archiver.listing.last
        self._archived_at_ms = self._now_ms()
        self._waits_for = ("", 0)
        self._port.look_again()

    def _wait_to_close(self, first: int, now: float) -> None:
        """Close the open segment when its first entry has waited long enough."""
        since = self._waiting(("close", first), now)
        self._say("up to date", "")
        if now - since >= self._settings.flush_seconds:
            self._port.seal()
            self._waits_since = now

    def _wait_for_others(self, view: ReplicaLog, first: int, last: int, now: float) -> None:
        """Let a replica archive what ours has not; write a gap down when none does."""
        since = self._waiting(("gap", first), now)
        left = self._settings.gap_seconds - (now - since)
        reason = f"entries {first} to {last} are not in this replica's log any more"
        if left > 0:
            self._say("waiting", f"{reason}; others have {left:.0f} s to archive them")
            self._looked_at = _NEVER  # one of them may be at it
            return
        why = "compacted before it was archived"
        self.archiver.record_gap(view, first, last, why, self._now_ms())
        journal.error("%s: a gap is archived: %s", self.archiver.prg, reason)

    def _waiting(self, what: tuple[str, int], now: float) -> float:
        """Note what is waited for; return since when."""
        if self._waits_for != what:
            self._waits_for, self._waits_since = what, now
        return self._waits_since

    def _decide_hold(self, view: ReplicaLog) -> None:
        listing = None if self._given_up else self.archiver.listing
        archived = None if listing is None else listing.last
        if listing is not None and not listing.stretches:
            archived = view.entries.base_index
        hold = decide_hold(archived, view, self._settings.hold_bytes_max)
        if hold.through is None and self._hold.through is not None:
            self._released_at_ms = self._now_ms()
            journal.warning("%s: %s", self.archiver.prg, hold.reason)
        if hold.through != self._hold.through:
            self._port.hold(hold.through)
        self._hold = hold

    def _try_again(self, reason: str, now: float) -> None:
        if reason != self._reason:
            journal.warning("%s: %s", self.archiver.prg, reason)
        self._say("retrying", reason)
        self._port.look_again()
        self._retry_at = now + self._retry_seconds
        self._retry_seconds = min(2 * self._retry_seconds, _RETRY_SECONDS_MAX)

    def give_up(self, reason: str) -> None:
        """Archive no more until the next start: an operator has to look."""
        journal.error("%s: the archive is left alone: %s", self.archiver.prg, reason)
        self._given_up = True
        self._waits_for = ("", 0)
        self._say("stopped", reason)

    def _say(self, state: str, reason: str) -> None:
        self._state, self._reason = state, reason

    def status(self, committed: int) -> dict[str, Any]:
        """Say how far it is; from any thread."""
        listing = self.archiver.listing
        archived = 0 if listing is None else listing.last
        return {
            "prg": str(self.archiver.prg),
            "state": self._state,
            "reason": self._reason,
            "committed_index": committed,
            "archived_index": archived,
            "behind": max(0, committed - archived),
            "archived_bytes": 0 if listing is None else listing.bytes,
            "archived_at_ms": self._archived_at_ms,
            "compaction_held_through": self._hold.through,
            "compaction_hold": self._hold.reason,
            "hold_released_at_ms": self._released_at_ms,
        }
