"""Why a client waits, is refused or is slow: made to happen in a real service, and then asked."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from clustor.runtime.telemetry.why import GroupWhy
from clustor.telemetry import encode_families
from quantum.node.client_causes import Cause, ClientClause, ClientFacts, explain_client
from quantum.node.telemetry import BrokerTelemetry
from quantum.node.why import ClientWhy
from quantum.partition.backpressure import BACKLOG_BYTES_MAX
from quantum.protocols.mqtt.codec import Publish, ReasonCode, TopicName, encode_packet
from quantum.protocols.mqtt.codec.types import PacketId
from quantum.protocols.mqtt.session.limits import MqttLimits
from quantum.tenants.recent import Recent
from tests.quantum.serving.client import V5, Client, connect
from tests.quantum.serving.tenant_lab import TenantLab, TenantLine

RATES: dict[str, object] = {"rates": {"publishes": {"per_second": 10, "burst": 10}}}


class _Groups:
    """Stands for the groups' own explanations, which have tests of their own."""

    def explain(self, _group: object, question: str) -> tuple[None, Any]:
        return None, SimpleNamespace(sentence=f"<{question}>", holds=False)


def ask(lab: TenantLab, client: str, **query: str) -> list[Cause]:
    whys = ClientWhy(lab.service, cast("GroupWhy", _Groups()))
    answer = whys.get(f"/clients/{client}/why", query)
    assert answer is not None
    code, page = answer
    assert code == 200, page
    assert msgspec.json.encode(page), "it is JSON"
    assert isinstance(page, dict)
    return cast("list[Cause]", page["causes"])


def clauses(lab: TenantLab, client: str, **query: str) -> list[ClientClause]:
    return [cause.clause for cause in ask(lab, client, **query)]


def sentence(lab: TenantLab, client: str, clause: ClientClause, **query: str) -> str:
    return next(cause.sentence for cause in ask(lab, client, **query) if cause.clause is clause)


def publishes(count: int, size: int = 10, topic: bytes = b"t") -> bytes:
    return b"".join(
        encode_packet(Publish(TopicName(topic), b"x" * size, 1, packet_id=PacketId(1 + number)), V5)
        for number in range(count)
    )


def test_nothing_is_in_the_way() -> None:
    lab = TenantLab({"blue": {}})
    reader = connect(lab.door("blue"), client_id="reader")
    reader.subscribe(b"#", 1)
    assert clauses(lab, "reader") == [ClientClause.NONE]
    assert not any(cause.is_wrong for cause in ask(lab, "reader"))


def test_who_subscribes_to_nothing_is_told_so() -> None:
    lab = TenantLab({"blue": {}})
    connect(lab.door("blue"), client_id="reader")
    assert ClientClause.NO_SUBSCRIPTIONS in clauses(lab, "reader")


@pytest.mark.parametrize("expiry", [0, 600])
def test_a_full_receive_window(expiry: int) -> None:
    """Whether the machine or the connection keeps the messages."""
    lab = TenantLab({"blue": {}})
    reader = connect(
        lab.door("blue"),
        client_id="reader",
        receive_maximum=2,
        session_expiry_interval=expiry,
    )
    reader.subscribe(b"#", 1)
    writer = connect(lab.door("blue"))
    for number in range(5):
        writer.publish(b"t/%d" % number, b"", 1)
    words = sentence(lab, "reader", ClientClause.RECEIVE_WINDOW_FULL)
    assert "2 messages are unacknowledged and 2 may be" in words
    assert "3 wait" in words
    for _ in range(5):
        reader.take()
    assert ClientClause.RECEIVE_WINDOW_FULL not in clauses(lab, "reader")


def test_a_client_that_does_not_read() -> None:
    lab = TenantLab({"blue": {}})
    reader = connect(lab.door("blue"), client_id="reader")
    reader.subscribe(b"#", 1)
    cast("TenantLine", reader.line).writable = False
    connect(lab.door("blue")).publish(b"t", b"", 1)
    assert "does not read" in sentence(lab, "reader", ClientClause.NOT_READING)


def test_a_full_queue_and_the_topics_that_it_blocks() -> None:
    lab = TenantLab({"blue": {}}, prgs=1)
    reader = connect(lab.door("blue"), client_id="reader", clean=False, session_expiry_interval=600)
    reader.subscribe(b"full/#", 1)
    reader.cut()
    writer = connect(lab.door("blue"), client_id="writer")
    reasons = {writer.publish(b"full/t", b"x" * 1000, 1) for _ in range(1_100)}
    assert ReasonCode.QUOTA_EXCEEDED in reasons
    assert clauses(lab, "reader")[:2] == [ClientClause.NOT_CONNECTED, ClientClause.QUEUE_FULL]
    assert "are refused with 0x97" in sentence(lab, "reader", ClientClause.QUEUE_FULL)
    congested = clauses(lab, "writer", topic="full/t")
    assert ClientClause.CONGESTED in congested
    assert ClientClause.CONGESTED not in clauses(lab, "writer", topic="other")


def test_a_rate_that_is_exceeded_is_named() -> None:
    lab = TenantLab({"blue": RATES})
    writer = connect(lab.door("blue"), client_id="writer")
    cast("TenantLine", writer.line).send(publishes(15))
    cast("TenantLine", writer.line).send(publishes(1))
    words = sentence(lab, "writer", ClientClause.RATE)
    assert "its tenant's rate of publishes is exceeded" in words
    lab.tick(3_000)
    assert ClientClause.RATE not in clauses(lab, "writer")


def test_the_access_rules() -> None:
    rules = [{"effect": "allow", "pattern": "open/#"}]
    lab = TenantLab({"blue": {"acl": rules}})
    writer = connect(lab.door("blue"), client_id="writer")
    assert ClientClause.ACL not in clauses(lab, "writer", topic="open/door")
    assert "no rule allows it" in sentence(lab, "writer", ClientClause.ACL, topic="shut/door")
    assert writer.publish(b"shut/door", b"", 1) is ReasonCode.NOT_AUTHORIZED
    assert "PUBLISH_REFUSED of shut/door" in sentence(lab, "writer", ClientClause.ACL)


def test_commands_that_wait_for_credits() -> None:
    lab = TenantLab({"blue": {}}, prgs=1)
    writer = connect(lab.door("blue"), client_id="writer")
    lab.node.groups[0].admission.is_open = False
    cast("TenantLine", writer.line).send(publishes(3))
    words = sentence(lab, "writer", ClientClause.CREDITS)
    assert "1 commands wait" in words and "<WhyCreditZero>" in words
    lab.node.groups[0].admission.is_open = True
    lab.tick(50)
    assert ClientClause.CREDITS not in clauses(lab, "writer")


def test_a_backlog_that_holds_the_client() -> None:
    lab = TenantLab({"blue": {}}, MqttLimits(receive_maximum=60_000), prgs=1)
    writer = connect(lab.door("blue"), client_id="writer")
    lab.stick("blue", stuck=True)
    line = cast("TenantLine", writer.line)
    for _ in range(BACKLOG_BYTES_MAX // 500_000 + 2):
        line.send(publishes(1, 500_000))
    assert "until partition 0 has logged" in sentence(lab, "writer", ClientClause.BACKLOG)
    lab.stick("blue", stuck=False)
    assert ClientClause.BACKLOG not in clauses(lab, "writer")


def test_publishes_that_wait_for_another_partition() -> None:
    lab = TenantLab({"blue": {}})
    writer = connect(lab.door("blue"), client_id="writer")
    tenant = lab.tenant("blue")
    home = tenant.session_prg(b"writer")
    topic = next(b"t%d" % n for n in range(99) if tenant.owner(b"t%d" % n) is not home)
    owner = tenant.owner(topic)
    replica = next(g.replica for g in lab.node.groups if g is cast("Any", owner.group))
    replica.is_stuck = True
    cast("TenantLine", writer.line).send(publishes(4, topic=topic))
    lab.tick(100)
    words = sentence(lab, "writer", ClientClause.FORWARD)
    assert f"for partition {owner.number}, which owns their topics" in words
    assert words.startswith("4 publishes")


def test_a_partition_without_a_leader() -> None:
    lab = TenantLab({"blue": {}})
    connect(lab.door("blue"), client_id="reader")
    lab.lead(leads=False)
    (first, *_) = ask(lab, "reader")
    assert first.clause is ClientClause.NO_LEADER
    assert "which has no leader: <WhyNotLeader>" in first.sentence
    lab.lead(leads=True)
    assert ClientClause.NO_LEADER not in clauses(lab, "reader")


def test_who_was_never_seen_and_why_the_last_connection_ended() -> None:
    lab = TenantLab({"blue": {}})
    assert clauses(lab, "nobody") == [ClientClause.UNKNOWN]
    reader = connect(lab.door("blue"), client_id="reader")
    connect(lab.door("blue"), client_id="reader")
    reader.expect_disconnect(ReasonCode.SESSION_TAKEN_OVER)
    assert "taken over" in sentence(lab, "reader", ClientClause.RECENTLY)
    lab.node.clock_ms += 700_000
    assert ClientClause.RECENTLY not in clauses(lab, "reader"), "long ago explains nothing"


def test_a_refused_connection_is_remembered() -> None:
    lab = TenantLab({"blue": {"quotas": {"connections": 1}}})
    connect(lab.door("blue"))
    refused = connect(lab.door("blue"), client_id="late")
    assert refused.connack.reason_code is ReasonCode.QUOTA_EXCEEDED
    words = " ".join(cause.sentence for cause in ask(lab, "late"))
    assert "refused: CONNECTION_OVER_QUOTA" in words
    assert "ended: the tenant has too many connections" in words


def test_a_tenant_that_is_not_there() -> None:
    lab = TenantLab({"blue": {}})
    whys = ClientWhy(lab.service, cast("GroupWhy", _Groups()))
    answer = whys.get("/clients/a/why", {"tenant": "red"})
    assert answer is not None and answer[0] == 404
    assert whys.get("/clients/a", {}) is None


ELSEWHERE: dict[str, tuple[Callable[[ClientFacts], None], ClientClause]] = {
    "starting": (lambda f: setattr(f, "is_led_here", True), ClientClause.LEADER_STARTING),
    "unreachable": (
        lambda f: setattr(f, "is_leader_reachable", False),
        ClientClause.LEADER_UNREACHABLE,
    ),
    "served there": (lambda f: None, ClientClause.NONE),
}


@pytest.mark.parametrize(("change", "clause"), ELSEWHERE.values(), ids=ELSEWHERE.keys())
def test_a_node_that_does_not_serve_says_who_does(
    change: Callable[[ClientFacts], None], clause: ClientClause
) -> None:
    facts = ClientFacts(
        "c", "blue", 1, 1001, 2, is_served_here=False, is_led_here=False, is_leader_reachable=True
    )
    change(facts)
    assert explain_client(facts)[0].clause is clause


def test_what_is_remembered_is_bounded() -> None:
    recent = Recent(int)
    for number in range(5_000):
        recent.note(b"client-%d" % (number % 3_000), "something")
    assert len(recent._remarks) == 1_024
    for number in range(50):
        recent.note(b"chatty", str(number))
    assert [each.what for each in recent.of(b"chatty")] == [str(n) for n in range(42, 50)]


def series(lab: TenantLab, client: Client | None = None) -> dict[str, float]:
    del client
    families = [each for each in BrokerTelemetry(lab.service).families() if each is not None]
    lines = encode_families(families).decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def test_publishes_are_counted_each_once() -> None:
    lab = TenantLab({"blue": {}})
    cast("Any", lab.node.groups[0].admission).lags = dict
    for group in lab.node.groups:
        cast("Any", group.admission).lags = dict
        cast("Any", group.replica.group).durability = SimpleNamespace(oldest_write_age_ms=int)
    reader = connect(lab.door("blue"), client_id="reader")
    reader.subscribe(b"#", 2)
    writer = connect(lab.door("blue"))
    for qos, count in ((0, 3), (1, 4), (2, 5)):
        for _ in range(count):
            writer.publish(b"t", b"", qos)
            reader.take()
    found = series(lab)
    for qos, count in ((0, 3), (1, 4), (2, 5)):
        assert found[f'quantum_publishes_received_total{{qos="{qos}"}}'] == count
        assert found[f'quantum_publishes_sent_total{{qos="{qos}"}}'] == count
    assert found["quantum_connections"] == 2
    writer.publish(b"$SYS/no", b"", 1)
    found = series(lab)
    refused = 'quantum_refused_total{packet="PUBLISH",reason="not_authorized"}'
    assert found[refused] == 1
