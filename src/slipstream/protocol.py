"""The three guards that keep the fleet safe; production and the model checker call these very ones.

Pure: no clock, no I/O. `tests/models/` explores every reachable state over them, and shows for
each that a weaker variant has a counterexample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never


@dataclass(frozen=True, slots=True)
class PointerAbsent:
    """Nothing has been published yet."""


@dataclass(frozen=True, slots=True)
class PointerPresent:
    """A pointer was read; `rank` is the revision it publishes, None when it cannot be parsed."""

    rank: int | None


PointerState = PointerAbsent | PointerPresent


def pointer_publish_allowed(current: PointerState, candidate_rank: int) -> bool:
    """Say whether a candidate may replace the pointer: never one that is parseable and newer.

    A corrupt pointer is replaceable; otherwise one bad write would wedge the fleet.
    """
    match current:
        case PointerAbsent():
            return True
        case PointerPresent(rank):
            return rank is None or candidate_rank >= rank
        case _:
            assert_never(current)


def payload_prunable(
    payload_rank: int | None, pointer_rank: int, *, is_pointer_target: bool, aged_out: bool
) -> bool:
    """Say whether a payload may be deleted: aged out, not the target, and strictly below.

    Strictly, because an equal rank may still be published; what is below the pointer never can
    be, since the pointer only rises.
    """
    return (
        not is_pointer_target
        and aged_out
        and payload_rank is not None
        and payload_rank < pointer_rank
    )


def resume_window_ok(revision: int, first_sequence: int) -> bool:
    """Say whether reading on from `revision + 1` misses nothing that the log once held.

    A server that no longer has `revision + 1` starts at its first message without a word.
    """
    return first_sequence <= revision + 1


def first_lost_gap(frontier: int, revisions: Sequence[int], first_sequence: int) -> int | None:
    """Give the position behind which deliveries of an unfiltered watch skipped evicted messages.

    `revisions` were delivered after `frontier`, and `first_sequence` was read after they were: a
    gap in them is benign (the key was overwritten) while the log still reaches back to it. None
    when nothing can have been lost. Call it before the deliveries are processed; afterwards the
    frontier has passed the evidence.
    """
    for revision in revisions:
        if revision > frontier + 1 and not resume_window_ok(frontier, first_sequence):
            return frontier
        frontier = max(frontier, revision)
    return None
