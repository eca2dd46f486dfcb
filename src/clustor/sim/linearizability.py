"""Decide whether what clients saw can be explained by one order of operations.

Theory of operation. The search is that of Wing and Gong with the improvements of Lowe: the
history is split by key; a partition is walked return by return; an operation is given its
place only when a return forces it (either its own, or that of an operation it must precede);
and a configuration (which return, which open operations already have their place, state)
is visited once.

Three cuts keep it small, each of which loses no order:
- an answered operation that can change no state at all (a read, a refused compare-and-set)
  takes its place as soon as it fits, since it is in nobody's way there; one that merely
  changes nothing now (a write of the value that is there) may be needed later;
- an unanswered operation that would change nothing is not placed, since it may never happen;
- of equal unanswered calls the earliest is placed first, since its interval holds the others'.

The search knows answers before they are given, so the return at which it gets stuck may come
before the event that makes the history wrong, never after it. From there on prefixes are
searched as they stood at the time, until one has no order: that one is reported.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from clustor.sim.history import HistoryOperation
from clustor.sim.models import Model

StateT = TypeVar("StateT", bound=Hashable)
CallT = TypeVar("CallT", bound=Hashable)

# Verdicts carry operations of whichever model was checked.
AnyOperation: TypeAlias = HistoryOperation[Any]

_EXPLAINED_OPERATIONS_MAX = 12


@dataclass(frozen=True, slots=True)
class Ok:
    """An order exists for every key."""

    states: int  # configurations visited


@dataclass(frozen=True, slots=True)
class Violation:
    """No order exists for `prefix`, all of whose operations touch `key`."""

    key: Hashable
    # The history of the key as it stood when `culprit` returned: what returned later stands
    # here as unanswered. Without the culprit's return an order exists, unless `shortened`
    # is False: then the budget ended first, and this is the key's whole history.
    prefix: tuple[AnyOperation, ...]
    culprit: AnyOperation
    # One order that explains everything up to, and without, the culprit's return.
    longest_order: tuple[AnyOperation, ...]
    shortened: bool
    explanation: str
    states: int


@dataclass(frozen=True, slots=True)
class Undecided:
    """The budget ended first; for keys other than `keys` an order exists."""

    keys: tuple[Hashable, ...]
    states: int


Verdict: TypeAlias = Ok | Violation | Undecided


def check(
    history: Sequence[HistoryOperation[CallT]], model: Model[CallT, StateT], *, budget: int
) -> Verdict:
    """Judge a history, visiting at most `budget` configurations.

    Each key gets an equal share of what is left of the budget, smallest first, so that one
    hard key does not hide another's violation. Time and memory are bounded by the budget
    times the number of operations open at once.
    """
    partitions = _partitions(history, model)
    visited = 0
    undecided: list[Hashable] = []
    for done, (key, operations) in enumerate(partitions):
        search = _Search(operations, model)
        outcome = search.run((budget - visited) // (len(partitions) - done))
        visited += search.visited
        if outcome is None:
            undecided.append(key)
        elif not outcome:
            return _shortest_violation(key, search, visited, budget)
    return Undecided(tuple(undecided), visited) if undecided else Ok(visited)


def _partitions(
    history: Sequence[HistoryOperation[CallT]], model: Model[CallT, StateT]
) -> list[tuple[Hashable, list[HistoryOperation[CallT]]]]:
    """Split by key, smallest first; within a key by the moment of the call."""
    by_key: defaultdict[Hashable, list[HistoryOperation[CallT]]] = defaultdict(list)
    for operation in sorted(history, key=lambda each: each.invoked):
        by_key[model.key(operation.call)].append(operation)
    return sorted(by_key.items(), key=lambda item: len(item[1]))


# An order under construction, newest first: (operation number, what came before).
_Trail: TypeAlias = "tuple[int, _Trail] | None"


@dataclass(slots=True)
class _Configuration(Generic[StateT]):
    at: int  # number of the return to be explained next
    placed: int  # bit set of operations with a place and no return before `at`
    state: StateT
    trail: _Trail


class _Search(Generic[CallT, StateT]):
    """The search through one key's operations; `run` once, then read the outcome."""

    def __init__(
        self, operations: Sequence[HistoryOperation[CallT]], model: Model[CallT, StateT]
    ) -> None:
        self.operations = operations
        self.model = model
        self.returns = _numbers_by_return(operations)
        self._unanswered = [n for n, each in enumerate(operations) if each.returned is None]
        self._open_at = _open_at_returns(operations, self.returns)
        self._is_read = [
            each.returned is not None and model.is_read(each.call, each.result)
            for each in operations
        ]
        self.visited = 0
        # The configuration that explains the most returns.
        self.furthest = _Configuration(0, 0, model.initial, None)

    def run(self, budget: int) -> bool | None:
        """Say whether an order exists, or None if the budget ends first."""
        seen: set[tuple[int, int, StateT]] = set()
        stack = [self.furthest]
        while stack:
            here = stack.pop()
            self._settle(here)
            if here.at > self.furthest.at:
                self.furthest = here
            if here.at == len(self.returns):
                return True
            identity = (here.at, here.placed, here.state)
            if identity in seen:
                continue
            if self.visited >= budget:
                return None
            seen.add(identity)
            self.visited += 1
            stack.extend(self._successors(here))
        return False

    def order(self) -> tuple[AnyOperation, ...]:
        """Return the operations in the order that explains the most returns."""
        newest_first: list[AnyOperation] = []
        trail = self.furthest.trail
        while trail is not None:
            number, trail = trail
            newest_first.append(self.operations[number])
        return tuple(reversed(newest_first))

    def _settle(self, here: _Configuration[StateT]) -> None:
        """Place the reads that fit, and pass the returns that are thereby explained."""
        while here.at < len(self.returns):
            self._place_reads(here)
            returning = 1 << self.returns[here.at]
            if not here.placed & returning:
                return
            here.placed ^= returning
            here.at += 1

    def _place_reads(self, here: _Configuration[StateT]) -> None:
        for number in self._open_at[here.at].answered:
            if self._is_read[number] and not here.placed >> number & 1:
                operation = self.operations[number]
                _, result = self.model.apply(here.state, operation.call)
                if result == operation.result:
                    here.placed |= 1 << number
                    here.trail = (number, here.trail)

    def _successors(self, here: _Configuration[StateT]) -> list[_Configuration[StateT]]:
        """Give one more open operation its place: every choice that could matter."""
        choices = self._answered_choices(here) + self._unanswered_choices(here)
        # The stack is taken from its end: try the operation that is returning first.
        choices.sort(key=lambda choice: choice[0] == self.returns[here.at])
        return [
            _Configuration(here.at, here.placed | 1 << number, state, (number, here.trail))
            for number, state in choices
        ]

    def _answered_choices(self, here: _Configuration[StateT]) -> list[tuple[int, StateT]]:
        choices: list[tuple[int, StateT]] = []
        for number in self._open_at[here.at].answered:
            if self._is_read[number] or here.placed >> number & 1:
                continue
            operation = self.operations[number]
            state, result = self.model.apply(here.state, operation.call)
            if result == operation.result:
                choices.append((number, state))
        return choices

    def _unanswered_choices(self, here: _Configuration[StateT]) -> list[tuple[int, StateT]]:
        choices: list[tuple[int, StateT]] = []
        tried: set[CallT] = set()
        for number in self._unanswered[: self._open_at[here.at].unanswered_count]:
            call = self.operations[number].call
            if here.placed >> number & 1 or call in tried:
                continue
            tried.add(call)
            state, _ = self.model.apply(here.state, call)
            if state != here.state:
                choices.append((number, state))
        return choices


def _shortest_violation(
    key: Hashable, search: _Search[CallT, StateT], visited: int, budget: int
) -> Violation:
    """Find the shortest prefix without an order, as far as the budget allows."""
    stuck_at = search.furthest.at
    explained = search
    for at in range(stuck_at - 1, len(search.returns)):
        prefix = _cut(search, at)
        attempt = _Search(prefix, search.model)
        outcome = attempt.run(budget - visited)
        visited += attempt.visited
        if outcome is None:
            break
        if not outcome:
            culprit = search.operations[search.returns[at]]
            return _violation(key, tuple(prefix), culprit, explained, visited)
        explained = attempt
    culprit = search.operations[search.returns[stuck_at]]
    return _violation(key, tuple(search.operations), culprit, search, visited)


def _violation(
    key: Hashable,
    prefix: tuple[AnyOperation, ...],
    culprit: AnyOperation,
    explained: _Search[CallT, StateT],
    visited: int,
) -> Violation:
    order = explained.order()
    settled = {each.invoked for each in (*order, culprit)}
    without_place = [each for each in prefix if each.invoked not in settled]
    explanation = (
        f"key {key!r}: no order of {len(prefix)} operations explains {_describe(culprit)}\n"
        f"what came before it can be explained: {_last([_describe(each) for each in order])}\n"
        f"which leaves the state {explained.furthest.state!r}\n"
        f"open, or without a place: {_last([_describe(each) for each in without_place])}"
    )
    shortened = len(explained.returns) == explained.furthest.at
    return Violation(key, prefix, culprit, order, shortened, explanation, visited)


def _numbers_by_return(operations: Sequence[HistoryOperation[CallT]]) -> list[int]:
    returned = [
        (operation.returned, number)
        for number, operation in enumerate(operations)
        if operation.returned is not None
    ]
    return [number for _, number in sorted(returned)]


@dataclass(frozen=True, slots=True)
class _Open:
    """The operations open just before a return."""

    answered: list[int]  # numbers of those that will be answered
    unanswered_count: int  # the first so many of those that will not


def _open_at_returns(
    operations: Sequence[HistoryOperation[CallT]], returns: Sequence[int]
) -> list[_Open]:
    answered: list[int] = []
    unanswered_count = 0
    open_at: list[_Open] = []
    called = 0
    for number in returns:
        now = operations[number].returned
        assert now is not None
        while called < len(operations) and operations[called].invoked < now:
            if operations[called].returned is None:
                unanswered_count += 1
            else:
                answered.append(called)
            called += 1
        open_at.append(_Open(answered.copy(), unanswered_count))
        answered.remove(number)
    return open_at


def _cut(search: _Search[CallT, StateT], at: int) -> list[HistoryOperation[CallT]]:
    """Return the history as it stood right after a return, or before the first one (-1)."""
    now = search.operations[search.returns[at]].returned if at >= 0 else 0
    assert now is not None
    return [
        each
        if each.returned is not None and each.returned <= now
        else HistoryOperation(each.process, each.call, each.invoked)
        for each in search.operations
        if each.invoked <= now
    ]


def _describe(operation: HistoryOperation[CallT]) -> str:
    if operation.returned is None:
        return f"[process {operation.process}: {operation.call} → ?, from {operation.invoked}]"
    return (
        f"[process {operation.process}: {operation.call} → {operation.result!r}, "
        f"{operation.invoked}–{operation.returned}]"
    )


def _last(items: Sequence[str]) -> str:
    more = len(items) - _EXPLAINED_OPERATIONS_MAX
    shown = ", ".join(items[-_EXPLAINED_OPERATIONS_MAX:]) or "nothing"
    return f"{more} others, {shown}" if more > 0 else shown
