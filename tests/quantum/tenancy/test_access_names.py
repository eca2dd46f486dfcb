"""Rules about streams, queues, groups and ids, against what each of them says by itself."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantum.tenancy import (
    OPERATIONS_OF,
    AclRule,
    Effect,
    Ground,
    InvalidRule,
    Operation,
    Principal,
    ResourceKind,
    any_of,
    compile_acl,
    named_for,
    read_pattern,
)
from quantum.tenants.policy import TenantGuard

ADA, BOB = Principal("ada"), Principal("bob")
NAMED = tuple(
    each for each in ResourceKind if each not in (ResourceKind.TOPIC, ResourceKind.CLUSTER)
)
NAMES = (b"a", b"ab", b"abc", b"b", b"")


def rule_of(
    effect: Effect,
    kind: ResourceKind,
    operations: frozenset[Operation],
    pattern: bytes,
    principals: frozenset[Principal] | None = None,
    *,
    is_prefix: bool = True,
) -> AclRule:
    return AclRule(
        effect, operations, pattern, principals, kind=kind, is_prefix=is_prefix or not pattern
    )


rules = st.sampled_from(NAMED).flatmap(
    lambda kind: st.builds(
        rule_of,
        st.sampled_from(Effect),
        st.just(kind),
        st.frozensets(st.sampled_from(sorted(any_of(kind))), min_size=1),
        st.sampled_from(NAMES),
        st.none() | st.frozensets(st.sampled_from((ADA, BOB)), min_size=1),
        is_prefix=st.booleans(),
    )
)


def matching(
    listed: Sequence[AclRule], who: Principal, kind: ResourceKind, name: bytes
) -> list[AclRule]:
    return [
        each
        for each in listed
        if each.kind is kind
        and (each.principals is None or who in each.principals)
        and (name.startswith(each.pattern) if each.is_prefix else name == each.pattern)
    ]


def naive(
    listed: Sequence[AclRule], who: Principal, operation: Operation, kind: ResourceKind, name: bytes
) -> tuple[Ground, AclRule | None]:
    """Ask every rule, in the order in which they stand."""
    mine = matching(listed, who, kind, name)
    said = [each for each in mine if operation in each.operations]
    denied = [each for each in said if each.effect is Effect.DENY]
    if denied:
        return Ground.DENIED, denied[0]
    if said:
        return Ground.ALLOWED, said[0]
    if operation is Operation.DESCRIBE:
        for other in sorted(OPERATIONS_OF[kind]):
            found = naive(listed, who, other, kind, name)
            if found[0] is Ground.ALLOWED:
                return found
    return Ground.NOT_ALLOWED, None


@settings(max_examples=300, deadline=None)
@given(st.lists(rules, max_size=8))
def test_a_decision_is_what_the_rules_say_one_by_one(listed: list[AclRule]) -> None:
    compiled = compile_acl(listed)
    for kind in NAMED:
        for operation in any_of(kind):
            for who in (ADA, Principal("eve")):
                for name in (*NAMES, b"abcd", b"z"):
                    found = compiled.may(who, operation, kind, name)
                    expected = naive(listed, who, operation, kind, name)
                    assert (found.ground, found.rule) == expected


@pytest.mark.parametrize("kind", ResourceKind)
def test_write_and_read_have_two_words_each(kind: ResourceKind) -> None:
    for one, other in (
        (Operation.PUBLISH, Operation.PRODUCE),
        (Operation.SUBSCRIBE, Operation.CONSUME),
    ):
        word = named_for(kind, one)
        assert word is named_for(kind, other)
        if word in OPERATIONS_OF[kind]:
            whole = b"#" if kind is ResourceKind.TOPIC else b""
            for said in (one, other):
                acl = compile_acl(
                    [
                        AclRule(
                            Effect.ALLOW,
                            frozenset({said}),
                            whole,
                            kind=kind,
                            is_prefix=kind is not ResourceKind.TOPIC,
                        )
                    ]
                )
                assert acl.may(ADA, one, kind, b"x").allowed
                assert acl.may(ADA, other, kind, b"x").allowed


def test_rules_about_topics_and_about_streams_do_not_meet() -> None:
    topics = AclRule(Effect.ALLOW, any_of(ResourceKind.TOPIC), b"#")
    streams = rule_of(Effect.ALLOW, ResourceKind.STREAM, any_of(ResourceKind.STREAM), b"")
    for rule, allowed in ((topics, ResourceKind.TOPIC), (streams, ResourceKind.STREAM)):
        acl = compile_acl([rule])
        assert [
            kind for kind in ResourceKind if acl.may(ADA, Operation.PUBLISH, kind, b"x").allowed
        ] == [allowed]
    denied = compile_acl(
        [topics, rule_of(Effect.DENY, ResourceKind.STREAM, any_of(ResourceKind.STREAM), b"")]
    )
    assert denied.may(ADA, Operation.PUBLISH, ResourceKind.TOPIC, b"x").allowed
    assert not denied.withholds, "messages need not be looked at for a rule about streams"


def test_a_topic_is_described_by_whom_may_use_it() -> None:
    acl = compile_acl([AclRule(Effect.ALLOW, frozenset({Operation.SUBSCRIBE}), b"a/#")])
    assert acl.may(ADA, Operation.DESCRIBE, ResourceKind.TOPIC, b"a/b").allowed
    assert not acl.may(ADA, Operation.DESCRIBE, ResourceKind.TOPIC, b"b").allowed
    assert not acl.may(ADA, Operation.MANAGE, ResourceKind.TOPIC, b"a/b").allowed


WRONG = {
    "a group is not produced to": (ResourceKind.GROUP, {Operation.PRODUCE}, b"g", False),
    "a cluster is not consumed": (ResourceKind.CLUSTER, {Operation.CONSUME}, b"", True),
    "a cluster has no name": (ResourceKind.CLUSTER, {Operation.MANAGE}, b"c", False),
    "no name at all": (ResourceKind.STREAM, {Operation.PRODUCE}, b"", False),
    "a topic is not managed": (ResourceKind.TOPIC, {Operation.MANAGE}, b"#", False),
    "a topic has no prefix": (ResourceKind.TOPIC, {Operation.PUBLISH}, b"a", True),
}


@pytest.mark.parametrize(
    ("kind", "operations", "pattern", "is_prefix"), WRONG.values(), ids=WRONG.keys()
)
def test_a_rule_that_cannot_be_meant_is_refused(
    kind: ResourceKind, operations: set[Operation], pattern: bytes, *, is_prefix: bool
) -> None:
    rule = AclRule(Effect.ALLOW, frozenset(operations), pattern, kind=kind, is_prefix=is_prefix)
    with pytest.raises(InvalidRule):
        compile_acl([rule])


WRITTEN = {
    "a filter": ((ResourceKind.TOPIC, "a/#", None, None), (b"a/#", False)),
    "a name": ((ResourceKind.STREAM, None, "s", None), (b"s", False)),
    "a prefix": ((ResourceKind.STREAM, None, None, "s"), (b"s", True)),
    "all of them": ((ResourceKind.QUEUE, None, None, None), (b"", True)),
    "a topic by name": ((ResourceKind.TOPIC, "a", "b", None), None),
    "a topic without a filter": ((ResourceKind.TOPIC, None, None, None), None),
    "a stream by filter": ((ResourceKind.STREAM, "a/#", None, None), None),
    "a name and a prefix": ((ResourceKind.STREAM, None, "a", "a"), None),
}


@pytest.mark.parametrize(("written", "meant"), WRITTEN.values(), ids=WRITTEN.keys())
def test_what_a_written_rule_names(
    written: tuple[ResourceKind, str | None, str | None, str | None],
    meant: tuple[bytes, bool] | None,
) -> None:
    if meant is None:
        with pytest.raises(InvalidRule):
            read_pattern(*written)
    else:
        assert read_pattern(*written) == meant


def test_without_a_list_everybody_may_unless_one_is_needed() -> None:
    guard = TenantGuard("acme", 0)
    asked = (None, Operation.PRODUCE, ResourceKind.STREAM, b"s")
    assert guard.may(*asked).ground is Ground.NO_LIST
    assert guard.may(*asked).allowed
    assert guard.may(*asked, needs_list=True).ground is Ground.NOT_ALLOWED
