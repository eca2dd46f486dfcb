"""What the control plane says of tenants, in the words of a broker. A store in, words out: pure.

Who speaks. The files (`broker.json`, `tenants.toml`) are the bootstrap: what they describe holds
until the control plane has a record of its own, and the record wins from then on, kind by kind:

- whether a tenant is there: its `TenantSpec`; suspended, or gone while its ring stands: not served;
- its quotas: a `QuotaPolicy` that somebody set (version 1 on), else the file's;
- its access rules: an `AclPolicy`, else the file's;
- its rings: the longer of both, as long as one continues the other;
- its rates, its own door, its number of partitions: the configuration's keys (narrow before wide:
  tenant, cluster), else the file's.

A word that cannot be understood allows nothing: an unreadable rule that allows is left out, an
unreadable one that denies denies everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from clustor.control import AclAction as ControlAction
from clustor.control import (
    AclEffect,
    AclPolicy,
    AclResource,
    CertificateBundle,
    ConfigHead,
    ConfigVersion,
    DraftReading,
    Placement,
    Quarantine,
    QuotaPolicy,
    RoutingMap,
    ScopeKind,
    SettingScope,
    TenantSpec,
    find,
    scan,
)
from clustor.control import TenantAclRule as ControlRule
from clustor.control.configuration import Value
from clustor.control.objects import key_of
from quantum.config.live import Takes, is_tenants, read_value, takes
from quantum.tenancy import (
    OPERATIONS_OF,
    QUOTA_MAXIMA,
    AclRefusal,
    AclRule,
    CompiledAcl,
    Effect,
    InvalidQuota,
    InvalidRule,
    Operation,
    Principal,
    Quotas,
    RateLimit,
    Rates,
    ResourceKind,
    TenantDescription,
    any_of,
    compile_acl,
    read_pattern,
)
from quantum.topics import TopicError, check_topic_filter, matches

EVERYBODY: Final = "*"
_EVERYTHING: Final = b"#"
_OPERATIONS: Final = {
    ControlAction.PUBLISH: Operation.PUBLISH,
    ControlAction.SUBSCRIBE: Operation.SUBSCRIBE,
    ControlAction.PRODUCE: Operation.PRODUCE,
    ControlAction.CONSUME: Operation.CONSUME,
    ControlAction.MANAGE: Operation.MANAGE,
    ControlAction.DESCRIBE: Operation.DESCRIBE,
}
_KINDS: Final = {
    AclResource.TOPIC: ResourceKind.TOPIC,
    AclResource.STREAM: ResourceKind.STREAM,
    AclResource.QUEUE: ResourceKind.QUEUE,
    AclResource.GROUP: ResourceKind.GROUP,
    AclResource.TRANSACTIONAL_ID: ResourceKind.TRANSACTIONAL_ID,
    AclResource.CLUSTER: ResourceKind.CLUSTER,
}
_QUOTAS: Final = {
    "connections": "connections_max",
    "retained_bytes": "retained_bytes_max",
    "session_bytes": "session_store_bytes_max",
    "subscription_filters": "subscription_filters_max",
    "shared_groups": "shared_groups_max",
    "offline_bytes_per_session": "offline_queue_bytes_max",
    "offline_messages_per_session": "offline_queue_messages_max",
    "overage_grace_ms": "overage_grace_ms",
}
_RATES: Final = ("publishes", "publish_bytes", "subscribes", "connects")


@dataclass(frozen=True, slots=True)
class ConnectRules:
    """Who may connect: a rule that denies wins, and one that allows is needed."""

    rules: tuple[ControlRule, ...]
    numbers: tuple[int, ...] = ()
    """Their places in the tenant's list, from 1."""

    def number(self, rule: ControlRule) -> int:
        """Return a rule's place in the tenant's list."""
        return dict(zip(self.rules, self.numbers, strict=False)).get(rule, 0)

    def allow(self, principal: str, client_id: bytes) -> bool:
        """Decide about a client. A rule whose filter is none denies, and never allows."""
        return self.decide(principal, client_id)[0]

    def decide(self, principal: str, client_id: bytes) -> tuple[bool, ControlRule | None]:
        """Decide about a client, and name the rule that did; None: no rule is about it."""
        concerned = [each for each in self.rules if _concerns(each, principal, client_id)]
        for rule in concerned:
            if rule.effect is AclEffect.DENY:
                return False, rule
        return bool(concerned), concerned[0] if concerned else None


def _concerns(rule: ControlRule, principal: str, client_id: bytes) -> bool:
    if rule.principal not in (EVERYBODY, principal):
        return False
    pattern = rule.filter.encode()
    try:
        check_topic_filter(pattern)
    except TopicError:
        return rule.effect is AclEffect.DENY
    return pattern == _EVERYTHING or matches(pattern, client_id)


@dataclass(frozen=True, slots=True)
class TenantWord:
    """Everything that the control plane says of one tenant; equal words change nothing."""

    name: str
    is_known: bool = False
    """Whether it has a record."""
    is_deleted: bool = False
    """Whether it had one: its ring stands without it."""
    is_reborn: bool = False
    """Whether it was made again under the name of one that was deleted: no file describes it."""
    is_suspended: bool = False
    server_name: str | None = None
    partitions: tuple[int, ...] = ()
    """Its groups, by slot."""
    sizes: tuple[int, ...] = ()
    """How many partitions each of its rings has; the newest is the last."""
    founders: tuple[tuple[int, ...], ...] = ()
    """With which voters each of its groups begins."""
    quotas: QuotaPolicy | None = None
    acl: AclPolicy | None = None
    trust: CertificateBundle | None = None
    settings: Mapping[str, Value] = field(default_factory=dict)
    """The keys of the configuration that concern a tenant, those that can be read."""
    mistakes: tuple[str, ...] = ()
    """What could not be understood, a sentence each."""

    @property
    def is_served(self) -> bool:
        """Whether clients may come, as far as the control plane says."""
        return not (self.is_suspended or self.is_deleted)


def tenant_word(store: DraftReading, name: str) -> TenantWord:
    """Gather what stands about one tenant."""
    spec, ring = find(store, TenantSpec, name), find(store, RoutingMap, name)
    partitions = ring.partitions if ring is not None else ()
    placements = [find(store, Placement, each) for each in partitions]
    quotas = find(store, QuotaPolicy, name)
    settings, mistakes = _settings(store, name)
    acl = find(store, AclPolicy, name)
    return TenantWord(
        name,
        is_known=spec is not None,
        is_deleted=spec is None and ring is not None,
        is_reborn=_is_reborn(store, name),
        is_suspended=spec is not None and spec.suspended,
        server_name=spec.sni if spec is not None else None,
        partitions=partitions,
        sizes=ring.grown if ring is not None else (),
        founders=tuple(() if each is None else each.founding for each in placements),
        quotas=quotas if quotas is not None and quotas.version else None,
        acl=acl,
        trust=find(store, CertificateBundle, name),
        settings=settings,
        mistakes=(*mistakes, *rule_mistakes(acl.rules if acl is not None else ())),
    )


def _is_reborn(store: DraftReading, name: str) -> bool:
    """Say whether a ring is older than its tenant's record: the first record is always older."""
    spec, ring = store.get(key_of(TenantSpec, name)), store.get(key_of(RoutingMap, name))
    return spec is not None and ring is not None and ring.create_revision < spec.create_revision


def known_tenants(store: DraftReading) -> Iterator[str]:
    """Name the tenants that have a record."""
    for spec in scan(store, TenantSpec):
        yield spec.tenant_id


def find_quarantine(store: DraftReading, partition: int, node: int) -> str:
    """Say why a replica must not write; empty: it may."""
    held = find(store, Quarantine, partition, node)
    return "" if held is None else held.cause.value


def settings_of(store: DraftReading, *scopes: SettingScope) -> dict[str, Value]:
    """Merge the documents that are in force, from the widest scope to the narrowest."""
    merged: dict[str, Value] = {}
    for scope in scopes:
        head = find(store, ConfigHead, scope.kind.value, scope.name)
        if head is not None:
            parts = (scope.kind.value, scope.name, head.version)
            version = find(store, ConfigVersion, *parts)
            merged |= version.document if version is not None else {}
    return merged


def _settings(store: DraftReading, name: str) -> tuple[dict[str, Value], list[str]]:
    wide = settings_of(store, SettingScope(kind=ScopeKind.CLUSTER))
    said = {key: value for key, value in wide.items() if takes(key, of_tenant=False) is Takes.LIVE}
    said |= settings_of(store, SettingScope(kind=ScopeKind.TENANT, name=name))
    good: dict[str, Value] = {}
    mistakes: list[str] = []
    for key in filter(is_tenants, said):
        try:
            read_value(key, said[key])
        except ValueError as error:
            mistakes.append(str(error))
        else:
            good[key] = said[key]
    return good, sorted(mistakes)


# What is in force.


def describe(word: TenantWord, file: TenantDescription) -> TenantDescription:
    """Lay the control plane's word over what the file says."""
    policy = file.policy
    names, acl, quotas, refusal = file.server_names, file.acl, policy.quotas, policy.acl_refusal
    if word.server_name is not None:
        names |= {word.server_name}
    if word.acl is not None:
        acl = compiled(word.acl)
        disconnects = word.acl.disconnect_on_refusal
        refusal = AclRefusal.DISCONNECT if disconnects else AclRefusal.REASON_CODE
    rates = _rates("rates", word, policy.rates)
    if word.quotas is not None:
        quotas = quotas_of(word.quotas, quotas)
        per_second = word.quotas.publish_rate_max
        if per_second:
            rates = replace(rates, publishes=RateLimit(per_second, per_second))
    door = word.settings.get("tenant_mqtt", file.mqtt)
    return replace(
        file,
        server_names=names,
        mqtt=None if door is None or door == "off" else str(door),
        acl=acl,
        policy=replace(policy, acl_refusal=refusal, quotas=quotas, rates=rates),
        connection_rates=_rates("connection_rates", word, file.connection_rates),
    )


def quotas_of(policy: QuotaPolicy, held: Quotas) -> Quotas:
    """Translate quotas; one that is out of bounds leaves everything as it was."""
    said = {ours: getattr(policy, name) for ours, name in _QUOTAS.items()}
    said["overage_grace_ms"] = min(said["overage_grace_ms"], QUOTA_MAXIMA.overage_grace_ms)
    try:
        return replace(held, **said)
    except InvalidQuota:
        return held


def named_quotas(quotas: Quotas) -> dict[str, int]:
    """Say quotas in the control plane's words."""
    return {name: getattr(quotas, ours) for ours, name in _QUOTAS.items()}


def _rates(prefix: str, word: TenantWord, held: Rates) -> Rates:
    found: dict[str, RateLimit | None] = {}
    for name in _RATES:
        value = word.settings.get(f"{prefix}.{name}")
        if isinstance(value, int):
            found[name] = RateLimit(value, value) if value else None
    return replace(held, **found)


def compiled(policy: AclPolicy) -> CompiledAcl:
    """Compile the rules, closed where one cannot be read."""
    rules: list[AclRule] = []
    for number, each in enumerate(policy.rules, 1):
        if each.action is ControlAction.CONNECT:
            continue
        try:
            rule = _rule(each, number)
            compile_acl([rule])
        except InvalidRule:
            if each.effect is AclEffect.ALLOW:
                continue
            rule = _denies_all(each, number)
        rules.append(rule)
    return compile_acl(rules)


def connect_rules(word: TenantWord) -> ConnectRules | None:
    """Return who may connect; None: no rule is about it, and everybody may."""
    rules = word.acl.rules if word.acl is not None else ()
    found = {n: each for n, each in enumerate(rules, 1) if each.action is ControlAction.CONNECT}
    return ConnectRules(tuple(found.values()), tuple(found)) if found else None


def _rule(rule: ControlRule, number: int = 0) -> AclRule:
    """Translate a rule. Raises InvalidRule where its members contradict each other."""
    kind = _kind(rule)
    topics = None if kind is not ResourceKind.TOPIC and rule.filter == "#" else rule.filter
    pattern, is_prefix = read_pattern(kind, topics, _said(rule.name), _said(rule.prefix))
    return AclRule(
        Effect.ALLOW if rule.effect is AclEffect.ALLOW else Effect.DENY,
        _operations(rule, kind),
        pattern,
        _whom(rule),
        number,
        kind,
        is_prefix,
    )


def _denies_all(rule: ControlRule, number: int) -> AclRule:
    """Return what stands for a denying rule that cannot be read.

    Of topics it denies what it says, of every topic. Of anything else it denies everything: also
    the operation may be what cannot be read.
    """
    kind, whom = _kind(rule), _whom(rule)
    if kind is ResourceKind.TOPIC:
        known = _operations(rule, kind) & OPERATIONS_OF[kind]
        return AclRule(Effect.DENY, known or OPERATIONS_OF[kind], _EVERYTHING, whom, number)
    return AclRule(Effect.DENY, any_of(kind), b"", whom, number, kind, is_prefix=True)


def _kind(rule: ControlRule) -> ResourceKind:
    named = rule.resource
    return ResourceKind.TOPIC if isinstance(named, msgspec.UnsetType) else _KINDS[named]


def _whom(rule: ControlRule) -> frozenset[Principal] | None:
    return None if rule.principal == EVERYBODY else frozenset({Principal(rule.principal)})


def _operations(rule: ControlRule, kind: ResourceKind) -> frozenset[Operation]:
    if rule.action is ControlAction.ANY:
        return any_of(kind)
    return frozenset({_OPERATIONS[rule.action]})


def _said(name: str | msgspec.UnsetType) -> str | None:
    return None if isinstance(name, msgspec.UnsetType) else name


def rule_mistakes(rules: Iterable[ControlRule]) -> Iterator[str]:
    """Say which rules cannot be read, and why."""
    for number, each in enumerate(rules, 1):
        try:
            if each.action is ControlAction.CONNECT:
                check_topic_filter(each.filter.encode())
            else:
                compile_acl([_rule(each)])
        except (InvalidRule, TopicError) as error:
            yield f"rule {number} cannot be read: {error.reason}"


def joined_sizes(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the longer of two histories of a ring, if it continues the other; else None."""
    short, long = sorted((one, other), key=len)
    return long if long[: len(short)] == short else None
