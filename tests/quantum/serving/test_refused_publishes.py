"""A full queue refuses a publish of a client before MQTT 5, and others are on their way already."""

from __future__ import annotations

from typing import Any, cast

import pytest

from clustor.replica import ReplicaOutput
from quantum.protocols.mqtt.codec import Packet, PacketId, Puback, Publish, TopicName
from tests.quantum.serving.client import V311, connect, topic, unique
from tests.quantum.serving.lab import Lab

QUEUE = 1000


class Story:
    """A full queue, a publisher, and a log that takes its time."""

    def __init__(self) -> None:
        self.lab = Lab(prgs=1)
        self.news, self.name = topic(), unique("reader")
        reader = connect(self.lab, client_id=self.name, session_expiry_interval=100)
        reader.subscribe(self.news, 1)
        reader.cut()
        filling = connect(self.lab)
        for number in range(QUEUE):
            filling.publish(self.news, b"%d" % number, 1)
        self.reader = connect(
            self.lab, client_id=self.name, clean=False, session_expiry_interval=100
        )
        for _ in range(245):  # a quarter makes room again, and this is less
            self.reader.take()
        self.taken = [self.reader.expect(Publish) for _ in range(10)]
        self.writer = connect(self.lab, V311)

    def refuse_one_and_make_room(self) -> None:
        """In one entry: a publish, acknowledgements that make room, and the next publish."""
        replica = cast("Any", self.lab.node.groups[0].replica)
        take, replica.take = replica.take, ReplicaOutput
        self.writer.send(self.publish(1))
        self.reader.send(*(Puback(message.packet_id) for message in self.taken))
        self.writer.send(self.publish(2))
        replica.take = take
        self.lab.node.is_due = True
        self.lab.settle()

    def publish(self, number: int) -> Packet:
        return Publish(TopicName(self.news), b"w%d" % number, 1, packet_id=PacketId(number))


@pytest.fixture
def story() -> Story:
    return Story()


def test_no_answer_leaves_behind_a_refusal(story: Story) -> None:
    """Else the client would send the refused one again alone, behind what followed it."""
    story.refuse_one_and_make_room()
    story.writer.expect_end()


def test_what_follows_a_refusal_waits_for_it(story: Story) -> None:
    """[MQTT-4.6.0-6]: the client sends both again, in their order; neither may be first"""
    story.refuse_one_and_make_room()
    assert b"w2" not in [story.reader.take().payload for _ in range(QUEUE - 255)]
    story.reader.expect_quiet()
