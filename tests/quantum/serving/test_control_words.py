"""What a broker makes of the control plane's records: tables of words, and the plan of rings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clustor.control import (
    AclAction,
    AclEffect,
    ConfigHead,
    CreateTenant,
    DeleteTenant,
    DraftReading,
    Members,
    Placement,
    PlacePartition,
    RefusalCode,
    RegisterNode,
    ScopeKind,
    SetAcls,
    SetConfiguration,
    SetQuotas,
    SettingScope,
    TenantAclRule,
    TenantTier,
    UpdateTenant,
    find,
    scan,
)
from quantum.tenancy import (
    AclRefusal,
    Principal,
    Quotas,
    RateLimit,
    TenantDescription,
    describe_tenants,
)
from quantum.tenants.broker_file import BrokerFile, TenantEntry, TenantRing
from quantum.tenants.control_words import (
    TenantWord,
    connect_rules,
    describe,
    joined_sizes,
    tenant_word,
)
from quantum.tenants.group_ids import group_of
from quantum.tenants.records import FIRST_CONTROLLED_ORDINAL, tenant_records
from quantum.tenants.sizing import prgs_least
from quantum.types import ClientId
from tests.clustor.control.plane import Plane

STAY, AWAY = AclRefusal.REASON_CODE, AclRefusal.DISCONNECT
TOPICS = (b"plant/1", b"secret/x")


class Words:
    """A plane, asked for what it says of one tenant."""

    def __init__(self) -> None:
        self.plane = Plane()
        for node in (1, 2, 3):
            self.plane.done(
                RegisterNode(
                    node_id=node,
                    identity=f"spiffe://test/node/{node}",
                    zone=f"z{node}",
                    address=f"n{node}:1",
                    capacity=1_000_000,
                )
            )

    @property
    def store(self) -> DraftReading:
        return self.plane.machine.kv

    def create(self, name: str = "acme") -> None:
        self.plane.done(CreateTenant(tenant_id=name, sni=f"{name}.example"))

    def suspend(self, name: str = "acme", *, suspended: bool = True) -> None:
        self.plane.done(
            UpdateTenant(
                tenant_id=name,
                tier=TenantTier.PRODUCTION,
                group_fsync_allowed=False,
                dr_shipping=True,
                suspended=suspended,
            )
        )

    def rules(self, *rules: TenantAclRule, version: int = 0, disconnects: bool = False) -> None:
        self.plane.done(
            SetAcls(
                tenant_id="acme",
                expected_version=version,
                rules=rules,
                disconnect_on_refusal=disconnects,
            )
        )

    def configure(self, document: dict[str, object], tenant: str | None = "acme") -> None:
        scope = SettingScope(kind=ScopeKind.CLUSTER)
        if tenant is not None:
            scope = SettingScope(kind=ScopeKind.TENANT, name=tenant)
        head = find(self.store, ConfigHead, scope.kind.value, scope.name)
        version = head.version if head is not None else 0
        self.plane.done(
            SetConfiguration(scope=scope, expected_version=version, document=document)  # type: ignore[arg-type]
        )

    def word(self, name: str = "acme") -> TenantWord:
        return tenant_word(self.store, name)

    def carry_out(self, broker: BrokerFile = BrokerFile(()), *, settled: bool = True) -> None:  # noqa: B008
        plan = tenant_records(broker, lambda _p: Members(voters=(1, 2, 3)), lambda _n: settled)
        for _ in range(20):
            commands = list(plan(self.store))
            for command in commands:
                self.plane.done(command)
            if not commands:
                return
        raise AssertionError("the plan never ends")


@pytest.fixture
def words() -> Words:
    return Words()


def rule(effect: str, action: str, topics: str = "#", who: str = "*") -> TenantAclRule:
    return TenantAclRule(
        effect=AclEffect(effect), action=AclAction(action), filter=topics, principal=who
    )


# What is there.


def test_a_tenant_is_known_suspended_deleted_and_born_again(words: Words) -> None:
    assert words.word() == TenantWord("acme")
    words.create()
    words.carry_out()
    word = words.word()
    assert word.is_known and word.is_served and word.server_name == "acme.example"
    assert word.sizes == (3,) and word.founders == ((1, 2, 3),) * 3
    assert word.partitions[0] >= group_of(FIRST_CONTROLLED_ORDINAL, 0)
    words.suspend()
    assert words.word().is_suspended and not words.word().is_served
    words.plane.done(DeleteTenant(tenant_id="acme"))
    gone = words.word()
    assert gone.is_deleted and not gone.is_known and gone.partitions == ()
    words.carry_out()
    assert words.word() == gone, "nobody brings it back"
    words.create()
    words.carry_out()
    again = words.word()
    assert again.is_reborn and again.is_served
    assert not set(again.partitions) & set(word.partitions), "nothing of the old one is found"


def test_a_tenant_with_partitions_is_deleted_only_when_it_is_suspended(words: Words) -> None:
    words.create()
    words.carry_out()
    assert words.plane.refused(DeleteTenant(tenant_id="acme")) is RefusalCode.IN_USE
    assert words.word().is_served
    words.suspend()
    words.plane.done(DeleteTenant(tenant_id="acme"))
    assert [each.tenant_id for each in scan(words.store, Placement)] == []


def test_a_tenant_of_the_file_is_recorded_and_a_deleted_one_stays_deleted(words: Words) -> None:
    filed = BrokerFile((TenantEntry("dev", 2, rings=(TenantRing(3), TenantRing(5))),))
    words.carry_out(filed)
    word = words.word("dev")
    assert word.partitions == tuple(group_of(0, number) for number in range(5))
    assert word.sizes == (2, 3, 5), "each ring in its turn"
    words.suspend("dev")
    words.plane.done(DeleteTenant(tenant_id="dev"))
    words.carry_out(filed)
    assert words.word("dev").is_deleted
    words.create("dev")
    words.carry_out(filed)
    assert words.word("dev").is_reborn
    assert group_of(0, 0) not in words.word("dev").partitions


def test_a_ring_grows_to_what_the_configuration_wants_and_never_shrinks(words: Words) -> None:
    words.configure({"tenant_prg_count": 4})
    words.create()
    words.carry_out()
    first = words.word().partitions
    assert len(first) == 4
    words.configure({"tenant_prg_count": 6})
    words.carry_out(settled=False)
    assert words.word().partitions == first, "the change before it is not over"
    words.carry_out()
    assert words.word().partitions[:4] == first
    assert words.word().sizes == (4, 6)
    words.configure({"tenant_prg_count": 1})
    words.carry_out()
    assert words.word().sizes == (4, 6)


@pytest.mark.parametrize(
    ("quotas", "count"),
    [
        ({}, 3),
        ({"retained_bytes_max": 1 << 30}, 3),
        ({"connections_max": 50_000}, 3),
        ({"connections_max": 200_001}, 5),
        ({"publish_rate_max": 2_000}, 4),
        ({"publish_rate_max": 2_001, "connections_max": 300_000}, 6),
        ({"publish_rate_max": 10**9}, 512),
    ],
)
def test_a_production_tenant_has_the_partitions_that_its_quotas_ask_for(
    words: Words, quotas: dict[str, int], count: int
) -> None:
    """quantumqtt §2.1.1, §14.2: whatever the configuration says, three at the least."""
    words.configure({"tenant_prg_count": 1})
    words.create()
    assert prgs_least(words.store, "acme") == 3
    if quotas:
        words.plane.done(SetQuotas(tenant_id="acme", expected_version=0, quotas=quotas))
    assert prgs_least(words.store, "acme") == count
    if count < 10:
        words.carry_out()
        assert len(words.word().partitions) == count


def test_a_development_tenant_asks_for_nothing(words: Words) -> None:
    assert prgs_least(words.store, "nobody") == 1
    words.plane.done(CreateTenant(tenant_id="lab", sni="lab.x", tier=TenantTier.DEVELOPMENT))
    assert prgs_least(words.store, "lab") == 1
    words.configure({"tenant_prg_count": 1}, "lab")
    words.carry_out()
    assert len(words.word("lab").partitions) == 1


def test_the_founders_of_a_partition_stay_although_it_moves(words: Words) -> None:
    words.create()
    words.carry_out()
    partition = words.word().partitions[0]
    held = find(words.store, Placement, partition)
    assert held is not None
    words.plane.done(
        RegisterNode(
            node_id=4, identity="spiffe://test/node/4", zone="z1", address="n4:1", capacity=1000
        )
    )
    words.plane.done(
        PlacePartition(
            partition_id=partition,
            tenant_id="acme",
            members=Members(voters=(2, 3, 4)),
            load=1,
            expected_routing_epoch=held.routing_epoch,
        )
    )
    assert words.word().founders[0] == (1, 2, 3)


SIZES = {
    "same": ((3,), (3,), (3,)),
    "the file is ahead": ((3, 5), (3,), (3, 5)),
    "the control plane is ahead": ((3,), (3, 5), (3, 5)),
    "nothing is recorded": ((3,), (), (3,)),
    "they part": ((3, 5), (3, 6), None),
    "another beginning": ((2,), (3,), None),
}


@pytest.mark.parametrize(("file", "control", "joined"), SIZES.values(), ids=SIZES.keys())
def test_rings_of_file_and_control_plane(
    file: tuple[int, ...], control: tuple[int, ...], joined: tuple[int, ...] | None
) -> None:
    assert joined_sizes(file, control) == joined_sizes(control, file) == joined


# What is in force.

FILED = describe_tenants(
    {
        "tenants": {
            "acme": {
                "server_names": ["old.example"],
                "acl": [{"effect": "allow", "pattern": "plant/#"}],
                "quotas": {"connections": 7},
                "rates": {"publishes": {"per_second": 5}},
                "mqtt": "127.0.0.1:1",
            }
        }
    }
)["acme"]


def test_without_a_record_of_its_kind_the_file_holds(words: Words) -> None:
    words.create()
    found = describe(words.word(), FILED)
    assert found == replace(FILED, server_names=frozenset({"old.example", "acme.example"}))


def test_a_record_wins_kind_by_kind(words: Words) -> None:
    words.create()
    words.plane.done(
        SetQuotas(
            tenant_id="acme",
            expected_version=0,
            quotas={"connections_max": 9, "publish_rate_max": 3},
        )
    )
    found = describe(words.word(), FILED)
    assert found.policy.quotas == Quotas(connections=9)
    assert found.policy.rates.publishes == RateLimit(3, 3)
    assert found.acl is FILED.acl
    words.rules(rule("Allow", "Any", "secret/#"), disconnects=True)
    words.configure({"rates.connects": 2, "connection_rates.publishes": 1, "tenant_mqtt": "off"})
    found = describe(words.word(), FILED)
    assert allowed(found) == [False, True] and found.policy.acl_refusal is AWAY
    assert found.policy.rates.connects == RateLimit(2, 2)
    assert found.connection_rates.publishes == RateLimit(1, 1)
    assert found.mqtt is None


def test_a_narrow_scope_wins_and_what_cannot_be_read_changes_nothing(words: Words) -> None:
    words.create()
    words.configure({"rates.publishes": 1, "tenant_mqtt": "127.0.0.1:9"}, tenant=None)
    assert describe(words.word(), TenantDescription()).policy.rates.publishes == RateLimit(1, 1)
    assert describe(words.word(), TenantDescription()).mqtt is None, "one door for all is none"
    words.configure({"rates.publishes": 8, "rates.connects": "many"})
    word = words.word()
    assert describe(word, TenantDescription()).policy.rates.publishes == RateLimit(8, 8)
    assert describe(word, FILED).policy.rates.connects is None
    assert len(word.mistakes) == 1 and "rates.connects" in word.mistakes[0]
    words.configure({"rates.publishes": 0})
    assert describe(words.word(), FILED).policy.rates.publishes is None, "0: no bound"


RULES = {
    "nothing is allowed": ((), [False, False]),
    "one is": ((rule("Allow", "Any", "plant/#"),), [True, False]),
    "a denial wins, in any order": (
        (rule("Deny", "Any", "secret/#"), rule("Allow", "Any")),
        [True, False],
    ),
    "behind too": ((rule("Allow", "Any"), rule("Deny", "Publish", "secret/#")), [True, False]),
    "of another principal": ((rule("Allow", "Any", who="bob"),), [False, False]),
    "of this principal": ((rule("Allow", "Publish", who="ada"),), [True, True]),
    "to subscribe only": ((rule("Allow", "Subscribe"),), [False, False]),
    "an unreadable allowance is none": ((rule("Allow", "Any", "a/#/b"),), [False, False]),
    "an unreadable denial denies all": (
        (rule("Allow", "Any"), rule("Deny", "Any", "a/#/b")),
        [False, False],
    ),
    "about connecting": ((rule("Allow", "Connect"), rule("Allow", "Any")), [True, True]),
}


def allowed(description: TenantDescription) -> list[bool]:
    acl = description.acl
    assert acl is not None
    client = acl.for_client(Principal("ada"), ClientId(b"lamp"))
    return [client.publish(topic).allowed for topic in TOPICS]


@pytest.mark.parametrize(("rules", "publishes"), RULES.values(), ids=RULES.keys())
def test_rules(words: Words, rules: tuple[TenantAclRule, ...], publishes: list[bool]) -> None:
    words.create()
    words.rules(*rules)
    assert allowed(describe(words.word(), TenantDescription())) == publishes
    assert bool(words.word().mistakes) == any("#/" in each.filter for each in rules)


CONNECTS = {
    "no rule about it": ((rule("Allow", "Any", "x"),), True),
    "allowed": ((rule("Allow", "Connect"),), True),
    "another client id": ((rule("Allow", "Connect", "door"),), False),
    "its client id": ((rule("Allow", "Connect", "lamp"),), True),
    "denied": ((rule("Allow", "Connect"), rule("Deny", "Connect", who="ada")), False),
    "another is denied": ((rule("Allow", "Connect"), rule("Deny", "Connect", who="bob")), True),
    "an unreadable allowance": ((rule("Allow", "Connect", "a#"),), False),
    "an unreadable denial": ((rule("Allow", "Connect"), rule("Deny", "Connect", "a#")), False),
}


@pytest.mark.parametrize(("rules", "lets_in"), CONNECTS.values(), ids=CONNECTS.keys())
def test_who_may_connect(words: Words, rules: tuple[TenantAclRule, ...], *, lets_in: bool) -> None:
    words.create()
    words.rules(*rules)
    found = connect_rules(words.word())
    assert (found is None or found.allow("ada", b"lamp")) is lets_in
