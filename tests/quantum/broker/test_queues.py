"""On the way to a client: order, window, packet ids, resuming, room (quantumqtt §7.2)."""

from __future__ import annotations

import pytest

from quantum.broker import PUBACK, PUBCOMP, PUBREC, Delivery, Outbound, Send, SendPubrel
from quantum.broker.items import BLOCKED, WANTED, Deliver, Forward, Interest, Pressure
from quantum.broker.receiving import REFUSED
from tests.quantum.broker.desk import Desk, message, record, spec


def reader(*, window: int = 2, qos: int = 2, **settings: int) -> Desk:
    desk = Desk(**settings)
    desk.attach(window=window)
    desk.subscribe(spec(b"a", qos))
    return desk


def publish(desk: Desk, *payloads: bytes, qos: int = 1) -> list[bytes]:
    sent = []
    for payload in payloads:
        assert desk.publish(b"a", payload, qos) == 0
        sent += desk.payloads()
    return sent


def test_no_more_than_the_window_is_in_flight_and_the_rest_follows_in_order() -> None:
    desk = reader()
    assert publish(desk, b"1", b"2", b"3", b"4") == [b"1", b"2"]
    desk.acknowledge(PUBACK, 1)
    assert desk.sent() == [(b"c", 3, b"3", 1)]
    desk.acknowledge(PUBACK, 3, 2)
    assert desk.sent() == [(b"c", 4, b"4", 1)]


def test_qos_2_holds_its_packet_id_until_pubcomp() -> None:
    desk = reader(window=1)
    publish(desk, b"1", b"2", qos=2)
    desk.acknowledge(PUBREC, 1)
    assert desk.effects == [SendPubrel(b"c", 1)]
    desk.acknowledge(PUBCOMP, 1)
    assert desk.sent() == [(b"c", 2, b"2", 2)]


@pytest.mark.parametrize(("qos", "kind"), [(1, PUBREC), (1, PUBCOMP), (2, PUBACK)], ids=str)
def test_the_wrong_acknowledgement_ends_nothing(qos: int, kind: int) -> None:
    desk = reader(window=1)
    publish(desk, b"1", qos=qos)
    desk.acknowledge(kind, 1)
    assert desk.effects == [] and len(desk.session(b"c").outbound) == 1


def test_a_client_may_let_go_of_what_is_unknown_here() -> None:
    desk = reader(window=1)
    publish(desk, b"1", qos=1)
    for kind in (PUBACK, PUBCOMP):
        desk.acknowledge(kind, 9)
        assert desk.effects == []
    desk.acknowledge(PUBREC, 9)
    assert desk.effects == [SendPubrel(b"c", 9)]
    assert len(desk.session(b"c").outbound) == 1


def test_a_refusal_of_the_client_ends_the_exchange() -> None:
    desk = reader(window=1)
    publish(desk, b"1", b"2", qos=2)
    desk.acknowledge(REFUSED, 1)
    assert desk.sent() == [(b"c", 2, b"2", 2)]


def test_qos_0_is_sent_to_whom_is_there_and_never_queued() -> None:
    desk = reader(window=1)
    publish(desk, b"1")
    assert publish(desk, b"now", qos=0) == [b"now"]
    desk.detach()
    publish(desk, b"gone", qos=0)
    desk.attach(window=1)
    assert desk.payloads() == [b"1"]


def test_a_session_resumes_in_the_old_order_with_dup_and_pubrel() -> None:
    desk = reader(window=4)
    publish(desk, b"1", b"2", b"3", qos=2)
    publish(desk, b"4")
    desk.acknowledge(PUBREC, 2)
    desk.detach()
    publish(desk, b"5", b"6", qos=2)
    desk.attach(window=5)
    sends = [
        (each.delivery.packet_id, each.again) for each in desk.effects if isinstance(each, Send)
    ]
    assert SendPubrel(b"c", 2) in desk.effects
    assert sends == [(1, True), (3, True), (4, True), (5, False)]


def test_a_smaller_window_holds_for_what_was_in_flight_before() -> None:
    """[MQTT-3.3.4-9]: never more than the Receive Maximum of this connection."""
    desk = reader(window=4)
    publish(desk, b"1", b"2", b"3", b"4", b"5", qos=2)
    desk.detach()
    desk.attach(window=2)
    assert desk.sent() == [(b"c", 1, b"1", 2), (b"c", 2, b"2", 2)]
    desk.acknowledge(PUBREC, 1)
    assert desk.sent() == []
    desk.acknowledge(PUBCOMP, 1)
    assert desk.sent() == [(b"c", 3, b"3", 2)]
    for packet_id, expected in ((2, [4]), (3, [5]), (4, [])):
        desk.acknowledge(PUBREC, packet_id)
        desk.acknowledge(PUBCOMP, packet_id)
        assert [each[1] for each in desk.sent()] == expected


def test_packet_ids_are_used_again_when_they_are_free_and_never_before() -> None:
    outbound = Outbound(3, 10, 13)
    ids = []
    for _ in range(9):
        delivery = Delivery(message(b"a"), 1, retain=False, identifiers=())
        assert outbound.push(delivery)
        ids.append(delivery.packet_id)
        if len(outbound) == 3:
            outbound.on_puback(ids[-2])  # type: ignore[arg-type]
    assert len(outbound.in_flight) == 2 and set(ids) == {10, 11, 12, 13}
    assert 10 in outbound.in_flight and ids.count(10) == 1


def test_a_window_is_never_wider_than_there_are_packet_ids() -> None:
    desk = reader(window=65_535)
    assert desk.session(b"c").outbound.window == 0x7FFF


def test_what_expired_while_it_waited_is_dropped() -> None:
    desk = reader(window=1)
    publish(desk, b"1")
    desk.publish(b"a", b"short", expires_at_ms=desk.now_ms + 1_000)
    publish(desk, b"3")
    desk.elapse(1)
    desk.acknowledge(PUBACK, 1)
    assert desk.payloads() == [b"3"] and desk.leader.state.dropped == 1
    desk.publish(b"a", b"late", expires_at_ms=desk.now_ms)
    assert len(desk.session(b"c").outbound) == 1


def test_nothing_waits_longer_than_the_tenant_allows() -> None:
    desk = reader(window=1, message_ttl_ms=5_000)
    publish(desk, b"1", b"2")
    desk.elapse(5)
    desk.acknowledge(PUBACK, 1)
    assert desk.payloads() == [] and len(desk.session(b"c").outbound) == 0


# Room.


def fill(desk: Desk) -> int:
    count = 0
    while desk.publish(b"a") == 0:
        count += 1
    return count


def test_a_full_queue_refuses_publishers_until_a_quarter_is_free() -> None:
    desk = reader(queue_messages_max=8)
    desk.detach()
    assert fill(desk) == 8
    assert desk.publish(b"a", qos=0) == 0
    assert desk.publish(b"b") == 0
    desk.attach(window=8)
    desk.acknowledge(PUBACK, 1)
    assert desk.publish(b"a") == 0x97
    desk.acknowledge(PUBACK, 2)
    assert desk.publish(b"a") == 0


def test_a_queue_is_full_by_bytes_too() -> None:
    desk = reader(queue_bytes_max=1_000)
    desk.detach()
    assert desk.publish(b"a", bytes(2_000)) == 0
    assert desk.publish(b"a") == 0x97


def test_other_partitions_are_told_of_a_full_queue_and_of_room() -> None:
    desk = Desk(queue_messages_max=4)
    desk.attach(window=4)
    desk.subscribe(spec(b"far/#", 1), spec(b"a", 1))
    desk.to_there()
    desk.detach()
    desk.from_there(*[Deliver(record(b"far/x")) for _ in range(4)])
    assert desk.to_there() == [Interest(b"far/#", BLOCKED)]
    assert desk.publish(b"a") == 0x97
    desk.attach(window=4)
    desk.acknowledge(PUBACK, 1)
    assert desk.to_there() == [Interest(b"far/#", WANTED)]
    assert desk.publish(b"a") == 0


def test_the_end_of_a_full_session_lets_publishers_go_on() -> None:
    desk = reader(queue_messages_max=4)
    desk.detach()
    fill(desk)
    desk.elapse(100)
    assert desk.publish(b"a") == 0


def test_what_expires_in_a_full_queue_makes_room_without_its_client() -> None:
    desk = reader(queue_messages_max=4)
    desk.detach()
    for _ in range(4):
        desk.publish(b"a", expires_at_ms=desk.now_ms + 10_000)
    assert desk.publish(b"a") == 0x97
    assert desk.leader.next_deadline_ms() == desk.now_ms + 10_000
    desk.elapse(10)
    assert desk.publish(b"a") == 0


def test_what_was_accepted_elsewhere_is_taken_and_its_source_is_stopped() -> None:
    desk = reader(queue_messages_max=4)
    desk.detach()
    fill(desk)
    desk.from_there(Forward(record(b"a", b"accepted", 2)), Forward(record(b"a", b"too", 2)))
    assert [each.message.payload for each in desk.session(b"c").outbound.queue][-2:] == [
        b"accepted",
        b"too",
    ]
    assert desk.to_there() == [Pressure(b"a", refuse=True)]
    desk.attach(window=8)
    desk.acknowledge(PUBACK, 1, 2, 3, 4)
    assert desk.to_there() == [Pressure(b"a", refuse=False)]


def test_pressure_refuses_qos_2_before_it_is_accepted() -> None:
    desk = Desk()
    desk.attach()
    desk.from_there(Pressure(b"far", refuse=True))
    assert desk.publish_once(b"c", 1, b"far") == 0x97
    assert desk.publish_once(b"c", 2, b"far/2") == 0
    desk.from_there(Pressure(b"far", refuse=False))
    assert desk.publish_once(b"c", 1, b"far") == 0


def test_a_durable_session_that_becomes_short_keeps_its_order() -> None:
    """What waits is never overtaken, whatever the next connection wants of its session."""
    desk = reader(window=1)
    desk.detach()
    publish(desk, b"1", b"2")
    assert desk.attach(window=1, expiry=0).present
    assert desk.payloads() == [b"1"]
    assert publish(desk, b"3") == []
    desk.acknowledge(PUBACK, 1)
    assert desk.payloads() == [b"2"]


def test_a_queue_that_was_full_drops_its_oldest_qos_0() -> None:
    outbound = Outbound(1, 1, 5)
    for qos in (1, 1, 0, 2, 0):
        outbound.push(Delivery(message(b"a"), qos, retain=False, identifiers=()))
    before = outbound.weight
    assert outbound.drop_oldest_qos_0()
    assert [each.qos for each in outbound.queue] == [1, 2, 0] and outbound.weight < before
    assert outbound.drop_oldest_qos_0() and not outbound.drop_oldest_qos_0()
