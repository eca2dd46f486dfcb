"""The MUSTs of part 2 on links and deliveries (§2.6)."""

from __future__ import annotations

from typing import Any

import pytest

from quantum.protocols.amqp.engine import (
    AcceptedOutcome,
    AmqpMisuse,
    AttachFrame,
    AttachReceived,
    Condition,
    DeliveryAborted,
    DeliveryReceived,
    DetachFrame,
    DetachReceived,
    DispositionFrame,
    EndFrame,
    ErrorValue,
    FlowFrame,
    FlowReceived,
    LinkFailed,
    LinkRole,
    LinkState,
    ReceivedState,
    ReceiverSettleMode,
    SenderDispositionReceived,
    SessionFailed,
    SessionState,
    SourceTerminus,
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


def test_must_2_6_1_a_name_is_unique_in_its_direction_and_the_newer_link_has_it() -> None:
    peer, older = sending(name="same")
    other_way = peer.receiver(name="same", handle=1)
    events = peer.say(AttachFrame("same", 2, LinkRole.SENDER, initial_delivery_count=0))
    assert only(events, LinkFailed).link is older
    assert detached_with(peer) == Condition.STOLEN
    only(events, AttachReceived)
    assert other_way.state is LinkState.ATTACHED


def test_must_2_6_3_an_attach_is_answered_with_its_name_and_the_other_role() -> None:
    peer = Peer().opened()
    peer.begun()
    link = peer.asked(LinkRole.SENDER, name="orders", handle=7)
    link.attach()
    attach = peer.hear().only(AttachFrame)
    assert (attach.name, attach.role, attach.handle) == ("orders", LinkRole.RECEIVER, 0)


def test_must_2_6_3_an_attach_without_a_terminus_is_followed_by_a_detach_at_once() -> None:
    peer = Peer().opened()
    peer.begun()
    link = peer.asked(LinkRole.RECEIVER)
    link.refuse(ErrorValue(Condition.NOT_FOUND, "there is no such node"))
    attach, detach = peer.hear().bodies
    assert isinstance(attach, AttachFrame) and attach.source is None
    assert isinstance(detach, DetachFrame) and detach.closed
    only(peer.say(DetachFrame(0, True)), DetachReceived)  # noqa: FBT003
    assert link.state is LinkState.DETACHED


def test_must_2_6_3_the_termini_are_told_as_they_are() -> None:
    peer = Peer().opened()
    peer.begun()
    link = peer.asked(LinkRole.RECEIVER, source=SourceTerminus("queue", durable=2))
    link.attach(source=SourceTerminus("queue", durable=0))
    source = peer.hear().only(AttachFrame).source
    assert source == SourceTerminus("queue", durable=0)


def test_must_2_6_3_a_resumed_links_attach_tells_its_unsettled_deliveries() -> None:
    peer = Peer().opened()
    peer.begun()
    link = peer.asked(LinkRole.SENDER, unsettled={b"a": None, b"b": AcceptedOutcome()})
    assert link.remote.unsettled == {b"a": None, b"b": AcceptedOutcome()}
    link.attach(unsettled={b"b": AcceptedOutcome(), b"c": ReceivedState(0, 5)})
    assert peer.hear().only(AttachFrame).unsettled == {
        b"b": AcceptedOutcome(),
        b"c": ReceivedState(0, 5),
    }


def test_must_2_6_4_a_detach_is_told_and_answered() -> None:
    peer, link = sending()
    event = only(peer.say(DetachFrame(0)), DetachReceived)
    assert not event.closed
    link.detach(closed=False)
    assert not peer.hear().only(DetachFrame).closed
    assert link.state is LinkState.DETACHED
    only(
        peer.say(AttachFrame("link", 0, LinkRole.SENDER, initial_delivery_count=0)), AttachReceived
    )


def test_must_2_6_4_what_comes_behind_our_detach_in_order_is_discarded() -> None:
    peer, link = sending()
    link.detach()
    assert peer.say(framed(transfer(0, 0, b"t"), b"x"), FlowFrame(0, 1, 0, 1, 0, 0, 1)) == []
    only(peer.say(DetachFrame(0, True)), DetachReceived)  # noqa: FBT003
    assert link.session.state is SessionState.MAPPED


def test_must_2_6_5_a_links_error_detaches_it_with_the_error() -> None:
    peer, link = sending(credit=0)
    event = only(peer.say(framed(transfer(0, 0, b"t"), b"x")), LinkFailed)
    assert event.link is link
    assert detached_with(peer) == Condition.TRANSFER_LIMIT_EXCEEDED
    assert link.session.state is SessionState.MAPPED


@pytest.mark.parametrize("what", ["transfer", "flow"])
def test_must_2_6_5_input_for_a_link_that_failed_ends_the_session(what: str) -> None:
    peer, _ = sending(credit=0)
    peer.say(framed(transfer(0, 0, b"t"), b"x"))
    peer.hear()
    again = framed(transfer(0, 1, b"u")) if what == "transfer" else framed(FlowFrame(0, 1, 0, 1, 0))
    only(peer.say(again), SessionFailed)
    error = peer.hear().only(EndFrame).error
    assert error is not None and error.condition == Condition.ERRANT_LINK


def test_must_2_6_5_a_detach_for_a_link_that_failed_is_in_order() -> None:
    peer, link = sending(credit=0)
    peer.say(framed(transfer(0, 0, b"t"), b"x"))
    only(peer.say(DetachFrame(0, True)), DetachReceived)  # noqa: FBT003
    assert link.state is LinkState.DETACHED
    assert link.session.state is SessionState.MAPPED


def test_must_2_6_6_a_closing_detach_that_crosses_ours_is_answered_by_closing_too() -> None:
    peer, link = sending()
    link.detach(closed=False)
    peer.hear()
    peer.say(DetachFrame(0, True))  # noqa: FBT003
    attach, detach = peer.hear().bodies
    assert isinstance(attach, AttachFrame) and attach.name == "link"
    assert isinstance(detach, DetachFrame) and detach.closed
    again = AttachFrame("link", 0, LinkRole.SENDER, initial_delivery_count=0)
    events = peer.say(again, DetachFrame(0, True))  # noqa: FBT003
    assert [type(each) for each in events] == [DetachReceived]
    assert peer.hear().bodies == []


def test_must_2_6_7_a_senders_credit_follows_the_receivers_delivery_limit() -> None:
    peer, link = receiving(credit=10)
    for number in range(4):
        link.send(b"%d" % number, b"x")
    # The receiver had seen two of them when it granted five.
    only(peer.say(FlowFrame(2, 100, 0, 10, 0, 2, 5)), FlowReceived)
    assert link.credit == 2 + 5 - 4
    peer.say(FlowFrame(2, 100, 0, 10, 0, 2, 1))
    assert link.credit == 0


def test_must_2_6_7_a_receiver_that_knows_no_delivery_count_means_the_first() -> None:
    peer, link = receiving(credit=3, answer={"initial_delivery_count": 100})
    link.send(b"t", b"x")
    peer.say(FlowFrame(0, 100, 0, 10, 0, None, 5))
    assert link.credit == 100 + 5 - 101


def test_must_2_6_7_a_delivery_raises_the_count_and_lowers_the_credit() -> None:
    _, link = receiving(credit=2)
    link.send(b"t", b"x")
    assert (link.delivery_count, link.credit) == (1, 1)
    link.send(b"u", b"x")
    with pytest.raises(AmqpMisuse):
        link.send(b"v", b"x")


def test_must_2_6_7_a_transfer_beyond_all_credit_detaches_the_link() -> None:
    peer, link = sending(credit=1)
    only(peer.say(framed(transfer(0, 0, b"t"))), DeliveryReceived)
    assert (link.delivery_count, link.credit) == (1, 0)
    only(peer.say(framed(transfer(0, 1, b"u"))), LinkFailed)
    assert detached_with(peer) == Condition.TRANSFER_LIMIT_EXCEEDED


def test_must_2_6_7_credit_that_was_taken_back_may_have_been_used_already() -> None:
    peer, link = sending(credit=2)
    link.grant(0)
    only(peer.say(framed(transfer(0, 0, b"t"))), DeliveryReceived)
    only(peer.say(framed(transfer(0, 1, b"u"))), DeliveryReceived)
    only(peer.say(framed(transfer(0, 2, b"v"))), LinkFailed)


def test_must_2_6_7_available_never_falls_below_zero() -> None:
    peer, link = sending()
    peer.say(FlowFrame(0, 1, 0, 1, 0, 0, None, 1))
    assert link.available == 1
    peer.say(framed(transfer(0, 0, b"t")), framed(transfer(0, 1, b"u")))
    assert link.available == 0


def test_must_2_6_7_a_drained_sender_advances_its_count_by_all_its_credit() -> None:
    peer, link = receiving(credit=0)
    only(peer.say(FlowFrame(0, 10, 0, 10, 0, 0, 6, drain=True)), FlowReceived)
    assert link.drain
    link.send(b"t", b"x")
    peer.hear()
    link.drained()
    flow = peer.hear().only(FlowFrame)
    assert (flow.delivery_count, flow.link_credit, flow.drain) == (6, 0, True)
    # What is not said is false (§2.7.4): the next credit is there to stay.
    only(peer.say(FlowFrame(0, 10, 0, 10, 0, 6, 4)), FlowReceived)
    assert (link.credit, link.drain) == (4, False)


def test_must_2_6_7_a_receiver_takes_a_drained_count_and_no_more() -> None:
    peer, link = sending(credit=0)
    link.grant(5, drain=True)
    only(peer.say(FlowFrame(0, 1, 0, 1, 0, 5, 0, 0, True)), FlowReceived)  # noqa: FBT003
    assert (link.delivery_count, link.credit, link.drain) == (5, 0, False)
    peer.say(FlowFrame(0, 1, 0, 1, 0, 6, 0))
    assert detached_with(peer) == Condition.TRANSFER_LIMIT_EXCEEDED


def test_must_2_6_12_a_receiver_of_mode_second_settles_only_after_the_sender() -> None:
    peer, link = sending(rcv=SECOND)
    peer.say(framed(transfer(0, 0, b"t")))
    link.session.settle([0], AcceptedOutcome())
    assert not peer.hear().only(DispositionFrame).settled
    assert list(link.session.incoming) == [0]
    event = only(
        peer.say(DispositionFrame(LinkRole.SENDER, 0, None, True, AcceptedOutcome())),  # noqa: FBT003
        SenderDispositionReceived,
    )
    assert event.delivery_ids == [0]
    assert link.session.incoming == {}


def test_must_2_6_12_a_receiver_of_mode_first_settles_at_once() -> None:
    peer, link = sending()
    for number in range(5):
        peer.say(framed(transfer(0, number, b"%d" % number)))
    link.session.settle([0, 1, 2, 4], AcceptedOutcome())
    found = peer.hear().all(DispositionFrame)
    assert [(each.first, each.last, each.settled) for each in found] == [
        (0, 2, True),
        (4, None, True),
    ]
    assert list(link.session.incoming) == [3]
    with pytest.raises(AmqpMisuse):
        link.session.settle([3, 4], AcceptedOutcome())
    assert list(link.session.incoming) == [3]


def test_must_2_6_13_a_resumed_delivery_is_marked_and_is_in_our_unsettled_map() -> None:
    peer, link = receiving(answer={"unsettled": {b"known": None}})
    link.send(b"known", b"x", resume=True)
    assert peer.hear().only(TransferFrame).resume
    with pytest.raises(AmqpMisuse):
        link.send(b"unknown", b"x", resume=True)


def test_must_2_6_13_a_resumed_delivery_that_we_do_not_know_is_ignored() -> None:
    peer, link = sending(answer={"unsettled": {b"known": None}})
    assert peer.say(framed(transfer(0, 0, b"unknown", resume=True), b"x")) == []
    assert link.session.incoming == {}
    event = only(
        peer.say(framed(transfer(0, 1, b"known", resume=True, state=ReceivedState(0, 1)), b"x")),
        DeliveryReceived,
    )
    assert event.resume
    assert event.state == ReceivedState(0, 1)


def test_must_2_6_14_a_message_of_many_frames_is_told_whole() -> None:
    peer, _ = sending()
    assert peer.say(framed(transfer(0, 0, b"t", more=True), b"ab")) == []
    assert peer.say(framed(transfer(0, None, None, more=True), b"cd")) == []
    event = only(peer.say(framed(transfer(0, None, None), b"ef")), DeliveryReceived)
    assert event.payload == b"abcdef"


def test_must_2_6_14_messages_of_different_links_may_be_interleaved() -> None:
    peer, _ = sending()
    peer.sender(handle=1, name="other")
    peer.say(
        framed(transfer(0, 0, b"t", more=True), b"a"), framed(transfer(1, 1, b"u", more=True), b"1")
    )
    first, second = peer.say(
        framed(transfer(0, None, None), b"b"), framed(transfer(1, None, None), b"2")
    )
    assert isinstance(first, DeliveryReceived) and first.payload == b"ab"
    assert isinstance(second, DeliveryReceived) and second.payload == b"12"


def test_must_2_6_14_messages_of_one_link_must_not_be_interleaved() -> None:
    peer, _ = sending()
    peer.say(framed(transfer(0, 0, b"t", more=True), b"a"))
    only(peer.say(framed(transfer(0, 1, b"u"), b"1")), LinkFailed)
    assert detached_with(peer) == Condition.INVALID_FIELD


def test_must_2_6_14_our_messages_of_one_link_are_not_interleaved() -> None:
    peer = Peer().opened(max_frame_size=512)
    peer.begun(window=3)
    link = peer.receiver()
    peer.say(FlowFrame(0, 3, 0, 10, 0, 0, 10))
    link.send(b"t", b"a" * 1_000)
    link.send(b"u", b"b" * 1_000)
    answer = peer.hear()
    peer.say(FlowFrame(3, 100, 0, 10))
    later = peer.hear()
    assert b"".join(answer.payloads + later.payloads) == b"a" * 1_000 + b"b" * 1_000
    more = [bool(each.more) for each in answer.all(TransferFrame) + later.all(TransferFrame)]
    assert more == [True, True, False] * 2


def test_must_2_6_14_what_came_before_an_abort_is_discarded_and_settled() -> None:
    peer, link = sending()
    peer.say(framed(transfer(0, 0, b"t", more=True), b"ab"))
    event = only(peer.say(framed(transfer(0, None, None, aborted=True), b"cd")), DeliveryAborted)
    assert (event.delivery_id, event.tag) == (0, b"t")
    assert link.session.incoming == {}
    assert link.wire.partial_bytes == 0
    event2 = only(peer.say(framed(transfer(0, 1, b"u"), b"ef")), DeliveryReceived)
    assert event2.payload == b"ef"


def test_must_2_6_14_a_delivery_of_ours_can_be_aborted_half_way() -> None:
    peer = Peer().opened(max_frame_size=512)
    session = peer.begun(window=1)
    link = peer.receiver()
    peer.say(FlowFrame(0, 1, 0, 10, 0, 0, 10))
    delivery = link.send(b"t", b"a" * 5_000)
    later = link.send(b"u", b"b")
    peer.hear()
    assert session.abort(later)
    assert (later.delivery_id, link.waiting, link.credit) == (-1, 0, 9)
    assert session.abort(delivery)
    peer.say(FlowFrame(1, 5, 0, 10))
    answer = peer.hear()
    assert answer.only(TransferFrame).aborted
    assert answer.payloads == [b""]
    assert session.outgoing == {}
    assert not session.abort(delivery)
