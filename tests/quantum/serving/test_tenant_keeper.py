"""Tenants come, change and go with the control plane's records, while the others go on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from clustor.control import (
    AclAction,
    AclEffect,
    Command,
    ControlCache,
    CreateTenant,
    DeleteTenant,
    Members,
    RegisterNode,
    ScopeKind,
    SetAcls,
    SetConfiguration,
    SetQuotas,
    SettingScope,
    TenantAclRule,
    TenantTier,
    UpdateTenant,
)
from clustor.control.draft import find
from clustor.control.tenants import AclPolicy, QuotaPolicy
from clustor.kv import Key, KvRecord, RecordPage
from clustor.security import AuditEvent
from quantum.node.orders import is_settled
from quantum.protocols.mqtt.codec import ProtocolVersion, ReasonCode
from quantum.tenants.broker_file import BrokerFile, TenantEntry
from quantum.tenants.follower import Changed, TenantKeeper
from quantum.tenants.records import tenant_records
from tests.clustor.control.plane import Plane
from tests.quantum.serving.client import V5, V311, Client, connect, will
from tests.quantum.serving.tenant_lab import TenantLab

BOTH = pytest.mark.parametrize("version", [V311, V5], ids=["3.1.1", "5"])


@dataclass
class Copy:
    """The whole store of a plane, in the place of a node's copy."""

    plane: Plane

    @property
    def tenants_revision(self) -> int:
        return self.plane.machine.kv.revision

    def get(self, key: Key) -> KvRecord | None:
        return self.plane.machine.kv.get(key)

    def range(self, start: bytes, end: bytes | None, limit: int) -> RecordPage:
        return self.plane.machine.kv.range(start, end, limit)


class Desk:
    """An audit log that is looked at."""

    def __init__(self) -> None:
        self.acts: list[AuditEvent] = []
        self.refusals: list[tuple[str, str]] = []

    def note(self, event: AuditEvent) -> bool:
        self.acts.append(event)
        return True

    def refused(self, what: str, *, tenant: str = "", **_rest: str) -> None:
        self.refusals.append((what, tenant))

    def client_did(self, what: str, **facts: object) -> None:
        """Who comes and goes is no matter here."""


class ControlledLab(TenantLab):
    """A broker with one tenant of the file, `dev`, that follows a plane."""

    def __init__(self) -> None:
        self.plane = Plane()
        super().__init__({"dev": {}})
        self.filed = BrokerFile((TenantEntry("dev", 3),))
        self.desk = Desk()
        self.service.audit = cast("Any", self.desk)
        copy = cast("ControlCache", Copy(self.plane))
        self.keeper = TenantKeeper(self.service, lambda: copy, 1, self.filed)
        self.changes: list[Changed] = []
        self.keeper.on_changed = self.changes.append
        self.service.keeper = self.keeper
        self.keeper.describe({})
        self.call(
            RegisterNode(
                node_id=1, identity="spiffe://test/node/1", zone="z", address="n:1", capacity=10**6
            ),
            RegisterNode(
                node_id=2, identity="spiffe://test/node/2", zone="y", address="n:2", capacity=10**6
            ),
            RegisterNode(
                node_id=3, identity="spiffe://test/node/3", zone="x", address="n:3", capacity=10**6
            ),
        )

    def call(self, *commands: Command) -> None:
        """Call, let the leader's plan be carried out, and let the node follow."""
        for command in commands:
            self.plane.done(command)
        self.call_nobody()
        self.tick(200)

    def call_nobody(self) -> None:
        """Let the leader's plan be carried out, and nobody follow."""
        plan = tenant_records(self.filed, lambda _p: Members(voters=(1, 2, 3)), self.is_settled)
        while missing := plan(self.plane.machine.kv):
            for command in missing:
                self.plane.done(command)

    def is_settled(self, name: str) -> bool:
        tenant = self.service.tenants.get(name)
        return tenant is not None and is_settled(tenant)

    def create(self, name: str = "acme") -> None:
        self.call(CreateTenant(tenant_id=name, sni=f"{name}.example"))

    def suspend(self, name: str = "acme", *, suspended: bool = True) -> None:
        self.call(
            UpdateTenant(
                tenant_id=name,
                tier=TenantTier.PRODUCTION,
                group_fsync_allowed=False,
                dr_shipping=True,
                suspended=suspended,
            )
        )

    def rules(self, *rules: tuple[str, str, str]) -> None:
        held = find(self.plane.machine.kv, AclPolicy, "acme")
        lines = tuple(
            TenantAclRule(effect=AclEffect(e), action=AclAction(a), filter=f) for e, a, f in rules
        )
        version = held.version if held is not None else 0
        self.call(SetAcls(tenant_id="acme", expected_version=version, rules=lines))

    def quotas(self, **quotas: int) -> None:
        held = find(self.plane.machine.kv, QuotaPolicy, "acme")
        assert held is not None
        self.call(SetQuotas(tenant_id="acme", expected_version=held.version, quotas=quotas))

    def configure(self, scope: SettingScope, version: int, **document: object) -> None:
        named = {key.replace("__", "."): value for key, value in document.items()}
        self.call(
            SetConfiguration(scope=scope, expected_version=version, document=named)  # type: ignore[arg-type]
        )

    def client(self, tenant: str = "acme", version: ProtocolVersion = V5, **more: Any) -> Client:
        return connect(self.door(tenant), version, **more)


@pytest.fixture
def lab() -> ControlledLab:
    return ControlledLab()


def test_a_new_tenant_is_served_at_once_and_alone(lab: ControlledLab) -> None:
    neighbour = lab.client("dev")
    neighbour.subscribe(b"#", 1)
    assert lab.client("acme").connack.reason_code is ReasonCode.NOT_AUTHORIZED
    lab.create()
    assert lab.service.server_names == {"acme.example": "acme"}
    client = lab.client()
    client.subscribe(b"#", 1)
    client.publish(b"t", b"mine", 1)
    assert client.take().payload == b"mine"
    neighbour.expect_quiet()
    assert [change.names for change in lab.changes] == [True]


@BOTH
def test_a_suspended_tenant_s_clients_go_with_the_right_word(
    lab: ControlledLab, version: ProtocolVersion
) -> None:
    lab.create()
    neighbour, kept = lab.client("dev"), {"client_id": "kept", "clean": False}
    if version is V5:
        kept["session_expiry_interval"] = 100
    client = lab.client("acme", version, **kept)
    client.subscribe(b"t", 1)
    lab.suspend()
    client.expect_disconnect(ReasonCode.ADMINISTRATIVE_ACTION)
    refused = lab.client("acme", version).connack
    assert refused.reason_code in (ReasonCode.BANNED, ReasonCode.NOT_AUTHORIZED)
    neighbour.expect_quiet()
    lab.suspend(suspended=False)
    assert lab.client("acme", version, **kept).connack.session_present
    assert [event.what for event in lab.desk.acts] == ["TenantSuspended", "TenantServedAgain"]
    assert ("ClientSentAway", "acme") in lab.desk.refusals


def test_a_suspension_keeps_the_will_back(lab: ControlledLab) -> None:
    lab.create()
    watcher = lab.client("dev")
    lab.client("acme", will=will(b"gone", b"", 1, retain=True))
    lab.suspend()
    lab.suspend(suspended=False)
    reader = lab.client()
    reader.subscribe(b"gone", 1)
    reader.expect_quiet()
    watcher.expect_quiet()


def test_a_deleted_tenant_is_gone_and_one_of_its_name_begins_empty(lab: ControlledLab) -> None:
    lab.create()
    client = lab.client()
    client.publish(b"t", b"old", 1, retain=True)
    groups = [prg.group.partition_id for prg in lab.tenant("acme").prgs]
    lab.suspend()
    lab.call(DeleteTenant(tenant_id="acme"))
    assert "acme" not in lab.service.tenants and lab.service.server_names == {}
    assert lab.client("acme").connack.reason_code is ReasonCode.NOT_AUTHORIZED
    assert {each.partition_id for each in lab.node.groups} >= set(groups), "what is kept stays"
    lab.create()
    assert not {prg.group.partition_id for prg in lab.tenant("acme").prgs} & set(groups)
    assert lab.tenant("acme").life != "acme", "other nodes cannot take one for the other"
    reader = lab.client()
    reader.subscribe(b"#", 1)
    reader.expect_quiet()


def test_rules_that_are_taken_away_stop_publishes_and_deliveries(lab: ControlledLab) -> None:
    lab.create()
    lab.rules(("Allow", "Any", "#"))
    writer, reader = lab.client(client_id="writer"), lab.client(client_id="reader")
    reader.subscribe(b"secret", 1)
    writer.publish(b"secret", b"1", 1)
    assert reader.take().payload == b"1"
    lab.rules(("Allow", "Publish", "secret"), ("Allow", "Any", "open"))
    writer.publish(b"secret", b"2", 1)
    reader.expect_quiet()
    lab.rules(("Allow", "Any", "open"))
    assert writer.publish(b"secret", b"3", 1) is ReasonCode.NOT_AUTHORIZED
    lab.rules(("Allow", "Any", "#"), ("Allow", "Connect", "reader"))
    writer.expect_disconnect(ReasonCode.ADMINISTRATIVE_ACTION)
    reader.expect_quiet()
    assert lab.client(client_id="writer").connack.reason_code is ReasonCode.NOT_AUTHORIZED


def test_quotas_and_rates_are_in_force_at_once_and_told(lab: ControlledLab) -> None:
    lab.create()
    first = lab.client()
    lab.quotas(connections_max=0)
    assert lab.client().connack.reason_code is ReasonCode.QUOTA_EXCEEDED
    assert ("QuotaExceeded", "acme") in lab.desk.refusals
    first.expect_quiet()
    lab.quotas(subscription_filters_max=0)
    assert first.subscribe(b"t", 0) is ReasonCode.QUOTA_EXCEEDED
    assert ("SUBSCRIBE_OVER_QUOTA", "acme") in lab.desk.refusals
    lab.quotas(publish_rate_max=1)
    assert lab.tenant("acme").guard.description.policy.rates.publishes is not None


def test_limits_of_the_configuration_are_for_connections_from_then_on(lab: ControlledLab) -> None:
    cluster, node = (
        SettingScope(kind=ScopeKind.CLUSTER),
        SettingScope(kind=ScopeKind.NODE, name="1"),
    )
    lab.configure(cluster, 0, receive_maximum=7)
    assert lab.client("dev").connack.properties.receive_maximum == 7
    lab.configure(node, 0, receive_maximum=5)
    lab.configure(SettingScope(kind=ScopeKind.NODE, name="2"), 0, receive_maximum=3)
    assert lab.client("dev").connack.properties.receive_maximum == 5
    lab.configure(node, 1)
    lab.configure(cluster, 1, receive_maximum="lots")
    assert lab.service.limits.receive_maximum == 1_024, "what cannot be read changes nothing"


def test_many_tenants_are_opened_one_in_a_turn(lab: ControlledLab) -> None:
    """Opening groups takes the loop's time, which is everybody's."""
    for name in ("a", "b", "c"):
        lab.plane.done(CreateTenant(tenant_id=name, sni=f"{name}.example"))
    lab.call_nobody()
    seen = []
    for _ in range(4):
        lab.keeper.follow()
        seen.append(len(lab.service.tenants))
    assert seen == [2, 3, 4, 4]


def test_a_door_of_its_own_and_a_ring_that_grows(lab: ControlledLab) -> None:
    lab.create()
    scope = SettingScope(kind=ScopeKind.TENANT, name="acme")
    client = lab.client(client_id="kept", clean=False, session_expiry_interval=100)
    client.subscribe(b"#", 1)
    lab.changes.clear()
    lab.configure(scope, 0, tenant_mqtt="127.0.0.1:1", tenant_prg_count=5)
    assert [change.doors for change in lab.changes] == [True]
    lab.tick(3_000)
    tenant = lab.tenant("acme")
    assert len(tenant.prgs) == 5 and is_settled(tenant) and tenant.prg_count == 5
    again = lab.client(client_id="kept", clean=False, session_expiry_interval=100)
    assert again.connack.session_present
    for number in range(20):
        again.publish(b"t/%d" % number, b"", 1)
        again.take()


def test_the_file_s_tenant_obeys_records_too(lab: ControlledLab) -> None:
    client = lab.client("dev")
    lab.suspend("dev")
    client.expect_disconnect(ReasonCode.ADMINISTRATIVE_ACTION)
    lab.suspend("dev", suspended=False)
    assert lab.client("dev").connack.reason_code is ReasonCode.SUCCESS
