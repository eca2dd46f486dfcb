"""A client whose partition is led by another node: it is sent there only if there is a way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.quantum.serving.lab import Lab

CONNECT = bytes.fromhex("100d00044d51545404020000000161")  # MQTT 3.1.1, the client `a`
CONNACK = bytes.fromhex("20020000")
OTHER_NODE = 2


class FarLab(Lab):
    """A lab whose only partition is led by another node, reachable or not."""

    def __init__(self) -> None:
        super().__init__(prgs=1)
        self.reachable: list[int] = []
        self.sent: list[bytes] = []
        node = cast("Any", self.node)
        node.transport = SimpleNamespace(connected=lambda: self.reachable)
        node.send_service = lambda _number, _peer, frame: self.sent.append(frame)
        self.lead_by(OTHER_NODE)

    def lead_by(self, by: int) -> None:
        replica = cast("Any", self.node.groups[0].replica)
        replica.leads, replica.leader_id = by == self.node.node_id, by
        replica.group.core.hard.term += 1
        self.node.is_due = True
        self.settle()


@pytest.fixture
def lab() -> FarLab:
    return FarLab()


def test_a_client_waits_while_the_leader_cannot_be_reached(lab: FarLab) -> None:
    """What is said to a dead node is lost: the client would wait for its CONNACK in vain."""
    line = lab.dial()
    line.send(CONNECT)
    assert lab.sent == [] and not line.is_closed
    lab.lead_by(lab.node.node_id)
    assert line.receive(4) == CONNACK


def test_a_client_is_sent_on_as_soon_as_there_is_a_way(lab: FarLab) -> None:
    line = lab.dial()
    line.send(CONNECT)
    lab.reachable.append(OTHER_NODE)
    lab.advance(0.1)
    assert len(lab.sent) == 1 and CONNECT in lab.sent[0]
    assert not line.is_closed


def test_a_client_of_a_leader_that_is_silent_is_served_when_another_leads(lab: FarLab) -> None:
    """It has no answer yet, and need not notice: its CONNECT is asked where its session is now."""
    lab.reachable.append(OTHER_NODE)
    line = lab.dial()
    line.send(CONNECT)
    lab.lead_by(lab.node.node_id)
    assert not line.is_closed, "the older leader may still say why"
    lab.advance(0.5)
    lab.advance(0.5)
    assert line.receive(4) == CONNACK and not line.is_closed


def test_a_client_whose_link_breaks_before_its_answer_waits_for_the_next_leader(
    lab: FarLab,
) -> None:
    lab.reachable.append(OTHER_NODE)
    line = lab.dial()
    line.send(CONNECT)
    assert CONNECT in lab.sent[-1]
    lab.reachable.clear()
    lab.service.on_peer_lost(cast("Any", OTHER_NODE))
    lab.settle()
    assert not line.is_closed, "it was killed before it answered"
    lab.lead_by(lab.node.node_id)
    assert line.receive(4) == CONNACK


def test_a_client_that_nobody_can_serve_in_time_is_closed_without_a_word(lab: FarLab) -> None:
    """A refusal ends many clients for good; after none they come again."""
    line = lab.dial()
    line.send(CONNECT)
    lab.advance(6)
    assert line.is_closed and line.receive(1) == b""
