"""The answers for topics that are published to again and again."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

from quantum.routing.trie import SubscriptionTrie
from quantum.topics import SEPARATOR, has_wildcard

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

PAIRS_MAX = 1 << 20  # eight bytes each
PAIRS_PER_TOPIC = 64  # what the name and its two places weigh beside the answer's pairs


class MatchCache(Generic[K, V]):
    """A trie with its recent answers, never an outdated one.

    Changes that are made through the cache drop only the answers they can concern: an exact
    filter its own topic, a filter with two literal levels in front the topics that begin with
    them. Any other change, and any that was made on the trie directly, drops all. `pairs_max`
    bounds the memory: a topic counts `PAIRS_PER_TOPIC` beside the pairs of its answer, and an
    answer that is longer than the bound is not kept.
    """

    __slots__ = ("_answers", "_by_stem", "_generation", "_pairs", "_pairs_max", "_trie")

    def __init__(self, trie: SubscriptionTrie[K, V], pairs_max: int = PAIRS_MAX) -> None:
        self._trie = trie
        self._pairs_max = pairs_max
        self._pairs = 0
        self._answers: dict[bytes, Sequence[tuple[K, V]]] = {}
        self._by_stem: dict[bytes, set[bytes]] = {}
        """Topics that were answered, by their first two levels."""
        self._generation = trie.generation
        """The answers hold for this state of the trie."""

    def __len__(self) -> int:
        """How many topics have an answer here."""
        return len(self._answers)

    def add(self, topic_filter: bytes, subscriber: K, value: V) -> V | None:
        """Do as the trie does."""
        self._prepare(topic_filter)
        old = self._trie.add(topic_filter, subscriber, value)
        self._generation = self._trie.generation
        return old

    def remove(self, topic_filter: bytes, subscriber: K) -> V | None:
        """Do as the trie does."""
        self._prepare(topic_filter)
        old = self._trie.remove(topic_filter, subscriber)
        self._generation = self._trie.generation
        return old

    def match(self, topic: bytes) -> Sequence[tuple[K, V]]:
        """Return what the trie would; the sequence is shared and is not to be changed."""
        if self._generation == self._trie.generation:
            answer = self._answers.get(topic)
            if answer is not None:
                return answer
        else:
            self.clear()
        return self._learn(topic)

    def clear(self) -> None:
        """Forget every answer."""
        self._answers.clear()
        self._by_stem.clear()
        self._pairs = 0
        self._generation = self._trie.generation

    def _learn(self, topic: bytes) -> Sequence[tuple[K, V]]:
        answer = self._trie.match(topic)
        weight = len(answer) + PAIRS_PER_TOPIC
        if weight > self._pairs_max:
            return answer
        if self._pairs + weight > self._pairs_max:
            self.clear()
        self._answers[topic] = answer
        self._by_stem.setdefault(_stem(topic), set()).add(topic)
        self._pairs += weight
        return answer

    def _prepare(self, topic_filter: bytes) -> None:
        """Drop what a change of this filter can make wrong."""
        if self._generation != self._trie.generation:
            self.clear()
        elif not has_wildcard(topic_filter):
            self._drop(topic_filter)
        else:
            stem = _stem(topic_filter)
            if has_wildcard(stem):
                self.clear()
            else:
                for topic in list(self._by_stem.get(stem, ())):
                    self._drop(topic)

    def _drop(self, topic: bytes) -> None:
        answer = self._answers.pop(topic, None)
        if answer is None:
            return
        self._pairs -= len(answer) + PAIRS_PER_TOPIC
        stem = _stem(topic)
        topics = self._by_stem[stem]
        topics.remove(topic)
        if not topics:
            del self._by_stem[stem]


def _stem(topic: bytes) -> bytes:
    """Return the first two levels, or the only one."""
    second = topic.find(SEPARATOR, topic.find(SEPARATOR) + 1)
    return topic if second < 0 else topic[:second]
