"""The meaning of access rules, spelled out: every rule against every topic."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence

from quantum.tenancy import AclRule, Effect, Operation, Principal
from quantum.topics import levels
from quantum.topics import matches as _matches

matches = functools.cache(_matches)
STRANGER = b"z"
"""A name that no rule and no filter of the tests mentions."""


def universe(names: Sequence[bytes], depth_max: int) -> Iterator[bytes]:
    """All topics of these names, and of one more.

    Also the empty one, which nobody can publish to: `/#` would match it, and a filter is held
    to it as to any other.
    """
    for depth in range(1, depth_max + 1):
        for parts in itertools.product((*names, STRANGER), repeat=depth):
            yield b"/".join(parts)


def _is_plain(name: bytes) -> bool:
    return name not in (b"",) and name[:1] != b"$" and not set(name) & set(b"/+#")


def _covers(rule: AclRule, client: bytes, principal: bytes, topic: bytes) -> bool:
    """Whether a rule's pattern, with its placeholders filled in, matches."""
    for placeholder, name in ((b"%c", client), (b"%u", principal)):
        if placeholder in levels(rule.pattern) and not _is_plain(name):
            return rule.effect is Effect.DENY
    filled = [
        client if level == b"%c" else principal if level == b"%u" else level
        for level in levels(rule.pattern)
    ]
    if rule.effect is Effect.DENY and topic.startswith(b"$") and filled[0] in (b"+", b"#"):
        # A denying wildcard reaches the server's own: match as if the sign were not there.
        return matches(b"/".join(filled), topic[1:])
    return matches(b"/".join(filled), topic)


def may_publish(
    rules: Sequence[AclRule], action: Operation, principal: Principal, client: bytes, topic: bytes
) -> bool:
    """Whether one topic is allowed."""
    return effects_on(rules, action, principal, client, topic) == {Effect.ALLOW}


def effects_on(
    rules: Sequence[AclRule], action: Operation, principal: Principal, client: bytes, topic: bytes
) -> set[Effect]:
    """What the rules that match a topic say of it."""
    mine = [
        rule
        for rule in rules
        if action in rule.operations and (rule.principals is None or principal in rule.principals)
    ]
    covering = [rule for rule in mine if _covers(rule, client, principal.encode(), topic)]
    return {rule.effect for rule in covering}


def allowed_topics(
    rules: Sequence[AclRule],
    action: Operation,
    principal: Principal,
    client: bytes,
    topics: Sequence[bytes],
) -> set[bytes]:
    """Which of these topics are allowed."""
    return {topic for topic in topics if may_publish(rules, action, principal, client, topic)}
