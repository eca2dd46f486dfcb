"""An explicit-state model checker: every reachable state, breadth first, with the shortest trace.

A model's states are hashable values. Its steps call the functions that production calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

State = TypeVar("State", bound=Hashable)


class Model(Protocol[State]):
    """What the checker explores."""

    def initial(self) -> State:
        """Where it starts."""

    def steps(self, state: State) -> Iterable[tuple[str, State]]:
        """Everything that may happen next, by name."""

    def violation(self, state: State) -> str | None:
        """What is wrong with a state, None when nothing is."""


@dataclass(frozen=True, slots=True)
class Counterexample:
    """The shortest way to a state that must not be."""

    property: str
    trace: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.property}: " + " → ".join(self.trace)


@dataclass(frozen=True, slots=True)
class Exploration(Generic[State]):
    """What was seen."""

    states: int
    transitions: int
    counterexample: Counterexample | None


def explore(model: Model[State], *, states_max: int = 3_000_000) -> Exploration[State]:
    """Visit every reachable state, or stop at the first violation.

    Raises AssertionError when there are more states than `states_max`: a search that was cut
    short proves nothing.
    """
    start = model.initial()
    parents: dict[State, tuple[State, str] | None] = {start: None}
    queue = deque([start])
    transitions = 0
    while queue:
        state = queue.popleft()
        wrong = model.violation(state)
        if wrong is not None:
            found = Counterexample(wrong, _trace(parents, state))
            return Exploration(len(parents), transitions, found)
        for label, successor in model.steps(state):
            transitions += 1
            if successor not in parents:
                parents[successor] = (state, label)
                queue.append(successor)
        assert len(parents) <= states_max, "the model is larger than the search"
    return Exploration(len(parents), transitions, None)


def _trace(parents: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    labels: list[str] = []
    step = parents[state]
    while step is not None:
        labels.append(step[1])
        step = parents[step[0]]
    return tuple(reversed(labels))
