"""The floor guard: an unfiltered live watch never silently skips what retention evicted.

Others write and delete, overwrites and retention drop messages, the server delivers what is left
in batches, and the guard is asked with a floor that is read after the batch arrived, as in
production. A tripped guard ends the story: the restart resyncs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from slipstream.protocol import first_lost_gap, resume_window_ok
from tests.models.checker import explore

KEYS = ("a", "b")


class World(NamedTuple):
    log: tuple[tuple[int, bool], ...]  # what every revision did: a key's index, put or delete
    held: frozenset[int]  # revisions that the server still has
    floor: int  # retention has dropped everything below
    batch: tuple[int, ...]  # on the way to the watch
    frontier: int
    fold: tuple[int, ...]  # per key the revision of its put, 0 for none
    tripped: bool


@dataclass(frozen=True)
class LiveWatch:
    """The model: with the guard in band, with a periodic probe alone, or with neither."""

    revisions: int
    in_band: bool = True
    probe: bool = True
    batch_max: int = 2

    def initial(self) -> World:
        return World((), frozenset(), 1, (), 0, (0,) * len(KEYS), tripped=False)

    def steps(self, world: World) -> Iterable[tuple[str, World]]:
        if world.tripped:
            return
        if len(world.log) < self.revisions:
            for index, key in enumerate(KEYS):
                yield f"put {key}", written(world, index, is_put=True)
                yield f"delete {key}", written(world, index, is_put=False)
        if world.floor <= len(world.log):
            yield "evict", world._replace(floor=world.floor + 1, held=world.held - {world.floor})
        upcoming = [held for held in sorted(world.held) if held > last_sent(world)]
        if upcoming and len(world.batch) < self.batch_max:
            yield "send", world._replace(batch=(*world.batch, upcoming[0]))
        if world.batch:
            yield "process", self._process(world)
        if self.probe and not world.batch:
            lost = not resume_window_ok(world.frontier, first_sequence(world))
            yield "probe", world._replace(tripped=lost)

    def _process(self, world: World) -> World:
        first = first_sequence(world)
        if self.in_band and first_lost_gap(world.frontier, world.batch, first) is not None:
            return world._replace(tripped=True, batch=())
        fold = world.fold
        for revision in world.batch:
            fold = folded(fold, revision, world.log[revision - 1])
        return world._replace(fold=fold, frontier=world.batch[-1], batch=())

    def violation(self, world: World) -> str | None:
        if world.tripped or world.batch:
            return None
        everything = (0,) * len(KEYS)
        for revision, change in enumerate(world.log, start=1):
            everything = folded(everything, revision, change)
        # Only a frontier at the head is a claim to be complete.
        if world.frontier == len(world.log) and world.fold != everything:
            return "the fold diverged silently"
        return None


def written(world: World, index: int, *, is_put: bool) -> World:
    """Append a message; the key's older one is dropped (a history of one)."""
    revision = len(world.log) + 1
    kept = frozenset(held for held in world.held if world.log[held - 1][0] != index)
    return world._replace(log=(*world.log, (index, is_put)), held=kept | {revision})


def last_sent(world: World) -> int:
    return world.batch[-1] if world.batch else world.frontier


def first_sequence(world: World) -> int:
    return min(world.held, default=len(world.log) + 1)


def folded(fold: tuple[int, ...], revision: int, change: tuple[int, bool]) -> tuple[int, ...]:
    index, is_put = change
    return (*fold[:index], revision if is_put else 0, *fold[index + 1 :])


def test_a_guarded_watch_converges_or_says_that_it_cannot() -> None:
    result = explore(LiveWatch(revisions=5))
    assert result.counterexample is None, str(result.counterexample)
    print(f"{result.states:,} states")
    assert result.states > 50_000


MUTATIONS = {
    "no guard": LiveWatch(4, in_band=False, probe=False),
    "a periodic probe alone": LiveWatch(4, in_band=False, probe=True),
}


@pytest.mark.parametrize("model", MUTATIONS.values(), ids=MUTATIONS.keys())
def test_only_the_check_in_band_keeps_the_watch_honest(model: LiveWatch) -> None:
    """A probe between deliveries comes too late: the frontier has passed the gap by then."""
    found = explore(model).counterexample
    assert found is not None
    assert found.property == "the fold diverged silently"
    assert "evict" in found.trace
