"""The resync's order: synthetic deletes strictly before the re-list, whatever happens meanwhile.

The model walks the very tuple that `watch_applied` walks and asks `plan_stale` for the deletes,
while others write and delete, and the process crashes. Assumed, as in operation: a marker
written after the listing is still there when the watch opens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from slipstream.applied import RESYNC_ORDER, ResyncStep, plan_stale
from slipstream.types import WatchScope
from tests.models.checker import explore

KEYS = ("a", "b")
Value = int | None  # a put's number, None for absent


class World(NamedTuple):
    bucket: tuple[Value, ...]
    fold: tuple[Value, ...]
    done: int  # steps of the order that are finished
    live: frozenset[str] | None  # as listed
    since_listing: frozenset[str]  # keys touched since: their markers are in the re-list
    stream: tuple[tuple[str, Value], ...] | None  # what the open watch has still to deliver
    writes: int


@dataclass(frozen=True)
class Resync:
    """The model; `order` and `deletes` are what a mutation changes."""

    writes: int
    order: tuple[ResyncStep, ...] = RESYNC_ORDER
    deletes: bool = True

    def initial(self) -> World:
        """The fold knows both keys; meanwhile one is gone without a trace."""
        return World((None, 2), (1, 1), 0, None, frozenset(), None, 0)

    def steps(self, world: World) -> Iterable[tuple[str, World]]:
        if world.writes < self.writes:
            for key in KEYS:
                yield f"put {key}", self._write(world, key, 10 + world.writes)
                yield f"delete {key}", self._write(world, key, None)
        if world.done < len(self.order):
            step = self.order[world.done]
            yield step.value, self._walk(world, step)._replace(done=world.done + 1)
            if world.done:
                restarted = world._replace(
                    done=0, live=None, since_listing=frozenset(), stream=None
                )
                yield "crash", restarted
        if world.stream:
            key, value = world.stream[0]
            delivered = put(world.fold, key, value)
            yield f"deliver {key}", world._replace(fold=delivered, stream=world.stream[1:])

    def _write(self, world: World, key: str, value: Value) -> World:
        stream = world.stream
        return world._replace(
            bucket=put(world.bucket, key, value),
            since_listing=world.since_listing | {key},
            stream=None if stream is None else (*stream, (key, value)),
            writes=world.writes + 1,
        )

    def _walk(self, world: World, step: ResyncStep) -> World:
        match step:
            case ResyncStep.LIST_LIVE_KEYS:
                live = frozenset(key for key in KEYS if get(world.bucket, key) is not None)
                return world._replace(live=live, since_listing=frozenset())
            case ResyncStep.APPLY_DELETES:
                return world._replace(fold=self._deleted(world))
            case ResyncStep.OPEN_WATCH:
                relisted = tuple(
                    (key, get(world.bucket, key))
                    for key in KEYS
                    if get(world.bucket, key) is not None or key in world.since_listing
                )
                return world._replace(stream=relisted)

    def _deleted(self, world: World) -> tuple[Value, ...]:
        fold = world.fold
        folded = [key for key in KEYS if get(fold, key) is not None]
        if not self.deletes:
            return fold
        assert world.live is not None
        for update in plan_stale(folded, world.live, WatchScope.all(), scope_changed=False):
            assert update.version.is_unknown
            fold = put(fold, update.key, None)
        return fold

    def violation(self, world: World) -> str | None:
        settled = world.done == len(self.order) and world.stream == ()
        if settled and world.fold != world.bucket:
            return "the fold diverged from the bucket"
        return None


def get(values: tuple[Value, ...], key: str) -> Value:
    return values[KEYS.index(key)]


def put(values: tuple[Value, ...], key: str, value: Value) -> tuple[Value, ...]:
    index = KEYS.index(key)
    return (*values[:index], value, *values[index + 1 :])


def test_every_resync_converges_whatever_happens_meanwhile() -> None:
    result = explore(Resync(writes=5))
    assert result.counterexample is None, str(result.counterexample)
    print(f"{result.states:,} states")
    assert result.states > 10_000


LISTING, DELETES, OPEN = RESYNC_ORDER

MUTATIONS = {
    "no barrier: the watch opens before the deletes": Resync(3, (LISTING, OPEN, DELETES)),
    "no synthetic deletes": Resync(3, deletes=False),
}


@pytest.mark.parametrize("model", MUTATIONS.values(), ids=MUTATIONS.keys())
def test_the_barrier_and_the_deletes_are_load_bearing(model: Resync) -> None:
    found = explore(model).counterexample
    assert found is not None
    assert found.property == "the fold diverged from the bucket"


def test_without_the_barrier_a_recreated_key_is_lost() -> None:
    found = explore(MUTATIONS["no barrier: the watch opens before the deletes"]).counterexample
    assert found is not None
    assert "put a" in found.trace
    assert found.trace[-1] == ResyncStep.APPLY_DELETES.value
