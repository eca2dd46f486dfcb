"""What clients notice when their tenant's ring grows, and what they do not (quantumqtt §2.1.4)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, count
from pathlib import Path

import msgspec
import pytest

from clustor.runtime.errors import DataDirectoryRefused
from quantum.broker.message import BEFORE_V5
from quantum.node.orders import describe_ring
from quantum.protocols.mqtt.codec import (
    Connack,
    Connect,
    PacketId,
    ProtocolVersion,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    TopicName,
)
from quantum.protocols.mqtt.codec.types import ClientId
from quantum.routing.ring import HashRing
from quantum.tenants.broker_file import (
    GrowthRefused,
    TenantEntry,
    TenantRing,
    grow_tenant,
    prepare_broker,
    read_broker_file,
)
from quantum.types import ClientId as RoutedClient
from quantum.types import TenantId
from tests.quantum.serving.client import V5, V311, Client, connect, dial, will
from tests.quantum.serving.lab import TENANT, Lab

OLD, NEW = 3, 5
RING, NAME = HashRing(), TenantId(TENANT)
DEV = TenantEntry(TENANT, OLD)
BOTH = pytest.mark.parametrize("version", [V311, V5], ids=["3.1.1", "5"])


def moves(name: bytes) -> bool:
    return RING.session_partition(NAME, RoutedClient(name), NEW) >= OLD


def stays(name: bytes) -> bool:
    return not moves(name)


def draw(word: str, wanted: Callable[[bytes], bool]) -> str:
    """Return a client id, or a topic, that moves or stays: they hash alike."""
    return next(name for each in count() if wanted((name := f"{word}{each}").encode()))


MOVED_TOPIC, MOVED_CLIENT = draw("place", moves).encode(), draw("nomad", moves)
STAYING_TOPIC, STAYING_CLIENT = draw("place", stays).encode(), draw("nomad", stays)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    prepare_broker(tmp_path, DEV)
    return tmp_path


@pytest.fixture
def lab(data: Path) -> Lab:
    lab = Lab(prgs=OLD)
    lab.service.watch_rings(data)
    return lab


def grow(lab: Lab, data: Path, prg_count: int = NEW) -> None:
    grow_tenant(data, TENANT, prg_count)
    lab.advance(1)
    assert described(lab)["settled"], described(lab)


def described(lab: Lab) -> dict[str, object]:
    found: dict[str, object] = msgspec.to_builtins(describe_ring(lab.service.tenants[TENANT]))
    return found


def lasting(lab: Lab, version: ProtocolVersion, client_id: str, **options: object) -> Client:
    if version is V5:
        options["session_expiry_interval"] = 1_000
    return connect(lab, version, client_id=client_id, clean=False, **options)  # type: ignore[arg-type]


@BOTH
def test_a_session_that_moves_is_found_whole(
    lab: Lab, data: Path, version: ProtocolVersion
) -> None:
    client = lasting(lab, version, MOVED_CLIENT)
    client.subscribe(b"#", 2)
    publisher = connect(lab, client_id=STAYING_CLIENT)
    publisher.publish(MOVED_TOPIC, b"in flight", 2)
    assert isinstance(first := client.receive(), Publish)
    client.send(Publish(TopicName(MOVED_TOPIC), b"own", 2, packet_id=PacketId(77)))
    assert client.expect_answer(Pubrec).packet_id == 77
    assert client.expect(Publish).payload == b"own"
    grow(lab, data)
    client.expect_disconnect(ReasonCode.SERVER_MOVED)
    publisher.publish(MOVED_TOPIC, b"meanwhile", 2)
    publisher.publish(STAYING_TOPIC, b"there too", 1)
    client = lasting(lab, version, MOVED_CLIENT)
    assert client.connack.session_present
    again = [client.expect(Publish) for _ in range(4)]
    assert (again[0].dup, again[0].packet_id) == (True, first.packet_id)
    assert {each.payload for each in again[2:]} == {b"meanwhile", b"there too"}
    client.send(Publish(TopicName(MOVED_TOPIC), b"own", 2, dup=True, packet_id=PacketId(77)))
    assert client.expect_answer(Pubrec).packet_id == 77, "answered, and not published again"
    client.send(Pubrel(PacketId(77)))
    assert client.expect_answer(Pubcomp).packet_id == 77
    for message in again:
        client.acknowledge(message)
    client.expect_quiet()


def test_who_stays_notices_nothing(lab: Lab, data: Path) -> None:
    client = connect(lab, client_id=STAYING_CLIENT)
    client.subscribe(b"#", 1)
    client.publish(MOVED_TOPIC, b"before", 1)
    grow(lab, data)
    client.publish(MOVED_TOPIC, b"after", 1)
    client.publish(STAYING_TOPIC, b"and here", 2)
    assert [client.take().payload for _ in range(3)] == [b"before", b"after", b"and here"]
    client.expect_quiet()


def test_what_is_retained_is_found_by_its_topic_and_by_filters(lab: Lab, data: Path) -> None:
    publisher = connect(lab, client_id=STAYING_CLIENT)
    for topic in (MOVED_TOPIC, STAYING_TOPIC):
        publisher.publish(topic, b"kept " + topic, 1, retain=True)
    grow(lab, data)
    for filters in ((MOVED_TOPIC,), (b"#",)):
        client = connect(lab)
        client.subscribe(filters[0], 1)
        wanted = {MOVED_TOPIC} if filters[0] == MOVED_TOPIC else {MOVED_TOPIC, STAYING_TOPIC}
        assert {client.take().topic for _ in wanted} == wanted
        client.expect_quiet()
    publisher.publish(MOVED_TOPIC, b"", 1, retain=True)
    client = connect(lab)
    client.subscribe(MOVED_TOPIC, 1)
    client.expect_quiet()


def test_shared_subscriptions_go_on_wherever_members_and_topics_are(lab: Lab, data: Path) -> None:
    members = {name: lasting(lab, V5, name) for name in (MOVED_CLIENT, STAYING_CLIENT)}
    for member in members.values():
        member.subscribe(b"$share/group/#", 1)
    grow(lab, data)
    members[MOVED_CLIENT] = lasting(lab, V5, MOVED_CLIENT)
    publisher = connect(lab)
    sent = [b"%d" % number for number in range(6)]
    for payload in sent:
        publisher.publish(MOVED_TOPIC, payload, 1)
    got = {name: [] for name in members}  # type: dict[str, list[bytes]]
    for name, member in members.items():
        while isinstance(message := member.receive(), Publish):
            member.acknowledge(message)
            got[name].append(message.payload)
    assert sorted(chain.from_iterable(got.values())) == sent
    assert all(got.values()), "both took turns"


def test_a_will_is_not_said_by_a_move_but_by_staying_away(lab: Lab, data: Path) -> None:
    witness = connect(lab, client_id=STAYING_CLIENT)
    witness.subscribe(b"will/#", 1)
    for name in (MOVED_CLIENT, other := draw("another", moves)):
        lasting(lab, V5, name, will=will(f"will/{name}".encode(), b"gone", 1))
    grow(lab, data)
    back = lasting(lab, V5, MOVED_CLIENT)
    witness.expect_quiet()
    lab.advance(11)
    assert witness.take().topic == f"will/{other}".encode()
    witness.expect_quiet()
    back.expect_quiet()


@BOTH
def test_a_client_waits_until_its_new_partition_is_open(
    lab: Lab, data: Path, version: ProtocolVersion
) -> None:
    client = lasting(lab, version, MOVED_CLIENT)
    grow_tenant(data, TENANT, NEW)
    lab.service.on_tick()
    while len(lab.node.groups) < NEW:
        lab.service.on_tick()
        lab.settle()
    for group in lab.node.groups[OLD:]:
        group.replica.is_stuck = True
    lab.advance(1)
    client.expect_disconnect(ReasonCode.SERVER_MOVED)
    client = dial(lab, version)
    client.send(Connect(version, ClientId(MOVED_CLIENT), clean_start=False))
    assert client.receive() is None
    rows = described(lab)["partitions"]
    assert isinstance(rows, list) and all(row["waits_for"] for row in rows[OLD:])
    for group in lab.node.groups[OLD:]:
        group.replica.is_stuck = False
        lab.node.is_due = True
    lab.advance(1)
    assert client.expect(Connack).session_present


def test_a_publish_to_a_topic_that_moves_is_answered_when_its_owner_has_it(
    lab: Lab, data: Path
) -> None:
    publisher = connect(lab, client_id=STAYING_CLIENT)
    grow_tenant(data, TENANT, NEW)
    while len(lab.node.groups) < NEW:
        lab.service.on_tick()
        lab.settle()
    for group in lab.node.groups[OLD:]:
        group.replica.is_stuck = True
    lab.advance(1)
    publisher.send(Publish(TopicName(MOVED_TOPIC), b"1", 1, packet_id=PacketId(1)))
    publisher.send(Publish(TopicName(MOVED_TOPIC), b"2", 1, packet_id=PacketId(2)))
    assert publisher.receive() is None
    for group in lab.node.groups[OLD:]:
        group.replica.is_stuck = False
    lab.advance(1)
    answers = [publisher.receive() for _ in range(2)]
    assert [getattr(each, "packet_id", None) for each in answers] == [1, 2]


def test_one_ring_after_another(lab: Lab, data: Path) -> None:
    client = lasting(lab, V311, MOVED_CLIENT)
    client.subscribe(b"#", 1)
    publisher = connect(lab, client_id=STAYING_CLIENT)
    for number, prg_count in enumerate((4, 5, 9)):
        grow(lab, data, prg_count)
        publisher.cut()
        publisher = connect(lab, client_id=STAYING_CLIENT)
        publisher.publish(MOVED_TOPIC, b"%d" % number, 1)
    client.cut()
    client = lasting(lab, V311, MOVED_CLIENT)
    assert [client.take().payload for _ in range(3)] == [b"0", b"1", b"2"]


# The file.


def test_a_ring_is_written_down_once_and_only_grows(data: Path) -> None:
    assert grow_tenant(data, TENANT, 5, {3, 1, 2}).rings == (TenantRing(5, (1, 2, 3)),)
    assert grow_tenant(data, TENANT, 5).rings == (TenantRing(5, (1, 2, 3)),)
    for refused in (4, 513):
        with pytest.raises(GrowthRefused):
            grow_tenant(data, TENANT, refused)
    with pytest.raises(GrowthRefused):
        grow_tenant(data, "nobody", 5)
    (entry,) = read_broker_file(data).tenants
    assert (entry.prgs, entry.prg_count) == (3, 5)
    assert [entry.voters(number) for number in (0, 2, 3, 4)] == [(), (), (1, 2, 3), (1, 2, 3)]


def test_a_broker_starts_again_with_the_ring_that_it_has(data: Path) -> None:
    grown = grow_tenant(data, TENANT, 5)
    assert prepare_broker(data, DEV).tenants == (grown,)
    assert prepare_broker(data, TenantEntry(TENANT, 5)).tenants == (grown,)
    with pytest.raises(DataDirectoryRefused):
        prepare_broker(data, TenantEntry(TENANT, 4))


def test_behind_a_refused_publish_nothing_gets_in_where_its_topic_is_now(
    lab: Lab, data: Path
) -> None:
    """The old owner refused a client before MQTT 5; what follows came to the new one."""
    tenant = lab.service.tenants[TENANT]
    writer = lasting(lab, V311, STAYING_CLIENT)
    assert not writer.publish(STAYING_TOPIC, b"earlier", 1).is_failure
    owner = tenant.prgs[tenant.topic_partition(MOVED_TOPIC)]
    turned_away = owner.broker.state.turned_away
    turned_away.note(STAYING_CLIENT.encode(), 1, BEFORE_V5, owner.broker.state.now_ms)
    grow(lab, data)
    assert tenant.topic_partition(MOVED_TOPIC) >= OLD
    writer.send(Publish(TopicName(MOVED_TOPIC), b"behind it", 1, packet_id=PacketId(77)))
    writer.expect_end()
    again = lasting(lab, V311, STAYING_CLIENT)
    assert not again.publish(MOVED_TOPIC, b"all of it again", 1).is_failure
