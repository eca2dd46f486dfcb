"""Pointer and prune: a fleet of exporters, slow ones and crashing ones, over the real guards.

Nodes export at the head of the log, upload a payload, look at the pointer, and swap it on
condition, with any interleaving and a crash between any two steps, for any number of rounds.
Pruners delete without grace, from a look at the pointer that may be old. New nodes bootstrap
from the pointer while retention moves the floor of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest

from slipstream.protocol import (
    PointerAbsent,
    PointerPresent,
    PointerState,
    payload_prunable,
    pointer_publish_allowed,
    resume_window_ok,
)
from tests.models.checker import explore

Payload = tuple[int, int]  # rank and exporter: its content address


class Node(NamedTuple):
    """An exporter: idle, exported (rank), uploaded, or having looked at the pointer."""

    phase: str
    rank: int
    seen: int | None  # the rank of the pointer at the look
    fresh: bool  # nobody has put the pointer since, so the condition would hold


IDLE = Node("idle", 0, None, fresh=False)


class World(NamedTuple):
    head: int
    floor: int
    nodes: tuple[Node, ...]
    payloads: frozenset[Payload]
    pointer: Payload | None
    highest: int  # the highest rank ever published
    pruner: Payload | None  # the pointer as a pruner saw it, before it deletes
    diverged: bool


def prunable(rank: int, pointer_rank: int, *, is_target: bool) -> bool:
    return payload_prunable(rank, pointer_rank, is_pointer_target=is_target, aged_out=True)


@dataclass(frozen=True)
class Fleet:
    """The model; its fields are what a mutation replaces."""

    nodes: int
    revisions: int
    allowed: Callable[[PointerState, int], bool] = pointer_publish_allowed
    may_prune: Callable[..., bool] = field(default=prunable)
    may_resume: Callable[[int, int], bool] = resume_window_ok
    conditional: bool = True
    one_payload_key: bool = False  # the layout that was rejected: the newest upload replaces all

    def initial(self) -> World:
        nodes = (IDLE,) * self.nodes
        return World(0, 1, nodes, frozenset(), None, 0, None, diverged=False)

    def steps(self, world: World) -> Iterable[tuple[str, World]]:
        for label, successor in self._every_step(world):
            yield label, canonical(successor)

    def _every_step(self, world: World) -> Iterable[tuple[str, World]]:
        if world.head < self.revisions:
            yield "write", world._replace(head=world.head + 1)
        if world.floor <= world.head:
            yield "evict", world._replace(floor=world.floor + 1)
        for index, node in enumerate(world.nodes):
            yield from self._node_steps(world, index, node)
        yield from self._prune_steps(world)
        if world.pointer is not None:
            yield "bootstrap", self._bootstrap(world, world.pointer[0])

    def _node_steps(self, world: World, index: int, node: Node) -> Iterable[tuple[str, World]]:
        if node.phase != "idle":
            yield f"crash {index}", put_node(world, index, IDLE)
        match node.phase:
            case "idle":
                if world.head:
                    exported = Node("exported", world.head, None, fresh=False)
                    yield f"export {index}", put_node(world, index, exported)
            case "exported":
                uploaded = put_node(world, index, node._replace(phase="uploaded"))
                new = frozenset({(node.rank, index)})
                kept = frozenset() if self.one_payload_key else world.payloads
                yield f"upload {index}", uploaded._replace(payloads=kept | new)
            case "uploaded":
                seen = None if world.pointer is None else world.pointer[0]
                looked = Node("looked", node.rank, seen, fresh=True)
                yield f"look {index}", put_node(world, index, looked)
            case "looked":
                yield f"swap {index}", self._swap(world, index, node)

    def _swap(self, world: World, index: int, node: Node) -> World:
        state: PointerState = PointerAbsent() if node.seen is None else PointerPresent(node.seen)
        if not self.allowed(state, node.rank):
            return put_node(world, index, IDLE)
        if self.conditional and not node.fresh:
            return put_node(world, index, node._replace(phase="uploaded", seen=None, fresh=False))
        stale = tuple(other._replace(fresh=False) for other in world.nodes)
        swapped = world._replace(
            nodes=stale, pointer=(node.rank, index), highest=max(world.highest, node.rank)
        )
        return put_node(swapped, index, IDLE)

    def _prune_steps(self, world: World) -> Iterable[tuple[str, World]]:
        if world.pointer is not None and world.pruner is None:
            yield "pruner looks", world._replace(pruner=world.pointer)
        if world.pruner is None:
            return
        yield "pruner gives up", world._replace(pruner=None)
        kept = frozenset(
            payload
            for payload in world.payloads
            if not self.may_prune(payload[0], world.pruner[0], is_target=payload == world.pruner)
        )
        yield "prune", world._replace(payloads=kept, pruner=None)

    def _bootstrap(self, world: World, rank: int) -> World:
        """A node that resumes where a revision is missing has diverged, and nobody knows."""
        missing = any(revision < world.floor for revision in range(rank + 1, world.head + 1))
        resumes = self.may_resume(rank, world.floor)
        return world._replace(diverged=world.diverged or (resumes and missing))

    def violation(self, world: World) -> str | None:
        if world.pointer is not None and world.pointer[0] < world.highest:
            return "the published cursor regressed"
        if world.pointer is not None and world.pointer not in world.payloads:
            return "the pointer's target is not fetchable"
        if world.diverged:
            return "a bootstrap diverged silently"
        if world.head and not self._calm_round_publishes(world):
            return "a round in calm does not publish"
        return None

    def _calm_round_publishes(self, world: World) -> bool:
        """Once the others are quiet, one round publishes the head: nothing can wedge the fleet."""
        calm = put_node(world, 0, IDLE)
        for wanted in ("export 0", "upload 0", "look 0", "swap 0"):
            calm = dict(self._node_steps(calm, 0, calm.nodes[0]))[wanted]
        return calm.pointer is not None and calm.pointer[0] == calm.head


def canonical(world: World) -> World:
    """Number the nodes in one order: they are alike, so a world is alike to its permutations."""
    owned: list[list[int]] = [[] for _ in world.nodes]
    for rank, owner in world.payloads:
        owned[owner].append(rank)

    def signature(index: int) -> tuple[object, ...]:
        node = world.nodes[index]
        points = (
            mark[0] if mark is not None and mark[1] == index else 0
            for mark in (world.pointer, world.pruner)
        )
        seen = -1 if node.seen is None else node.seen
        return node.phase, node.rank, seen, node.fresh, sorted(owned[index]), *points

    order = sorted(range(len(world.nodes)), key=signature)
    place = {old: new for new, old in enumerate(order)}
    return world._replace(
        nodes=tuple(world.nodes[index] for index in order),
        payloads=frozenset((rank, place[owner]) for rank, owner in world.payloads),
        pointer=None if world.pointer is None else (world.pointer[0], place[world.pointer[1]]),
        pruner=None if world.pruner is None else (world.pruner[0], place[world.pruner[1]]),
    )


def put_node(world: World, index: int, node: Node) -> World:
    return world._replace(nodes=(*world.nodes[:index], node, *world.nodes[index + 1 :]))


@pytest.mark.parametrize(("nodes", "revisions", "states"), [(2, 3, 45_839), (3, 2, 58_555)])
def test_the_protocol_holds_in_every_reachable_state(
    nodes: int, revisions: int, states: int
) -> None:
    result = explore(Fleet(nodes, revisions))
    assert result.counterexample is None, str(result.counterexample)
    print(f"{nodes} nodes, {revisions} revisions: {result.states:,} states")
    assert result.states == states, "a smaller space than it was would prove less"


@pytest.mark.soak
def test_the_protocol_holds_for_three_nodes_and_three_revisions() -> None:
    result = explore(Fleet(3, 3), states_max=50_000_000)
    print(f"3 nodes, 3 revisions: {result.states:,} states")
    assert result.counterexample is None, str(result.counterexample)


def any_candidate(current: PointerState, candidate: int) -> bool:
    return True


def newer_only(current: PointerState, candidate: int) -> bool:
    return current == PointerAbsent() or (
        isinstance(current, PointerPresent) and current.rank is not None
        and candidate > current.rank
    )  # fmt: skip


def at_or_below(rank: int, pointer_rank: int, *, is_target: bool) -> bool:
    return not is_target and rank <= pointer_rank


def by_age_alone(rank: int, pointer_rank: int, *, is_target: bool) -> bool:
    return not is_target


def target_too(rank: int, pointer_rank: int, *, is_target: bool) -> bool:
    return rank <= pointer_rank


def always_resume(revision: int, first_sequence: int) -> bool:
    return True


def off_by_one(revision: int, first_sequence: int) -> bool:
    return first_sequence <= revision + 2


MUTATIONS = {
    "any candidate may publish": (
        Fleet(2, 2, allowed=any_candidate),
        "the published cursor regressed",
    ),
    "the swap is unconditional": (
        Fleet(2, 2, conditional=False),
        "the published cursor regressed",
    ),
    "only newer may publish": (
        Fleet(2, 2, allowed=newer_only),
        None,
    ),
    "prune at or below": (Fleet(2, 2, may_prune=at_or_below), "the pointer's target"),
    "prune by age alone": (Fleet(2, 2, may_prune=by_age_alone), "the pointer's target"),
    "prune the target": (Fleet(2, 2, may_prune=target_too), "the pointer's target"),
    "one payload key": (Fleet(2, 2, one_payload_key=True), "the pointer's target"),
    "resume without asking": (Fleet(2, 2, may_resume=always_resume), "a bootstrap diverged"),
    "resume one too early": (Fleet(2, 2, may_resume=off_by_one), "a bootstrap diverged"),
}


@pytest.mark.parametrize(("fleet", "expected"), MUTATIONS.values(), ids=MUTATIONS.keys())
def test_each_guard_is_load_bearing(fleet: Fleet, expected: str | None) -> None:
    """A weaker guard has a counterexample; a stricter publish guard is merely lazier."""
    found = explore(fleet).counterexample
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert expected in found.property, str(found)


POINTERS = [PointerAbsent(), PointerPresent(None), *(PointerPresent(rank) for rank in range(4))]


@pytest.mark.parametrize("candidate", range(4))
@pytest.mark.parametrize("current", POINTERS, ids=str)
def test_the_publish_guard_refuses_exactly_what_is_readable_and_newer(
    current: PointerState, candidate: int
) -> None:
    newer = isinstance(current, PointerPresent) and (current.rank or 0) > candidate
    assert pointer_publish_allowed(current, candidate) is not newer


@pytest.mark.parametrize("is_target", [False, True])
@pytest.mark.parametrize("aged_out", [False, True])
@pytest.mark.parametrize("rank", [None, 4, 5, 6])
def test_the_prune_guard_needs_all_of_its_reasons(
    rank: int | None, *, is_target: bool, aged_out: bool
) -> None:
    wanted = rank == 4 and aged_out and not is_target
    assert payload_prunable(rank, 5, is_pointer_target=is_target, aged_out=aged_out) is wanted


@pytest.mark.parametrize(("revision", "first", "ok"), [(5, 1, True), (5, 6, True), (5, 7, False)])
def test_the_window_guard_ends_at_the_next_revision(revision: int, first: int, *, ok: bool) -> None:
    assert resume_window_ok(revision, first) is ok
