"""Sessions begin, connect, disconnect and end (MQTT 5 §3.1.2, quantumqtt §10.3)."""

from __future__ import annotations

import msgspec

from quantum.broker import (
    Attach,
    Attached,
    LeaderStarted,
    RemoveSession,
    SessionEnd,
    SubscribeReply,
    WillSpec,
    encode_command,
)
from quantum.broker.items import Forward
from quantum.broker.message import decode_record
from tests.quantum.broker.desk import Desk, record, spec


def ended(desk: Desk) -> list[tuple[bytes, str]]:
    return [(each.client_id, each.reason) for each in desk.effects if isinstance(each, SessionEnd)]


def will(topic: bytes = b"will", *, delay: int = 0, expires_in_ms: int = 0) -> WillSpec:
    return WillSpec(record(topic, b"last words", expires_at_ms=expires_in_ms), delay)


def listener(desk: Desk) -> None:
    """Somebody whose connection hears every will."""
    desk.subscribe(spec(b"will"), client_id=b"listener", epoch=0)


def test_a_session_is_present_when_the_client_comes_back() -> None:
    desk = Desk()
    first = desk.attach()
    assert not first.present
    desk.detach()
    again = desk.attach()
    assert again.present and again.epoch == first.epoch
    assert again.attachment != first.attachment


def test_a_clean_start_ends_the_session_and_fences_it_with_a_new_epoch() -> None:
    desk = Desk()
    first = desk.attach()
    desk.subscribe(spec(b"a"))
    second = desk.attach(clean=True)
    assert not second.present and second.epoch > first.epoch
    assert ended(desk) == [(b"c", "taken over")]
    assert not desk.session(b"c").subscriptions
    desk.publish(b"a")
    assert desk.effects == []


def test_a_session_without_expiry_ends_with_its_connection() -> None:
    desk = Desk()
    desk.attach(expiry=0)
    desk.detach()
    assert ended(desk) == [(b"c", "disconnected")]
    assert not desk.attach(expiry=0).present


def test_a_session_without_expiry_is_not_present_for_its_successor() -> None:
    desk = Desk()
    desk.attach(expiry=0)
    assert not desk.attach(expiry=0).present


def test_sessions_end_when_their_time_has_come_and_not_before() -> None:
    desk = Desk()
    desk.attach(expiry=100)
    desk.detach()
    assert desk.leader.next_deadline_ms() == desk.now_ms + 100_000
    desk.elapse(99.999)
    assert ended(desk) == [] and desk.attach().present
    desk.detach()
    desk.elapse(100)
    assert ended(desk) == [(b"c", "expired")]
    assert not desk.attach().present


def test_a_connected_session_never_expires() -> None:
    desk = Desk()
    desk.attach(expiry=1)
    desk.detach()
    desk.attach(expiry=1)
    desk.elapse(1_000)
    assert ended(desk) == [] and desk.session(b"c").connected


def test_a_disconnect_may_change_the_expiry() -> None:
    desk = Desk()
    desk.attach(expiry=100)
    desk.detach(expiry=0)
    assert ended(desk) == [(b"c", "disconnected")]


def test_no_session_lasts_longer_than_the_tenant_allows() -> None:
    desk = Desk(session_expiry_seconds_max=50)
    desk.attach(expiry=0xFFFF_FFFF)
    desk.detach()
    desk.elapse(50)
    assert ended(desk) == [(b"c", "expired")]


def test_a_late_word_about_an_older_connection_changes_nothing() -> None:
    desk = Desk()
    first = desk.attach()
    second = desk.attach()
    desk.detach(attachment=first.attachment)
    assert desk.session(b"c").connected
    desk.detach(epoch=second.epoch + 1)
    assert desk.session(b"c").connected
    desk.detach(attachment=second.attachment)
    assert not desk.session(b"c").connected


def test_two_attaches_of_one_entry_are_two_connections() -> None:
    desk = Desk()
    command = encode_command(Attach(desk.now_ms, b"c", False, 100, 10))  # noqa: FBT003
    first, second = (
        msgspec.msgpack.decode(reply, type=Attached) for reply in desk.apply(command, command)
    )
    desk.detach(attachment=first.attachment)
    assert desk.session(b"c").connected
    desk.detach(attachment=second.attachment)
    assert not desk.session(b"c").connected


def test_an_operator_ends_a_session_without_its_will() -> None:
    desk = Desk()
    listener(desk)
    desk.attach(will=will())
    assert desk.do(RemoveSession(desk.now_ms, b"c")) == b"\xc3"
    assert ended(desk) == [(b"c", "removed by an operator")] and desk.payloads() == []
    assert desk.do(RemoveSession(desk.now_ms, b"c")) == b"\xc2"


def test_time_never_runs_backwards() -> None:
    desk = Desk()
    desk.attach(expiry=10)
    desk.detach()
    desk.now_ms -= 900
    desk.elapse(0)
    assert desk.leader.state.now_ms == 1_000


# Wills.


def test_a_will_is_said_when_the_network_breaks_and_not_after_a_disconnect() -> None:
    desk = Desk()
    listener(desk)
    desk.attach(will=will())
    desk.detach(gracefully=True)
    assert desk.payloads() == []
    desk.attach(will=will())
    desk.detach(gracefully=False)
    assert desk.payloads() == [b"last words"]
    desk.elapse(1_000)
    assert desk.payloads() == []


def test_a_delayed_will_waits_and_a_reconnect_cancels_it() -> None:
    desk = Desk()
    listener(desk)
    desk.attach(will=will(delay=10))
    desk.detach(gracefully=False)
    desk.elapse(9)
    assert desk.payloads() == []
    desk.attach()
    desk.detach(gracefully=False)
    desk.elapse(20)
    assert desk.payloads() == []
    desk.attach(will=will(delay=10))
    desk.detach(gracefully=False)
    desk.elapse(10)
    assert desk.payloads() == [b"last words"]


def test_a_will_is_said_at_the_end_of_its_session_at_the_latest() -> None:
    desk = Desk()
    listener(desk)
    desk.attach(expiry=5, will=will(delay=50))
    desk.detach(gracefully=False)
    desk.elapse(5)
    assert desk.payloads() == [b"last words"] and ended(desk) == [(b"c", "expired")]


def test_a_session_that_ends_with_its_connection_says_its_will_at_once() -> None:
    desk = Desk()
    listener(desk)
    desk.attach(expiry=0, will=will(delay=50))
    desk.detach(gracefully=False)
    assert desk.payloads() == [b"last words"]


def test_a_new_leader_disconnects_everyone() -> None:
    desk = Desk()
    desk.attach(b"durable")
    desk.attach(b"short", expiry=0)
    desk.do(LeaderStarted(desk.now_ms, 2))
    assert ended(desk) == [(b"short", "disconnected")]
    assert not desk.session(b"durable").connected


def test_the_expiry_of_a_will_begins_when_it_is_said() -> None:
    desk = Desk()
    desk.attach(will=will(b"far/will", expires_in_ms=7_000))
    desk.elapse(50)
    desk.detach(gracefully=False)
    (item,) = desk.to_there()
    assert isinstance(item, Forward)
    assert decode_record(item.record)[0].expires_at_ms == desk.now_ms + 7_000


def test_a_will_into_a_full_queue_is_said_all_the_same() -> None:
    desk = Desk(queue_messages_max=2)
    desk.attach(b"full")
    desk.subscribe(spec(b"will"), client_id=b"full")
    desk.detach(b"full")
    desk.attach(will=will())
    while desk.publish(b"will") == 0:
        pass
    desk.detach(gracefully=False)
    assert desk.session(b"full").outbound.queue[-1].message.payload == b"last words"


# Deadlines.


def test_reconnecting_again_and_again_leaves_few_deadlines() -> None:
    desk = Desk()
    for _ in range(300):
        desk.attach(will=will(delay=10))
        desk.detach(gracefully=False)
    assert len(desk.leader.state.deadlines) <= 70
    desk.elapse(100)
    assert ended(desk) == [(b"c", "expired")]


def test_one_elapse_ends_no_more_sessions_than_an_entry_should_hold() -> None:
    desk = Desk(elapse_sessions_max=3)
    for number in range(7):
        desk.attach(b"%d" % number, expiry=1)
        desk.detach(b"%d" % number)
    gone = []
    for _ in range(3):
        due_ms = desk.leader.next_deadline_ms()
        assert due_ms is not None
        desk.elapse(1)
        gone.append(len(ended(desk)))
    assert gone == [3, 3, 1] and desk.leader.next_deadline_ms() is None


def test_a_subscribe_makes_a_session_for_a_client_that_only_its_connection_knew() -> None:
    desk = Desk()
    answer = desk.subscribe(spec(b"a"), epoch=0)
    assert isinstance(answer, SubscribeReply) and answer.epoch == 1 and answer.reasons == [2]
    desk.detach(epoch=answer.epoch, attachment=answer.attachment)
    assert ended(desk) == [(b"c", "disconnected")]
    assert desk.subscribe(spec(b"a"), epoch=1).reasons == [0x80]
