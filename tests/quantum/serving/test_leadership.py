"""Clients of a partition that nobody leads, or that is led elsewhere from now on (C10, C11)."""

from __future__ import annotations

import pytest

from quantum.protocols.mqtt.codec import (
    NO_PROPERTIES,
    Connack,
    Connect,
    Pingreq,
    Pingresp,
    Properties,
    ProtocolVersion,
    ReasonCode,
)
from quantum.protocols.mqtt.codec.types import ClientId
from tests.quantum.serving.client import V5, V31, V311, connect, dial, topic, unique
from tests.quantum.serving.lab import Lab
from tests.quantum.serving.tenant_lab import TenantLab, TenantLine

ALL = pytest.mark.parametrize("version", [V31, V311, V5], ids=["3.1", "3.1.1", "5"])


@ALL
def test_a_client_waits_for_a_leader(lab: Lab, version: ProtocolVersion) -> None:
    """What it sends meanwhile is taken when it is let in ([MQTT-3.1.4-5])."""
    lab.lead(leads=False)
    client = dial(lab, version)
    client.send(Connect(version, ClientId(unique("client"))), Pingreq())
    assert client.receive() is None
    lab.advance(2)
    lab.lead(leads=True)
    client.expect(Connack)
    client.expect(Pingresp)


@ALL
def test_a_client_does_not_wait_for_ever(lab: Lab, version: ProtocolVersion) -> None:
    """Nobody leads: it is closed without CONNACK, and so comes again; a refusal ends many."""
    lab.lead(leads=False)
    client = dial(lab, version)
    client.send(Connect(version, ClientId(unique("client"))))
    lab.advance(6)
    assert client.receive() is None and getattr(client.line, "is_closed", True)


@ALL
def test_a_client_whose_leader_goes_before_its_answer_is_answered_by_the_next(
    lab: Lab, version: ProtocolVersion
) -> None:
    client = dial(lab, version)
    for replica in (group.replica for group in lab.node.groups):
        replica.is_stuck = True
    lasting = Properties(session_expiry_interval=60) if version is V5 else NO_PROPERTIES
    name = ClientId(unique("client"))
    client.send(Connect(version, name, clean_start=False, properties=lasting))
    assert client.receive() is None, "its session is on its way into the log"
    lab.lead(leads=False)
    for replica in (group.replica for group in lab.node.groups):
        replica.is_stuck = False
    assert not getattr(client.line, "is_closed", True)
    lab.lead(leads=True)
    client.expect(Connack)
    client.send(Pingreq())
    client.expect(Pingresp)


def test_who_sends_much_while_it_waits_is_left_unread() -> None:
    lab = TenantLab({"blue": {}})
    lab.lead(leads=False)
    client = dial(lab.door("blue"))
    client.send(Connect(V5, ClientId(unique("client"))))
    line = client.line
    assert isinstance(line, TenantLine)
    pings = b"\xc0\0" * (64 << 10)
    for _ in range(12):
        client.send(pings)
    assert line.is_paused and not line.is_closed
    assert line.unread, "what is not read waits in the network"
    lab.lead(leads=True)
    lab.tick(1_000)
    assert isinstance(client.receive(), Connack)
    assert line.unread == b""


@ALL
def test_clients_are_told_that_their_partition_moved(lab: Lab, version: ProtocolVersion) -> None:
    """0x9D is legal in DISCONNECT (C11)."""
    client = connect(lab, version)
    client.subscribe(topic(), 1)
    lab.lead(leads=False)
    client.expect_disconnect(ReasonCode.SERVER_MOVED)


def test_clients_are_told_where_their_partition_is_now(lab: Lab) -> None:
    """C10: with a Server Reference where one is known (MQTT 5, 4.11)."""
    client = connect(lab)
    client.subscribe(topic(), 1)
    lab.service.references = {2: {"tcp": "far.example:1883"}}
    for group in lab.node.groups:
        group.replica.leads, group.replica.leader_id = False, 2
    lab.node.is_due = True
    lab.settle()
    told = client.expect_disconnect(ReasonCode.SERVER_MOVED)
    assert told.properties.server_reference == "far.example:1883"


def test_a_session_is_there_under_the_next_leader(lab: Lab) -> None:
    """[MQTT-4.1.0-1]: sessions are in the log, not in the leader"""
    name, news = unique("client"), topic()
    client = connect(lab, client_id=name, session_expiry_interval=60)
    client.subscribe(news, 1)
    lab.lead(leads=False)
    lab.lead(leads=True)
    connect(lab).publish(news, b"kept", 1)
    again = connect(lab, client_id=name, clean=False, session_expiry_interval=60)
    assert again.connack.session_present
    assert again.take().payload == b"kept"
