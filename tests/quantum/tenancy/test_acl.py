"""Access rules: the compiled automaton against their spelled-out meaning, and hostile names."""

from __future__ import annotations

import functools
import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quantum.tenancy import (
    AccessDecision,
    AclRule,
    CompiledAcl,
    Effect,
    Ground,
    InvalidRule,
    Operation,
    Principal,
    ResourceKind,
    any_of,
    automaton,
    compile_acl,
)
from quantum.types import ClientId
from tests.quantum.tenancy.naive_acl import allowed_topics, effects_on, matches, universe

NAMES = (b"a", b"b", b"", b"$s")
TOPICS = list(universe((*NAMES, b"c"), 4))
SHORT_TOPICS = [topic for topic in TOPICS if topic and topic.count(b"/") < 3]
FILTERS = [
    b"/".join(parts)
    for depth in (1, 2, 3)
    for parts in itertools.product((b"a", b"b", b"", b"$s", b"+", b"#"), repeat=depth)
    if b"#" not in parts[:-1] and parts != (b"",)
]
ANN = Principal("ann")
PRINCIPALS = (Principal("c"), Principal("b"), Principal("$s"))
CLIENTS = (ClientId(b"a"), ClientId(b"c"), ClientId(b"$s"), ClientId(b"a/b"), ClientId(b"+"))
TOPIC = ResourceKind.TOPIC
PUBLISH, SUBSCRIBE, BOTH = Operation.PUBLISH, Operation.SUBSCRIBE, any_of(TOPIC)


def _filter(parts: tuple[list[bytes], bytes]) -> bytes:
    return b"/".join([*parts[0], parts[1]])


def filters_of(names: tuple[bytes, ...]) -> st.SearchStrategy[bytes]:
    """Filters of at most three levels: a universe of four shows all their differences."""
    return (
        st.tuples(
            st.lists(st.sampled_from((*names, b"+")), max_size=2),
            st.sampled_from((*names, b"+", b"#", b"#")),
        )
        .map(_filter)
        .filter(bool)
    )


rules = st.builds(
    AclRule,
    effect=st.sampled_from((Effect.ALLOW, Effect.ALLOW, Effect.DENY)),
    operations=st.sampled_from((frozenset({PUBLISH}), frozenset({SUBSCRIBE}), BOTH)),
    pattern=filters_of((*NAMES, b"%c", b"%u")),
    principals=st.none() | st.frozensets(st.sampled_from(PRINCIPALS), max_size=2),
)


def said(action: Operation | None) -> frozenset[Operation]:
    return BOTH if action is None else frozenset({action})


def check(
    acl: CompiledAcl, action: Operation, principal: Principal, client: ClientId, name: bytes
) -> AccessDecision:
    return acl.may(principal, action, TOPIC, name, client)


def allow(pattern: bytes, *principals: Principal, action: Operation | None = None) -> AclRule:
    return AclRule(Effect.ALLOW, said(action), pattern, frozenset(principals) or None)


def deny(pattern: bytes, *principals: Principal, action: Operation | None = None) -> AclRule:
    return AclRule(Effect.DENY, said(action), pattern, frozenset(principals) or None)


@functools.cache
def topics_of(topic_filter: bytes) -> frozenset[bytes]:
    return frozenset(topic for topic in TOPICS if matches(topic_filter, topic))


@settings(max_examples=200, deadline=None)
@given(st.lists(rules, max_size=6), st.sampled_from(PRINCIPALS), st.sampled_from(CLIENTS))
@example([allow(b"+/a")], PRINCIPALS[0], CLIENTS[0])
def test_publishing_is_what_the_rules_say(
    acl: list[AclRule], principal: Principal, client: ClientId
) -> None:
    compiled = compile_acl(acl)
    expected = allowed_topics(acl, PUBLISH, principal, client, SHORT_TOPICS)
    for topic in SHORT_TOPICS:
        decision = check(compiled, PUBLISH, principal, client, topic)
        assert decision.allowed == (topic in expected), topic
        if decision.rule is not None:
            effect = Effect.ALLOW if decision.allowed else Effect.DENY
            assert (decision.rule.effect, PUBLISH in decision.rule.operations) == (effect, True)


@settings(max_examples=100, deadline=None)
@given(st.lists(rules, max_size=6), st.sampled_from(PRINCIPALS), st.sampled_from(CLIENTS))
@example([allow(b"a"), allow(b"a/+"), allow(b"a/+/#")], PRINCIPALS[0], CLIENTS[0])
@example([allow(b"a/+/#")], PRINCIPALS[0], CLIENTS[0])
@example([allow(b"+"), allow(b"+/+/#", PRINCIPALS[0])], PRINCIPALS[0], CLIENTS[0])
@example([allow(b"#"), deny(b"$s/#")], PRINCIPALS[0], CLIENTS[0])
@example([allow(b"#"), deny(b"%c/+")], PRINCIPALS[0], CLIENTS[0])
@example([allow(b"#"), deny(b"a/b", action=SUBSCRIBE)], PRINCIPALS[0], CLIENTS[0])
@example([allow(b"#"), deny(b"a"), deny(b"a/+/#")], PRINCIPALS[0], CLIENTS[0])
def test_a_filter_is_allowed_as_a_whole_and_what_is_denied_of_it_is_withheld(
    acl: list[AclRule], principal: Principal, client: ClientId
) -> None:
    compiled = compile_acl(acl)
    said = {topic: effects_on(acl, SUBSCRIBE, principal, client, topic) for topic in TOPICS}
    allowed = {topic for topic in TOPICS if Effect.ALLOW in said[topic]}
    denied = {topic for topic in TOPICS if Effect.DENY in said[topic]}
    view = compiled.for_client(principal, client)
    for topic_filter in FILTERS:
        topics = topics_of(topic_filter)
        decision = check(compiled, SUBSCRIBE, principal, client, topic_filter)
        assert decision.allowed == (topics <= allowed and not topics <= denied), topic_filter
        assert (decision.withholds is not None) == (decision.allowed and bool(topics & denied))
        shared = check(compiled, SUBSCRIBE, principal, client, b"$share/g/" + topic_filter)
        assert shared.allowed == (topics <= allowed and not topics & denied), topic_filter
        if decision.allowed:
            kept = {topic for topic in topics if view.withholds and not view.may_receive(topic)}
            assert kept == topics & denied, topic_filter


def test_an_automaton_that_forgets_answers_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    acl = [allow(b"+/a/#"), allow(b"a/+/b"), allow(b"%c/b"), deny(b"b/+/a")]
    lasting = compile_acl(acl)
    expected = [check(lasting, PUBLISH, ANN, CLIENTS[0], topic) for topic in TOPICS]
    monkeypatch.setattr(automaton, "PLACES_MAX", 3)
    forgetful = compile_acl(acl)
    assert [check(forgetful, PUBLISH, ANN, CLIENTS[0], topic) for topic in TOPICS] == expected
    assert {one.allowed for one in expected} == {True, False}


ACL = (
    allow(b"public/#"),
    allow(b"devices/%c/#"),
    allow(b"home/%u/+"),
    allow(b"$SYS/broker/+", action=SUBSCRIBE),
    allow(b"#", Principal("admin")),
    deny(b"public/secret/#"),
    deny(b"+/%c/keys"),
)
DEVICE = ClientId(b"dev1")
CHECKS: dict[str, tuple[Operation, Principal, bytes, bytes, Ground]] = {
    "allowed": (PUBLISH, ANN, DEVICE, b"public/a", Ground.ALLOWED),
    "the parent of a hash": (PUBLISH, ANN, DEVICE, b"public", Ground.ALLOWED),
    "own device": (PUBLISH, ANN, DEVICE, b"devices/dev1/x", Ground.ALLOWED),
    "another device": (PUBLISH, ANN, DEVICE, b"devices/dev2/x", Ground.NOT_ALLOWED),
    "own home": (SUBSCRIBE, ANN, DEVICE, b"home/ann/+", Ground.ALLOWED),
    "all of own home": (SUBSCRIBE, ANN, DEVICE, b"home/ann/#", Ground.NOT_ALLOWED),
    "all devices": (SUBSCRIBE, ANN, DEVICE, b"devices/+/x", Ground.NOT_ALLOWED),
    "deny wins": (PUBLISH, ANN, DEVICE, b"public/secret/x", Ground.DENIED),
    "deny wins over an admin": (
        PUBLISH,
        Principal("admin"),
        DEVICE,
        b"public/secret",
        Ground.DENIED,
    ),
    "deny by own id": (PUBLISH, ANN, DEVICE, b"devices/dev1/keys", Ground.DENIED),
    "a filter that touches a denied topic": (SUBSCRIBE, ANN, DEVICE, b"public/#", Ground.ALLOWED),
    "a filter that is denied as a whole": (
        SUBSCRIBE,
        ANN,
        DEVICE,
        b"public/secret/+",
        Ground.DENIED,
    ),
    "a filter beside it": (SUBSCRIBE, ANN, DEVICE, b"public/+", Ground.ALLOWED),
    "a filter that cannot touch it": (SUBSCRIBE, ANN, DEVICE, b"public/x/#", Ground.ALLOWED),
    "everything": (SUBSCRIBE, ANN, DEVICE, b"#", Ground.NOT_ALLOWED),
    "everything but what is denied": (SUBSCRIBE, Principal("admin"), DEVICE, b"#", Ground.ALLOWED),
    "a share that touches a denied topic": (
        SUBSCRIBE,
        ANN,
        DEVICE,
        b"$share/g/public/#",
        Ground.DENIED,
    ),
    "nothing allows it": (PUBLISH, ANN, DEVICE, b"other", Ground.NOT_ALLOWED),
    "the server's own, by name": (SUBSCRIBE, ANN, DEVICE, b"$SYS/broker/uptime", Ground.ALLOWED),
    "writing the server's own": (PUBLISH, ANN, DEVICE, b"$SYS/broker/uptime", Ground.NOT_ALLOWED),
    "an admin's # is not $": (PUBLISH, Principal("admin"), DEVICE, b"$SYS/x", Ground.NOT_ALLOWED),
    "dots climb nowhere": (PUBLISH, ANN, DEVICE, b"public/../devices/dev2/x", Ground.ALLOWED),
    "dots are no way in": (PUBLISH, ANN, DEVICE, b"devices/dev1/../dev2", Ground.ALLOWED),
    "dots in front": (PUBLISH, ANN, DEVICE, b"../public/a", Ground.NOT_ALLOWED),
    "an empty first level": (PUBLISH, ANN, DEVICE, b"/public/a", Ground.NOT_ALLOWED),
    "an empty level between": (PUBLISH, ANN, DEVICE, b"devices//dev1/x", Ground.NOT_ALLOWED),
    "another tenant by prefix": (
        PUBLISH,
        ANN,
        DEVICE,
        b"tenant/other/public/a",
        Ground.NOT_ALLOWED,
    ),
    "every tenant": (SUBSCRIBE, ANN, DEVICE, b"tenant/+/#", Ground.NOT_ALLOWED),
    "another tenant's everything": (
        SUBSCRIBE,
        ANN,
        DEVICE,
        b"tenant/other/x/#",
        Ground.NOT_ALLOWED,
    ),
    "case": (PUBLISH, ANN, DEVICE, b"Public/a", Ground.NOT_ALLOWED),
    "a share hides nothing": (SUBSCRIBE, ANN, DEVICE, b"$share/g/public/secret/x", Ground.DENIED),
    "a share of what is allowed": (SUBSCRIBE, ANN, DEVICE, b"$share/g/public/x", Ground.ALLOWED),
    "a share, then an empty level": (
        SUBSCRIBE,
        ANN,
        DEVICE,
        b"$share/g//public/x",
        Ground.NOT_ALLOWED,
    ),
    "a share without a group": (SUBSCRIBE, ANN, DEVICE, b"$share//public/x", Ground.NO_TOPIC),
    "a share of nothing": (SUBSCRIBE, ANN, DEVICE, b"$share/g/", Ground.NO_TOPIC),
    "a share in a share": (
        SUBSCRIBE,
        ANN,
        DEVICE,
        b"$share/g/$share/h/public/x",
        Ground.NOT_ALLOWED,
    ),
    "publishing to a share": (PUBLISH, ANN, DEVICE, b"$share/g/public/x", Ground.NOT_ALLOWED),
    "a wildcard in a publish": (PUBLISH, ANN, DEVICE, b"public/+", Ground.NO_TOPIC),
    "no filter": (SUBSCRIBE, ANN, DEVICE, b"public/#/x", Ground.NO_TOPIC),
    "nothing": (PUBLISH, ANN, DEVICE, b"", Ground.NO_TOPIC),
    "an id with a wildcard": (PUBLISH, ANN, b"+", b"public/a", Ground.UNSAFE_ID),
    "an id with a slash": (PUBLISH, ANN, b"dev2/x", b"devices/dev2/x", Ground.UNSAFE_ID),
    "an id with a dollar": (SUBSCRIBE, ANN, b"$SYS", b"devices/$SYS/x", Ground.UNSAFE_ID),
    "no id": (PUBLISH, ANN, b"", b"public/a", Ground.UNSAFE_ID),
    "a principal with a wildcard": (PUBLISH, Principal("#"), DEVICE, b"home/#/x", Ground.NO_TOPIC),
    "a principal with a slash": (
        PUBLISH,
        Principal("ann/x"),
        DEVICE,
        b"home/ann/x",
        Ground.NOT_ALLOWED,
    ),
    "the placeholder as a name": (PUBLISH, ANN, DEVICE, b"devices/%c/x", Ground.NOT_ALLOWED),
}


@pytest.mark.parametrize(
    ("action", "principal", "client", "name", "ground"), CHECKS.values(), ids=CHECKS
)
def test_check(
    action: Operation, principal: Principal, client: bytes, name: bytes, ground: Ground
) -> None:
    decision = check(compile_acl(ACL), action, principal, ClientId(client), name)
    assert decision.ground is ground
    assert decision.allowed == (ground is Ground.ALLOWED)


def test_a_client_s_view_answers_as_the_rules_do_and_stays_small() -> None:
    compiled = compile_acl(ACL)
    mine, yours = compiled.for_client(ANN, DEVICE), compiled.for_client(ANN, ClientId(b"dev2"))
    topics = [b"devices/dev%d/x" % number for number in range(200)] + [b"public/secret"]
    for topic in [*topics, *topics]:
        for view, client in ((mine, DEVICE), (yours, ClientId(b"dev2"))):
            assert view.publish(topic) is check(compiled, PUBLISH, ANN, client, topic)
            assert view.subscribe(topic) == check(compiled, SUBSCRIBE, ANN, client, topic)
        assert len(mine._published) <= 64
    assert mine.publish(b"devices/dev1/x").allowed
    assert not yours.publish(b"devices/dev1/x").allowed


def test_no_rules_allow_nothing() -> None:
    assert not check(CompiledAcl([]), PUBLISH, ANN, DEVICE, b"a").allowed
    assert not check(CompiledAcl([]), SUBSCRIBE, ANN, DEVICE, b"#").allowed


def test_a_decision_names_its_rule() -> None:
    acl = (allow(b"a/b"), allow(b"a/+"), deny(b"c/#"), deny(b"c/d"))
    compiled = compile_acl(acl)
    assert check(compiled, PUBLISH, ANN, DEVICE, b"a/b").rule is acl[0]
    assert check(compiled, PUBLISH, ANN, DEVICE, b"a/x").rule is acl[1]
    assert check(compiled, SUBSCRIBE, ANN, DEVICE, b"a/+").rule is acl[1]
    assert check(compiled, SUBSCRIBE, ANN, DEVICE, b"c/d").rule is acl[2]
    assert check(compiled, PUBLISH, ANN, DEVICE, b"x").rule is None


@pytest.mark.parametrize(
    "pattern", [b"", b"a#", b"a/#/b", b"$share/g/a", b"$share//a", b"dev-%c/x", b"a/%u%c", b"a\0"]
)
def test_a_rule_that_cannot_be_compiled_is_refused_by_its_number(pattern: bytes) -> None:
    with pytest.raises(InvalidRule) as caught:
        compile_acl([allow(b"ok"), deny(pattern)])
    assert caught.value.facts["rule"] == 1


def test_names_that_no_rule_mentions_share_one_move() -> None:
    compiled = compile_acl([allow(b"a/+/#"), allow(b"a/b/c")])
    for number in range(1000):
        assert check(compiled, PUBLISH, ANN, DEVICE, b"a/x%d/y%d" % (number, number)).allowed
    assert len(compiled._publish.allow._states) <= 5


def test_ten_thousand_rules_cost_a_check_no_more_moves_than_its_levels() -> None:
    compiled = compile_acl(
        [allow(b"site/%d/+/x" % number) for number in range(10_000)]
        + [allow(b"own/%d" % number, Principal(f"p{number}")) for number in range(10_000)]
    )
    moves = compiled._publish.allow
    before = moves._places
    assert check(compiled, PUBLISH, Principal("p7"), DEVICE, b"site/77/a/x").allowed
    assert moves._places - before <= 12, "a move and a node or two for each level"
    assert check(compiled, PUBLISH, Principal("p7"), DEVICE, b"own/7").allowed
    assert not check(compiled, PUBLISH, Principal("p8"), DEVICE, b"own/7").allowed
