"""Tenants never meet: for all tenants, filters and topics, hostile ones too (§11.1)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantum.routing.trie import SubscriptionTrie
from quantum.tenancy import InvalidTenantId, Namespace, NamespaceViolation, check_tenant_id
from quantum.topics import check_topic_filter, check_topic_name, matches, split_shared
from quantum.types import TenantId
from tests.quantum.topic_names import filters, topics

TENANTS = (TenantId("a"), TenantId("b"), TenantId("ab"), TenantId("a-b"), TenantId("tenant"))
HOSTILE_LEVELS = (
    b"tenant",
    b"a",
    b"b",
    b"..",
    b".",
    b"",
    b"$SYS",
    b"$share",
    b"$tenant",
    b"+",
    b"g",
)
tenants = st.sampled_from(TENANTS)
hostile_filters = (
    st.tuples(
        st.lists(st.sampled_from(HOSTILE_LEVELS), max_size=4),
        st.sampled_from((b"#", b"+", b"a", b"tenant", b"")),
    )
    .map(lambda parts: b"/".join([*parts[0], parts[1]]))
    .filter(bool)
)
hostile_topics = (
    st.lists(
        st.sampled_from([name for name in HOSTILE_LEVELS if name != b"+"]), min_size=1, max_size=5
    )
    .map(b"/".join)
    .filter(bool)
)


@settings(max_examples=1000)
@given(tenants, tenants, filters | hostile_filters, topics | hostile_topics)
def test_a_filter_sees_its_own_tenant_s_matches_and_nothing_else(
    mine: TenantId, yours: TenantId, topic_filter: bytes, topic: bytes
) -> None:
    if topic_filter.split(b"/")[0] == b"$share":
        return  # a shared subscription; the next test's matter
    found = matches(Namespace(mine).filter_key(topic_filter), Namespace(yours).topic_key(topic))
    assert found == (mine == yours and matches(topic_filter, topic))


@settings(max_examples=500)
@given(tenants, tenants, filters | hostile_filters, topics | hostile_topics)
def test_nor_does_a_share_of_it(
    mine: TenantId, yours: TenantId, topic_filter: bytes, topic: bytes
) -> None:
    key = Namespace(mine).filter_key(b"$share/g/" + topic_filter)
    shared = split_shared(key)
    assert shared is not None
    group, inner = shared
    assert group == b"g"
    found = matches(inner, Namespace(yours).topic_key(topic))
    assert found == (mine == yours and matches(topic_filter, topic))


@given(tenants, tenants, topics | hostile_topics)
def test_keys_come_back_to_their_own_tenant_only(
    mine: TenantId, yours: TenantId, topic: bytes
) -> None:
    key = Namespace(mine).topic_key(topic)
    check_topic_name(key)
    check_topic_filter(key)
    if mine == yours:
        assert Namespace(yours).local(key) == topic
    else:
        with pytest.raises(NamespaceViolation):
            Namespace(yours).local(key)


@given(st.lists(st.tuples(tenants, hostile_filters), max_size=20), tenants, hostile_topics)
def test_one_trie_for_all_tenants_would_not_mix_them(
    subscriptions: list[tuple[TenantId, bytes]], publisher: TenantId, topic: bytes
) -> None:
    trie: SubscriptionTrie[TenantId, int] = SubscriptionTrie()
    for tenant, topic_filter in subscriptions:
        if topic_filter.split(b"/")[0] != b"$share":
            trie.add(Namespace(tenant).filter_key(topic_filter), tenant, 0)
    found = {tenant for tenant, _ in trie.match(Namespace(publisher).topic_key(topic))}
    assert found <= {publisher}


def test_keys_are_the_specification_s() -> None:
    acme = Namespace(TenantId("acme"))
    assert acme.topic_key(b"a/b") == b"tenant/acme/a/b"
    assert acme.filter_key(b"#") == b"tenant/acme/#"
    assert acme.filter_key(b"$share/g/a/+") == b"$share/g/tenant/acme/a/+"
    assert acme.local(b"$share/g/tenant/acme/a/+") == b"$share/g/a/+"
    assert acme.topic_key(b"$SYS/x") == b"$tenant/acme/$SYS/x"


@pytest.mark.parametrize(
    "key",
    [
        b"tenant/acme",
        b"tenant/acme/",
        b"tenant/acmeX/a",
        b"tenant/acme/$SYS/x",
        b"$tenant/acme/a",
        b"a/b",
        b"tenant/+/a",
        b"$share/g/tenant/other/a",
    ],
)
def test_what_is_no_key_of_a_tenant_is_refused(key: bytes) -> None:
    with pytest.raises(NamespaceViolation):
        Namespace(TenantId("acme")).local(key)


PREFIXED = {
    "with the prefix": (b"tenant/acme/a/b", b"a/b"),
    "a filter": (b"tenant/acme/#", b"#"),
    "a share": (b"$share/g/tenant/acme/+/a", b"$share/g/+/a"),
    "the server's own": (b"tenant/acme/$SYS/x", b"$SYS/x"),
    "an empty level": (b"tenant/acme//a", b"/a"),
    "another tenant": (b"tenant/other/a", None),
    "no prefix": (b"a/b", None),
    "everything": (b"#", None),
    "a wildcard for the tenant": (b"tenant/+/a", None),
    "a wildcard for the word": (b"+/acme/a", None),
    "all tenants": (b"tenant/#", None),
    "the bare prefix": (b"tenant/acme/", None),
    "dots out of it": (b"tenant/acme/../other/a", b"../other/a"),
    "a share of another": (b"$share/g/tenant/other/#", None),
    "a slash before": (b"/tenant/acme/a", None),
}


@pytest.mark.parametrize(("name", "local"), PREFIXED.values(), ids=PREFIXED)
def test_full_names_are_checked_and_stripped(name: bytes, local: bytes | None) -> None:
    acme = Namespace(TenantId("acme"))
    if local is not None:
        assert acme.local_of_prefixed(name) == local
    else:
        with pytest.raises(NamespaceViolation):
            acme.local_of_prefixed(name)


@pytest.mark.parametrize(
    "tenant_id", ["", "a/b", "+", "#", "A", "-a", "a-", "a.b", "a b", "ä", "a\n", "a\0", "x" * 64]
)
def test_tenant_ids_that_could_change_a_key_are_refused(tenant_id: str) -> None:
    with pytest.raises(InvalidTenantId):
        check_tenant_id(tenant_id)
    with pytest.raises(InvalidTenantId):
        Namespace(TenantId(tenant_id))


@pytest.mark.parametrize("tenant_id", ["a", "0", "dev", "a-b", "x" * 63])
def test_tenant_ids(tenant_id: str) -> None:
    assert check_tenant_id(tenant_id) == tenant_id
