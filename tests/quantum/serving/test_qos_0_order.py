"""At QoS 0 a retained message goes through the log, and what follows it does not overtake it."""

from __future__ import annotations

import pytest

from quantum.protocols.mqtt.codec import Publish, TopicName
from tests.quantum.serving.client import Client, connect, topic, unique
from tests.quantum.serving.lab import TENANT, Lab


def at(lab: Lab, prg: int, what: str, expiry: int = 0) -> Client:
    """Connect a client whose session lives in one partition."""
    tenant = lab.service.tenants[TENANT]
    names = (unique(what) for _ in range(1_000))
    name = next(each for each in names if tenant.session_prg(each.encode()).number == prg)
    return connect(lab, client_id=name, session_expiry_interval=expiry)


@pytest.mark.parametrize("expiry", [0, 100], ids=["connection", "session"])
@pytest.mark.parametrize("apart", [0, 1, 2])
def test_what_follows_a_retained_message_comes_behind_it(lab: Lab, apart: int, expiry: int) -> None:
    """[MQTT-4.6.0-6]: the same topic, the same QoS, the same client."""
    news = topic()
    owner = lab.service.tenants[TENANT].topic_partition(news)
    reader = at(lab, (owner + apart) % 3, "reader", expiry)
    reader.subscribe(news, 0)
    writer = at(lab, (owner + 1) % 3, "writer")
    writer.send(
        *(Publish(TopicName(news), b"%d" % n, 0, retain=n % 3 == 0) for n in range(9)),
    )
    assert [reader.take().payload for _ in range(9)] == [b"%d" % n for n in range(9)]


@pytest.mark.parametrize("expiry", [0, 100], ids=["connection", "session"])
@pytest.mark.parametrize("qos", [1, 2])
def test_what_needs_no_log_waits_for_the_effects_of_what_does(
    lab: Lab, qos: int, expiry: int
) -> None:
    """[MQTT-4.6.0-6] where the subscriber's partition is slow, and the topic's is not.

    The retained one comes out of the subscriber's log there, because a lasting session wants it.
    What follows is in no log: it waits for the effects of the retained one
    (`PartitionLeader.behind_effects`), not only for its entry.
    """
    news = topic()
    owner = lab.service.tenants[TENANT].topic_partition(news)
    slow = (owner + 1) % 3
    at(lab, slow, "lasting", 100).subscribe(news, qos)
    reader = at(lab, slow, "reader", expiry)
    reader.subscribe(news, qos)
    writer = at(lab, owner, "writer")
    lab.node.groups[slow].replica.is_stuck = True
    for number in range(4):
        writer.send(Publish(TopicName(news), b"%d" % number, 0, retain=number == 0))
    reader.expect_quiet()
    lab.node.groups[slow].replica.is_stuck = False
    lab.node.is_due = True
    lab.settle()
    assert [reader.take().payload for _ in range(4)] == [b"0", b"1", b"2", b"3"]
