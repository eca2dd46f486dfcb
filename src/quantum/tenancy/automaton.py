"""Many patterns asked at once: a check costs as many moves as the name has levels.

Theory of operation. The patterns form a trie. A name, read level by level, can stand at several
nodes of it at once; such a set of nodes is one state of a deterministic automaton. States and
moves are made when they are first needed and kept, so that asking again is one dictionary
lookup per level, however many patterns there are. Names that no pattern mentions all share one
move: hostile names cannot make the automaton grow, and `PLACES_MAX` bounds it in any case.

A filter is read like a name, with two more letters. Every topic of a filter is covered if the
automaton accepts it with `+` read as a name that no pattern mentions, because every other name
stands at those nodes too, and perhaps at more. Some topic of it is met if the automaton accepts
with `+` read as every name at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quantum.topics import ANY_LEVEL, ANY_REST, RESERVED

CLIENT = b"%c"
IDENTITY = b"%u"
PLACES_MAX = 1 << 20
"""How many moves and nodes of states are kept at most; beyond, the automaton starts afresh."""

_UNMENTIONED = ANY_LEVEL  # as a letter: no level has this name
_EVERY = ANY_REST
_NOT_NAMES = (ANY_LEVEL, ANY_REST, CLIENT, IDENTITY)
_IS_CLIENT = 1
_IS_IDENTITY = 2
_IS_RESERVED = 4


class _Node:
    """One level of the patterns of one group."""

    __slots__ = ("any_level", "below", "client", "here", "identity", "is_root", "names", "rest")

    def __init__(self, is_root: bool = False) -> None:
        self.is_root = is_root
        self.names: dict[bytes, _Node] = {}
        self.any_level: _Node | None = None
        self.client: _Node | None = None
        self.identity: _Node | None = None
        self.here: int | None = None
        """The first rule whose pattern ends at this node."""
        self.rest: int | None = None
        """The first rule whose pattern ends with `#` under this node."""
        self.below: int | None = None
        """The first rule whose pattern ends at this node or anywhere below it."""

    def add(self, pattern: Sequence[bytes], rule: int) -> None:
        node = self
        for level in pattern:
            node.below = _first(node.below, rule)
            if level == ANY_REST:
                node.rest = _first(node.rest, rule)
                return
            node = node._child(level)
        node.here = _first(node.here, rule)
        node.below = _first(node.below, rule)

    def _child(self, level: bytes) -> _Node:
        if level == ANY_LEVEL:
            self.any_level = self.any_level or _Node()
            return self.any_level
        if level == CLIENT:
            self.client = self.client or _Node()
            return self.client
        if level == IDENTITY:
            self.identity = self.identity or _Node()
            return self.identity
        return self.names.setdefault(level, _Node())

    def reached_by(self, name: bytes, flags: int) -> list[_Node | None]:
        if name == _EVERY:
            return self._every_child()
        reached = [self.names.get(name)]
        if not flags & _IS_RESERVED:
            reached.append(self.any_level)
            if flags & _IS_CLIENT:
                reached.append(self.client)
            if flags & _IS_IDENTITY:
                reached.append(self.identity)
        return reached

    def _every_child(self) -> list[_Node | None]:
        # A filter that begins with a wildcard does not match `$…`.
        named = [
            child
            for name, child in self.names.items()
            if not (self.is_root and name.startswith(RESERVED))
        ]
        return [*named, self.any_level, self.client, self.identity]


class _State:
    """A set of nodes that a name stands at, and the moves from here that were made before."""

    __slots__ = ("accepted", "below", "covered", "moves", "nodes")

    def __init__(self, nodes: tuple[_Node, ...], covered: int | None) -> None:
        self.nodes = nodes
        self.covered = covered
        """The first rule that accepts this name and whatever may follow, by a `#`."""
        self.accepted = covered
        """The first rule that accepts the name if it ends here."""
        self.below: int | None = covered
        """The first rule that accepts the name or some continuation of it."""
        for node in nodes:
            self.accepted = _first(self.accepted, node.here)
            self.below = _first(self.below, node.below)
        self.moves: dict[bytes | tuple[bytes, int], _State] = {}


class LevelAutomaton:
    """Patterns in groups; a question is put to the common group and one other.

    Each answer is the number of a rule, the lowest where several would do, or None. With
    `hides_reserved`, wildcards and placeholders in front do not stand for names with `$`.
    """

    def __init__(self, *, hides_reserved: bool) -> None:
        self._hides_reserved = hides_reserved
        self._roots: dict[str | None, _Node] = {None: _Node(is_root=True)}
        self._mentioned: set[bytes] = set()
        self._states: dict[tuple[frozenset[_Node], int | None], _State] = {}
        self._starts: dict[str | None, _State] = {}
        self._places = 0
        self._placeholders: dict[str | None, set[bytes]] = {None: set()}
        """Which of them the patterns of each group hold."""

    def add(self, pattern: Sequence[bytes], rule: int, group: str | None) -> None:
        """Add a pattern to the common group (None) or to another; only before any question."""
        self._roots.setdefault(group, _Node(is_root=True)).add(pattern, rule)
        self._mentioned.update(level for level in pattern if level not in _NOT_NAMES)
        self._placeholders.setdefault(group, set()).update({CLIENT, IDENTITY} & set(pattern))

    def holds(self, placeholder: bytes, group: str) -> bool:
        """Say whether a pattern that concerns this group has a placeholder."""
        return placeholder in self._placeholders[None] | self._placeholders.get(group, set())

    def find(
        self, topic: Sequence[bytes], group: str, client: bytes | None, identity: bytes | None
    ) -> int | None:
        """Return the first rule that matches a topic."""
        state = self._start(group)
        flags = self._first_flags(topic[0])
        for level in topic:
            if not state.nodes:
                break
            state = self._read(state, level, flags, client, identity)
            flags = 0
        return state.accepted

    def covers(
        self,
        topic_filter: Sequence[bytes],
        group: str,
        client: bytes | None,
        identity: bytes | None,
    ) -> int | None:
        """Return a rule if every topic of a filter is matched, by this rule or by several."""
        state = self._start(group)
        flags = self._first_flags(topic_filter[0])
        for depth, level in enumerate(topic_filter):
            if level == ANY_REST:
                return self._covers_rest(state, depth)
            if level == ANY_LEVEL:
                state = self._move(state, _UNMENTIONED, 0)
            else:
                state = self._read(state, level, flags, client, identity)
            flags = 0
        return state.accepted

    def _covers_rest(self, state: _State, depth: int) -> int | None:
        # `a/#` stands for `a` too; `#` alone does not stand for a topic without levels.
        if depth > 0 and state.accepted is None:
            return None
        while state.covered is None:
            state = self._move(state, _UNMENTIONED, 0)
            if state.accepted is None:
                return None
        return state.covered

    def meets(
        self,
        topic_filter: Sequence[bytes],
        group: str,
        client: bytes | None,
        identity: bytes | None,
    ) -> int | None:
        """Return the first rule that matches some topic of a filter."""
        state = self._start(group)
        flags = self._first_flags(topic_filter[0])
        for depth, level in enumerate(topic_filter):
            if not state.nodes:
                break
            if level == ANY_REST:
                return state.below if depth > 0 else self._move(state, _EVERY, 0).below
            if level == ANY_LEVEL:
                state = self._move(state, _EVERY, 0)
            else:
                state = self._read(state, level, flags, client, identity)
            flags = 0
        return state.accepted

    def _first_flags(self, level: bytes) -> int:
        return _IS_RESERVED if self._hides_reserved and level.startswith(RESERVED) else 0

    def _read(
        self, state: _State, level: bytes, flags: int, client: bytes | None, identity: bytes | None
    ) -> _State:
        if level == client:
            flags |= _IS_CLIENT
        if level == identity:
            flags |= _IS_IDENTITY
        return self._move(state, level if level in self._mentioned else _UNMENTIONED, flags)

    def _move(self, state: _State, name: bytes, flags: int) -> _State:
        letter = (name, flags) if flags else name
        known = state.moves.get(letter)
        if known is not None:
            return known
        if self._places >= PLACES_MAX:
            self._states.clear()
            self._starts.clear()
            self._places = 0
            state = self._state(state.nodes, state.covered)
        reached = [
            child
            for node in state.nodes
            for child in node.reached_by(name, flags)
            if child is not None
        ]
        covered = None if flags & _IS_RESERVED else state.covered
        following = self._state(reached, covered)
        state.moves[letter] = following
        self._places += 1
        return following

    def _start(self, group: str) -> _State:
        known = group if group in self._roots else None
        start = self._starts.get(known)
        if start is None:
            start = self._state({self._roots[None], self._roots[known]}, None)
            self._starts[known] = start
        return start

    def _state(self, nodes: Iterable[_Node], covered: int | None) -> _State:
        """Return the one state for these nodes."""
        standing = tuple(nodes)
        for node in standing:
            covered = _first(covered, node.rest)
        key = (frozenset(standing), covered)
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = _State(standing, covered)
            self._places += len(standing)
        return state


def _first(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return one if other is None else other
    return min(one, other)
