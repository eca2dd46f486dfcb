"""Which files may be deleted. Pure: a file goes only if no version can ever name it again.

Not age alone: a driver that slept for a week may still commit what it wrote. But offsets are
committed once (`commits`), so a file whose offsets are committed without it is a loser for ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Final

from quantum.archive.objects import StoredObject
from quantum.lake.table.commits import TableState
from quantum.lake.table.naming import Ingested, Rewritten, parse_name
from quantum.lake.table.types import Commit

GRACE_MS: Final = 24 * 3_600_000
"""How long readers of an older version may go on, and the least age of a file that goes."""


def plan_cleaning(
    state: TableState,
    history: Iterable[Commit],
    stored: Iterable[StoredObject],
    *,
    now_ms: int,
    grace_ms: int = GRACE_MS,
) -> list[str]:
    """Name the files that can go: losers, and what was replaced longer ago than the grace.

    `history` and `state` must be read after `stored` was listed: a commit between the two would
    make an uncommitted file of a committed one.
    """
    live = {_base(path) for path in state.files}
    replaced_at = {_base(path): commit.at_ms for commit in history for path in commit.remove}
    found: list[str] = []
    for each in stored:
        name = _base(each.name)  # a file may have a second name, for plain readers
        if name in live or now_ms - each.modified_ms < grace_ms:
            continue
        if name in replaced_at:
            if now_ms - replaced_at[name] >= grace_ms:
                found.append(each.name)
        elif is_loser(state, name):
            found.append(each.name)
    return found


def _base(path: str) -> str:
    return PurePosixPath(path).name


def is_loser(state: TableState, name: str) -> bool:
    """Say whether a file that no version names can never be committed any more."""
    match parse_name(name):
        case Ingested(stream, first, _):
            following = state.next_offset(stream)
            return following is not None and first < following
        case Rewritten(base):
            return base < state.version
        case None:
            return False
