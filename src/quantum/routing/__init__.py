"""Routing: who gets a message, what a filter finds, and which partition owns what."""

from quantum.routing.errors import RoutingError, RoutingMisuse, UnknownRing
from quantum.routing.retained import Page, RetainedIndex
from quantum.routing.ring import XXH3_JUMP, HashRing, PrgIndex, jump
from quantum.routing.trie import SubscriptionTrie
from quantum.topics import levels, matches, split_shared

__all__ = [
    "XXH3_JUMP",
    "HashRing",
    "Page",
    "PrgIndex",
    "RetainedIndex",
    "RoutingError",
    "RoutingMisuse",
    "SubscriptionTrie",
    "UnknownRing",
    "jump",
    "levels",
    "matches",
    "split_shared",
]
