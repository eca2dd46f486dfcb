"""Whether a message would come, by the rules that enforce it; and acknowledgements that name it."""

from __future__ import annotations

import re

import pytest

from clustor.security.receipts import digest_message, receipt_id
from quantum.node.delivery import DeliveryExplainer, DeliveryQuestion
from quantum.node.delivery_rows import DeliveryView
from quantum.protocols.mqtt.codec import (
    Properties,
    ProtocolVersion,
    Puback,
    Publish,
    Pubrec,
    ReasonCode,
)
from quantum.protocols.mqtt.codec.types import PacketId, TopicName
from tests.quantum.serving.client import V5, V311, Client, connect
from tests.quantum.serving.tenant_lab import TenantLab
from tests.quantum.serving.test_full_queues import fill
from tests.quantum.serving.test_tenants_limits import OPEN

ASKS = Properties(user_properties=(("quantum-receipt", ""),))
TOPICS = [b"one", b"two", b"three", b"four", b"five", b"six"]
"""Enough that the topics' partitions are not all the publisher's own (checked below)."""


def explained(lab: TenantLab, topic: str, client: str, **more: object) -> DeliveryView:
    asked = DeliveryQuestion(tenant="blue", topic=topic, client_id=client, **more)  # type: ignore[arg-type]
    return DeliveryExplainer(lab.service).look(lab.tenant("blue"), asked)


def verdict(view: DeliveryView) -> tuple[str, str]:
    return view.delivered, view.rule


def lab_of(*rules: dict[str, object], **more: object) -> TenantLab:
    return TenantLab({"blue": {"acl": list(rules), **more} if rules else dict(more)})


def test_who_subscribes_gets_it_and_does() -> None:
    lab = lab_of()
    reader = connect(lab.door("blue"), client_id="reader")
    reader.subscribe(b"a/+", 1)
    assert verdict(explained(lab, "a/b", "reader")) == ("yes", "")
    assert verdict(explained(lab, "a/b/c", "reader")) == ("no", "Subscription")
    connect(lab.door("blue")).publish(b"a/b", b"", 1)
    assert reader.take().topic == b"a/b"


def test_a_topic_that_is_withheld_names_the_rule_that_denies_it() -> None:
    lab = lab_of(
        {"effect": "allow", "pattern": "#"},
        {"effect": "deny", "action": "subscribe", "pattern": "a/secret", "principals": ["me"]},
    )
    reader = connect(lab.door("blue", "me"), client_id="reader")
    reader.subscribe(b"a/#", 1)
    other = connect(lab.door("blue", "you"), client_id="other")
    other.subscribe(b"a/#", 1)
    stopped = explained(lab, "a/secret", "reader")
    assert verdict(stopped) == ("no", "WithheldAcl") and "rule 2 (Deny" in stopped.sentence
    assert stopped.principal == "me" and "set-acls" in stopped.command
    assert verdict(explained(lab, "a/open", "reader")) == ("yes", "")
    assert verdict(explained(lab, "a/secret", "other")) == ("yes", "")
    connect(lab.door("blue")).publish(b"a/secret", b"", 1)
    assert other.take().topic == b"a/secret"
    reader.expect_quiet()


def test_a_publisher_that_may_not_is_named_before_anything_else() -> None:
    lab = lab_of(
        {"effect": "allow", "pattern": "#", "principals": ["boss"]},
        {"effect": "allow", "action": "subscribe", "pattern": "#"},
    )
    reader = connect(lab.door("blue"), client_id="reader")
    reader.subscribe(b"t", 1)
    view = explained(lab, "t", "reader", publisher="writer")
    assert verdict(view) == ("no", "PublishAcl") and "writer publishes to t" in view.sentence
    allowed = explained(lab, "t", "reader", publisher="writer", publisher_principal="boss")
    assert verdict(allowed) == ("yes", "")


def test_a_publisher_with_no_local_gets_nothing_of_its_own() -> None:
    lab = lab_of()
    client = connect(lab.door("blue"), client_id="both")
    client.subscribe(b"t", 1, no_local=True)
    assert verdict(explained(lab, "t", "both", publisher="both")) == ("no", "NoLocal")
    assert verdict(explained(lab, "t", "both", publisher="other")) == ("yes", "")


def test_a_full_queue_stops_what_is_above_qos_0_for_everybody() -> None:
    lab = TenantLab({"blue": {}}, OPEN)
    fill(lab)
    reader = connect(lab.door("blue"), client_id="reader")
    reader.subscribe(b"t", 1)
    stopped = explained(lab, "t", "reader")
    assert verdict(stopped) == ("no", "FullQueue") and "0x97" in stopped.sentence
    assert verdict(explained(lab, "t", "reader", qos=0)) == ("yes", "")


def publish(client: Client, topic: bytes, qos: int, properties: Properties) -> Puback | Pubrec:
    packet_id = PacketId(77)
    client.send(Publish(TopicName(topic), b"said", qos, packet_id=packet_id, properties=properties))
    kind: type[Puback | Pubrec] = Puback if qos == 1 else Pubrec
    answer: Puback | Pubrec = client.expect_answer(kind)
    assert answer.packet_id == packet_id
    return answer


@pytest.mark.parametrize("qos", [1, 2])
def test_an_acknowledgement_names_the_entry_in_the_topic_s_own_partition(qos: int) -> None:
    lab = lab_of()
    tenant = lab.tenant("blue")
    client = connect(lab.door("blue"), client_id="payer")
    owners = set()
    for topic in TOPICS:
        owner = tenant.owner(topic)
        owners.add(owner)
        (said,) = publish(client, topic, qos, ASKS).properties.user_properties
        if qos == 2:
            client.leave()
            client = connect(lab.door("blue"), client_id="payer")
        index = owner.broker.applied_index
        name = receipt_id(int(owner.group.partition_id), index, digest_message(topic, b"said"))
        assert said == ("quantum-receipt", name)
    assert len(owners) > 1, "every way should be tried: own partition, and another"


def test_a_reason_stays_beside_the_name() -> None:
    lab = lab_of()
    client = connect(lab.door("blue"))
    answer = publish(client, b"nobody/wants", 1, ASKS)
    assert answer.reason_code is ReasonCode.NO_MATCHING_SUBSCRIBERS
    assert re.fullmatch(r"\d+-\d+-[0-9a-f]{16}", answer.properties.user_properties[0][1])


NOT_TOLD: dict[str, tuple[ProtocolVersion, Properties, dict[str, object]]] = {
    "it did not ask": (V5, Properties(user_properties=(("other", ""),)), {}),
    "it wants no words": (V5, ASKS, {"request_problem_information": False}),
    "its packets are too small": (V5, ASKS, {"maximum_packet_size": 40}),
    "before MQTT 5": (V311, Properties(), {}),
}


@pytest.mark.parametrize(("version", "said", "terms"), NOT_TOLD.values(), ids=NOT_TOLD.keys())
def test_who_does_not_ask_or_cannot_hear_is_not_told(
    version: ProtocolVersion, said: Properties, terms: dict[str, object]
) -> None:
    client = connect(lab_of().door("blue"), version, **terms)  # type: ignore[arg-type]
    assert publish(client, b"t", 1, said).properties.user_properties == ()


def test_a_refused_publish_has_no_entry_to_name() -> None:
    lab = lab_of({"effect": "allow", "pattern": "other"})
    answer = publish(connect(lab.door("blue")), b"t", 1, ASKS)
    assert answer.reason_code is ReasonCode.NOT_AUTHORIZED
    assert answer.properties.user_properties == ()
