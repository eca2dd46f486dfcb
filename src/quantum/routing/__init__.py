"""Routing: who gets a message, what a filter finds, and which partition owns what."""

from quantum.routing.epochs import (
    REDIRECT_GRACE_MS,
    Placement,
    Redirect,
    RouteDecision,
    RoutingEpoch,
    RoutingEpochMismatch,
    Serve,
    Superseded,
    decide_route,
    next_epoch,
    plan_prg_count,
)
from quantum.routing.errors import RoutingError, RoutingMisuse, UnknownRing
from quantum.routing.match_cache import MatchCache
from quantum.routing.retained import Page, RetainedIndex
from quantum.routing.ring import XXH3_JUMP, HashRing, PrgIndex, jump
from quantum.routing.trie import SubscriptionTrie
from quantum.topics import levels, matches, split_shared

__all__ = [
    "REDIRECT_GRACE_MS",
    "XXH3_JUMP",
    "HashRing",
    "MatchCache",
    "Page",
    "Placement",
    "PrgIndex",
    "Redirect",
    "RetainedIndex",
    "RouteDecision",
    "RoutingEpoch",
    "RoutingEpochMismatch",
    "RoutingError",
    "RoutingMisuse",
    "Serve",
    "SubscriptionTrie",
    "Superseded",
    "UnknownRing",
    "decide_route",
    "jump",
    "levels",
    "matches",
    "next_epoch",
    "plan_prg_count",
    "split_shared",
]
