"""At QoS 0 a retained message goes through the log, and what follows it does not overtake it."""

from __future__ import annotations

import pytest

from quantum.mqtt import Publish, TopicName
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
