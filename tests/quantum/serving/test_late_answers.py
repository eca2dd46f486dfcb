"""What a client says of messages that its last leader gave it, when the next one listens.

A client that another node serves outlives its leader (C10): its PUBREC may reach the next leader,
which has the message in flight, and has not sent it again yet, for its slots are taken (C13).
"""

from __future__ import annotations

import pytest

from quantum.protocols.mqtt.codec import Puback, Pubcomp, Publish, Pubrec, Pubrel
from quantum.protocols.mqtt.codec.types import PacketId
from quantum.tenancy.credits import START_SLOTS
from tests.quantum.serving.client import Client, connect, topic, unique
from tests.quantum.serving.lab import Lab
from tests.quantum.serving.test_section_4_9_flow_control import arrived, flood

LATE = 3
COUNT = START_SLOTS + LATE


def resumed(lab: Lab, qos: int) -> tuple[Client, list[Publish]]:
    """Return a client under its next leader, and what that gave it again: ten slots full.

    Whether the last leader had sent the others too, the next one cannot know.
    """
    name, news = unique("reader"), topic()
    reader = connect(lab, client_id=name, session_expiry_interval=100)
    reader.subscribe(news, qos)
    flood(lab, news, COUNT, qos)
    lab.lead(leads=False)
    lab.lead(leads=True)
    again = connect(lab, client_id=name, clean=False, session_expiry_interval=100)
    given = arrived(again)
    assert len(given) == START_SLOTS
    assert all(each.dup for each in given)
    return again, given


def rest_of(reader: Client, given: list[Publish]) -> list[bytes]:
    """Take all that is left, in order."""
    payloads = []
    while given:
        for each in given:
            payloads.append(each.payload)
            reader.acknowledge(each)
        given = arrived(reader)
    return payloads


@pytest.mark.parametrize("is_completed", [True, False])
def test_a_qos_2_message_that_the_client_has_is_not_sent_again(
    lab: Lab, is_completed: bool
) -> None:
    """[MQTT-4.3.3-12]: after PUBREC there is no PUBLISH; the client would take it for another."""
    reader, given = resumed(lab, 2)
    late = PacketId(given[-1].packet_id + 2)
    reader.send(Pubrec(late))
    assert reader.expect(Pubrel).packet_id == late
    if is_completed:
        reader.send(Pubcomp(late))
    payloads = rest_of(reader, given)
    assert payloads == [b"%d" % n for n in range(COUNT) if n != START_SLOTS + 1]


def test_a_qos_1_message_that_the_client_has_is_not_sent_again(lab: Lab) -> None:
    reader, given = resumed(lab, 1)
    reader.send(Puback(PacketId(given[-1].packet_id + 2)))
    payloads = rest_of(reader, given)
    assert payloads == [b"%d" % n for n in range(COUNT) if n != START_SLOTS + 1]
