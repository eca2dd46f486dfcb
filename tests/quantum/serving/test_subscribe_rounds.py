"""Issue 20: SUBSCRIBE to SUBACK in rounds of the log, counted by commits and not by time.

One round writes the subscription into the session's partition. Where other partitions own topics
of the filter, they write it down too, all in one more round; there is never a third.
"""

from __future__ import annotations

import pytest

from quantum.protocols.mqtt.codec import (
    ClientId,
    Connect,
    PacketId,
    Properties,
    ProtocolVersion,
    SubscribePacket,
    Subscription,
    TopicFilter,
    encode_packet,
)
from tests.quantum.serving.lab import Lab, LabLine

V5 = ProtocolVersion.V5
SUBACK = 0x90


class CountingLab(Lab):
    """Counts the rounds in which some log took entries, until a line was answered."""

    line: LabLine | None = None
    rounds = 0
    entries = 0

    def _turn(self) -> None:
        before = [self._index(number) for number in range(len(self.node.groups))]
        waits = self.line is not None and not self.line.received
        super()._turn()
        added = sum(self._index(number) - index for number, index in enumerate(before))
        if waits and added:
            self.rounds += 1
            self.entries += added

    def _index(self, number: int) -> int:
        return self.node.groups[number].replica._index  # the test counts


def subscribe(lab: CountingLab, line: LabLine, packet: int, topic_filter: bytes) -> tuple[int, int]:
    """Subscribe; return in how many rounds and with how many entries it was answered."""
    line.received.clear()
    lab.line, lab.rounds, lab.entries = line, 0, 0
    asked = (Subscription(TopicFilter(topic_filter), 1),)
    line.send(encode_packet(SubscribePacket(PacketId(packet), asked), V5))
    assert line.received[0] == SUBACK and line.received[-1] == 1
    return lab.rounds, lab.entries


@pytest.mark.parametrize("expiry_seconds", [0, 100], ids=["volatile", "lasting"])
@pytest.mark.parametrize(
    ("partitions", "wildcard"), [(1, (1, 1)), (3, (2, 3)), (8, (2, 8))], ids=["1", "3", "8"]
)
def test_subscribe_takes_one_round_and_one_more_for_all_other_partitions(
    partitions: int, wildcard: tuple[int, int], expiry_seconds: int
) -> None:
    lab = CountingLab(prgs=partitions)
    line = lab.dial()
    properties = Properties(session_expiry_interval=expiry_seconds)
    line.send(
        encode_packet(Connect(V5, ClientId("c"), clean_start=True, properties=properties), V5)
    )
    assert subscribe(lab, line, 1, b"a/#") == wildcard
    assert subscribe(lab, line, 2, b"+/b") == wildcard, "the first is no warmer than the second"
    tenant = lab.service.tenants["dev"]
    home = tenant.session_prg(b"c")
    own = next(name for name in (b"t%d" % n for n in range(999)) if tenant.owner(name) is home)
    assert subscribe(lab, line, 3, own) == (1, 1), "nobody else has to know"
