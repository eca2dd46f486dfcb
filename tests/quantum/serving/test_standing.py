"""Fail closed: the matrix of quantumqtt §10.6 cell by cell, and what clients see of it (C8)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace
from typing import cast

import pytest

from clustor.raft.control_plane import CacheState
from clustor.raft.fallback import BlockingReason
from clustor.raft.reads import FailedClause
from clustor.runtime.telemetry.why import GroupWhy
from quantum.node.client_causes import ClientClause, explain_client
from quantum.node.why import ClientWhy
from quantum.partition.gate import (
    HEALTHY,
    ClientOperation,
    HeldExchange,
    OperationGate,
    Side,
    decide_exchange,
    hold_reason,
    refusals,
)
from quantum.partition.leader import PartitionLeader
from quantum.protocols.mqtt.codec import (
    Connack,
    Connect,
    PacketId,
    Properties,
    ProtocolVersion,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    Suback,
    SubscribePacket,
    Subscription,
    TopicFilter,
    TopicName,
    encode_packet,
)
from quantum.protocols.mqtt.codec.types import ClientId
from tests.quantum.serving.client import V5, V311, Client, connect, dial
from tests.quantum.serving.lab import TENANT, Lab

FRESH, CACHED = CacheState.FRESH, CacheState.CACHED
STALE, EXPIRED = CacheState.STALE, CacheState.EXPIRED
NONE, NO_CLAUSE = BlockingReason.NONE, FailedClause.NONE
LATCHED = OperationGate(FRESH, BlockingReason.PROOF_MISSING, FailedClause.STRICT_FALLBACK)
OUTAGE = OperationGate(
    EXPIRED, BlockingReason.CACHE_EXPIRED, FailedClause.CONTROL_PLANE_CACHE_EXPIRED
)
QUARANTINED = OperationGate(FRESH, NONE, NO_CLAUSE, "Integrity")
EVERYTHING = frozenset(ClientOperation)

# Each row of the specification's table, and which operations of MQTT it closes in which column.
CLOSED = {
    "Fresh": (HEALTHY, frozenset()),
    "Cached": (OperationGate(CACHED, NONE, NO_CLAUSE), frozenset()),
    "Stale, read gate": (
        OperationGate(STALE, NONE, FailedClause.CONTROL_PLANE_CACHE_STALE),
        frozenset({ClientOperation.SUBSCRIBE}),
    ),
    "Fresh, read gate": (
        OperationGate(FRESH, NONE, FailedClause.COMMIT_VISIBILITY),
        frozenset({ClientOperation.SUBSCRIBE}),
    ),
    "Expired": (OUTAGE, EVERYTHING),
    "Expired, nobody leads": (OperationGate(EXPIRED, NONE, NO_CLAUSE), EVERYTHING),
    "strict fallback": (LATCHED, EVERYTHING - {ClientOperation.START}),
    "Stale and strict fallback": (
        OperationGate(STALE, BlockingReason.CACHE_STALE, FailedClause.CONTROL_PLANE_CACHE_STALE),
        EVERYTHING - {ClientOperation.START},
    ),
    "quarantine": (QUARANTINED, EVERYTHING),
}


@pytest.mark.parametrize(("standing", "closed"), CLOSED.values(), ids=CLOSED.keys())
def test_what_is_closed_in_which_state(
    standing: OperationGate, closed: frozenset[ClientOperation]
) -> None:
    found = refusals(standing)
    assert frozenset(found) == closed
    assert all(words.startswith("PERMANENT_DURABILITY: ") for words in found.values())


NAMED = {
    "expired": (
        OUTAGE,
        ClientOperation.PUBLISH,
        "{CacheExpired} for ACL evaluation (CacheExpired)",
    ),
    "no proof": (LATCHED, ClientOperation.PUBLISH, "{NeededForReadIndex} for ACL evaluation"),
    "session": (LATCHED, ClientOperation.RESUME, "for mTLS session start (ProofMissing)"),
    "quarantine": (QUARANTINED, ClientOperation.START, "in quarantine (Integrity)"),
}


@pytest.mark.parametrize(("standing", "operation", "words"), NAMED.values(), ids=NAMED.keys())
def test_the_reason_is_named(
    standing: OperationGate, operation: ClientOperation, words: str
) -> None:
    assert words in refusals(standing)[operation]


SIDES = {
    "both healthy": (HEALTHY, HEALTHY, None),
    "session in quarantine": (
        QUARANTINED,
        HEALTHY,
        HeldExchange(Side.SESSION, "Quarantine{Integrity}"),
    ),
    "topic in quarantine": (
        HEALTHY,
        QUARANTINED,
        HeldExchange(Side.TOPIC, "Quarantine{Integrity}"),
    ),
    "session latched": (
        LATCHED,
        HEALTHY,
        HeldExchange(Side.SESSION, "StrictFallback{ProofMissing}"),
    ),
    "topic latched": (HEALTHY, LATCHED, HeldExchange(Side.TOPIC, "StrictFallback{ProofMissing}")),
    "outage": (OUTAGE, OUTAGE, HeldExchange(Side.SESSION, "ControlPlaneUnavailable{CacheExpired}")),
    "topic's outage": (
        HEALTHY,
        OUTAGE,
        HeldExchange(Side.TOPIC, "ControlPlaneUnavailable{CacheExpired}"),
    ),
    "both": (QUARANTINED, LATCHED, HeldExchange(Side.SESSION, "Quarantine{Integrity}")),
    "cached": (OperationGate(CACHED, NONE, NO_CLAUSE), HEALTHY, None),
}


@pytest.mark.parametrize(("session", "topic", "held"), SIDES.values(), ids=SIDES.keys())
def test_either_side_holds_an_exchange(
    session: OperationGate, topic: OperationGate, held: HeldExchange | None
) -> None:
    assert decide_exchange(hold_reason(session), hold_reason(topic)) == held


# With the real service.


class StandingLab(Lab):
    """A lab whose partitions stand as a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.standings: dict[int, OperationGate] = {}
        self.service.gate_of = lambda prg: self.standings.get(prg.number, HEALTHY)

    def stand(self, standing: OperationGate, *numbers: int) -> None:
        for number in numbers or range(3):
            self.standings[number] = standing
        self.advance(0.1)

    def prg(self, number: int) -> PartitionLeader:
        return self.service.tenants[TENANT].prgs[number]

    def why(self, client_id: bytes) -> list[tuple[ClientClause, str]]:
        groups = SimpleNamespace(explain=lambda *_: (None, SimpleNamespace(holds=False)))
        whys = ClientWhy(self.service, cast("GroupWhy", groups))
        facts = whys.facts(self.service.tenants[TENANT], client_id)
        return [(each.clause, each.sentence) for each in explain_client(facts)]

    def topic_of(self, number: int, *, prefix: str = "t") -> bytes:
        tenant = self.service.tenants[TENANT]
        names: Iterator[bytes] = (f"{prefix}{each}".encode() for each in count())
        return next(name for name in names if tenant.topic_partition(name) == number)

    def client_of(self, number: int) -> str:
        tenant = self.service.tenants[TENANT]
        names = (f"client{each}" for each in count())
        return next(name for name in names if tenant.session_prg(name.encode()).number == number)


@pytest.fixture
def lab() -> StandingLab:
    return StandingLab()


def ask(lab: Lab, version: ProtocolVersion, client_id: str, *, clean: bool = True) -> Client:
    """Send a CONNECT, and do not wait for an answer."""
    client = dial(lab, version)
    asked = Properties(session_expiry_interval=0 if clean else 100)
    client.send(Connect(version, ClientId(client_id), clean, 0, None, None, None, asked))
    return client


BOTH = pytest.mark.parametrize("version", [V311, V5], ids=["3.1.1", "5"])


@BOTH
def test_an_outage_lets_nobody_in_and_says_why(lab: StandingLab, version: ProtocolVersion) -> None:
    lab.stand(OUTAGE)
    client = ask(lab, version, "late")
    lab.advance(5.1)
    connack = client.expect(Connack)
    assert connack.reason_code is ReasonCode.SERVER_UNAVAILABLE
    if version is V5:
        assert "ControlPlaneUnavailable{CacheExpired}" in (connack.properties.reason_string or "")
    clauses = [clause for clause, _ in lab.why(b"late")]
    assert ClientClause.CLOSED in clauses and ClientClause.RECENTLY in clauses


def test_who_waits_is_let_in_when_the_outage_ends(lab: StandingLab) -> None:
    lab.stand(OUTAGE)
    client = ask(lab, V5, "patient")
    lab.advance(1)
    lab.stand(HEALTHY)
    lab.advance(0.2)
    assert client.expect(Connack).reason_code is ReasonCode.SUCCESS


def test_strict_fallback_lets_a_new_session_in_and_no_kept_one(lab: StandingLab) -> None:
    connect(lab, client_id="kept", clean=False, session_expiry_interval=100).cut()
    lab.stand(LATCHED)
    assert connect(lab, client_id="fresh").connack.reason_code is ReasonCode.SUCCESS
    kept = ask(lab, V5, "kept", clean=False)
    lab.advance(5.1)
    assert kept.expect(Connack).reason_code is ReasonCode.SERVER_UNAVAILABLE
    lab.stand(HEALTHY)
    again = connect(lab, client_id="kept", clean=False, session_expiry_interval=100)
    assert again.connack.session_present


@BOTH
def test_a_publish_is_held_and_goes_on_or_ends(lab: StandingLab, version: ProtocolVersion) -> None:
    client = connect(lab, version, client_id="writer")
    reader = connect(lab, version, client_id="reader")
    reader.subscribe(b"t", 1)
    lab.stand(LATCHED)
    client.send(Publish(TopicName(b"t"), b"held", 1, packet_id=PacketId(1)))
    lab.advance(1)
    assert client.receive() is None
    reader.expect_quiet()  # what asks for nothing that is closed goes on
    assert any("left unread" in words for _, words in lab.why(b"writer"))
    lab.stand(HEALTHY)
    assert reader.take().payload == b"held"
    assert client.expect(Puback).packet_id == 1
    lab.stand(LATCHED)
    client.send(Publish(TopicName(b"t"), b"never", 1, packet_id=PacketId(2)))
    lab.advance(6)
    ended = client.expect_disconnect(ReasonCode.SERVER_BUSY)
    if version is V5:
        assert "ACL evaluation" in (ended.properties.reason_string or "")
    reader.expect_quiet()


def test_a_subscription_is_held_until_it_may_read(lab: StandingLab) -> None:
    client = connect(lab, client_id="reader")
    lab.stand(OperationGate(STALE, NONE, FailedClause.CONTROL_PLANE_CACHE_STALE))
    client.send(SubscribePacket(PacketId(1), (Subscription(TopicFilter(b"t"), 1),)))
    lab.advance(1)
    assert client.receive() is None
    lab.stand(HEALTHY)
    assert client.expect(Suback).reason_codes == (ReasonCode.GRANTED_QOS_1,)


@pytest.mark.parametrize("lasting", [False, True], ids=["clean", "lasting"])
@pytest.mark.parametrize("sick", [LATCHED, QUARANTINED], ids=["fallback", "quarantine"])
@pytest.mark.parametrize("side", list(Side))
def test_an_exchange_waits_for_its_sick_side(
    lab: StandingLab, side: Side, sick: OperationGate, *, lasting: bool
) -> None:
    """§4.6.1: QoS 2 between partitions 0 (session) and 1 (topic); the publish is under way."""
    client_id, topic = lab.client_of(0), lab.topic_of(1)
    client = connect(
        lab, client_id=client_id, clean=not lasting, session_expiry_interval=100 if lasting else 0
    )
    reader = connect(lab, client_id=lab.client_of(2))
    reader.subscribe(topic, 2)
    if side is Side.TOPIC:
        lab.stand(sick, 1)
        client.send(Publish(TopicName(topic), b"once", 2, packet_id=PacketId(9)))
    else:
        packet = encode_packet(Publish(TopicName(topic), b"once", 2, packet_id=PacketId(9)), V5)
        client.line.handler.received(packet)  # type: ignore[attr-defined]
        lab.prg(0).pass_gate(sick)
        lab.standings[0] = sick
    lab.advance(2)
    assert client.receive() is None
    reader.expect_quiet()
    assert any("side holds it" in words for _, words in lab.why(client_id.encode())) or lasting
    lab.stand(HEALTHY)
    lab.advance(1)
    assert client.expect_answer(Pubrec).packet_id == 9
    client.send(Pubrel(PacketId(9)))
    assert client.expect_answer(Pubcomp).packet_id == 9
    assert reader.take().payload == b"once"
    reader.expect_quiet()
