"""The applied cursor: delivery, flush, transient failure, crash, in every order.

The steps drive the real `Pending`. The fold is what its data says and what its cursor says; the
property is that the second never promises more than the first holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from slipstream.applied import Pending
from slipstream.types import NO_CURSOR, KvUpdate, UpdateKind, VersionToken, WatchCursor
from tests.models.checker import explore

IDENTITY = b"one-life"


class World(NamedTuple):
    delivered: int  # the watch's position: revisions up to here were handed over
    raw: tuple[int, ...]  # in memory, not stored
    high: int
    failures: int
    caller: int  # the highest revision for which the caller's apply returned, in this process
    data: frozenset[int]  # in the fold
    cursor: int  # in the fold
    highest: int  # the highest cursor that the fold ever had


def update(revision: int, unknown: int) -> tuple[KvUpdate, WatchCursor]:
    token = VersionToken() if revision == unknown else VersionToken.from_u64(revision)
    cursor = NO_CURSOR if revision == unknown else WatchCursor(token.raw, IDENTITY, b"", 0)
    return KvUpdate(UpdateKind.PUT, str(revision), b"", token), cursor


def number(cursor: WatchCursor) -> int:
    return cursor.as_u64() or 0


def at(revision: int) -> WatchCursor:
    return WatchCursor(VersionToken.from_u64(revision).raw, IDENTITY) if revision else NO_CURSOR


@dataclass(frozen=True)
class Loop:
    """The model, and the ways in which hand-written loops were wrong."""

    revisions: int
    unknown: int = 0  # this revision arrives without a version
    drop_failed_batch: bool = False
    resume_from_memory: bool = False
    cursor_on_receipt: bool = False
    unknown_is_zero: bool = False

    def initial(self) -> World:
        return World(0, (), 0, 0, 0, frozenset(), 0, 0)

    def steps(self, world: World) -> Iterable[tuple[str, World]]:
        if world.delivered < self.revisions:
            yield "deliver", self._deliver(world)
        if world.raw:
            yield "flush", self._flush(world)
            yield "flush fails", self._fail(world)
        if world.raw or world.delivered != world.cursor:
            yield "crash", self._restart(world)

    def _pending(self, world: World) -> Pending[int]:
        pending: Pending[int] = Pending(high=at(world.high), failures=world.failures)
        pending.raw = [update(revision, self.unknown)[0] for revision in world.raw]
        return pending

    def _deliver(self, world: World) -> World:
        revision = world.delivered + 1
        pending = self._pending(world)
        item, cursor = update(revision, self.unknown)
        if self.unknown_is_zero and cursor.is_none:
            pending.high = WatchCursor(VersionToken.from_u64(0).raw, IDENTITY)
        pending.take_in(item, revision, cursor)
        moved = world._replace(
            delivered=revision, raw=(*world.raw, revision), high=number(pending.high)
        )
        if self.cursor_on_receipt:
            return moved._replace(cursor=max(world.cursor, number(pending.high)))
        return moved

    def _flush(self, world: World) -> World:
        """The caller's apply returns, then the fold takes data and cursor in one step."""
        pending = self._pending(world)
        cursor = number(pending.cursor_after(at(world.cursor)))
        if self.unknown_is_zero and world.high == 0:
            cursor = 0
        pending.on_stored()
        return world._replace(
            raw=(),
            high=number(pending.high),
            failures=pending.failures,
            caller=max(world.caller, world.raw[-1]),
            data=world.data | frozenset(world.raw),
            cursor=cursor,
            highest=max(world.highest, cursor),
        )

    def _fail(self, world: World) -> World:
        """The caller's apply returns, and the fold refuses."""
        pending = self._pending(world)
        caller = max(world.caller, world.raw[-1])
        if pending.on_store_failed():
            return self._restart(world)
        if self.drop_failed_batch:
            pending.raw = []
        kept = tuple(int(item.key) for item in pending.raw)
        return world._replace(raw=kept, failures=pending.failures, caller=caller)

    def _restart(self, world: World) -> World:
        start = world.caller if self.resume_from_memory else world.cursor
        return World(start, (), 0, 0, start, world.data, world.cursor, world.highest)

    def violation(self, world: World) -> str | None:
        if any(revision not in world.data for revision in range(1, world.cursor + 1)):
            return "the cursor names what is not in the fold"
        if world.cursor < world.highest:
            return "the cursor went backwards"
        if world.delivered == self.revisions and not world.raw:
            missing = set(range(1, self.revisions + 1)) - world.data
            if missing:
                return "everything was delivered and something is missing"
        return None


@pytest.mark.parametrize("unknown", [0, 1, 3, 7])
def test_the_cursor_never_names_what_was_not_applied(unknown: int) -> None:
    result = explore(Loop(7, unknown=unknown))
    assert result.counterexample is None, str(result.counterexample)
    print(f"{result.states:,} states")
    assert result.states > 1_000


MUTATIONS = {
    "the failed batch is dropped": (
        Loop(4, drop_failed_batch=True),
        "the cursor names what is not in the fold",
    ),
    "resume from what memory applied": (
        Loop(4, resume_from_memory=True),
        "the cursor names what is not in the fold",
    ),
    "the cursor moves on receipt": (
        Loop(4, cursor_on_receipt=True),
        "the cursor names what is not in the fold",
    ),
    "an unknown version is revision zero": (
        Loop(4, unknown=3, unknown_is_zero=True),
        "the cursor went backwards",
    ),
}


@pytest.mark.parametrize(("loop", "expected"), MUTATIONS.values(), ids=MUTATIONS.keys())
def test_each_part_of_the_discipline_is_load_bearing(loop: Loop, expected: str) -> None:
    found = explore(loop).counterexample
    assert found is not None
    assert found.property in {expected, "everything was delivered and something is missing"}, found
