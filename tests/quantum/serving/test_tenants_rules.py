"""Access rules where they are enforced: publish, subscribe, will (quantumqtt §10.2, C14)."""

from __future__ import annotations

import logging

import pytest

from quantum.protocols.mqtt.codec import (
    Properties,
    ProtocolVersion,
    Publish,
    ReasonCode,
    SubscribePacket,
    Subscription,
    TopicFilter,
    TopicName,
)
from tests.quantum.serving.client import V5, V31, V311, Client, connect, will
from tests.quantum.serving.tenant_lab import TenantLab

ALL = pytest.mark.parametrize("version", [V31, V311, V5], ids=["3.1", "3.1.1", "5"])
RULES: list[dict[str, object]] = [
    {"effect": "allow", "pattern": "open/#"},
    {"effect": "deny", "action": "publish", "pattern": "open/closed/#"},
    {"effect": "allow", "action": "publish", "pattern": "own/%c"},
    {"effect": "allow", "action": "subscribe", "pattern": "boss", "principals": ["boss"]},
]


def lab_with(refusal: str = "stay") -> TenantLab:
    return TenantLab({"blue": {"acl": RULES, "acl_refusal": refusal}, "free": {}})


@pytest.fixture
def lab() -> TenantLab:
    return lab_with()


@pytest.fixture
def reader(lab: TenantLab) -> Client:
    """One who hears everything that is published: it subscribed before there were rules."""
    lab.forget("blue")
    reader = connect(lab.door("blue"))
    reader.subscribe(b"#", 2)
    # Rules come back for new connections only: this reader stands for the world behind them.
    lab.tenant("blue").guard.change(lab._described["blue"], 0)
    return reader


class TestPublish:
    @ALL
    @pytest.mark.parametrize("qos", [0, 1, 2])
    @pytest.mark.parametrize("topic", [b"other", b"open/closed/x", b"own/else", b"own/dev/x"])
    def test_what_is_forbidden_is_dropped_and_the_client_stays(
        self, lab: TenantLab, reader: Client, version: ProtocolVersion, qos: int, topic: bytes
    ) -> None:
        """C14: 0x87 in PUBACK and PUBREC; before MQTT 5 it is acknowledged and dropped."""
        writer = connect(lab.door("blue"), version, client_id="dev")
        for _ in range(2):
            reason = writer.publish(topic, b"x", qos)
            if qos:
                is_told = version is V5
                assert (reason is ReasonCode.NOT_AUTHORIZED) is is_told
        writer.expect_quiet()
        reader.expect_quiet()
        writer.publish(b"own/dev", b"y", qos)
        assert reader.take().payload == b"y"

    @pytest.mark.parametrize("qos", [0, 1, 2])
    def test_in_one_piece_only_the_forbidden_ones_are_refused(
        self, lab: TenantLab, reader: Client, qos: int
    ) -> None:
        writer = connect(lab.door("blue"))
        topics = [b"open/1", b"shut", b"open/2", b"shut", b"open/1"]
        ids = [writer.draw_id() if qos else 0 for _ in topics]
        packets = [
            Publish(TopicName(each), each, qos, packet_id=packet_id)  # type: ignore[arg-type]
            for each, packet_id in zip(topics, ids, strict=True)
        ]
        writer.send(*packets)
        heard = sorted(reader.take().payload for _ in range(3))
        assert heard == [b"open/1", b"open/1", b"open/2"]
        if qos:
            reasons = [writer.receive().reason_code.is_failure for _ in topics]  # type: ignore[union-attr]
            assert reasons == [False, True, False, True, False]

    def test_an_alias_does_not_get_around(self, lab: TenantLab, reader: Client) -> None:
        writer = connect(lab.door("blue"))
        alias = Properties(topic_alias=1)
        assert writer.publish(b"shut", b"x", 1, properties=alias) is ReasonCode.NOT_AUTHORIZED
        assert writer.publish(b"", b"x", 1, properties=alias) is ReasonCode.NOT_AUTHORIZED
        reader.expect_quiet()

    @ALL
    @pytest.mark.parametrize("qos", [0, 1, 2])
    def test_the_policy_may_be_to_disconnect(self, version: ProtocolVersion, qos: int) -> None:
        lab = lab_with("disconnect")
        writer = connect(lab.door("blue"), version)
        writer.send(Publish(TopicName(b"shut"), b"x", qos, packet_id=7 if qos else 0))  # type: ignore[arg-type]
        writer.expect_disconnect(ReasonCode.NOT_AUTHORIZED)

    def test_it_is_written_down_once_for_each_topic(
        self, lab: TenantLab, caplog: pytest.LogCaptureFixture
    ) -> None:
        writer = connect(lab.door("blue", "me"), client_id="dev")
        with caplog.at_level(logging.WARNING, "quantum.audit"):
            for _ in range(5):
                writer.publish(b"shut", b"a payload", 1)
        assert caplog.messages == [
            "PUBLISH_REFUSED tenant=blue client=b'dev' identity=me about=b'shut'"
        ]

    def test_other_tenants_have_no_rules(self, lab: TenantLab) -> None:
        assert not connect(lab.door("free")).publish(b"shut", b"x", 1).is_failure

    def test_a_tenant_without_rules_shares_its_table_of_topics(self, lab: TenantLab) -> None:
        """So that rules cost nothing where there are none."""
        free, ruled = connect(lab.door("free")), connect(lab.door("blue"))
        permits = [client.line.handler.permit for client in (free, ruled)]  # type: ignore[attr-defined]
        assert permits[0].owners is lab.tenant("free").owners and permits[0].gate is None
        ruled.publish(b"open/x", b"", 1)
        assert list(permits[1].owners) == [b"open/x"]


class TestSubscribe:
    @ALL
    def test_each_filter_is_answered_for_itself(
        self, lab: TenantLab, version: ProtocolVersion
    ) -> None:
        """C14: 0x87 in SUBACK, 0x80 before MQTT 5."""
        reader = connect(lab.door("blue"), version)
        filters = [b"open/+", b"#", b"open/#", b"boss", b"+/a"]
        lines = [Subscription(TopicFilter(each), 1) for each in filters]
        no = ReasonCode.NOT_AUTHORIZED if version is V5 else ReasonCode.UNSPECIFIED_ERROR
        yes = ReasonCode.GRANTED_QOS_1
        assert reader.subscribe_all(lines) == (yes, no, yes, no, no)
        reader.expect_quiet()

    def test_all_refused(self, lab: TenantLab) -> None:
        reader = connect(lab.door("blue"))
        assert reader.subscribe(b"#", 1) is ReasonCode.NOT_AUTHORIZED
        assert not any(machine.state.subscription_count for machine in lab.machines("blue"))

    @pytest.mark.parametrize("topic_filter", [b"$share/g/#", b"$share/g/boss", b"$SYS/#"])
    def test_shares_and_the_servers_own_topics_are_no_way_around(
        self, lab: TenantLab, topic_filter: bytes
    ) -> None:
        assert connect(lab.door("blue")).subscribe(topic_filter) is ReasonCode.NOT_AUTHORIZED

    def test_rules_for_a_principal(self, lab: TenantLab) -> None:
        assert not connect(lab.door("blue", "boss")).subscribe(b"boss", 1).is_failure
        assert connect(lab.door("blue", "clerk")).subscribe(b"boss", 1).is_failure

    @ALL
    def test_the_policy_may_be_to_disconnect(self, version: ProtocolVersion) -> None:
        reader = connect(lab_with("disconnect").door("blue"), version)
        line = Subscription(TopicFilter(b"#"), 1)
        reader.send(SubscribePacket(reader.draw_id(), (line,)))
        reader.expect_disconnect(ReasonCode.NOT_AUTHORIZED)


class TestWill:
    @ALL
    def test_a_forbidden_will_is_refused_with_its_connect(
        self, lab: TenantLab, version: ProtocolVersion
    ) -> None:
        client = connect(lab.door("blue"), version, will=will(b"shut", qos=1))
        assert client.connack.reason_code is ReasonCode.NOT_AUTHORIZED
        client.expect_end()

    def test_an_allowed_one_is_said(self, lab: TenantLab, reader: Client) -> None:
        connect(lab.door("blue"), will=will(b"open/gone", qos=1)).cut()
        assert reader.take().topic == b"open/gone"


class TestChange:
    """Rules may change while clients are connected."""

    def test_a_topic_that_was_allowed_is_refused(self, lab: TenantLab) -> None:
        writer = connect(lab.door("blue"))
        assert not writer.publish(b"open/x", b"", 1).is_failure
        lab.describe({"blue": {"acl": []}})
        assert writer.publish(b"open/x", b"", 1) is ReasonCode.NOT_AUTHORIZED
        lab.describe({"blue": {}})
        assert not writer.publish(b"anything", b"", 1).is_failure

    def test_subscriptions_end(self, lab: TenantLab) -> None:
        reader = connect(lab.door("blue"))
        reader.subscribe(b"open/a", 1)
        reader.subscribe(b"$share/g/open/b", 1)
        lab.describe({"blue": {"acl": [{"effect": "allow", "action": "publish", "pattern": "#"}]}})
        writer = connect(lab.door("blue"))
        for topic in (b"open/a", b"open/b"):
            writer.publish(topic, b"x", 1)
        reader.expect_quiet()
        assert not any(machine.state.subscription_count for machine in lab.machines("blue"))

    def test_subscriptions_of_a_sleeping_session_end_when_it_returns(self, lab: TenantLab) -> None:
        options = {"client_id": "dev", "clean": False, "session_expiry_interval": 60}
        reader = connect(lab.door("blue"), **options)  # type: ignore[arg-type]
        reader.subscribe(b"open/a", 1)
        reader.cut()
        lab.describe({"blue": {"acl": [{"effect": "allow", "action": "publish", "pattern": "#"}]}})
        reader = connect(lab.door("blue"), **options)  # type: ignore[arg-type]
        connect(lab.door("blue")).publish(b"open/a", b"x", 1)
        reader.expect_quiet()
