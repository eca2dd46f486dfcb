"""What to do when a cursor cannot be resumed from: which keys vanished, and in which order. Pure.

The re-list of a fresh watch brings every live key, but not the keys that were deleted while we
were away and whose markers the log has dropped since. Those get a delete of our own making, and
it must come before the re-list: a key that was deleted and made again would otherwise be deleted
after its put arrived.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from slipstream.folds.store import stale_keys
from slipstream.types import KvEntry, KvUpdate, UpdateKind, WatchCursor, WatchScope


class ResyncStep(enum.Enum):
    """One step of a resync."""

    LIST_LIVE_KEYS = "list live keys"
    APPLY_DELETES = "apply deletes"
    OPEN_WATCH = "open watch"


# `watch_applied` walks this very tuple, each step finished before the next begins.
RESYNC_ORDER: Final = (ResyncStep.LIST_LIVE_KEYS, ResyncStep.APPLY_DELETES, ResyncStep.OPEN_WATCH)


def needs_resync(cursor: WatchCursor, scope: WatchScope, *, fold_is_empty: bool) -> bool:
    """Say whether a fold cannot resume, whatever the store says.

    A cursor of another scope knows nothing of the keys that this one adds; a fold with data and
    no cursor was never finished.
    """
    if cursor.is_none:
        return not fold_is_empty
    return cursor.scope not in {b"", scope.identity}


def contradicts(
    folded: Iterable[KvEntry],
    standing: Mapping[str, KvEntry],
    cursor: WatchCursor,
    scope: WatchScope,
) -> bool:
    """Say whether a fold at `cursor` can not have come from what stands in the bucket.

    What stands at or below the cursor must be in the fold at that very version, and what the
    fold holds must still stand, unless it was written again after the cursor, which the delta
    brings, or evicted, which leaves the fold the only copy.
    """
    unseen = {
        key: entry.version
        for key, entry in standing.items()
        if not entry.deleted and entry.version.raw <= cursor.position
    }
    for entry in folded:
        if not scope.covers(entry.key) or entry.version.is_unknown:
            unseen.pop(entry.key, None)
            continue
        found = standing.get(entry.key)
        if found is None or found.version.raw > cursor.position:
            continue
        if found.deleted or unseen.pop(entry.key, None) != entry.version:
            return True
    return bool(unseen)


def plan_stale(
    folded: Iterable[str], live: Collection[str], scope: WatchScope, *, scope_changed: bool
) -> Iterator[KvUpdate]:
    """Give a synthetic delete for each key that is gone; its unknown version moves no cursor.

    After a change of scope the keys outside go too: nothing would ever update them again.
    """
    relevant = (key for key in folded if scope_changed or scope.covers(key))
    return (KvUpdate(UpdateKind.DELETE, key) for key in stale_keys(relevant, live))
