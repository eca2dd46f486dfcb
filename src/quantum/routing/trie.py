"""Who subscribed to what: an index that answers in microseconds, however many subscribed.

A filter without wildcards is a key of one dictionary. The others live in a trie with one node
per level. Two things keep a subscription small: a filter with a single subscriber holds a bare
pair instead of a dictionary, and a node with a single child holds the child instead of one.

What a match costs. A walk goes two ways only at a fork, a node with both a literal level and `+`
below it. Of the forks that have no `+` above them a topic meets one in each level at most, so it
walks on `1 + levels + wild_forks` ways at most, however many filters there are. Who fills a trie
with the filters of strangers bounds `wild_forks` (`forks_with`): 14 levels of `a` or `+` are 16,384
filters that one topic walks through, and all but 14 of their forks are wild.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeAlias, TypeVar, cast

from quantum.topics import ANY_LEVEL, ANY_REST, SEPARATOR, has_wildcard

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

INTERNED_LEVELS_MAX = 65_536
_BYTES_PER_PLACE = 40  # of a dictionary in CPython, about

Holders: TypeAlias = "tuple[K, V] | dict[K, tuple[K, V]]"
"""The subscribers of one filter: one pair, or several by subscriber in the order they came."""


class _Node(Generic[K, V]):
    """One level of the filters with wildcards; the root has the empty name."""

    __slots__ = ("any_level", "children", "here", "level", "rest")

    def __init__(self, level: bytes) -> None:
        self.level = level
        self.children: _Node[K, V] | dict[bytes, _Node[K, V]] | None = None
        """Below a literal level: nobody, a single node, or nodes by their level."""
        self.any_level: _Node[K, V] | None = None
        """Below `+`."""
        self.here: Holders[K, V] | None = None
        """Whose filter ends at this node."""
        self.rest: Holders[K, V] | None = None
        """Whose filter continues with `#`, which this level matches too."""

    def is_empty(self) -> bool:
        return (
            self.here is None
            and self.rest is None
            and self.any_level is None
            and self.children is None
        )

    def is_fork(self) -> bool:
        return self.any_level is not None and self.children is not None

    def child(self, level: bytes) -> _Node[K, V] | None:
        if level == ANY_LEVEL:
            return self.any_level
        children = self.children
        if children is None or type(children) is dict:
            return None if children is None else children.get(level)
        only = cast("_Node[K, V]", children)
        return only if only.level == level else None

    def put_child(self, child: _Node[K, V]) -> None:
        children = self.children
        if child.level == ANY_LEVEL:
            self.any_level = child
        elif children is None:
            self.children = child
        elif isinstance(children, _Node):
            self.children = {children.level: children, child.level: child}
        else:
            children[child.level] = child

    def drop_child(self, level: bytes) -> None:
        children = self.children
        if level == ANY_LEVEL:
            self.any_level = None
        elif isinstance(children, dict):
            del children[level]
            if len(children) == 1:
                self.children = next(iter(children.values()))
        else:
            self.children = None

    def literal_children(self) -> list[_Node[K, V]]:
        children = self.children
        if children is None:
            return []
        return list(children.values()) if isinstance(children, dict) else [children]


class SubscriptionTrie(Generic[K, V]):
    """Subscribers with a small value each, by topic filter.

    Equal sequences of changes give equal answers in equal order, and so does a trie that is
    filled from another one's `items()`: the order of a match depends on the topic and, within
    one filter, on who came first. A value that is replaced keeps its subscriber's place.
    """

    __slots__ = ("_exact", "_interned", "_root", "_size", "generation", "wild_forks")

    def __init__(self) -> None:
        self._exact: dict[bytes, Holders[K, V]] = {}
        self._root: _Node[K, V] = _Node(b"")
        self._interned: dict[bytes, bytes] = {}
        self._size = 0
        self.generation = 0
        """Grows with every change; what was derived from an older one may be wrong."""
        self.wild_forks = 0
        """How many nodes below a `+` have both a `+` and literal levels below them."""

    def __len__(self) -> int:
        """How many (filter, subscriber) pairs there are."""
        return self._size

    def add(self, topic_filter: bytes, subscriber: K, value: V) -> V | None:
        """Subscribe, or replace the value of a subscription; return the value replaced."""
        pair = (subscriber, value)
        self.generation += 1
        if not has_wildcard(topic_filter):
            holders, old = _with(self._exact.get(topic_filter), pair)
            self._exact[topic_filter] = holders
        else:
            old = self._add_wild(topic_filter, pair)
        if old is None:
            self._size += 1
            return None
        return old[1]

    def remove(self, topic_filter: bytes, subscriber: K) -> V | None:
        """End a subscription and return its value, or None where there was none."""
        if has_wildcard(topic_filter):
            old = self._remove_wild(topic_filter, subscriber)
        else:
            holders = self._exact.get(topic_filter)
            left, old = _without(holders, subscriber)
            if left is None:
                self._exact.pop(topic_filter, None)
            else:
                self._exact[topic_filter] = left
        if old is None:
            return None
        self.generation += 1
        self._size -= 1
        return old[1]

    def get(self, topic_filter: bytes, subscriber: K) -> V | None:
        """Return the value of one subscription, or None where there is none."""
        holders = self._holders(topic_filter)
        if holders is None:
            return None
        if isinstance(holders, dict):
            pair = holders.get(subscriber)
            return None if pair is None else pair[1]
        return holders[1] if holders[0] == subscriber else None

    def forks_with(self, topic_filter: bytes) -> int:
        """Return how many wild forks there would be with this filter: one more at the most."""
        node, is_wild = self._root, False
        wanted = topic_filter.split(SEPARATOR) if has_wildcard(topic_filter) else []
        for level in wanted[:-1] if wanted[-1:] == [ANY_REST] else wanted:
            child = node.child(level)
            if child is None:
                other = node.children if level == ANY_LEVEL else node.any_level
                is_new = is_wild and not node.is_fork() and other is not None
                return self.wild_forks + is_new
            node = child
            is_wild = is_wild or level == ANY_LEVEL
        return self.wild_forks

    def visits(self, topic: bytes) -> int:
        """Return how many nodes a match of this topic looks at, for tests and for measuring."""
        frontier, count = [self._root], 0
        for level in topic.split(SEPARATOR):
            below = [node.child(each) for node in frontier for each in (level, ANY_LEVEL)]
            frontier = [node for node in below if node is not None]
            count += len(frontier)
        return count

    def match(self, topic: bytes) -> list[tuple[K, V]]:
        """Return one pair for every filter that matches and each of its subscribers.

        A subscriber with overlapping filters is there once for each of them. The list is the
        caller's own.
        """
        found: list[tuple[K, V]] = []
        exact = self._exact.get(topic)
        if exact is not None:
            _collect(exact, found)
        root = self._root
        if topic[:1] != b"$":
            if root.rest is not None:
                _collect(root.rest, found)
            self._walk(topic.split(SEPARATOR), [root], found)
        elif root.children is not None:
            # A leading wildcard does not see `$…`: only the literal first levels are left.
            first, *below = topic.split(SEPARATOR)
            start = root.child(first)
            if start is not None:
                if start.rest is not None:
                    _collect(start.rest, found)
                self._walk(below, [start], found)
        return found

    def _walk(
        self, given: list[bytes], frontier: list[_Node[K, V]], found: list[tuple[K, V]]
    ) -> None:
        for level in given:
            reached: list[_Node[K, V]] = []
            for node in frontier:
                children = node.children
                child: _Node[K, V] | None = None
                if children is not None:
                    if type(children) is dict:
                        child = children.get(level)
                    else:
                        only = cast("_Node[K, V]", children)
                        if only.level == level:
                            child = only
                if child is not None:
                    reached.append(child)
                    if child.rest is not None:
                        _collect(child.rest, found)
                child = node.any_level
                if child is not None:
                    reached.append(child)
                    if child.rest is not None:
                        _collect(child.rest, found)
            if not reached:
                return
            frontier = reached
        for node in frontier:
            if node.here is not None:
                _collect(node.here, found)

    def items(self) -> Iterator[tuple[bytes, K, V]]:
        """Walk all subscriptions. Adding them to an empty trie, in this order, gives a twin."""
        for topic_filter, holders in self._all():
            for subscriber, value in _pairs(holders):
                yield topic_filter, subscriber, value

    def filters(self) -> Iterator[bytes]:
        """Walk the filters that somebody holds, each once."""
        for topic_filter, _ in self._all():
            yield topic_filter

    def _all(self) -> Iterator[tuple[bytes, Holders[K, V]]]:
        yield from self._exact.items()
        pending: list[tuple[bytes | None, _Node[K, V]]] = [(None, self._root)]
        while pending:
            name, node = pending.pop()
            prefix = b"" if name is None else name + SEPARATOR
            if name is not None and node.here is not None:
                yield name, node.here
            if node.rest is not None:
                yield prefix + ANY_REST, node.rest
            below = node.literal_children()
            if node.any_level is not None:
                below.append(node.any_level)
            pending.extend((prefix + child.level, child) for child in reversed(below))

    def _holders(self, topic_filter: bytes) -> Holders[K, V] | None:
        if not has_wildcard(topic_filter):
            return self._exact.get(topic_filter)
        wanted = topic_filter.split(SEPARATOR)
        to_rest = wanted[-1] == ANY_REST
        path = self._path(wanted[:-1] if to_rest else wanted)
        if path is None:
            return None
        return path[-1].rest if to_rest else path[-1].here

    def _path(self, wanted: list[bytes]) -> list[_Node[K, V]] | None:
        path = [self._root]
        for level in wanted:
            child = path[-1].child(level)
            if child is None:
                return None
            path.append(child)
        return path

    def _add_wild(self, topic_filter: bytes, pair: tuple[K, V]) -> tuple[K, V] | None:
        wanted = topic_filter.split(SEPARATOR)
        to_rest = wanted[-1] == ANY_REST
        node, is_wild = self._root, False
        for level in wanted[:-1] if to_rest else wanted:
            child = node.child(level)
            if child is None:
                was_fork = node.is_fork()
                child = _Node(self._intern(level))
                node.put_child(child)
                self.wild_forks += is_wild and node.is_fork() and not was_fork
            node = child
            is_wild = is_wild or level == ANY_LEVEL
        if to_rest:
            node.rest, old = _with(node.rest, pair)
        else:
            node.here, old = _with(node.here, pair)
        return old

    def _remove_wild(self, topic_filter: bytes, subscriber: K) -> tuple[K, V] | None:
        wanted = topic_filter.split(SEPARATOR)
        to_rest = wanted[-1] == ANY_REST
        path = self._path(wanted[:-1] if to_rest else wanted)
        if path is None:
            return None
        last = path[-1]
        if to_rest:
            last.rest, old = _without(last.rest, subscriber)
        else:
            last.here, old = _without(last.here, subscriber)
        while len(path) > 1 and path[-1].is_empty():
            emptied = path.pop()
            was_fork = path[-1].is_fork()
            path[-1].drop_child(emptied.level)
            if was_fork and not path[-1].is_fork() and ANY_LEVEL in wanted[: len(path) - 1]:
                self.wild_forks -= 1
        return old

    def _intern(self, level: bytes) -> bytes:
        """Keep one object for level names that recur; forget all when there are too many."""
        if len(self._interned) >= INTERNED_LEVELS_MAX:
            self._interned.clear()
        return self._interned.setdefault(level, level)


def _collect(holders: Holders[K, V], found: list[tuple[K, V]]) -> None:
    if type(holders) is tuple:
        found.append(holders)
    else:
        found.extend(cast("dict[K, tuple[K, V]]", holders).values())


def _pairs(holders: Holders[K, V]) -> list[tuple[K, V]]:
    return list(holders.values()) if isinstance(holders, dict) else [holders]


def _with(
    holders: Holders[K, V] | None, pair: tuple[K, V]
) -> tuple[Holders[K, V], tuple[K, V] | None]:
    """Return the holders with this pair among them, and the pair whose place it took."""
    if holders is None:
        return pair, None
    if isinstance(holders, dict):
        old = holders.get(pair[0])
        holders[pair[0]] = pair
        return holders, old
    if holders[0] == pair[0]:
        return pair, holders
    return {holders[0]: holders, pair[0]: pair}, None


def _without(
    holders: Holders[K, V] | None, subscriber: K
) -> tuple[Holders[K, V] | None, tuple[K, V] | None]:
    """Return the holders that are left, and the pair that was taken out."""
    if holders is None:
        return None, None
    if not isinstance(holders, dict):
        return (None, holders) if holders[0] == subscriber else (holders, None)
    old = holders.pop(subscriber, None)
    if len(holders) == 1:
        return next(iter(holders.values())), old
    # A dictionary keeps the places of what left, and a match walks over them: make it anew
    # when nine in ten are gone, which costs each departure a constant.
    if holders.__sizeof__() > len(holders) * _BYTES_PER_PLACE * 10:
        holders = dict(holders)
    return holders, old
