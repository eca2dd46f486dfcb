"""A tenant's access list: who may do what to which topics, streams, queues, groups and ids.

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
- A rule about anything else than topics has a name, or what names begin with. Where some other
  operation is allowed to a client, so is to describe; a rule that denies describing wins.
- `$…` is the server's own. An allowing pattern reaches it by name only, never by a wildcard or
  a placeholder in front. A denying pattern's wildcards reach it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from quantum.tenancy.access import (
    NO_TOPIC,
    NOT_ALLOWED,
    OPERATIONS_OF,
    UNSAFE_ID,
    AccessDecision,
    AclRule,
    Effect,
    Ground,
    Operation,
    ResourceKind,
    named_for,
)
from quantum.tenancy.automaton import CLIENT, IDENTITY, LevelAutomaton
from quantum.tenancy.errors import InvalidRule
from quantum.tenancy.names import NameRules, check_name_rule
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
_NO_CLIENT = ClientId(b"")
_READS = frozenset({Operation.SUBSCRIBE, Operation.CONSUME})


class CompiledAcl:
    """A tenant's rules, compiled: a check costs by the levels of a name, not by the rules.

    It never changes its answers: a new list of rules is a new object.
    """

    __slots__ = ("_allowed", "_denied", "_names", "_publish", "_subscribe", "rules")

    def __init__(self, rules: Sequence[AclRule]) -> None:
        self.rules = tuple(rules)
        self._publish = _Sides()
        self._subscribe = _Sides()
        self._names: dict[ResourceKind, NameRules] = {}
        for number, rule in enumerate(self.rules):
            self._add(number, rule)
        self._allowed = [AccessDecision(Ground.ALLOWED, rule) for rule in self.rules]
        self._denied = [AccessDecision(Ground.DENIED, rule) for rule in self.rules]

    def _add(self, number: int, rule: AclRule) -> None:
        operations = frozenset(named_for(rule.kind, each) for each in rule.operations)
        if rule.kind is not ResourceKind.TOPIC:
            rule = replace(rule, operations=operations)
            check_name_rule(rule, number)
            self._names.setdefault(rule.kind, NameRules()).add(rule, number)
            return
        if operations - OPERATIONS_OF[ResourceKind.TOPIC] or rule.is_prefix:
            raise InvalidRule("topics are published and subscribed to, by filters", rule=number)
        pattern = _checked_levels(number, rule.pattern)
        groups = (None,) if rule.principals is None else sorted(rule.principals)
        if Operation.PUBLISH in operations:
            self._publish.add(rule.effect, pattern, number, groups)
        if Operation.SUBSCRIBE in operations:
            self._subscribe.add(rule.effect, pattern, number, groups)

    def may(
        self,
        principal: Principal,
        operation: Operation,
        kind: ResourceKind,
        name: bytes,
        client_id: ClientId = _NO_CLIENT,
    ) -> AccessDecision:
        """Decide whether a client may do something to a resource.

        Of a topic the name is a filter where the client wants to subscribe. Only rules about
        topics ask for the client id.
        """
        asked = named_for(kind, operation)
        if asked is Operation.DESCRIBE:
            return self._describe(principal, kind, name, client_id)
        if kind is not ResourceKind.TOPIC:
            return self._by_name(principal, asked, kind, name)
        if asked is Operation.PUBLISH:
            return self.check_publish(principal, client_id, name)
        if asked is Operation.SUBSCRIBE:
            return self.check_subscribe(principal, client_id, name)
        return NOT_ALLOWED

    def _by_name(
        self, principal: Principal, operation: Operation, kind: ResourceKind, name: bytes
    ) -> AccessDecision:
        rules = self._names.get(kind)
        if rules is None:
            return NOT_ALLOWED
        return self._decision(
            rules.find(Effect.DENY, operation, principal, name),
            rules.find(Effect.ALLOW, operation, principal, name),
        )

    def _describe(
        self, principal: Principal, kind: ResourceKind, name: bytes, client_id: ClientId
    ) -> AccessDecision:
        decision = self._by_name(principal, Operation.DESCRIBE, kind, name)
        if decision.ground is not Ground.NOT_ALLOWED:
            return decision
        for operation in sorted(OPERATIONS_OF[kind]):
            found = self.may(principal, operation, kind, name, client_id)
            if found.allowed:
                return found
        return decision

    def check_publish(
        self, principal: Principal, client_id: ClientId, topic: bytes
    ) -> AccessDecision:
        """Decide whether a client may publish to this topic."""
        if not topic or has_wildcard(topic):
            return NO_TOPIC
        deny, allow = self._publish.deny, self._publish.allow
        client, identity = _as_level(client_id), _as_level(principal.encode())
        if _is_unsafe(deny, principal, client, identity):
            return UNSAFE_ID
        given = levels(topic)
        return self._decision(
            deny.find(given, principal, client, identity),
            allow.find(given, principal, client, identity),
        )

    def check_subscribe(
        self, principal: Principal, client_id: ClientId, topic_filter: bytes
    ) -> AccessDecision:
        """Decide whether a client may subscribe to this filter, shared or not."""
        try:
            check_topic_filter(topic_filter)
            shared = split_shared(topic_filter)
        except InvalidTopicFilter:
            return NO_TOPIC
        deny, allow = self._subscribe.deny, self._subscribe.allow
        client, identity = _as_level(client_id), _as_level(principal.encode())
        if _is_unsafe(deny, principal, client, identity):
            return UNSAFE_ID
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
    ) -> AccessDecision | None:
        """Return what keeps a message from a client that subscribed to its topic; None: nothing."""
        client, identity = _as_level(client_id), _as_level(principal.encode())
        found = self._subscribe.deny.find(levels(topic), principal, client, identity)
        return None if found is None else self._denied[found]

    @property
    def withholds(self) -> bool:
        """Whether some rule denies subscriptions: what is delivered has to be looked at then."""
        return any(
            rule.effect is Effect.DENY
            and rule.kind is ResourceKind.TOPIC
            and not _READS.isdisjoint(rule.operations)
            for rule in self.rules
        )

    def for_client(self, principal: Principal, client_id: ClientId) -> ClientAccess:
        """Return the rules as they concern one client."""
        return ClientAccess(self, principal, client_id)

    def _decision(self, denied: int | None, allowed: int | None) -> AccessDecision:
        if denied is not None:
            return self._denied[denied]
        return NOT_ALLOWED if allowed is None else self._allowed[allowed]


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
        self._published: dict[bytes, AccessDecision] = {}
        self._received: dict[bytes, bool] = {}
        self.withholds = acl.withholds
        """Whether `may_receive` can say no."""

    def publish(self, topic: bytes) -> AccessDecision:
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

    def subscribe(self, topic_filter: bytes) -> AccessDecision:
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
