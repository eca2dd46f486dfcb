"""From a message to the sessions of this partition: who gets it, in which queue, and when."""

from __future__ import annotations

from quantum.broker.effects import FanOut, Send, SendVolatile
from quantum.broker.interest import session_changed
from quantum.broker.message import Message
from quantum.broker.outbound import Delivery
from quantum.broker.routes import Route, Target
from quantum.broker.session import Session
from quantum.broker.state import State


def deliver_here(state: State, route: Route, message: Message) -> None:
    """Give a message to every session of this partition that wants its topic."""
    if message.expires_at_ms and message.expires_at_ms <= state.now_ms:
        state.dropped += 1
        return
    for target in route.kept:
        _deliver_kept(state, target, message)
    if route.volatile and state.effects is not None:
        state.effects.append(FanOut(route, message))


def _deliver_kept(state: State, target: Target, message: Message) -> None:
    if target.no_local and target.client_id == message.client_id:
        rest = target.for_publisher()
        if rest is None:
            return
        target = rest
    session = state.sessions[target.client_id]
    retain = message.retain and target.retain_as_published
    qos = message.qos if message.qos < target.qos else target.qos
    enqueue(state, session, Delivery(message, qos, retain, target.identifiers))


def enqueue(state: State, session: Session, delivery: Delivery) -> None:
    """Put a message into a kept queue; what may leave at once becomes an effect."""
    if delivery.qos == 0:
        if session.connected and state.effects is not None:
            state.effects.append(Send(session.client_id, delivery))
        return
    outbound = session.outbound
    if not session.connected:
        outbound.weight += delivery.message.weight
        outbound.queue.append(delivery)
    elif outbound.push(delivery) and state.effects is not None:
        state.effects.append(Send(session.client_id, delivery))
    check_room(state, session)


def check_room(state: State, session: Session) -> None:
    """Note when a queue becomes full, or has room again (quantumqtt §7.2)."""
    settings, outbound = state.settings, session.outbound
    full = state.routes.full
    if session.client_id in full:
        if 4 * len(outbound) <= 3 * settings.queue_messages_max and (
            4 * outbound.weight <= 3 * settings.queue_bytes_max
        ):
            full.discard(session.client_id)
            session_changed(state, session)
    elif (
        len(outbound) >= settings.queue_messages_max or outbound.weight >= settings.queue_bytes_max
    ):
        full.add(session.client_id)
        session_changed(state, session)


def send_ready(state: State, session: Session) -> None:
    """Let what the window has room for leave, if the client is there."""
    if session.connected:
        for delivery in session.outbound.take_ready(state.now_ms):
            state.emit(Send(session.client_id, delivery))
    check_room(state, session)


def deliver_targeted(
    state: State, session: Session, delivery: Delivery, *, retained: bool = False
) -> None:
    """Give a message to one session: what is retained, or its turn in a shared subscription."""
    if session.keeps_queue:
        enqueue(state, session, delivery)
    elif session.connected:
        state.emit(
            SendVolatile(
                session.client_id,
                delivery.message,
                delivery.qos,
                retained or delivery.retain,
                delivery.identifiers,
            )
        )
