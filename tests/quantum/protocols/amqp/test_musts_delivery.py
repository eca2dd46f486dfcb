"""The MUSTs of part 2 on the fields of attach, transfer and detach (§2.7.3, §2.7.5, §2.7.7)."""

from __future__ import annotations

from typing import Any

import pytest

from quantum.protocols.amqp.engine import (
    AcceptedOutcome,
    AmqpConnectionFailed,
    AmqpMisuse,
    AttachFrame,
    CloseFrame,
    Condition,
    DeliveryReceived,
    DetachFrame,
    DispositionFrame,
    EndFrame,
    FlowFrame,
    LinkFailed,
    LinkRole,
    ReceiverSettleMode,
    SenderSettleMode,
    SessionFailed,
    TargetTerminus,
    TransferFrame,
)
from tests.quantum.protocols.amqp.peer import Peer, framed, only, transfer

SECOND = ReceiverSettleMode.SECOND


def detached_with(peer: Peer) -> str:
    error = peer.hear().only(DetachFrame).error
    assert error is not None
    return error.condition


def sending(**fields: Any) -> tuple[Peer, Any]:
    """A peer that sends, and the engine's end of the link."""
    peer = Peer(**fields.pop("settings", {})).opened()
    peer.begun()
    return peer, peer.sender(**fields)


def receiving(credit: int = 10, **fields: Any) -> tuple[Peer, Any]:
    peer = Peer().opened()
    peer.begun()
    link = peer.receiver(**fields)
    peer.say(FlowFrame(0, 1000, 0, 1000, 0, link.delivery_count, credit))
    return peer, link


def test_must_2_7_3_a_handle_in_use_is_answered_with_a_close() -> None:
    peer, _ = sending()
    only(peer.say(AttachFrame("other", 0, LinkRole.RECEIVER)), AmqpConnectionFailed)
    error = peer.hear().only(CloseFrame).error
    assert error is not None and error.condition == Condition.HANDLE_IN_USE


def test_must_2_7_3_a_sender_attaches_with_its_delivery_count() -> None:
    peer = Peer().opened()
    peer.begun()
    only(peer.say(AttachFrame("x", 0, LinkRole.SENDER)), SessionFailed)
    error = peer.hear().only(EndFrame).error
    assert error is not None and error.condition == Condition.INVALID_FIELD


def test_must_2_7_3_our_sender_attaches_with_its_delivery_count() -> None:
    peer = Peer().opened()
    peer.begun()
    peer.asked(LinkRole.RECEIVER).attach(initial_delivery_count=9)
    assert peer.hear().only(AttachFrame).initial_delivery_count == 9


def test_must_2_7_3_an_unsettled_map_has_tags_for_keys() -> None:
    peer = Peer().opened()
    peer.begun()
    unsettled: Any = {"text": None}
    only(
        peer.say(AttachFrame("x", 0, LinkRole.RECEIVER, unsettled=unsettled)), AmqpConnectionFailed
    )
    error = peer.hear().only(CloseFrame).error
    assert error is not None and error.condition == Condition.INVALID_FIELD


def test_must_2_7_3_to_an_incomplete_map_nothing_new_is_sent() -> None:
    _, link = receiving(
        unsettled={b"a": None},
        incomplete_unsettled=True,
        answer={"unsettled": {b"a": None}},
    )
    with pytest.raises(AmqpMisuse):
        link.send(b"new", b"x")
    link.send(b"a", b"x", resume=True)


def test_must_2_7_3_who_sent_an_incomplete_map_refuses_what_is_new() -> None:
    peer, _ = sending(answer={"unsettled": {b"a": None}, "incomplete_unsettled": True})
    only(peer.say(framed(transfer(0, 0, b"a", resume=True), b"x")), DeliveryReceived)
    only(peer.say(framed(transfer(0, 1, b"new"), b"x")), LinkFailed)
    assert detached_with(peer) == Condition.NOT_ALLOWED


def test_must_2_7_3_a_message_beyond_the_links_size_detaches_it() -> None:
    peer, _ = sending(answer={"message_bytes_max": 4})
    only(peer.say(framed(transfer(0, 0, b"t"), b"12345")), LinkFailed)
    assert detached_with(peer) == Condition.MESSAGE_SIZE_EXCEEDED
    peer, link = sending(answer={"message_bytes_max": 4})
    peer.say(framed(transfer(0, 0, b"t", more=True), b"123"))
    only(peer.say(framed(transfer(0, None, None, more=True), b"45")), LinkFailed)
    assert link.wire.partial_bytes == 0


def test_must_2_7_3_we_send_no_message_beyond_the_peers_size() -> None:
    _, link = receiving(max_message_size=4)
    with pytest.raises(AmqpMisuse):
        link.send(b"t", b"12345")
    link.send(b"t", b"1234")


@pytest.mark.parametrize(
    "body",
    [
        TransferFrame(0, None, b"t", 0),
        TransferFrame(0, 0, None, 0),
        TransferFrame(0, 0, b"t", None, more=True),
        TransferFrame(0, 0, b"t" * 33, 0),
    ],
    ids=["no id", "no tag", "no format", "long tag"],
)
def test_must_2_7_5_a_first_transfer_has_id_tag_and_format(body: TransferFrame) -> None:
    peer, _ = sending()
    only(peer.say(framed(body, b"x")), LinkFailed)
    assert detached_with(peer) == Condition.INVALID_FIELD


@pytest.mark.parametrize(
    ("settled", "expected"),
    [
        ((None,), False),
        ((True,), True),
        ((False,), False),
        ((None, None), False),
        ((True, None), True),
        ((None, True), True),
        ((True, False), True),
    ],
)
def test_must_2_7_5_settled_is_what_any_transfer_of_the_delivery_said(
    settled: tuple[bool | None, ...], expected: bool
) -> None:
    peer, link = sending()
    events = []
    for nth, each in enumerate(settled):
        first = nth == 0
        body = transfer(0, 0 if first else None, b"t" if first else None, settled=each)
        body.more = nth < len(settled) - 1
        events += peer.say(framed(body))
    assert only(events, DeliveryReceived).settled is expected
    assert (0 in link.session.incoming) is not expected


@pytest.mark.parametrize(
    ("mode", "settled"), [(SenderSettleMode.SETTLED, False), (SenderSettleMode.UNSETTLED, True)]
)
def test_must_2_7_5_a_delivery_is_settled_as_the_links_mode_says(
    mode: SenderSettleMode, settled: bool
) -> None:
    peer, _ = sending(snd=mode)
    only(peer.say(framed(transfer(0, 0, b"t", settled=not settled))), DeliveryReceived)
    only(peer.say(framed(transfer(0, 1, b"u", settled=settled))), LinkFailed)
    assert detached_with(peer) == Condition.INVALID_FIELD
    _, link = receiving(snd=mode)
    with pytest.raises(AmqpMisuse):
        link.send(b"t", b"x", settled=settled)
    link.send(b"t", b"x", settled=not settled)


def test_must_2_7_5_a_delivery_asks_for_mode_second_only_on_a_link_of_it() -> None:
    peer, _ = sending()
    only(peer.say(framed(transfer(0, 0, b"t", rcv_settle_mode=SECOND))), LinkFailed)
    assert detached_with(peer) == Condition.INVALID_FIELD
    peer, link = sending(rcv=SECOND)
    first = transfer(0, 0, b"t", rcv_settle_mode=ReceiverSettleMode.FIRST)
    peer.say(framed(first))
    link.session.settle([0], AcceptedOutcome())
    assert peer.hear().only(DispositionFrame).settled


def test_must_2_7_5_a_resumed_delivery_of_many_frames_is_marked_on_its_first() -> None:
    peer, _ = sending(answer={"unsettled": {b"t": None}})
    peer.say(framed(transfer(0, 0, b"t", resume=True, more=True), b"a"))
    assert only(peer.say(framed(transfer(0, None, None), b"b")), DeliveryReceived).resume


def test_must_2_7_5_a_delivery_id_in_use_ends_the_session() -> None:
    peer, _ = sending()
    peer.say(framed(transfer(0, 0, b"t")))
    only(peer.say(framed(transfer(0, 0, b"u"))), SessionFailed)


def test_must_2_7_5_a_transfer_on_an_unattached_handle_ends_the_session() -> None:
    peer, _ = sending()
    only(peer.say(framed(transfer(9, 0, b"t"))), SessionFailed)
    error = peer.hear().only(EndFrame).error
    assert error is not None and error.condition == Condition.UNATTACHED_HANDLE


def test_must_2_7_7_a_detach_that_names_no_link_ends_the_session() -> None:
    peer, _ = sending()
    only(peer.say(DetachFrame(4)), SessionFailed)


def test_a_transfer_from_a_receiver_detaches_the_link() -> None:
    peer, _ = receiving()
    only(peer.say(framed(transfer(0, 0, b"t"))), LinkFailed)
    assert detached_with(peer) == Condition.NOT_ALLOWED


def test_a_transfer_in_an_unusual_encoding_is_the_same_transfer() -> None:
    """The descriptor as eight bytes, the tag with a long length: the scanner leaves it alone."""
    peer, _ = sending()
    body = b"\x00\x80\0\0\0\0\0\0\0\x14\xd0\0\0\0\x0e\0\0\0\x04\x43\x43\xb0\0\0\0\x02tt\x43"
    body += b"payload"
    frame = (len(body) + 8).to_bytes(4, "big") + b"\2\0\0\0" + body
    event = only(peer.say(frame), DeliveryReceived)
    assert (event.tag, event.payload, event.delivery_id) == (b"tt", b"payload", 0)


def test_what_stands_between_a_transfers_list_and_its_payload_is_never_payload() -> None:
    """A list that ends before its size says would make its rest the message's first bytes."""
    peer, _ = sending()
    body = b"\0\x53\x14\xc0\x0a\x04\x43\x43\xa0\x01t\x43\x40\x40" + b"payload"
    frame = (len(body) + 8).to_bytes(4, "big") + b"\2\0\0\0" + body
    event = only(peer.say(frame), AmqpConnectionFailed)
    assert event.fault.condition == Condition.DECODE_ERROR


def test_all_that_is_not_whole_is_bounded_on_the_connection() -> None:
    peer, _ = sending(settings={"partial_bytes_max": 100})
    peer.sender(handle=1, name="other")
    peer.say(framed(transfer(0, 0, b"t", more=True), b"x" * 60))
    only(peer.say(framed(transfer(1, 1, b"u", more=True), b"x" * 60)), LinkFailed)
    assert detached_with(peer) == Condition.RESOURCE_LIMIT_EXCEEDED


def test_a_links_name_that_fits_no_frame_back_ends_the_session() -> None:
    peer = Peer().opened(max_frame_size=512)
    peer.begun()
    only(peer.say(AttachFrame("n" * 500, 0, LinkRole.RECEIVER)), SessionFailed)
    error = peer.hear().only(EndFrame).error
    assert error is not None and error.condition == Condition.FRAME_SIZE_TOO_SMALL


def test_dynamic_targets_are_attached_with_an_address() -> None:
    peer = Peer().opened()
    peer.begun()
    link = peer.asked(LinkRole.SENDER, target=TargetTerminus(None, dynamic=True))
    with pytest.raises(AmqpMisuse):
        link.attach()
    link.attach(target=TargetTerminus("made", dynamic=True))
