"""How much and how fast: quotas, rates, neighbours, backpressure (quantumqtt §§11, 13.4)."""

from __future__ import annotations

from itertools import pairwise
from typing import cast

import pytest

from quantum.partition import backpressure
from quantum.protocols.mqtt.codec import (
    ProtocolVersion,
    Puback,
    Publish,
    ReasonCode,
    TopicName,
    Unsuback,
    UnsubscribePacket,
    encode_packet,
)
from quantum.protocols.mqtt.codec.hot import PACKET_COST
from quantum.protocols.mqtt.codec.types import PacketId, TopicFilter
from quantum.protocols.mqtt.session import tenant_sessions
from quantum.protocols.mqtt.session.limits import MqttLimits
from tests.quantum.serving.client import V5, V31, V311, Client, connect
from tests.quantum.serving.tenant_lab import TenantLab, TenantLine

ALL = pytest.mark.parametrize("version", [V31, V311, V5], ids=["3.1", "3.1.1", "5"])
OPEN = MqttLimits(receive_maximum=60_000)


def line_of(client: Client) -> TenantLine:
    return cast("TenantLine", client.line)


def publishes(count: int, size: int, topic: bytes = b"t", first: int = 1) -> bytes:
    return b"".join(
        encode_packet(
            Publish(TopicName(topic), b"x" * size, 1, packet_id=PacketId(first + number)), V5
        )
        for number in range(count)
    )


def answers(client: Client) -> list[ReasonCode]:
    found = []
    while isinstance(packet := client.receive(), Puback):
        found.append(packet.reason_code)
    assert packet is None, packet
    return found


class TestQuotas:
    @ALL
    def test_connections(self, version: ProtocolVersion) -> None:
        """Up to half as many again for a time of grace, and then no more."""
        lab = TenantLab({"blue": {"quotas": {"connections": 2}}, "red": {}})
        clients = [connect(lab.door("blue"), version) for _ in range(4)]
        reasons = [each.connack.reason_code.is_failure for each in clients]
        assert reasons == [False, False, False, True]
        if version is V5:
            assert clients[3].connack.reason_code is ReasonCode.QUOTA_EXCEEDED
        assert not connect(lab.door("red"), version).connack.reason_code.is_failure
        clients[0].cut()
        assert not connect(lab.door("blue"), version).connack.reason_code.is_failure

    def test_connections_are_counted_once_however_they_end(self) -> None:
        lab = TenantLab({"blue": {"quotas": {"connections": 2}}})
        for _ in range(5):
            connect(lab.door("blue")).cut()
            connect(lab.door("blue")).leave()
            connect(lab.door("blue"), client_id="one")  # takes the place of its older self
        assert lab.tenant("blue").connections == 1

    def test_subscriptions(self) -> None:
        lab = TenantLab({"blue": {"quotas": {"subscription_filters": 2}}})
        reader = connect(lab.door("blue"))
        reasons = [reader.subscribe(b"t/%d" % number, 1).is_failure for number in range(4)]
        assert reasons == [False, False, False, True]
        assert reader.subscribe(b"again", 1) is ReasonCode.QUOTA_EXCEEDED
        reader.unsubscribe(b"t/0", b"t/1")
        assert reader.subscribe(b"again", 1) is ReasonCode.GRANTED_QOS_1

    @pytest.mark.parametrize("qos", [1, 2])
    def test_retained_bytes(self, qos: int) -> None:
        lab = TenantLab({"blue": {"quotas": {"retained_bytes": 4000}}})
        writer = connect(lab.door("blue"))
        reasons = [
            writer.publish(b"t/%d" % number, b"x" * 1000, qos, retain=True) for number in range(9)
        ]
        assert ReasonCode.QUOTA_EXCEEDED in reasons[4:] and reasons[-1].is_failure
        assert not writer.publish(b"t/9", b"x" * 1000, qos).is_failure  # not to be retained
        assert lab.tenant("blue").retained_bytes() <= 6000
        for number in range(9):
            assert not writer.publish(b"t/%d" % number, b"", qos, retain=True).is_failure
        assert lab.tenant("blue").retained_bytes() == 0
        assert not writer.publish(b"t/9", b"x" * 1000, qos, retain=True).is_failure

    def test_before_mqtt_5_a_refusal_is_the_end(self) -> None:
        """It must not look as if it were retained, and there is no word for it."""
        lab = TenantLab({"blue": {"quotas": {"retained_bytes": 100}}})
        writer = connect(lab.door("blue"), V311)
        packet = Publish(TopicName(b"t"), b"x" * 1000, 1, retain=True, packet_id=PacketId(1))
        writer.send(packet)
        writer.expect_end()


class TestRates:
    """Throttle, then reject, then disconnect."""

    def lab(self, kind: str = "rates", *, burst: int = 10) -> TenantLab:
        limit = {"publishes": {"per_second": 10, "burst": burst}}
        return TenantLab({"blue": {kind: limit}, "red": {}}, OPEN)

    @pytest.mark.parametrize("kind", ["rates", "connection_rates"])
    @ALL
    def test_a_fast_publisher_is_left_unread_and_loses_nothing(
        self, kind: str, version: ProtocolVersion
    ) -> None:
        lab = self.lab(kind)
        writer = connect(lab.door("blue"), version, keep_alive=1)
        line = line_of(writer)
        piece = b"".join(
            encode_packet(Publish(TopicName(b"t"), b"x", 1, packet_id=PacketId(1 + each)), version)
            for each in range(20)
        )
        writer.send(piece)  # a full bucket lends what a piece needs
        writer.send(piece.replace(b"t", b"u"))
        assert line.is_paused and len(answers(writer)) == 20
        lab.tick(900)
        assert line.is_paused and not answers(writer)
        lab.tick(300)
        assert len(answers(writer)) == 20

    def test_who_is_too_fast_for_ten_seconds_is_rejected_and_after_a_minute_sent_away(self) -> None:
        lab = self.lab()
        writer = connect(lab.door("blue"))
        seen: list[ReasonCode] = []
        rejected_ms = 0
        for _ in range(1_000):
            if line_of(writer).is_closed:
                break
            if not line_of(writer).is_paused:
                writer.send(publishes(15, 1))
            while isinstance(packet := writer.receive(), Puback):
                seen.append(packet.reason_code)
            if ReasonCode.QUOTA_EXCEEDED in seen and not rejected_ms:
                rejected_ms = lab.node.clock_ms
            lab.tick(100)
        assert set(seen) == {ReasonCode.NO_MATCHING_SUBSCRIBERS, ReasonCode.QUOTA_EXCEEDED}
        assert 9_000 <= rejected_ms - 1_000_000 <= 20_000
        assert 55_000 <= lab.node.clock_ms - 1_000_000 <= 75_000

    def test_another_tenant_is_not_slowed(self) -> None:
        lab = self.lab()
        noisy, quiet = connect(lab.door("blue")), connect(lab.door("red"))
        noisy.send(publishes(100, 1))
        quiet.send(publishes(100, 1))
        quiet.send(publishes(100, 1, first=200))
        assert len(answers(quiet)) == 200 and not line_of(quiet).is_paused

    def test_connects(self) -> None:
        lab = TenantLab({"blue": {"rates": {"connects": {"per_second": 1, "burst": 2}}}})
        reasons = [connect(lab.door("blue")).connack.reason_code for _ in range(6)]
        assert reasons[-1] is ReasonCode.CONNECTION_RATE_EXCEEDED and not reasons[0].is_failure
        lab.tick(60_000)
        assert not connect(lab.door("blue")).connack.reason_code.is_failure

    def test_subscribes(self) -> None:
        lab = TenantLab({"blue": {"rates": {"subscribes": {"per_second": 1, "burst": 2}}}})
        reader = connect(lab.door("blue"))
        reasons: list[ReasonCode] = []
        while not line_of(reader).is_paused and len(reasons) < 10:
            reasons.append(reader.subscribe(b"t/%d" % len(reasons), 1))
        assert len(reasons) == 3 and not any(each.is_failure for each in reasons)

    def test_unsubscribes_count_as_subscribes(self) -> None:
        """Each costs the log as much."""
        lab = TenantLab({"blue": {"rates": {"subscribes": {"per_second": 1, "burst": 2}}}})
        reader = connect(lab.door("blue"))
        count = 0
        while not line_of(reader).is_paused and count < 10:
            assert reader.unsubscribe(b"t/%d" % count) == (ReasonCode.NO_SUBSCRIPTION_EXISTED,)
            count += 1
        assert count == 3

    @ALL
    def test_too_many_unsubscribes_are_refused(self, version: ProtocolVersion) -> None:
        """MQTT 5 has a word for each filter, before it there is none: the connection ends."""
        lab = TenantLab({"blue": {"rates": {"subscribes": {"per_second": 1, "burst": 2}}}})
        first, second = (connect(lab.door("blue"), version) for _ in range(2))
        filters = tuple(TopicFilter(b"t/%d" % number) for number in range(100))
        for client in (first, second):
            client.send(UnsubscribePacket(PacketId(7), filters))
        if version is V5:
            codes = second.expect_answer(Unsuback).reason_codes
            assert codes == (ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,) * 100
        else:
            second.expect_end()


def test_megabytes_of_small_packets_take_turns() -> None:
    """The loop may read so much of one client at once; a turn takes what costs a share."""
    lab = TenantLab({"blue": {}})
    client = connect(lab.door("blue"))
    line_of(client).put(b"\xc0\x00" * 20_000)
    answered = [0]
    while answered[-1] < 20_000 and len(answered) < 100:
        lab.turn()
        answered.append(len(line_of(client).received) // 2)
    assert bytes(line_of(client).received) == b"\xd0\x00" * 20_000, "and nothing is lost"
    most = max(later - before for before, later in pairwise(answered))
    assert most <= backpressure.TURN_BYTES_MAX // PACKET_COST, answered


class TestNeighbours:
    """One tenant's flood takes its share of a turn, and no more."""

    def test_a_flood_does_not_delay_another_tenant(self) -> None:
        lab = TenantLab({"blue": {}, "red": {}}, OPEN)
        flood = [connect(lab.door("blue")) for _ in range(20)]
        quiet = connect(lab.door("red"))
        piece = publishes(500, 200)
        for writer in flood:
            line_of(writer).put(piece)
        line_of(quiet).put(publishes(1, 1))
        turns = 0
        while not line_of(quiet).received and turns < 100:
            lab.turn()
            turns += 1
        brought = len(piece) * sum(bool(line_of(writer).received) for writer in flood)
        assert turns == 1, "it does not wait for the others' turns"
        assert brought <= backpressure.TURN_BYTES_MAX + len(piece)
        lab.settle()
        assert [len(answers(writer)) for writer in flood] == [500] * 20, "and nothing is lost"

    def test_nobody_of_the_noisy_tenant_starves(self) -> None:
        lab = TenantLab({"blue": {}, "red": {}}, OPEN)
        flood = [connect(lab.door("blue")) for _ in range(8)]
        for _ in range(3):
            for writer in flood:
                line_of(writer).put(publishes(500, 200))
        for _ in range(6):
            lab.turn()
        assert all(line_of(writer).received for writer in flood)

    def test_a_tenant_that_is_alone_leaves_room_for_heartbeats_and_acks(self) -> None:
        lab = TenantLab({"blue": {}}, OPEN)
        flood = [connect(lab.door("blue")) for _ in range(20)]
        for writer in flood:
            line_of(writer).put(publishes(500, 200))
        paused = [line_of(writer).is_paused for writer in flood]
        assert paused[0] is False and paused[-1] is True, "a turn takes 256 KiB and no more"
        lab.tick(20)
        assert [len(answers(writer)) for writer in flood] == [500] * 20


class TestBackpressure:
    """Reading stops above a bound and goes on below it; nothing is lost, memory is bounded."""

    def test_a_disk_that_does_not_answer_stops_the_publishers(self) -> None:
        lab = TenantLab({"blue": {}}, OPEN)
        writers = [connect(lab.door("blue")) for _ in range(4)]
        lab.stick("blue", stuck=True)
        sent = 0
        for _ in range(40):
            for writer in writers:
                writer.send(publishes(100, 10_000, first=1 + sent % 50_000))
            sent += 100
        prgs = lab.tenant("blue").prgs
        bound = len(prgs) * (backpressure.BACKLOG_BYTES_MAX + len(writers) * 1_100_000)
        assert sum(prg.backlog.amount for prg in prgs) < bound
        assert all(line_of(writer).is_paused for writer in writers)
        assert sum(len(line_of(writer).unread) for writer in writers) > 100_000_000
        lab.stick("blue", stuck=False)
        lab.tick(1_000)
        assert [len(answers(writer)) for writer in writers] == [sent] * 4
        assert not any(line_of(writer).is_paused for writer in writers)
        assert [prg.backlog.amount for prg in prgs] == [0] * len(prgs)

    def test_a_silent_client_is_not_blamed_for_being_unread(self) -> None:
        lab = TenantLab({"blue": {}}, OPEN)
        writer = connect(lab.door("blue"), keep_alive=10)
        lab.stick("blue", stuck=True)
        for number in range(12):
            writer.send(publishes(100, 10_000, first=1 + 100 * number))
        lab.advance(60)
        assert line_of(writer).is_paused and not line_of(writer).is_closed
        lab.stick("blue", stuck=False)
        lab.tick(100)
        assert len(answers(writer)) == 1200

    def test_another_tenants_disk_is_no_matter(self) -> None:
        lab = TenantLab({"blue": {}, "red": {}}, OPEN)
        lab_writer, other = connect(lab.door("blue")), connect(lab.door("red"))
        lab.stick("blue", stuck=True)
        for number in range(12):
            lab_writer.send(publishes(100, 10_000, first=1 + 100 * number))
            other.send(publishes(100, 10_000, first=1 + 100 * number))
        assert len(answers(other)) == 1200 and line_of(lab_writer).is_paused

    @pytest.mark.parametrize("qos", [1, 2])
    def test_a_publish_that_the_group_does_not_admit_waits(self, qos: int) -> None:
        """`Admission` refuses: throttled, not lost, and in order."""
        lab = TenantLab({"blue": {}}, prgs=1)
        reader, writer = connect(lab.door("blue")), connect(lab.door("blue"))
        reader.subscribe(b"t", 1)
        admission = lab.node.groups[0].admission
        admission.is_open = False
        for number in range(5):
            packet_id = PacketId(number + 1)
            writer.send(Publish(TopicName(b"t"), b"%d" % number, qos, packet_id=packet_id))
        lab.tick(200)
        assert writer.receive() is None and reader.receive() is None and admission.asked > 5
        admission.is_open = True
        lab.tick(20)
        assert [reader.take().payload for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
        assert [writer.receive() is not None for _ in range(5)] == [True] * 5

    def test_what_is_refused_later_does_not_fall_behind_what_was_not_admitted(self) -> None:
        """One command is proposed, the next one waits for credits, then the first is refused."""
        lab = TenantLab({"blue": {}}, prgs=1)
        reader, writer = connect(lab.door("blue")), connect(lab.door("blue"))
        reader.subscribe(b"t", 1)
        lab.stick("blue", stuck=True)
        writer.send(Publish(TopicName(b"t"), b"first", 1, packet_id=PacketId(1)))
        group = lab.node.groups[0]
        group.admission.is_open = False
        writer.send(Publish(TopicName(b"t"), b"second", 1, packet_id=PacketId(2)))
        refused = group.replica.refuse()
        assert refused
        lab.stick("blue", stuck=False)
        group.admission.is_open = True
        lab.tick(100)
        assert [reader.take().payload for _ in range(2)] == [b"first", b"second"]
        assert [writer.receive(), writer.receive()] == [Puback(PacketId(1)), Puback(PacketId(2))]

    def test_a_subscriber_that_never_reads_is_bounded(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tenant_sessions, "QUEUED_BYTES_MAX", 1_000_000)
        lab = TenantLab({"blue": {}, "red": {}}, OPEN)
        deaf = [connect(lab.door("blue")) for _ in range(3)]
        for each in deaf:
            each.subscribe(b"t", 1)
            line_of(each).writable = False
        writer, other = connect(lab.door("blue")), connect(lab.door("red"))
        for number in range(40):
            writer.send(publishes(10, 10_000, first=1 + 10 * number))
            assert lab.clients("blue").queued.amount < 2_000_000
        assert line_of(writer).is_paused
        other.publish(b"t", b"x", 1)  # is not stopped
        lab.tick(20_000)  # the slowest must go in the end
        assert len(answers(writer)) == 400 and not line_of(writer).is_paused
        assert lab.clients("blue").queued.amount < 2_000_000
        assert any(line_of(each).is_closed for each in deaf)

    def test_who_reads_again_lets_the_publishers_go_on(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tenant_sessions, "QUEUED_BYTES_MAX", 1_000_000)
        lab = TenantLab({"blue": {}}, OPEN)
        slow, writer = connect(lab.door("blue")), connect(lab.door("blue"))
        slow.subscribe(b"t", 1)
        line_of(slow).writable = False
        for number in range(12):
            writer.send(publishes(10, 10_000, first=1 + 10 * number))
        assert line_of(writer).is_paused
        line_of(slow).drain()
        for _ in range(120):
            slow.take()
        assert not line_of(writer).is_paused and len(answers(writer)) == 120
        assert lab.clients("blue").queued.amount == 0

    def test_who_waits_for_itself_is_still_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its acknowledgements are what makes room."""
        monkeypatch.setattr(tenant_sessions, "QUEUED_BYTES_MAX", 100_000)
        lab = TenantLab({"blue": {}}, OPEN)
        both = connect(lab.door("blue"))
        both.subscribe(b"t", 1)
        for number in range(5):
            both.send(publishes(10, 10_000, first=1 + 10 * number))
        assert not line_of(both).is_paused
        heard = 0
        while (packet := both.receive()) is not None:
            if isinstance(packet, Publish):
                heard += 1
                both.acknowledge(packet)
        assert heard == 50
