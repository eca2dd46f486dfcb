"""Tenants in one broker: nothing of one is ever seen by another (quantumqtt §11)."""

from __future__ import annotations

import logging

import msgspec
import pytest

from quantum.broker import Broker
from quantum.broker.frames import FrozenSession, decode_frames, encode_frames
from quantum.protocols.mqtt.codec import (
    Connect,
    Properties,
    ProtocolVersion,
    ReasonCode,
    encode_packet,
)
from quantum.protocols.mqtt.codec.types import ClientId
from quantum.tenants.policy import identity_digest
from tests.quantum.serving.client import V5, V31, V311, Client, connect, dial, will
from tests.quantum.serving.tenant_lab import TenantLab

ALL = pytest.mark.parametrize("version", [V31, V311, V5], ids=["3.1", "3.1.1", "5"])
ALICE, MALLORY = "spiffe://mqtt/client/alice", "spiffe://mqtt/client/mallory"

HOSTILE_TOPICS = [
    b"secret",
    b"tenant/blue/secret",
    b"tenant/red/secret",
    b"$tenant/blue/secret",
    b"../blue/secret",
    b"..",
    b"/",
    b"//blue//",
    b"blue",
    b"$share",
    b"$SYS/blue",
    b"$share/group/secret",
    b"$SYS/broker/connection/blue/state",
    "tenant／blue／secret".encode(),
]
GREEDY_FILTERS = [
    b"#",
    b"+/#",
    b"$SYS/#",
    b"$share/group/#",
    b"$share/blue/tenant/#",
    b"tenant/+/#",
    b"tenant/blue/#",
    b"$tenant/#",
    b"../#",
    b"+/+/+",
    b"/#",
]


@pytest.fixture
def lab() -> TenantLab:
    everything = [{"effect": "allow", "pattern": each} for each in ("#", "$SYS/#")]
    return TenantLab({"blue": {"acl": everything}, "red": {"acl": everything}})


class TestSeparation:
    """quantumqtt §11.1, §11.4"""

    @pytest.mark.parametrize("qos", [0, 1, 2])
    @pytest.mark.parametrize("retain", [False, True])
    @ALL
    def test_no_name_reaches_another_tenant(
        self, lab: TenantLab, version: ProtocolVersion, qos: int, retain: bool
    ) -> None:
        spies: list[Client] = []
        for each in GREEDY_FILTERS:
            spy = connect(lab.door("red"), version, client_id=f"spy{len(spies)}")
            spy.subscribe(each, 2)
            while spy.early:  # what $SYS says to a new subscription
                assert spy.early[0].topic.startswith(b"$SYS/")
                spy.early.popleft()
            while (said := spy.receive()) is not None:
                assert getattr(said, "topic", b"").startswith(b"$SYS/")
            spies.append(spy)
        own = connect(lab.door("blue"), version, client_id="own")
        own.subscribe(b"#", 2)
        writer = connect(lab.door("blue"), version, client_id="spy0")
        for topic in HOSTILE_TOPICS:
            writer.publish(topic, b"blue's", qos, retain=retain)
        for spy in spies:
            spy.expect_quiet()
        own.take()  # the messages did go somewhere
        late = connect(lab.door("red"), version)
        late.subscribe(b"#", 2)
        late.expect_quiet()
        assert not any(len(machine.state.retained) for machine in lab.machines("red"))

    def test_equal_client_ids_are_two_clients(self, lab: TenantLab) -> None:
        """The same id in two tenants: no takeover, no session, no queue in common."""
        blue = connect(lab.door("blue"), client_id="twin", clean=False, session_expiry_interval=60)
        blue.subscribe(b"news", 1)
        red = connect(lab.door("red"), client_id="twin", clean=False, session_expiry_interval=60)
        assert not red.connack.session_present
        blue.expect_quiet()
        blue.cut()
        connect(lab.door("blue")).publish(b"news", b"for blue", 1)
        red.cut()
        again = connect(lab.door("red"), client_id="twin", clean=False, session_expiry_interval=60)
        assert again.connack.session_present
        again.expect_quiet()
        back = connect(lab.door("blue"), client_id="twin", clean=False, session_expiry_interval=60)
        assert back.connack.session_present and back.take().payload == b"for blue"

    def test_a_shared_group_of_one_name_is_two_groups(self, lab: TenantLab) -> None:
        members = {name: connect(lab.door(name)) for name in ("blue", "red")}
        for member in members.values():
            member.subscribe(b"$share/workers/jobs", 1)
        for number in range(4):
            connect(lab.door("blue")).publish(b"jobs", b"%d" % number, 1)
        assert [members["blue"].take().payload for _ in range(4)] == [b"0", b"1", b"2", b"3"]
        members["red"].expect_quiet()

    def test_a_will_stays_in_its_tenant(self, lab: TenantLab) -> None:
        spy, friend = connect(lab.door("red")), connect(lab.door("blue"))
        spy.subscribe(b"#", 1)
        friend.subscribe(b"#", 1)
        connect(lab.door("blue"), will=will(b"tenant/red/gone", qos=1)).cut()
        assert friend.take().topic == b"tenant/red/gone"
        spy.expect_quiet()

    def test_sys_counts_the_tenants_own_clients(self, lab: TenantLab) -> None:
        for _ in range(3):
            connect(lab.door("blue"))
        red = connect(lab.door("red"))
        red.subscribe(b"$SYS/broker/clients/connected")
        assert red.take().payload == b"1"

    def test_a_tenant_that_is_none_is_refused(self, lab: TenantLab) -> None:
        client = connect(lab.door("green"))
        assert client.connack.reason_code is ReasonCode.NOT_AUTHORIZED
        client.expect_end()


class TestIdentity:
    """A client id is bound to the identity that made its session (quantumqtt §10.1.1)."""

    def attach(
        self, lab: TenantLab, who: str | None, version: ProtocolVersion = V5, *, clean: bool = False
    ) -> Client:
        door = lab.door("blue", who)
        if version is not V5:
            return connect(door, version, client_id="device", clean=clean)
        return connect(door, client_id="device", clean=clean, session_expiry_interval=600)

    @ALL
    @pytest.mark.parametrize("clean", [False, True])
    @pytest.mark.parametrize("is_connected", [False, True])
    @pytest.mark.parametrize("who", [MALLORY, None])
    def test_another_identity_is_refused_and_written_down(
        self,
        lab: TenantLab,
        caplog: pytest.LogCaptureFixture,
        version: ProtocolVersion,
        clean: bool,
        is_connected: bool,
        who: str | None,
    ) -> None:
        alice = self.attach(lab, ALICE)
        alice.subscribe(b"private", 1)
        if not is_connected:
            alice.cut()
        with caplog.at_level(logging.WARNING, "quantum.audit"):
            other = self.attach(lab, who, version, clean=clean)
        assert other.connack.reason_code is ReasonCode.NOT_AUTHORIZED
        other.expect_end()
        assert "IDENTITY_MISMATCH tenant=blue client=b'device'" in caplog.text
        if is_connected:
            alice.expect_quiet()
        else:
            connect(lab.door("blue")).publish(b"private", b"kept", 1)
            alice = self.attach(lab, ALICE)
            assert alice.connack.session_present and alice.take().payload == b"kept"

    def test_a_clean_connection_is_bound_while_it_lasts(self, lab: TenantLab) -> None:
        alice = connect(lab.door("blue", ALICE), client_id="device")
        other = connect(lab.door("blue", MALLORY), client_id="device")
        assert other.connack.reason_code is ReasonCode.NOT_AUTHORIZED
        alice.leave()
        later = connect(lab.door("blue", MALLORY), client_id="device")
        assert later.connack.reason_code is ReasonCode.SUCCESS

    def test_the_same_identity_takes_over(self, lab: TenantLab) -> None:
        first = self.attach(lab, ALICE)
        assert self.attach(lab, ALICE).connack.session_present
        first.expect_disconnect(ReasonCode.SESSION_TAKEN_OVER)

    def test_the_binding_ends_with_the_session(self, lab: TenantLab) -> None:
        self.attach(lab, ALICE).cut()
        lab.advance(601)
        assert self.attach(lab, MALLORY).connack.reason_code is ReasonCode.SUCCESS

    def test_the_binding_is_in_the_log(self, lab: TenantLab) -> None:
        """A leader that never saw the first connection knows too."""
        self.attach(lab, ALICE).cut()
        lab.lead(leads=False)
        lab.lead(leads=True)
        assert self.attach(lab, MALLORY).connack.reason_code is ReasonCode.NOT_AUTHORIZED

    def test_another_tenants_identity_is_no_matter(self, lab: TenantLab) -> None:
        self.attach(lab, ALICE)
        other = connect(lab.door("red", MALLORY), client_id="device")
        assert other.connack.reason_code is ReasonCode.SUCCESS

    def test_a_refused_race_is_decided_by_the_log(self, lab: TenantLab) -> None:
        """Both attach before either is in the log: the first one has it."""
        lab.stick("blue", stuck=True)
        alice = dial(lab.door("blue", ALICE))
        alice.send(_connect_packet())
        alice.cut()
        mallory = dial(lab.door("blue", MALLORY))
        mallory.send(_connect_packet())
        lab.stick("blue", stuck=False)
        mallory.expect_refusal(ReasonCode.NOT_AUTHORIZED)


def _connect_packet() -> bytes:
    expiry = Properties(session_expiry_interval=600)
    packet = Connect(V5, ClientId("device"), False, 0, None, None, None, expiry)  # noqa: FBT003
    return encode_packet(packet, V5)


def test_the_binding_is_in_snapshots_and_older_ones_are_still_read() -> None:
    lab = TenantLab({"blue": {}}, prgs=1)
    TestIdentity().attach(lab, ALICE).cut()
    machine = lab.machines("blue")[0]
    frames = list(decode_frames(machine.snapshot()))
    copy = Broker(machine.settings)
    copy.restore(encode_frames(iter(frames)))
    assert copy.state.sessions[b"device"].identity == identity_digest(ALICE) != b""
    older = [
        _without_identity(each) if isinstance(each, FrozenSession) else each for each in frames
    ]
    copy.restore(encode_frames(iter(older)))
    assert copy.state.sessions[b"device"].identity == b""


def _without_identity(frame: FrozenSession) -> FrozenSession:
    """Return what a version that knew no identities wrote, as this one reads it."""
    fields: list[object] = msgspec.msgpack.decode(msgspec.msgpack.encode(frame))
    return msgspec.msgpack.decode(msgspec.msgpack.encode(fields[:-1]), type=FrozenSession)
