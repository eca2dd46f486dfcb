"""Where the messages of one topic go: worked out once, kept while no subscription changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from quantum.broker.commands import SubscriptionSpec
from quantum.broker.items import BLOCKED
from quantum.broker.session import Session
from quantum.broker.shares import ShareGroup
from quantum.broker.stream_table import Stream
from quantum.routing.trie import SubscriptionTrie

CACHED_TOPICS_MAX: Final = 65_536

Subscriber: TypeAlias = "bytes | int | tuple[bytes, bytes] | Stream"
"""A client of this partition, another partition, a shared subscription's (group, filter), or a
stream that captures."""
Wish: TypeAlias = "SubscriptionSpec | int | None"
"""What each of them has at a filter: a client its options, a partition its level of interest."""


class RouteTarget:
    """One session that wants a topic: one copy, the highest QoS, all identifiers."""

    __slots__ = ("client_id", "identifiers", "no_local", "qos", "retain_as_published", "specs")

    def __init__(self, client_id: bytes, specs: list[SubscriptionSpec]) -> None:
        self.client_id = client_id
        self.specs = specs
        self.qos = max(spec.qos for spec in specs)
        self.retain_as_published = any(spec.retain_as_published for spec in specs)
        self.no_local = any(spec.no_local for spec in specs)
        self.identifiers = tuple(spec.identifier for spec in specs if spec.identifier)

    def for_publisher(self) -> RouteTarget | None:
        """What is left of it for a message of this very client (MQTT-3.8.3-3)."""
        specs = [spec for spec in self.specs if not spec.no_local]
        return RouteTarget(self.client_id, specs) if specs else None


class TopicRoute:
    """Everyone who wants a topic."""

    __slots__ = (
        "captures",
        "is_blocked",
        "is_elsewhere",
        "is_empty",
        "is_plain",
        "kept",
        "passes",
        "remotes",
        "shares",
        "volatile",
    )

    def __init__(self) -> None:
        self.is_elsewhere = False
        """Whether the topic is another partition's since the ring changed."""
        self.volatile: list[RouteTarget] = []
        """Sessions whose connections keep their own queues."""
        self.kept: list[RouteTarget] = []
        """Sessions whose queues the machine keeps."""
        self.captures: list[Stream] = []
        """Streams that keep what is published; whoever else wants it is not concerned."""
        self.remotes: list[int] = []
        self.shares: list[ShareGroup] = []
        self.is_blocked = False
        """Whether somebody's queue is full: nothing above QoS 0 is taken (quantumqtt §7.2)."""
        self.is_empty = True
        self.is_plain = True
        """Whether connections of this very partition are all that a message is for: replicas
        that follow have nothing to do for it."""
        self.passes = False
        """Whether a message also passes to other partitions, and that is all that is kept of it."""


class Routes:
    """The subscriptions of a partition, and what follows from them for each topic."""

    __slots__ = (
        "_cache",
        "_groups",
        "_sessions",
        "_valid",
        "blind",
        "full",
        "invalidations",
        "is_elsewhere",
        "trie",
    )

    def __init__(
        self,
        sessions: dict[bytes, Session],
        groups: dict[tuple[bytes, bytes], ShareGroup],
    ) -> None:
        self.trie: SubscriptionTrie[Subscriber, Wish] = SubscriptionTrie()
        self._sessions = sessions
        self._groups = groups
        self._cache: dict[bytes, TopicRoute] = {}
        self._valid = 0
        self.full: set[bytes] = set()
        """The clients whose queues are full."""
        self.blind: list[int] = []
        """Fresh partitions that did not say yet what they want: they get everything."""
        self.is_elsewhere: Callable[[bytes], bool] | None = None
        """Say whether a topic moved away; None where none ever did."""
        self.invalidations = 0

    def invalidate(self) -> None:
        """Forget what was worked out: something beside the subscriptions changed."""
        self._cache.clear()
        self.invalidations += 1

    @property
    def version(self) -> tuple[int, int]:
        """As long as it stays the same, every route does."""
        return self.trie.generation, self.invalidations

    def known(self) -> dict[bytes, TopicRoute]:
        """Return the routes that were worked out, until a subscription changes; not to be kept."""
        if self._valid != self.trie.generation:
            self._cache.clear()
            self._valid = self.trie.generation
        return self._cache

    def route(self, topic: bytes) -> TopicRoute:
        """Return where a topic's messages go now."""
        route = self.known().get(topic)
        if route is None:
            if len(self._cache) >= CACHED_TOPICS_MAX:
                self._cache.clear()
            route = self._cache[topic] = self._work_out(topic)
        return route

    def _work_out(self, topic: bytes) -> TopicRoute:
        route = TopicRoute()
        clients: dict[bytes, list[SubscriptionSpec]] = {}
        for subscriber, wish in self.trie.match(topic):
            if isinstance(subscriber, Stream):
                if subscriber not in route.captures:
                    route.captures.append(subscriber)
                continue
            route.is_empty = False
            if isinstance(subscriber, bytes):
                assert isinstance(wish, SubscriptionSpec)
                clients.setdefault(subscriber, []).append(wish)
            elif isinstance(subscriber, int):
                if subscriber not in route.remotes:
                    route.remotes.append(subscriber)
                route.is_blocked |= wish == BLOCKED
            else:
                route.shares.append(self._groups[subscriber])
                route.is_blocked |= self._groups[subscriber].is_blocked
        for prg in self.blind:
            route.is_empty = False
            if prg not in route.remotes:
                route.remotes.append(prg)
        if self.is_elsewhere is not None and self.is_elsewhere(topic):
            route.is_elsewhere, route.is_empty = True, False
        # In an order that a restored replica finds too: places in channels depend on it.
        route.shares.sort(key=_share_key)
        route.captures.sort(key=_stream_key)
        for client_id, specs in sorted(clients.items(), key=_client_key):
            target = RouteTarget(client_id, specs)
            if self._sessions[client_id].keeps_queue:
                route.kept.append(target)
                route.is_blocked |= client_id in self.full
            else:
                route.volatile.append(target)
        is_kept = bool(route.kept or route.shares or route.is_elsewhere)
        route.is_plain = not (is_kept or route.remotes)
        route.passes = bool(route.remotes) and not (is_kept or route.is_blocked)
        return route


def _share_key(group: ShareGroup) -> tuple[bytes, bytes]:
    return group.name, group.filter


def _stream_key(stream: Stream) -> int:
    return stream.number


def _client_key(client: tuple[bytes, list[SubscriptionSpec]]) -> bytes:
    return client[0]
