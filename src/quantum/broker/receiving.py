"""What other partitions sent, and what they have of ours."""

from __future__ import annotations

from typing import assert_never

import msgspec

from quantum.broker.capturing import begin_stream, end_stream
from quantum.broker.commands import PUBACK, PUBREC, Acknowledge, ChannelAcked, ChannelItems
from quantum.broker.congestion import on_pressure
from quantum.broker.delivering import deliver_here, deliver_targeted, send_ready
from quantum.broker.effects import SendPubrel
from quantum.broker.errors import UnknownCommand
from quantum.broker.interest import is_peer, send_item, takes_items
from quantum.broker.items import (
    NOTHING,
    Began,
    Deliver,
    Flushed,
    Forward,
    HandedOver,
    Interest,
    Item,
    MemberItem,
    MoreRetained,
    MovedDeliveries,
    MovedRetained,
    MovedSession,
    MovedSubscriptions,
    MovedTurnedAway,
    Pressure,
    Returned,
    SectionItem,
    Settled,
    StoreFull,
    StreamDefined,
    StreamDeleted,
    Targeted,
    WantRetained,
    decode_item,
)
from quantum.broker.limiting import note_store
from quantum.broker.membership import note_member
from quantum.broker.message import Message, decode_record
from quantum.broker.moving import (
    take_in_deliveries,
    take_in_retained,
    take_in_session,
    take_in_subscriptions,
)
from quantum.broker.outbound import Delivery
from quantum.broker.publishing import forward_acked, publish_forward
from quantum.broker.rebalancing import (
    advance,
    is_complete,
    on_began,
    on_flushed,
    on_handed_over,
    on_settled,
    open_up,
)
from quantum.broker.replaying import answer_retained, on_more_retained
from quantum.broker.session import Session
from quantum.broker.sharing import give_back, returned
from quantum.broker.state import BrokerState
from quantum.broker.types import TRANSFER, PacketId

REFUSED = 0
"""Instead of a packet type: the client answered with a reason code of 0x80 or above."""


def apply_channel_items(state: BrokerState, command: ChannelItems) -> bytes:
    """Count the items of another partition's channel, each once."""
    state.see_time(command.now_ms)
    if not takes_items(state, command.origin):
        return b""
    for sequence, encoded in zip(command.sequences, command.items, strict=False):
        if not state.channels.count(command.origin, sequence):
            continue
        try:
            _on_item(state, command.origin, decode_item(encoded))
        except (msgspec.DecodeError, ValueError):
            continue  # it counts, and every replica skips it
    if state.move is not None:
        _advance(state)
    return b""


def _advance(state: BrokerState) -> None:
    advance(state)
    move = state.move
    if move is not None and is_complete(state):
        open_up(state, move)
        held, move.held = move.held, []
        for origin, item in held:
            _on_item(state, origin, item)
        advance(state)


def _on_item(state: BrokerState, origin: int, item: Item) -> None:
    match item:
        case Deliver(record):
            if not state.is_open:
                _hold(state, origin, item)
            else:
                _on_deliver(state, origin, decode_record(record)[0])
        case Forward(record):
            publish_forward(state, origin, record)
        case Interest():
            _on_interest(state, origin & (TRANSFER - 1), item)
        case WantRetained():
            answer_retained(state, origin, item)
        case Targeted():
            if not state.is_open:
                _hold(state, origin, item)
            else:
                _on_targeted(state, item)
        case MemberItem():
            note_member(state, origin, item)
        case Returned(share, topic_filter, record):
            returned(state, share, topic_filter, decode_record(record)[0])
        case MoreRetained():
            on_more_retained(state, origin, item)
        case Pressure():
            on_pressure(state, item)
        case StoreFull():
            note_store(state, item.prg, is_full=item.full)
        case Began():
            on_began(state, origin, item)
        case Flushed():
            on_flushed(state, origin, item)
        case HandedOver():
            on_handed_over(state, origin, item)
        case Settled():
            on_settled(state, origin, item)
        case StreamDefined(spec):
            begin_stream(state, spec)
        case StreamDeleted(number):
            end_stream(state, number)
        case SectionItem(family, data):
            section = state.sections.get(family)
            if section is None:
                raise UnknownCommand("an item of a later release", family=family)
            section.receive(origin & (TRANSFER - 1), data)
        case MovedTurnedAway():
            if not state.is_open:
                state.turned_away.take_in(item.clients)
        case MovedRetained() | MovedSession() | MovedSubscriptions() | MovedDeliveries():
            if not state.is_open:
                _take_in(state, item)
        case _:
            assert_never(item)


def _hold(state: BrokerState, origin: int, item: Item) -> None:
    """Keep a message until every session that moves here has come."""
    if state.move is not None:
        state.move.held.append((origin, item))


def _on_deliver(state: BrokerState, origin: int, message: Message) -> None:
    move = state.move
    to_leaving = move is not None and origin not in move.began
    route = state.routes.route(message.topic)
    deliver_here(state, route, message, to_leaving=to_leaving)


def _take_in(
    state: BrokerState, item: MovedRetained | MovedSession | MovedSubscriptions | MovedDeliveries
) -> None:
    match item:
        case MovedRetained():
            take_in_retained(state, item)
        case MovedSession():
            take_in_session(state, item)
        case MovedSubscriptions():
            take_in_subscriptions(state, item)
        case MovedDeliveries():
            take_in_deliveries(state, item)
        case _:
            assert_never(item)


def _on_interest(state: BrokerState, origin: int, item: Interest) -> None:
    if item.level == NOTHING:
        state.routes.trie.remove(item.filter, origin)
    else:
        state.routes.trie.add(item.filter, origin, item.level)
    state.changes.interests.add((item.filter, origin))


def _on_targeted(state: BrokerState, item: Targeted) -> None:
    message, _ = decode_record(item.record)
    session = state.sessions.get(item.client_id)
    key = b"$share/" + item.share + b"/" + item.filter if item.share else item.filter
    if session is None and state.is_fenced(item.client_id):
        send_item(state, state.home(item.client_id), item)  # it went there
        return
    if session is None or session.epoch != item.epoch or key not in session.subscriptions:
        if item.share:  # the owner has our word that this member left, so it picks another
            give_back(state, item.share, item.filter, message)
        return
    identifiers = (item.identifier,) if item.identifier else ()
    delivery = Delivery(message, item.qos, item.retain, identifiers, item.share, item.filter)
    deliver_targeted(state, session, delivery)


def apply_channel_acked(state: BrokerState, command: ChannelAcked) -> bytes:
    """Forget what another partition has; publishers whose messages it took are told."""
    if not is_peer(state, command.peer):
        return b""
    for sequence, forward in state.channels.to(command.peer).acked(command.through):
        forward_acked(state, command.peer, sequence, forward)
    if state.move is not None:
        advance(state)
    return b""


def apply_acknowledge(state: BrokerState, command: Acknowledge) -> bytes:
    """Take what clients said of messages that are kept for them."""
    state.see_time(command.now_ms)
    touched: dict[bytes, Session] = {}
    for client_id, kind, packet_id in command.acknowledgements:
        session = state.sessions.get(client_id)
        if session is not None:
            _acknowledge(state, session, kind, PacketId(packet_id))
            touched[client_id] = session
    for session in touched.values():
        send_ready(state, session)
    return b""


def _acknowledge(state: BrokerState, session: Session, kind: int, packet_id: PacketId) -> None:
    outbound = session.outbound
    if kind == PUBACK:
        outbound.on_puback(packet_id)
    elif kind == PUBREC:
        # A client that holds a message of which nothing is known here can let go, too.
        if outbound.on_pubrec(packet_id) or packet_id not in outbound.in_flight:
            state.emit(SendPubrel(session.client_id, packet_id))
    elif kind == REFUSED:
        outbound.on_refused(packet_id)
    else:
        outbound.on_pubcomp(packet_id)
