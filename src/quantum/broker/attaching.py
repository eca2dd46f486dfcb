"""Sessions begin, connect, disconnect and end; wills are said or forgotten."""

from __future__ import annotations

from heapq import heappop

import msgspec

from quantum.broker.commands import (
    Attach,
    Detach,
    Elapse,
    LeaderStarted,
    RemoveSession,
    SubscriptionSpec,
)
from quantum.broker.delivering import send_ready
from quantum.broker.effects import Ended, Send, SendPubrel
from quantum.broker.interest import tell
from quantum.broker.message import Message, decode_record
from quantum.broker.outbound import RECEIVED
from quantum.broker.publishing import publish_anywhere
from quantum.broker.session import Session, new_outbound
from quantum.broker.sharing import membership_changed, take_back
from quantum.broker.state import State
from quantum.broker.types import ClientId, SessionEpoch

_encode = msgspec.msgpack.encode


class Attached(msgspec.Struct, array_like=True):
    """The reply to an Attach."""

    present: bool
    epoch: int
    attachment: int


def apply_attach(state: State, command: Attach, index: int) -> bytes:
    """Connect a client to its session, or to a new one; the reply is an `Attached`."""
    state.see_time(command.now_ms)
    session = state.sessions.get(command.client_id)
    present = session is not None and session.is_durable and not command.clean_start
    if session is not None and not present:
        session.will = None  # taken over (quantumqtt §10.3)
        end_session(state, session, "taken over")
    if session is None or not present:
        session = make_session(state, command.client_id, index)
    session.will, session.will_due_ms = command.will, 0
    session.connected, session.attachment = True, index
    expiry = min(command.expiry_seconds, state.settings.session_expiry_seconds_max)
    _set_expiry(state, session, expiry)
    session.outbound.window = max(1, command.window)
    _tell_online(state, session)
    _resume(state, session)
    return _encode(Attached(present, session.epoch, session.attachment))


def make_session(state: State, client_id: bytes, index: int) -> Session:
    """Make a session that ends with its connection, for now."""
    state.epoch += 1
    session = Session(
        ClientId(client_id), SessionEpoch(state.epoch), 0, new_outbound(1), attachment=index
    )
    state.sessions[client_id] = session
    return session


def _set_expiry(state: State, session: Session, expiry_seconds: int) -> None:
    if session.expiry_seconds != expiry_seconds:
        session.expiry_seconds = expiry_seconds
        state.routes.invalidate()  # whether the machine keeps its queue may have changed


def _resume(state: State, session: Session) -> None:
    """Send again what was in flight, in the same order (MQTT-4.4.0-1), then what waits."""
    for delivery in session.outbound.in_flight.values():
        if delivery.state == RECEIVED:
            state.emit(SendPubrel(session.client_id, delivery.packet_id))
        else:
            state.emit(Send(session.client_id, delivery, again=True))
    send_ready(state, session)


def apply_detach(state: State, command: Detach) -> bytes:
    """End a connection; a late word about an older one changes nothing."""
    state.see_time(command.now_ms)
    session = state.sessions.get(command.client_id)
    if session is None or session.epoch != command.epoch:
        return b""
    if command.attachment and command.attachment != session.attachment:
        return b""
    if command.expiry_seconds is not None:
        expiry = min(command.expiry_seconds, state.settings.session_expiry_seconds_max)
        _set_expiry(state, session, expiry)
    session.outbound.unsend(command.unsent)
    _disconnect(state, session, gracefully=command.gracefully)
    return b""


def _disconnect(state: State, session: Session, *, gracefully: bool) -> None:
    if not session.connected:
        return
    session.connected, session.disconnected_at_ms = False, state.now_ms
    if gracefully:
        session.will = None
    if not session.is_durable:
        end_session(state, session, "disconnected")
        return
    _tell_online(state, session)
    take_back(state, session)
    if session.will is not None:
        wait = min(session.will.delay_seconds, session.expiry_seconds)
        session.will_due_ms = state.now_ms + 1000 * wait
        if wait == 0:
            _say_will(state, session)
        else:
            state.look_again(session.will_due_ms, session.client_id)
    ends_at_ms = session.ends_at_ms()
    if ends_at_ms is not None:
        state.look_again(ends_at_ms, session.client_id)


def _tell_online(state: State, session: Session) -> None:
    if not session.shares:
        return
    for spec in session.subscriptions.values():
        if spec.share:
            membership_changed(state, session, spec)


def _say_will(state: State, session: Session) -> None:
    will, session.will, session.will_due_ms = session.will, None, 0
    if will is not None:
        try:
            message, _ = decode_record(will.record)
        except ValueError:
            return
        publish_anywhere(state, _from_now(state, message))


def _from_now(state: State, message: Message) -> Message:
    """A will's expiry interval begins when it is published: until then it is an interval."""
    if message.expires_at_ms:
        message.expires_at_ms += state.now_ms
    return message


def end_session(state: State, session: Session, reason: str) -> None:
    """Forget a session and all that it wanted; its will is said now if it waited."""
    for key, spec in list(session.subscriptions.items()):
        remove_subscription(state, session, key, spec)
    session.connected = False
    take_back(state, session)
    state.routes.full.discard(session.client_id)
    del state.sessions[session.client_id]
    _say_will(state, session)
    state.emit(Ended(session.client_id, session.epoch, reason))


def remove_subscription(state: State, session: Session, key: bytes, spec: SubscriptionSpec) -> None:
    """End one subscription."""
    del session.subscriptions[key]
    if spec.share:
        session.shares -= 1
        state.routes.invalidate()
        membership_changed(state, session, spec, left=True)
        return
    state.routes.trie.remove(spec.filter, session.client_id)
    subscribers = state.filters[spec.filter]
    del subscribers[session.client_id]
    if not subscribers:
        del state.filters[spec.filter]
    tell(state, spec.filter)


def apply_leader_started(state: State, command: LeaderStarted) -> bytes:
    """Every connection of older leaders is gone: disconnect all, as if their networks broke."""
    state.see_time(command.now_ms)
    for session in list(state.sessions.values()):
        _disconnect(state, session, gracefully=False)
    return b""


def apply_elapse(state: State, command: Elapse) -> bytes:
    """Say the wills and end the sessions whose time has come."""
    state.see_time(command.now_ms)
    while state.deadlines and state.deadlines[0][0] <= state.now_ms:
        _, client_id = heappop(state.deadlines)
        session = state.sessions.get(client_id)
        if session is None or session.connected:
            continue
        if session.will_due_ms and session.will_due_ms <= state.now_ms:
            _say_will(state, session)
        ends_at_ms = session.ends_at_ms()
        if ends_at_ms is not None and ends_at_ms <= state.now_ms:
            end_session(state, session, "expired")
    return b""


def apply_remove_session(state: State, command: RemoveSession) -> bytes:
    """End a session because an operator wants it."""
    state.see_time(command.now_ms)
    session = state.sessions.get(command.client_id)
    if session is not None:
        session.will = None
        end_session(state, session, "removed by an operator")
    return _encode(session is not None)
