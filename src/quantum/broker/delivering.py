"""From a message to the sessions of this partition: who gets it, in which queue, and when."""

from __future__ import annotations

from quantum.broker.effects import FanOut, Send, SendVolatile
from quantum.broker.full_queues import FullQueue
from quantum.broker.membership import room_changed
from quantum.broker.message import Message
from quantum.broker.outbound import Delivery, Outbound
from quantum.broker.overfull import give_way
from quantum.broker.routes import RouteTarget, TopicRoute
from quantum.broker.session import Session
from quantum.broker.state import BrokerState


def deliver_here(
    state: BrokerState, route: TopicRoute, message: Message, *, to_leaving: bool = False
) -> None:
    """Give a message to every session of this partition that wants its topic.

    Those that leave have it from their new partition, unless the sender could not know yet.
    """
    if message.expires_at_ms and message.expires_at_ms <= state.now_ms:
        # Counted only where every replica looks: followers skip what connections alone want.
        state.dropped += len(route.kept)
        return
    leaving = None if to_leaving else state.leaving
    for target in route.kept:
        if not leaving or target.client_id not in leaving:
            _deliver_kept(state, target, message)
    if route.volatile and state.effects is not None:
        state.effects.append(FanOut(route, message))


def _deliver_kept(state: BrokerState, target: RouteTarget, message: Message) -> None:
    if target.no_local and target.client_id == message.client_id:
        rest = target.for_publisher()
        if rest is None:
            return
        target = rest
    session = state.sessions[target.client_id]
    retain = message.retain and target.retain_as_published
    qos = message.qos if message.qos < target.qos else target.qos
    enqueue(state, session, Delivery(message, qos, retain, target.identifiers))


def enqueue(state: BrokerState, session: Session, delivery: Delivery) -> None:
    """Put a message into a kept queue; what may leave at once becomes an effect."""
    if delivery.qos == 0:
        if session.connected and state.effects is not None:
            state.effects.append(Send(session.client_id, delivery))
        return
    outbound = session.outbound
    state.changes.sessions.add(session.client_id)
    delivery.drop_at_ms = state.now_ms + state.settings.message_ttl_ms
    if not session.connected:
        outbound.put_on(delivery.message.weight)
        outbound.queue.append(delivery)
    elif outbound.push(delivery) and state.effects is not None:
        state.effects.append(Send(session.client_id, delivery))
    settings = state.settings
    if (
        outbound.weight >= settings.queue_bytes_max
        or len(outbound.queue) + len(outbound.in_flight) >= settings.queue_messages_max
    ):
        check_room(state, session)


def check_room(state: BrokerState, session: Session) -> None:
    """Note when a queue becomes full, or has room again (quantumqtt §7.2)."""
    full = state.routes.full
    if session.client_id in full:
        if state.full_queues is not FullQueue.BLOCK or _has_room(state, session.outbound):
            full.discard(session.client_id)
            room_changed(state, session)
    elif _is_full(state, session.outbound):
        state.dropped += session.outbound.drop_expired(state.now_ms)
        if state.full_queues is not FullQueue.BLOCK:
            give_way(state, session)
        elif _is_full(state, session.outbound):
            full.add(session.client_id)
            room_changed(state, session)
            _look_at_expiry(state, session)
    if session.replays and session.keeps_queue and room_for_retained(state, session):
        state.replaying[session.client_id] = None


def _is_full(state: BrokerState, outbound: Outbound) -> bool:
    settings = state.settings
    return (
        len(outbound) >= settings.queue_messages_max or outbound.weight >= settings.queue_bytes_max
    )


def _has_room(state: BrokerState, outbound: Outbound) -> bool:
    """A quarter is free: a queue does not change its mind with every message."""
    settings = state.settings
    return (
        4 * len(outbound) <= 3 * settings.queue_messages_max
        and 4 * outbound.weight <= 3 * settings.queue_bytes_max
    )


def _look_at_expiry(state: BrokerState, session: Session) -> None:
    expires_at_ms = session.outbound.next_expiry_ms()
    if expires_at_ms is not None:
        state.look_again(expires_at_ms, session)


def make_room(state: BrokerState, session: Session) -> None:
    """Drop what expired in a full queue, so that its publishers may go on."""
    if session.client_id in state.routes.full:
        state.dropped += session.outbound.drop_expired(state.now_ms)
        check_room(state, session)
        if session.client_id in state.routes.full:
            _look_at_expiry(state, session)


def room_for_retained(state: BrokerState, session: Session) -> int:
    """Say how many retained messages a session may get now: they fill half a queue at most."""
    page = state.settings.retained_page
    if not session.keeps_queue:
        return page
    outbound = session.outbound
    if 2 * outbound.weight >= state.settings.queue_bytes_max:
        return 0
    return max(0, min(page, state.settings.queue_messages_max // 2 - len(outbound)))


def send_ready(state: BrokerState, session: Session) -> None:
    """Let what the window has room for leave, if the client is there."""
    state.changes.sessions.add(session.client_id)
    outbound = session.outbound
    if session.connected:
        for delivery in outbound.take_unsent():
            state.emit(Send(session.client_id, delivery, again=True))
        waiting, flying = len(outbound.queue), len(outbound.in_flight)
        for delivery in outbound.take_ready(state.now_ms):
            state.emit(Send(session.client_id, delivery))
        left, started = len(outbound.queue), len(outbound.in_flight) - flying
        state.dropped += waiting - left - started
    check_room(state, session)


def deliver_targeted(state: BrokerState, session: Session, delivery: Delivery) -> None:
    """Give a message to one session: what is retained, or its turn in a shared subscription."""
    if session.keeps_queue or (delivery.share and delivery.qos):
        enqueue(state, session, delivery)
    elif session.connected:
        state.emit(
            SendVolatile(
                session.client_id,
                delivery.message,
                delivery.qos,
                delivery.retain,
                delivery.identifiers,
            )
        )
