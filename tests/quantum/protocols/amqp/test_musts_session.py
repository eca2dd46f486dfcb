"""The MUSTs of part 2 on sessions and their flow control (§2.5, §2.7.2, §2.7.4, §2.7.6)."""

from __future__ import annotations

import pytest

from quantum.protocols.amqp.engine import (
    AcceptedOutcome,
    AmqpConnectionFailed,
    AmqpMisuse,
    AttachFrame,
    BeginFrame,
    BeginReceived,
    CloseFrame,
    Condition,
    DetachFrame,
    DispositionFrame,
    DispositionReceived,
    EndFrame,
    EndReceived,
    ErrorValue,
    FlowFrame,
    LinkRole,
    ModifiedOutcome,
    ReleasedOutcome,
    SenderDispositionReceived,
    SessionFailed,
    TransferFrame,
    WindowOpened,
)
from quantum.protocols.amqp.engine.composites import Composite
from tests.quantum.protocols.amqp.peer import Peer, framed, only, state_of, transfer


def ended_with(peer: Peer) -> str:
    error = peer.hear().only(EndFrame).error
    assert error is not None
    return error.condition


def closed_with(peer: Peer) -> str:
    error = peer.hear().only(CloseFrame).error
    assert error is not None
    return error.condition


def test_must_2_5_1_an_answered_begin_names_the_channel_that_it_answers() -> None:
    peer = Peer().opened()
    event = only(peer.say(BeginFrame(None, 0, 1, 1), channel=9), BeginReceived)
    event.session.begin()
    answer = peer.hear()
    assert answer.only(BeginFrame).remote_channel == 9
    assert answer.channels == [0]


def test_must_2_5_1_a_begin_that_answers_one_never_sent_ends_the_connection() -> None:
    peer = Peer().opened()
    only(peer.say(BeginFrame(3, 0, 1, 1)), AmqpConnectionFailed)
    assert closed_with(peer) == Condition.INVALID_FIELD


def test_must_2_5_2_an_end_is_answered_with_an_end() -> None:
    peer = Peer().opened()
    session = peer.begun()
    event = only(peer.say(EndFrame(ErrorValue("x:y"))), EndReceived)
    assert event.error == ErrorValue("x:y")
    assert state_of(session) == "END_RECEIVED"
    session.end()
    assert peer.hear().only(EndFrame).error is None
    assert state_of(session) == "UNMAPPED"
    assert peer.begun().channel == 0


def test_must_2_5_2_a_channel_whose_end_we_owe_is_not_used_anew() -> None:
    peer = Peer().opened()
    first = peer.begun()
    peer.say(EndFrame())
    second = only(peer.say(BeginFrame(None, 0, 1, 1)), BeginReceived).session
    assert second.channel == 1
    first.end()
    assert only(peer.say(BeginFrame(None, 0, 1, 1), channel=4), BeginReceived).session.channel == 0


def test_must_2_5_4_a_session_that_cannot_go_on_ends_with_its_error_and_discards() -> None:
    peer = Peer().opened()
    session = peer.begun()
    other = peer.begun(channel=1)
    only(peer.say(DetachFrame(5)), SessionFailed)
    assert ended_with(peer) == Condition.UNATTACHED_HANDLE
    assert state_of(session) == "DISCARDING"
    discarded: list[bytes | Composite] = [
        AttachFrame("x", 0, LinkRole.RECEIVER),
        FlowFrame(0, 1, 0, 1, 7),
        framed(transfer(0, 0, b"t")),
        DispositionFrame(LinkRole.RECEIVER, 0),
    ]
    assert peer.say(*discarded) == []
    assert peer.hear().bodies == []
    only(peer.say(EndFrame()), EndReceived)
    assert state_of(session) == "UNMAPPED"
    assert state_of(other) == "MAPPED"


def test_must_2_5_4_a_session_that_fails_before_our_begin_is_begun_and_ended() -> None:
    peer = Peer().opened()
    events = peer.say(BeginFrame(None, 0, 1, 1), DetachFrame(5))
    only(events, SessionFailed)
    assert [type(each) for each in peer.hear().bodies] == [BeginFrame, EndFrame]


def test_must_2_5_5_a_session_that_we_ended_in_order_hears_only_its_end() -> None:
    peer = Peer().opened()
    session = peer.begun()
    session.end()
    assert state_of(session) == "END_SENT"
    assert peer.say(AttachFrame("x", 0, LinkRole.RECEIVER)) == []
    only(peer.say(EndFrame()), EndReceived)
    with pytest.raises(AmqpMisuse):
        session.end()


def test_must_2_5_6_the_remote_incoming_window_shrinks_with_each_transfer_sent() -> None:
    peer = Peer().opened()
    session = peer.begun(window=3)
    link = peer.receiver()
    peer.say(FlowFrame(0, 3, 0, 100, 0, 0, 10))
    for number in range(2):
        link.send(b"%d" % number, b"x")
    assert (session.remote_incoming_window, session.next_outgoing_id) == (1, 2)


def test_must_2_5_6_no_transfer_leaves_beyond_the_window_and_what_waits_leaves_in_order() -> None:
    peer = Peer().opened()
    session = peer.begun(window=2)
    link = peer.receiver()
    peer.say(FlowFrame(0, 2, 0, 100, 0, 0, 10))
    for number in range(4):
        link.send(b"%d" % number, b"x")
    assert [each.delivery_id for each in peer.hear().all(TransferFrame)] == [0, 1]
    assert not session.has_room
    assert peer.say(FlowFrame(2, 1, 0, 100)) == []
    assert [each.delivery_id for each in peer.hear().all(TransferFrame)] == [2]
    only(peer.say(FlowFrame(2, 5, 0, 100)), WindowOpened)
    assert [each.delivery_id for each in peer.hear().all(TransferFrame)] == [3]
    assert session.has_room


def test_must_2_5_6_a_flow_recomputes_the_window_from_what_the_peer_had_seen() -> None:
    peer = Peer().opened()
    session = peer.begun(window=100)
    link = peer.receiver()
    peer.say(FlowFrame(0, 100, 0, 100, 0, 0, 10))
    for number in range(4):
        link.send(b"%d" % number, b"x")
    peer.say(FlowFrame(1, 10, 0, 100))
    assert session.remote_incoming_window == 1 + 10 - 4
    peer.say(FlowFrame(None, 10, 0, 100))
    assert session.remote_incoming_window == 0 + 10 - 4


def test_must_2_5_6_next_incoming_id_and_remote_outgoing_window_come_from_the_flow() -> None:
    peer = Peer().opened()
    session = peer.begun()
    peer.say(FlowFrame(0, 100, 77, 5))
    assert (session.next_incoming_id, session.remote_outgoing_window) == (77, 5)


def test_must_2_5_6_the_remote_outgoing_window_shrinks_with_each_transfer_received() -> None:
    peer = Peer().opened()
    session = peer.begun()
    peer.sender()
    peer.say(framed(transfer(0, 0, b"t"), b"x"))
    assert (session.next_incoming_id, session.remote_outgoing_window) == (1, 999)


def test_must_2_5_6_more_transfers_than_the_window_has_end_the_session() -> None:
    peer = Peer(incoming_window=4).opened()
    events = peer.say(BeginFrame(None, 0, 10, 10), framed(transfer(0, 0, b"t")))
    assert only(events, SessionFailed).fault.condition == Condition.WINDOW_VIOLATION


def test_must_2_5_6_the_window_opens_again_as_transfers_are_pulled() -> None:
    peer = Peer(incoming_window=4).opened()
    peer.begun()
    peer.sender()
    for number in range(12):
        assert len(peer.say(framed(transfer(0, number, b"%d" % number)))) == 1
    assert peer.hear().all(FlowFrame)[-1].incoming_window == 4


def test_must_2_7_2_a_handle_beyond_handle_max_ends_the_connection() -> None:
    peer = Peer(handle_max=3).opened()
    peer.begun()
    only(peer.say(AttachFrame("x", 4, LinkRole.RECEIVER)), AmqpConnectionFailed)
    assert closed_with(peer) == Condition.FRAMING_ERROR


def test_must_2_7_2_we_use_no_handle_beyond_the_peers_handle_max() -> None:
    peer = Peer().opened()
    peer.begun(handle_max=0)
    assert peer.receiver(handle=5).handle == 0
    only(peer.say(AttachFrame("y", 6, LinkRole.RECEIVER)), SessionFailed)
    assert ended_with(peer) == Condition.RESOURCE_LIMIT_EXCEEDED


def test_must_2_7_2_a_begin_on_a_channel_in_use_ends_the_connection() -> None:
    peer = Peer().opened()
    peer.begun()
    only(peer.say(BeginFrame(None, 0, 1, 1)), AmqpConnectionFailed)
    assert closed_with(peer) == Condition.ILLEGAL_STATE


@pytest.mark.parametrize(
    "fields",
    [{"delivery_count": 0}, {"link_credit": 1}, {"available": 1}, {"drain": True}],
    ids=lambda fields: next(iter(fields)),
)
def test_must_2_7_4_a_flow_without_a_handle_has_no_state_of_a_link(
    fields: dict[str, int],
) -> None:
    peer = Peer().opened()
    peer.begun()
    only(peer.say(FlowFrame(0, 1, 0, 1, None, **fields)), SessionFailed)  # type: ignore[arg-type]
    assert ended_with(peer) == Condition.INVALID_FIELD


def test_must_2_7_4_a_flow_for_an_unattached_handle_ends_the_session() -> None:
    peer = Peer().opened()
    peer.begun()
    only(peer.say(FlowFrame(0, 1, 0, 1, 3)), SessionFailed)
    assert ended_with(peer) == Condition.UNATTACHED_HANDLE


def test_must_2_7_4_next_incoming_id_is_set_on_every_flow_of_ours() -> None:
    peer = Peer().opened()
    peer.begun()
    peer.say(FlowFrame(0, 1, 5, 1, echo=True))
    assert peer.hear().only(FlowFrame).next_incoming_id == 5


def test_must_2_7_4_an_echo_is_answered_with_our_state() -> None:
    peer = Peer().opened()
    peer.begun()
    link = peer.receiver()
    peer.say(FlowFrame(0, 1, 0, 1, 0, 0, 9, echo=True))
    flow = peer.hear().only(FlowFrame)
    assert (flow.handle, flow.delivery_count, flow.link_credit) == (link.handle, 0, 9)


def test_must_2_7_4_a_senders_flow_tells_its_delivery_count() -> None:
    peer = Peer().opened()
    peer.begun()
    link = peer.receiver(answer={"initial_delivery_count": 40})
    peer.say(FlowFrame(0, 10, 0, 10, 0, 40, 3))
    link.send(b"t", b"x")
    peer.hear()
    link.offer(7)
    flow = peer.hear().only(FlowFrame)
    assert (flow.delivery_count, flow.link_credit, flow.available) == (41, 2, 7)


def test_must_2_7_4_a_receivers_flow_tells_the_last_delivery_count_it_knows() -> None:
    peer = Peer().opened()
    peer.begun()
    link = peer.sender(initial_delivery_count=7, credit=0)
    link.grant(5)
    assert peer.hear().only(FlowFrame).delivery_count == 7
    peer.say(framed(transfer(0, 0, b"t")))
    link.grant(5)
    assert peer.hear().only(FlowFrame).delivery_count == 8


def test_must_2_7_4_a_senders_flow_without_a_delivery_count_detaches_the_link() -> None:
    peer = Peer().opened()
    peer.begun()
    peer.sender()
    peer.say(FlowFrame(0, 1, 0, 1, 0, None, 1))
    error = peer.hear().only(DetachFrame).error
    assert error is not None and error.condition == Condition.INVALID_FIELD


def test_must_2_7_6_a_disposition_reaches_links_of_its_direction_alone() -> None:
    peer = Peer().opened()
    session = peer.begun()
    peer.sender(handle=0, name="in")
    out = peer.receiver(handle=1, name="out")
    peer.say(FlowFrame(0, 10, 0, 10, 1, 0, 5), framed(transfer(0, 0, b"in")))
    assert out.send(b"out", b"x").delivery_id == 0
    event = only(
        peer.say(DispositionFrame(LinkRole.SENDER, 0, settled=True)), SenderDispositionReceived
    )
    assert event.delivery_ids == [0]
    assert (list(session.incoming), list(session.outgoing)) == ([], [0])
    settled = only(
        peer.say(DispositionFrame(LinkRole.RECEIVER, 0, 0, True, AcceptedOutcome())),  # noqa: FBT003
        DispositionReceived,
    )
    assert [each.tag for each in settled.deliveries] == [b"out"]
    assert session.outgoing == {}


def test_must_2_7_6_a_disposition_reaches_deliveries_of_a_detached_link() -> None:
    peer = Peer().opened()
    session = peer.begun()
    link = peer.receiver()
    peer.say(FlowFrame(0, 10, 0, 10, 0, 0, 5))
    link.send(b"t", b"x")
    peer.say(DetachFrame(0))
    link.detach(closed=False)
    event = only(
        peer.say(DispositionFrame(LinkRole.RECEIVER, 0, None, True, ReleasedOutcome())),  # noqa: FBT003
        DispositionReceived,
    )
    assert event.state == ReleasedOutcome()
    assert session.outgoing == {}


def test_must_2_7_6_a_disposition_does_not_reach_deliveries_of_a_closed_link() -> None:
    peer = Peer().opened()
    session = peer.begun()
    link = peer.receiver()
    peer.say(FlowFrame(0, 10, 0, 10, 0, 0, 5))
    link.send(b"t", b"x")
    peer.say(DetachFrame(0, True))  # noqa: FBT003
    assert session.outgoing == {}
    assert peer.say(DispositionFrame(LinkRole.RECEIVER, 0, None, True, AcceptedOutcome())) == []  # noqa: FBT003


@pytest.mark.parametrize("first", [0, 5, 0xFFFFFFFE])
def test_must_2_8_10_numbers_go_round(first: int) -> None:
    """Serial arithmetic of RFC 1982: ranges of dispositions cross zero."""
    peer = Peer().opened()
    session = peer.begun()
    link = peer.receiver(answer={"initial_delivery_count": first})
    session.next_delivery_id = session.next_outgoing_id = first
    last = (first + 3) & 0xFFFFFFFF
    peer.say(FlowFrame(first, 100, 0, 10, 0, first, 4))
    numbers = [link.send(b"%d" % each, b"x").delivery_id for each in range(4)]
    assert numbers[-1] == last
    assert link.credit == 0
    event = only(
        peer.say(DispositionFrame(LinkRole.RECEIVER, first, last, True, ModifiedOutcome())),  # noqa: FBT003
        DispositionReceived,
    )
    assert [each.delivery_id for each in event.deliveries] == numbers


def test_what_waits_for_the_window_has_no_number_and_no_count_yet() -> None:
    """Numbers must have no gaps, and an echo must not tell a count that no transfer has reached."""
    peer = Peer().opened()
    session = peer.begun(window=1)
    first, second = peer.receiver(), peer.receiver(handle=1, name="second")
    peer.say(FlowFrame(0, 1, 0, 10, 0, 0, 5), FlowFrame(0, 1, 0, 10, 1, 0, 5))
    waiting = [first.send(tag, b"x") for tag in (b"a", b"b", b"c")][-1]
    last = second.send(b"d", b"x")
    peer.hear()
    assert (waiting.delivery_id, first.waiting, first.credit) == (-1, 2, 4)
    peer.say(FlowFrame(1, 0, 0, 10, 0, 1, 4, echo=True))
    assert peer.hear().only(FlowFrame).delivery_count == 1
    first.detach()
    peer.say(FlowFrame(1, 5, 0, 10))
    assert last.delivery_id == 1
    assert list(session.outgoing) == [1]


def test_credit_taken_back_holds_what_waits_on_that_link_alone() -> None:
    peer = Peer().opened()
    session = peer.begun(window=1)
    first, second = peer.receiver(), peer.receiver(handle=1, name="second")
    peer.say(FlowFrame(0, 1, 0, 10, 0, 0, 5), FlowFrame(0, 1, 0, 10, 1, 0, 5))
    first.send(b"a", b"x")
    held = first.send(b"b", b"x")
    other = second.send(b"c", b"x")
    peer.say(FlowFrame(1, 10, 0, 10, 0, 1, 0))
    assert (held.delivery_id, other.delivery_id) == (-1, 1)
    assert session.has_room and second.is_sendable and not first.is_sendable
    with pytest.raises(AmqpMisuse):
        first.drained()
    peer.say(FlowFrame(2, 10, 0, 10, 0, 1, 1))
    assert (held.delivery_id, first.credit, first.waiting) == (2, 0, 0)


def test_a_range_that_ends_before_it_begins_ends_the_session() -> None:
    peer = Peer().opened()
    peer.begun()
    only(peer.say(DispositionFrame(LinkRole.RECEIVER, 5, 4)), SessionFailed)
    assert ended_with(peer) == Condition.INVALID_FIELD


def test_a_range_of_two_thousand_million_costs_what_is_unsettled() -> None:
    peer = Peer().opened()
    peer.begun()
    link = peer.receiver()
    peer.say(FlowFrame(0, 10, 0, 10, 0, 0, 5))
    link.send(b"t", b"x")
    event = only(peer.say(DispositionFrame(LinkRole.RECEIVER, 0, 0x7FFFFFFE)), DispositionReceived)
    assert len(event.deliveries) == 1
