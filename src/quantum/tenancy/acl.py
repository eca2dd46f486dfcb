"""Who may publish and subscribe to what.

The meaning. Rules have no order. What no rule allows is refused, and a rule that denies wins
over every rule that allows.

- A publish is allowed if some allowing rule matches its topic and no denying one does.
- A subscription is allowed if the allowing rules together cover *every* topic that its filter
  matches, and the denying rules do not: what they deny of it is withheld, message by message. So
  one denied topic does not cost a client the other topics of `#`.
- Of `$share/group/filter` the filter is what counts, and no denying rule may have a topic in
  common with it: a member from whom a message is withheld would lose it for the whole group.
- `%c` and `%u` are whole levels of a pattern and stand for the client id and the principal.
  An id that could change a pattern's meaning (empty, with `/`, `+`, `#`, or `$` in front) is
  allowed nothing by `%c`; and where a rule denies by `%c`, such a client is refused everything,
  since what it should be denied has no name. The same holds for `%u`.
- `$…` is the server's own. An allowing pattern reaches it by name only, never by a wildcard or
  a placeholder in front. A denying pattern's wildcards reach it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, Flag

from quantum.tenancy.automaton import CLIENT, IDENTITY, LevelAutomaton
from quantum.tenancy.errors import InvalidRule
from quantum.tenancy.types import Principal
from quantum.topics import (
    RESERVED,
    InvalidTopicFilter,
    TopicError,
    check_topic_filter,
    has_wildcard,
    levels,
    split_shared,
)
from quantum.types import ClientId

TOPICS_REMEMBERED_MAX = 64


class Effect(Enum):
    ALLOW = "allow"
    DENY = "deny"


class Action(Flag):
    PUBLISH = 1
    SUBSCRIBE = 2
    BOTH = 3


@dataclass(frozen=True, slots=True)
class AclRule:
    """One line of a tenant's access list."""

    effect: Effect
    action: Action
    pattern: bytes
    """A topic filter, in which `%c` and `%u` may stand for levels."""
    principals: frozenset[Principal] | None = None
    """Whom it concerns; None for everybody."""
    number: int = field(default=0, compare=False)
    """Its place in the list that people wrote, from 1; 0: nobody wrote it."""


class Ground(Enum):
    """Why a decision was made, for the audit log."""

    ALLOWED = "allowed by a rule"
    DENIED = "denied by a rule"
    NOT_ALLOWED = "no rule allows it"
    UNSAFE_ID = "a rule denies by an id that cannot be a level"
    NO_TOPIC = "neither a topic nor a filter"


@dataclass(frozen=True, slots=True)
class Decision:
    """What a check found."""

    ground: Ground
    rule: AclRule | None = None
    """The rule that decided; where several together allow a filter, one of them."""
    withholds: AclRule | None = None
    """Of a subscription that is allowed: a rule that denies some of its topics."""

    @property
    def allowed(self) -> bool:
        return self.ground is Ground.ALLOWED


_NOT_ALLOWED = Decision(Ground.NOT_ALLOWED)
_UNSAFE_ID = Decision(Ground.UNSAFE_ID)
_NO_TOPIC = Decision(Ground.NO_TOPIC)


class CompiledAcl:
    """A tenant's rules, compiled: a check costs by the levels of a name, not by the rules.

    It never changes its answers: a new list of rules is a new object.
    """

    __slots__ = ("_allowed", "_denied", "_publish", "_subscribe", "rules")

    def __init__(self, rules: Sequence[AclRule]) -> None:
        self.rules = tuple(rules)
        self._publish = _Sides()
        self._subscribe = _Sides()
        for number, rule in enumerate(self.rules):
            self._add(number, rule)
        self._allowed = [Decision(Ground.ALLOWED, rule) for rule in self.rules]
        self._denied = [Decision(Ground.DENIED, rule) for rule in self.rules]

    def _add(self, number: int, rule: AclRule) -> None:
        pattern = _checked_levels(number, rule.pattern)
        groups = (None,) if rule.principals is None else sorted(rule.principals)
        if Action.PUBLISH in rule.action:
            self._publish.add(rule.effect, pattern, number, groups)
        if Action.SUBSCRIBE in rule.action:
            self._subscribe.add(rule.effect, pattern, number, groups)

    def check(
        self, action: Action, principal: Principal, client_id: ClientId, name: bytes
    ) -> Decision:
        """Decide whether a client may publish to this topic or subscribe to this filter."""
        if action is Action.PUBLISH:
            return self.check_publish(principal, client_id, name)
        return self.check_subscribe(principal, client_id, name)

    def check_publish(self, principal: Principal, client_id: ClientId, topic: bytes) -> Decision:
        """Decide whether a client may publish to this topic."""
        if not topic or has_wildcard(topic):
            return _NO_TOPIC
        deny, allow = self._publish.deny, self._publish.allow
        client, identity = _as_level(client_id), _as_level(principal.encode())
        if _is_unsafe(deny, principal, client, identity):
            return _UNSAFE_ID
        given = levels(topic)
        return self._decision(
            deny.find(given, principal, client, identity),
            allow.find(given, principal, client, identity),
        )

    def check_subscribe(
        self, principal: Principal, client_id: ClientId, topic_filter: bytes
    ) -> Decision:
        """Decide whether a client may subscribe to this filter, shared or not."""
        try:
            check_topic_filter(topic_filter)
            shared = split_shared(topic_filter)
        except InvalidTopicFilter:
            return _NO_TOPIC
        deny, allow = self._subscribe.deny, self._subscribe.allow
        client, identity = _as_level(client_id), _as_level(principal.encode())
        if _is_unsafe(deny, principal, client, identity):
            return _UNSAFE_ID
        given = levels(topic_filter if shared is None else shared[1])
        met = deny.meets(given, principal, client, identity)
        refused = met
        if met is not None and shared is None:
            refused = deny.covers(given, principal, client, identity)
        allowed = allow.covers(given, principal, client, identity)
        decision = self._decision(refused, allowed)
        if met is not None and decision.allowed:
            return replace(decision, withholds=self.rules[met])
        return decision

    def check_receive(
        self, principal: Principal, client_id: ClientId, topic: bytes
    ) -> Decision | None:
        """Return what keeps a message from a client that subscribed to its topic; None: nothing."""
        client, identity = _as_level(client_id), _as_level(principal.encode())
        found = self._subscribe.deny.find(levels(topic), principal, client, identity)
        return None if found is None else self._denied[found]

    @property
    def withholds(self) -> bool:
        """Whether some rule denies subscriptions: what is delivered has to be looked at then."""
        return any(
            rule.effect is Effect.DENY and Action.SUBSCRIBE in rule.action for rule in self.rules
        )

    def for_client(self, principal: Principal, client_id: ClientId) -> ClientAccess:
        """Return the rules as they concern one client."""
        return ClientAccess(self, principal, client_id)

    def _decision(self, denied: int | None, allowed: int | None) -> Decision:
        if denied is not None:
            return self._denied[denied]
        return _NOT_ALLOWED if allowed is None else self._allowed[allowed]


class ClientAccess:
    """One client's view of its tenant's rules, which remembers the topics it publishes to.

    Most clients publish to few topics again and again; for those a check is one lookup. It is
    made anew when the rules change.
    """

    __slots__ = ("_acl", "_client_id", "_principal", "_published", "_received", "withholds")

    def __init__(self, acl: CompiledAcl, principal: Principal, client_id: ClientId) -> None:
        self._acl = acl
        self._principal = principal
        self._client_id = client_id
        self._published: dict[bytes, Decision] = {}
        self._received: dict[bytes, bool] = {}
        self.withholds = acl.withholds
        """Whether `may_receive` can say no."""

    def publish(self, topic: bytes) -> Decision:
        """Decide whether the client may publish to this topic."""
        decision = self._published.get(topic)
        if decision is None:
            decision = self._acl.check_publish(self._principal, self._client_id, topic)
            if len(self._published) >= TOPICS_REMEMBERED_MAX:
                self._published.clear()
            self._published[topic] = decision
        return decision

    def may_receive(self, topic: bytes) -> bool:
        """Say whether a message of this topic may leave for the client that subscribed to it."""
        known = self._received.get(topic)
        if known is None:
            known = self._acl.check_receive(self._principal, self._client_id, topic) is None
            if len(self._received) >= TOPICS_REMEMBERED_MAX:
                self._received.clear()
            self._received[topic] = known
        return known

    def subscribe(self, topic_filter: bytes) -> Decision:
        """Decide whether the client may subscribe to this filter, shared or not."""
        return self._acl.check_subscribe(self._principal, self._client_id, topic_filter)


class _Sides:
    """The rules about one action."""

    __slots__ = ("allow", "deny")

    def __init__(self) -> None:
        self.allow = LevelAutomaton(hides_reserved=True)
        self.deny = LevelAutomaton(hides_reserved=False)

    def add(
        self, effect: Effect, pattern: list[bytes], number: int, groups: Sequence[str | None]
    ) -> None:
        automaton = self.allow if effect is Effect.ALLOW else self.deny
        for group in groups:
            automaton.add(pattern, number, group)


def compile_acl(rules: Sequence[AclRule]) -> CompiledAcl:
    """Compile a tenant's rules. Raises `InvalidRule`, naming the rule by its number."""
    return CompiledAcl(rules)


def _checked_levels(number: int, pattern: bytes) -> list[bytes]:
    try:
        check_topic_filter(pattern)
        shared = split_shared(pattern)
    except TopicError as error:
        raise InvalidRule("the pattern is no filter", rule=number, why=error.reason) from error
    if shared is not None:
        raise InvalidRule("a rule is about a filter, not about a share of it", rule=number)
    parts = levels(pattern)
    for level in parts:
        if level not in (CLIENT, IDENTITY) and (CLIENT in level or IDENTITY in level):
            raise InvalidRule("%c and %u are levels of their own", rule=number)
    return parts


def _is_unsafe(
    deny: LevelAutomaton, principal: Principal, client: bytes | None, identity: bytes | None
) -> bool:
    """Say whether a rule should deny something that this client's id cannot name."""
    return (client is None and deny.holds(CLIENT, principal)) or (
        identity is None and deny.holds(IDENTITY, principal)
    )


def _as_level(name: bytes) -> bytes | None:
    """Return an id if it can stand for one level of a pattern and nothing else."""
    if not name or name.startswith(RESERVED) or b"/" in name or has_wildcard(name):
        return None
    return name
