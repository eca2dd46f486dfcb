"""Users, rules and quotas by Kafka's requests: what is done, what is refused and by what name."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from kio.index import load_response_schema

from clustor.control import AclAction, AclEffect, AclResource, TenantAclRule
from quantum.edge.ports import ConnectionPeer
from quantum.protocols.kafka.codec import VERSIONS, ApiKey, KafkaCode, decode
from quantum.tenancy import SCRAM_256, SCRAM_512, derive_credential, describe_tenants
from quantum.tenants.kept_passwords import KeptPassword, read_kept
from quantum.tenants.passwords import hash_password, is_password
from quantum.tenants.tenant_records import ChangeRefusal, ChangeRefused
from tests.quantum.kafka.session.adapter_server import AdapterBench, BenchWire
from tests.quantum.kafka.session.memory_records import MemoryRecords
from tests.quantum.kafka.session.test_connection import answers, request

NONE, INVALID = KafkaCode.none, KafkaCode.invalid_request
DENIED, OFF = KafkaCode.cluster_authorization_failed, KafkaCode.security_disabled
SALT = b"salt of kafka's tools"


class Desk:
    """An administrator's client before the adapter, and the records behind it."""

    def __init__(self) -> None:
        self.bench = AdapterBench()
        self.records = MemoryRecords()
        self.bench.adapter.records = self.records

    def ask(self, key: ApiKey, wire: BenchWire | None = None, **facts: Any) -> Any:
        version = VERSIONS[key].last
        wire = wire or self.bench.connect()
        wire.handler.received(request(key, version, 7, facts))
        self.bench.turn()
        ((_, body),) = answers(wire)
        return decode(load_response_schema(key, version), body, 1)  # behind the header's tags

    def alter(self, upsertions: Any = (), deletions: Any = ()) -> list[tuple[str, KafkaCode]]:
        facts = {"deletions": deletions, "upsertions": upsertions}
        told = self.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, **facts)
        return [(each.user, each.error_code) for each in told.results]

    def users(self, *names: str) -> Any:
        wanted = [{"name": each} for each in names] or None
        return self.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, users=wanted)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def upsertion(
    name: str, password: bytes = b"secret", mechanism: int = 1, **other: Any
) -> dict[str, Any]:
    hashed = "sha256" if mechanism != 2 else "sha512"
    salted = hashlib.pbkdf2_hmac(hashed, password, SALT, 4096)
    facts = {"name": name, "mechanism": mechanism, "iterations": 4096, "salt": SALT}
    return facts | {"salted_password": salted} | other


class TestUsers:
    def test_what_an_administrator_sends_is_the_user_s_password_everywhere(
        self, desk: Desk
    ) -> None:
        assert desk.alter([upsertion("ann"), upsertion("ann", mechanism=2)]) == [("ann", NONE)]
        kept = read_kept(desk.records.settings["users.ann"])
        assert kept.scram == {
            SCRAM_256: derive_credential(SCRAM_256, b"secret", SALT, 4096),
            SCRAM_512: derive_credential(SCRAM_512, b"secret", SALT, 4096),
        }
        assert is_password(b"secret", kept.text()) and not is_password(b"other", kept.text())
        (row,) = desk.users("ann").results
        infos = [(each.mechanism, each.iterations) for each in row.credential_infos]
        assert infos == [(1, 4096), (2, 4096)]

    def test_a_new_password_ends_the_one_that_users_add_made(self, desk: Desk) -> None:
        desk.records.settings = {"users.ann": hash_password(b"old"), "rates.publishes": 5}
        assert desk.users().results == ()
        assert desk.users("ann").results[0].error_code is KafkaCode.resource_not_found
        assert desk.alter([upsertion("ann", b"new")]) == [("ann", NONE)]
        kept = str(desk.records.settings["users.ann"])
        assert is_password(b"new", kept) and not is_password(b"old", kept)
        assert desk.records.settings["rates.publishes"] == 5

    def test_who_has_no_keys_left_is_no_user(self, desk: Desk) -> None:
        kept = KeptPassword("", {SCRAM_256: derive_credential(SCRAM_256, b"x", SALT, 4096)})
        desk.records.settings = {"users.ann": kept.text(), "users.bob": kept.text()}
        gone = [{"name": "ann", "mechanism": 1}]
        assert desk.alter(deletions=gone) == [("ann", NONE)]
        assert set(desk.records.settings) == {"users.bob"}
        assert desk.alter(deletions=gone) == [("ann", KafkaCode.resource_not_found)]
        assert [each.user for each in desk.users().results] == ["bob"]

    @pytest.mark.parametrize(
        ("wanted", "code"),
        [
            (upsertion(""), KafkaCode.unacceptable_credential),
            (upsertion("a b"), KafkaCode.unacceptable_credential),
            (upsertion("ann", iterations=4095), KafkaCode.unacceptable_credential),
            (upsertion("ann", iterations=16385), KafkaCode.unacceptable_credential),
            (upsertion("ann", salt=b""), KafkaCode.unacceptable_credential),
            (upsertion("ann", salt=bytes(65)), KafkaCode.unacceptable_credential),
            (upsertion("ann", salted_password=b"short"), KafkaCode.unacceptable_credential),
            (upsertion("ann", mechanism=3), KafkaCode.unsupported_sasl_mechanism),
            (upsertion("ann", mechanism=0), KafkaCode.unsupported_sasl_mechanism),
        ],
    )
    def test_what_is_none_is_refused_and_others_of_the_request_are_done(
        self, desk: Desk, wanted: dict[str, Any], code: KafkaCode
    ) -> None:
        assert desk.alter([upsertion("bob"), wanted]) == [("bob", NONE), (wanted["name"], code)]
        assert set(desk.records.settings) == {"users.bob"}

    def test_of_a_user_all_is_done_or_nothing(self, desk: Desk) -> None:
        twice = [upsertion("ann", b"one"), upsertion("ann", b"two")]
        assert desk.alter(twice) == [("ann", KafkaCode.duplicate_resource)]
        half = [upsertion("ann"), upsertion("ann", mechanism=2, iterations=1)]
        assert desk.alter(half) == [("ann", KafkaCode.unacceptable_credential)]
        assert desk.records.settings == {}
        named = desk.users("eve", "eve").results
        assert [each.error_code for each in named] == [KafkaCode.duplicate_resource]

    def test_what_another_changed_meanwhile_stays(self, desk: Desk) -> None:
        def meanwhile() -> None:
            desk.records.settings = {"users.tim": "x", "rates.publishes": 3}

        desk.records.between = meanwhile
        assert desk.alter([upsertion("ann")]) == [("ann", NONE)]
        assert set(desk.records.settings) == {"users.tim", "rates.publishes", "users.ann"}


def rule(**said: Any) -> TenantAclRule:
    known: dict[str, Any] = {"effect": AclEffect.ALLOW, "action": AclAction.ANY}
    return TenantAclRule(**known | said)


EVERYTHING = rule(filter="#")
ANY: dict[str, Any] = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


def entry(**other: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {"resource_type": 2, "resource_name": "orders", "host": "*"}
    facts |= {"resource_pattern_type": 3, "principal": "User:ann", "operation": 3}
    return facts | {"permission_type": 3} | other


BOTH_WAYS: dict[str, tuple[dict[str, Any], TenantAclRule]] = {
    "read a topic": (
        entry(),
        rule(
            action=AclAction.CONSUME,
            resource=AclResource.STREAM,
            name="orders",
            principal="user:ann",
        ),
    ),
    "write every topic": (
        entry(resource_name="*", operation=4, principal="User:*"),
        rule(action=AclAction.PRODUCE, resource=AclResource.STREAM),
    ),
    "manage by prefix": (
        entry(resource_pattern_type=4, operation=7, principal="Token:robot"),
        rule(
            action=AclAction.MANAGE,
            resource=AclResource.STREAM,
            prefix="orders",
            principal="token:robot",
        ),
    ),
    "all of a group, denied": (
        entry(resource_type=3, operation=2, permission_type=2, principal="Certificate:shop"),
        rule(effect=AclEffect.DENY, resource=AclResource.GROUP, name="orders", principal="shop"),
    ),
    "delete a group": (
        entry(resource_type=3, operation=6, principal="Certificate:spiffe://c/tenant/t/x"),
        rule(
            action=AclAction.MANAGE,
            resource=AclResource.GROUP,
            name="orders",
            principal="spiffe://c/tenant/t/x",
        ),
    ),
    "write by a transactional id": (
        entry(resource_type=5, operation=4),
        rule(
            action=AclAction.PRODUCE,
            resource=AclResource.TRANSACTIONAL_ID,
            name="orders",
            principal="user:ann",
        ),
    ),
    "describe the cluster": (
        entry(resource_type=4, resource_name="kafka-cluster", operation=8),
        rule(action=AclAction.DESCRIBE, resource=AclResource.CLUSTER, principal="user:ann"),
    ),
}
REFUSED: dict[str, dict[str, Any]] = {
    "a delegation token": entry(resource_type=6),
    "no resource that there is": entry(resource_type=99),
    "any resource": entry(resource_type=1),
    "a host": entry(host="10.0.0.1"),
    "create alone": entry(operation=5),
    "delete alone": entry(operation=6),
    "a group's alter": entry(resource_type=3, operation=7),
    "any operation": entry(operation=1),
    "idempotent write": entry(resource_type=4, resource_name="kafka-cluster", operation=12),
    "another cluster": entry(resource_type=4, resource_name="mine", operation=7),
    "a pattern of a filter": entry(resource_pattern_type=2),
    "no permission": entry(permission_type=1),
    "no type of principal": entry(principal="ann"),
    "another type of principal": entry(principal="Group:ann"),
    "a user by another type": entry(principal="Certificate:user:ann"),
    "all certificates": entry(principal="Certificate:*"),
    "no name": entry(resource_name=""),
}


class TestRules:
    def create(self, desk: Desk, *entries: dict[str, Any]) -> list[Any]:
        return list(desk.ask(ApiKey.CREATE_ACLS, creations=entries).results)

    @pytest.mark.parametrize(("said", "wanted"), BOTH_WAYS.values(), ids=BOTH_WAYS)
    def test_an_entry_and_a_rule_say_the_same(
        self, desk: Desk, said: dict[str, Any], wanted: TenantAclRule
    ) -> None:
        desk.records.list = (EVERYTHING,)
        (told,) = self.create(desk, said)
        assert told.error_code is NONE
        assert desk.records.rules("dev") == (EVERYTHING, wanted)
        ((shown,),) = [desk.ask(ApiKey.DESCRIBE_ACLS, **ANY).resources]
        (acl,) = shown.acls
        found = {
            "resource_type": shown.resource_type,
            "resource_name": shown.resource_name,
            "resource_pattern_type": shown.pattern_type,
            "principal": acl.principal,
            "host": acl.host,
            "operation": acl.operation,
            "permission_type": acl.permission_type,
        }
        assert found == said
        self.create(desk, said)
        assert len(desk.records.rules("dev") or ()) == 2, "the same again changes nothing"
        (gone,) = desk.ask(ApiKey.DELETE_ACLS, filters=[ANY]).filter_results
        assert len(gone.matching_acls) == 1 and desk.records.list == (EVERYTHING,)

    @pytest.mark.parametrize("said", REFUSED.values(), ids=REFUSED)
    def test_what_no_rule_can_say_is_refused_by_name(
        self, desk: Desk, said: dict[str, Any]
    ) -> None:
        desk.records.list = (EVERYTHING,)
        refused, good = self.create(desk, said, entry())
        assert refused.error_code is INVALID and refused.error_message
        assert good.error_code is NONE and len(desk.records.list) == 2

    def test_no_list_is_begun_by_one_entry(self, desk: Desk) -> None:
        assert self.create(desk, entry())[0].error_code is OFF
        assert desk.ask(ApiKey.DESCRIBE_ACLS, **ANY).error_code is OFF
        (told,) = desk.ask(ApiKey.DELETE_ACLS, filters=[ANY]).filter_results
        assert told.error_code is OFF and desk.records.askers == []

    @pytest.mark.parametrize(
        ("wanted", "count"),
        [
            ({}, 4),
            ({"resource_type_filter": 3}, 1),
            ({"principal_filter": "User:ann"}, 2),
            ({"permission_type": 2}, 1),
            ({"operation": 3}, 2),
            ({"host_filter": "1.2.3.4"}, 0),
            ({"pattern_type_filter": 3}, 3),
            ({"pattern_type_filter": 4}, 1),
            ({"resource_name_filter": "orders-eu"}, 0),
            ({"pattern_type_filter": 2, "resource_name_filter": "orders-eu"}, 2),
            ({"pattern_type_filter": 2, "resource_name_filter": "orders"}, 3),
            ({"pattern_type_filter": 3, "resource_name_filter": "orders"}, 1),
        ],
    )
    def test_filters(self, desk: Desk, wanted: dict[str, Any], count: int) -> None:
        stream = {"resource": AclResource.STREAM}
        desk.records.list = (
            EVERYTHING,
            rule(action=AclAction.CONSUME, name="orders", principal="user:ann", **stream),
            rule(action=AclAction.PRODUCE, prefix="orders", principal="user:ann", **stream),
            rule(action=AclAction.CONSUME, effect=AclEffect.DENY, **stream),
            rule(resource=AclResource.GROUP, name="g"),
            rule(resource=AclResource.QUEUE, name="orders"),
        )
        shown = desk.ask(ApiKey.DESCRIBE_ACLS, **ANY | wanted).resources
        assert sum(len(each.acls) for each in shown) == count
        before = len(desk.records.list)
        (gone,) = desk.ask(ApiKey.DELETE_ACLS, filters=[ANY | wanted]).filter_results
        assert len(gone.matching_acls) == count == before - len(desk.records.list)


USER = [{"entity_type": "user", "entity_name": None}]


class TestQuotas:
    def alter(self, desk: Desk, *ops: dict[str, Any], entity: Any = None, **more: Any) -> Any:
        entries = [{"entity": entity or USER, "ops": ops}]
        facts: dict[str, Any] = {"entries": entries, "validate_only": False} | more
        (told,) = desk.ask(ApiKey.ALTER_CLIENT_QUOTAS, **facts).entries
        return told.error_code

    def rate(self, desk: Desk, components: Any = (), *, strict: bool = False) -> list[float]:
        facts: dict[str, Any] = {"components": components, "strict": strict}
        entries = desk.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, **facts).entries
        return [each.value for row in entries for each in row.values]

    def test_the_rate_is_the_tenant_s(self, desk: Desk) -> None:
        op = {"key": "producer_byte_rate", "value": 1024.0, "remove": False}
        assert self.rate(desk) == []
        assert self.alter(desk, op, validate_only=True) is NONE and self.rate(desk) == []
        assert self.alter(desk, op) is NONE
        assert desk.records.settings == {"rates.publish_bytes": 1024}
        assert self.rate(desk) == [1024.0]
        default = {"entity_type": "user", "match_type": 1, "match": None}
        assert self.rate(desk, [default], strict=True) == [1024.0]
        for other in ({"match_type": 0, "match": "ann"}, {"entity_type": "client-id"}):
            assert self.rate(desk, [default | other]) == []
        assert self.alter(desk, op | {"remove": True}) is NONE
        assert desk.records.settings == {}

    @pytest.mark.parametrize(
        ("op", "entity"),
        [
            ({"key": "consumer_byte_rate"}, USER),
            ({"key": "request_percentage"}, USER),
            ({"value": 0.0}, USER),
            ({"value": -1.0}, USER),
            ({"value": float("nan")}, USER),
            ({"value": float("inf")}, USER),
            ({}, [{"entity_type": "user", "entity_name": "ann"}]),
            ({}, [{"entity_type": "client-id", "entity_name": None}]),
            ({}, [*USER, {"entity_type": "client-id", "entity_name": None}]),
        ],
    )
    def test_what_has_no_counterpart_is_refused(
        self, desk: Desk, op: dict[str, Any], entity: Any
    ) -> None:
        known = {"key": "producer_byte_rate", "value": 1024.0, "remove": False}
        assert self.alter(desk, known | op, entity=entity) is INVALID
        assert desk.records.settings == {}


class TestWhoMay:
    CALLS: tuple[tuple[ApiKey, dict[str, Any], Any], ...] = (
        (ApiKey.DESCRIBE_ACLS, ANY, lambda told: told.error_code),
        (ApiKey.CREATE_ACLS, {"creations": [entry()]}, lambda told: told.results[0].error_code),
        (ApiKey.DELETE_ACLS, {"filters": [ANY]}, lambda told: told.filter_results[0].error_code),
        (ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, {"users": None}, lambda told: told.error_code),
        (
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
            {"deletions": [], "upsertions": [upsertion("eve")]},
            lambda told: told.results[0].error_code,
        ),
        (
            ApiKey.DESCRIBE_CLIENT_QUOTAS,
            {"components": [], "strict": False},
            lambda told: told.error_code,
        ),
        (
            ApiKey.ALTER_CLIENT_QUOTAS,
            {
                "entries": [
                    {
                        "entity": USER,
                        "ops": [{"key": "producer_byte_rate", "value": 9.0, "remove": False}],
                    }
                ],
                "validate_only": False,
            },
            lambda told: told.entries[0].error_code,
        ),
    )

    @pytest.mark.parametrize(("key", "facts", "code"), CALLS)
    def test_who_may_not_manage_the_cluster_hears_and_changes_nothing(
        self, desk: Desk, key: ApiKey, facts: dict[str, Any], code: Any
    ) -> None:
        allows = {"effect": "allow", "action": "any", "resource": "stream", "name": "orders"}
        described = describe_tenants({"tenants": {"dev": {"acl": [allows]}}})
        desk.bench.tenant.guard.change(described["dev"], 0)
        desk.records.list, desk.records.settings = (EVERYTHING,), {"users.ann": "x"}
        assert code(desk.ask(key, **facts)) is DENIED
        assert desk.records.askers == [] and desk.records.list == (EVERYTHING,)

    @pytest.mark.parametrize(("key", "facts", "code"), CALLS)
    def test_a_node_without_control_plane_says_so(
        self, desk: Desk, key: ApiKey, facts: dict[str, Any], code: Any
    ) -> None:
        desk.bench.adapter.records = None
        assert code(desk.ask(key, **facts)) is OFF

    @pytest.mark.parametrize(
        ("why", "code"),
        [
            (ChangeRefusal.NOT_ALLOWED, DENIED),
            (ChangeRefusal.INVALID, INVALID),
            (ChangeRefusal.UNAVAILABLE, KafkaCode.request_timed_out),
        ],
    )
    def test_what_the_control_plane_refuses_is_told(
        self, desk: Desk, why: ChangeRefusal, code: KafkaCode
    ) -> None:
        desk.records.refusal = ChangeRefused(why, "because")
        desk.records.list = (EVERYTHING,)
        for key, facts, code_of in self.CALLS:
            if key in (
                *(ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS),
                *(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, ApiKey.ALTER_CLIENT_QUOTAS),
            ):
                assert code_of(desk.ask(key, **facts)) is code, key

    def test_only_plaintext_is_of_this_machine(self, desk: Desk) -> None:
        for transport, is_local in (("tcp", True), ("tls", False)):
            wire = BenchWire()
            wire.handler = desk.bench.adapter.new_connection()
            peer = ConnectionPeer(transport, "10.0.0.1:1", "dev", identity="someone")  # type: ignore[arg-type]
            wire.handler.opened(wire, peer)
            facts: dict[str, Any] = {"deletions": [], "upsertions": [upsertion("eve")]}
            desk.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, wire, **facts)
            assert desk.records.askers[-1].is_local is is_local
            assert desk.records.askers[-1].principal == "someone"
