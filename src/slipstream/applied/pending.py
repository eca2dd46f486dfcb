"""What was delivered and is not yet stored, and which cursor may be written with it. Pure.

The rule that everything here serves: a cursor C that was persisted or reported means that the
caller's `apply` has returned for every update up to C. It is taken from what was applied, never
from what was received.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from slipstream.types import NO_CURSOR, KvUpdate, WatchCursor

MAX_STORE_APPLY_FAILURES: Final = 16
_RETRY_SECONDS_MAX: Final = 1.0

Parsed = TypeVar("Parsed")


def advance(current: WatchCursor, candidate: WatchCursor) -> WatchCursor:
    """Give the cursor after an update: forward within one life and scope, anew in another."""
    if candidate.is_none:
        return current
    same = (candidate.store, candidate.scope) == (current.store, current.scope)
    if same and len(candidate.position) == len(current.position):
        return candidate if candidate.position > current.position else current
    return candidate


@dataclass(slots=True)
class Pending(Generic[Parsed]):
    """One open batch, in front of it whatever an earlier flush failed to store.

    `raw` goes to the fold and `parsed` to the caller; `high` is the cursor of the latest update
    whose version is known, rejected ones included: there is nothing to apply in those.
    """

    raw: list[KvUpdate] = field(default_factory=list)
    parsed: list[Parsed] = field(default_factory=list)
    high: WatchCursor = NO_CURSOR
    fresh: int = 0  # updates since the last attempt to store
    failures: int = 0  # attempts in a row that failed

    def take_in(self, update: KvUpdate, parsed: Parsed | None, cursor: WatchCursor) -> None:
        """Add a delivered update; `cursor` is its position, or none when its version is unknown.

        An unknown version neither mints a position nor loses the one before it.
        """
        self.raw.append(update)
        self.fresh += 1
        self.high = advance(self.high, cursor)
        if parsed is not None:
            self.parsed.append(parsed)

    def take_parsed(self) -> list[Parsed]:
        """Give the caller's part of the batch, once."""
        parsed, self.parsed = self.parsed, []
        return parsed

    def cursor_after(self, current: WatchCursor) -> WatchCursor:
        """Give the cursor to store with `raw`."""
        return advance(current, self.high)

    def on_stored(self) -> None:
        """The fold has data and cursor; start a new batch."""
        self.raw, self.high, self.fresh, self.failures = [], NO_CURSOR, 0, 0

    def on_store_failed(self) -> bool:
        """Keep everything for the next flush; say whether to give up now.

        Dropping the batch instead would let the next one move the cursor over a hole.
        """
        self.fresh = 0
        self.failures += 1
        return self.failures >= MAX_STORE_APPLY_FAILURES

    def wait_seconds(self, window_seconds: float) -> float:
        """Say how long the batch may stay open: the window, longer after each failure."""
        return min(window_seconds * 2.0**self.failures, max(window_seconds, _RETRY_SECONDS_MAX))
