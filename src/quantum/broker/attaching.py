"""Sessions begin, connect, disconnect and end; wills are said or forgotten."""

from __future__ import annotations

import msgspec

from quantum.broker.commands import (
    Attach,
    Detach,
    Elapse,
    LeaderStarted,
    RemoveSession,
    SubscriptionSpec,
)
from quantum.broker.delivering import make_room, send_ready
from quantum.broker.effects import SendPubrel, SessionEnd
from quantum.broker.full_queues import FULL_REASON, FullQueue
from quantum.broker.holdings import SESSIONS
from quantum.broker.interest import tell
from quantum.broker.limiting import judge
from quantum.broker.membership import condition_changed, membership_changed
from quantum.broker.message import Message, decode_record
from quantum.broker.overfull import count_dropped
from quantum.broker.publishing import publish_anywhere
from quantum.broker.reasons import SUCCESS
from quantum.broker.replaying import continue_replays
from quantum.broker.session import Session, new_outbound
from quantum.broker.sharing import take_back
from quantum.broker.state import BrokerState
from quantum.broker.types import MOVE_GRACE_MS, TIME_MAX_MS, ClientId, SessionEpoch

_encode = msgspec.msgpack.encode


class Attached(msgspec.Struct, array_like=True):
    """The reply to an Attach."""

    present: bool
    epoch: int
    attachment: int
    is_bound: bool = False
    """The session is another identity's, and was not touched (quantumqtt §10.1.1)."""
    is_moved: bool = False
    """The session belongs to another partition since the ring changed (§2.1.4)."""
    refused: int = SUCCESS
    """Why no session was made: the tenant has too many (§11.2)."""


def apply_attach(state: BrokerState, command: Attach) -> bytes:
    """Connect a client to its session, or to a new one; the reply is an `Attached`."""
    state.see_time(command.now_ms)
    if state.is_fenced(command.client_id):
        return _encode(Attached(present=False, epoch=0, attachment=0, is_moved=True))
    session = state.sessions.get(command.client_id)
    if session is not None and session.identity not in (b"", command.identity):
        return _encode(Attached(present=False, epoch=0, attachment=0, is_bound=True))
    reason = judge(state, SESSIONS, 1) if session is None else SUCCESS
    if reason:
        return _encode(Attached(present=False, epoch=0, attachment=0, refused=reason))
    present = session is not None and session.is_durable and not command.clean_start
    if session is not None:
        _replace_will(state, session, command, continued=present)
    if session is not None and not present:
        end_session(state, session, "taken over")
    if session is None or not present:
        session = make_session(state, command.client_id)
        session.identity = command.identity
    state.changes.sessions.add(command.client_id)
    session.will, session.will_due_ms = command.will, 0
    session.connected, session.attachment = True, state.next_attachment()
    expiry = min(command.expiry_seconds, state.settings.session_expiry_seconds_max)
    _set_expiry(state, session, expiry)
    session.outbound.set_window(command.window)
    condition_changed(state, session)
    _resume(state, session)
    return _encode(Attached(present, session.epoch, session.attachment))


def _replace_will(
    state: BrokerState, session: Session, command: Attach, *, continued: bool
) -> None:
    """Decide on the will of the connection before this one (C23); who ends says what is left.

    | the connection before | the session goes on | it ends |
    | --- | --- | --- |
    | broken by us, in the client's own time | forgotten | forgotten |
    | live, of the same proven identity | forgotten; `standard_wills`: as below | said |
    | live, of nobody proven | said; forgotten where it has a delay [MQTT-3.1.3-9] | said |
    | broken before, and its delay runs | forgotten [MQTT-3.1.3-9] | said |
    """
    if session.will is None:
        return
    live = session.connected or command.takes_over
    if not live and session.disconnected_at_ms > state.now_ms:
        session.will = None
    elif continued:
        proven = command.identity != b"" and command.identity == session.identity
        quiet = proven and not command.standard_wills
        if live and not quiet and _will_wait(session) == 0:
            _say_will(state, session)
        session.will = None


def _will_wait(session: Session) -> int:
    """Return for how many seconds a will waits for its client to come back."""
    assert session.will is not None
    return min(session.will.delay_seconds, session.expiry_seconds)


def make_session(state: BrokerState, client_id: bytes) -> Session:
    """Make a session that ends with its connection, for now."""
    state.epoch += 1
    attachment = state.next_attachment()
    session = Session(
        ClientId(client_id),
        SessionEpoch(state.epoch),
        0,
        new_outbound(1, state.queued),
        attachment=attachment,
    )
    state.sessions[client_id] = session
    state.changes.session_came(client_id)
    return session


def _set_expiry(state: BrokerState, session: Session, expiry_seconds: int) -> None:
    session.expiry_seconds = expiry_seconds
    if expiry_seconds and not session.keeps_queue:
        session.keeps_queue = True
        if session.subscriptions:
            state.routes.invalidate()


def _resume(state: BrokerState, session: Session) -> None:
    """Send again what was in flight, in the same order (MQTT-4.4.0-1), then what waits."""
    for delivery in session.outbound.resume():
        state.emit(SendPubrel(session.client_id, delivery.packet_id))
    send_ready(state, session)


def apply_detach(state: BrokerState, command: Detach) -> bytes:
    """End a connection; a late word about an older one changes nothing."""
    state.see_time(command.now_ms)
    session = state.sessions.get(command.client_id)
    if session is None or session.epoch != command.epoch:
        return b""
    if command.attachment and command.attachment != session.attachment:
        return b""
    state.changes.sessions.add(command.client_id)
    if command.expiry_seconds is not None:
        expiry = min(command.expiry_seconds, state.settings.session_expiry_seconds_max)
        _set_expiry(state, session, expiry)
    session.outbound.unsend(command.unsent_from)
    if command.by_us and session.connected and not command.gracefully:
        _break_connections(state, [session])
    else:
        _disconnect(state, session, gracefully=command.gracefully)
    return b""


def _disconnect(state: BrokerState, session: Session, *, gracefully: bool) -> None:
    if not session.connected:
        if gracefully and session.client_id in state.leaving:
            session.will, session.will_due_ms = None, 0
        return
    if gracefully:
        session.will = None
    _yield_turns(state, session)
    take_back(state, [session])
    _after_connection(state, session)


def _yield_turns(state: BrokerState, session: Session) -> None:
    """Note that nobody is there, so that others take the turns in shared subscriptions."""
    state.changes.sessions.add(session.client_id)
    session.connected, session.disconnected_at_ms = False, state.now_ms
    if session.is_durable:
        condition_changed(state, session)
        return
    for key, spec in list(session.subscriptions.items()):
        if spec.share:
            remove_subscription(state, session, key, spec)


def _after_connection(state: BrokerState, session: Session) -> None:
    if not session.is_durable:
        end_session(state, session, "disconnected")
        return
    if session.will is not None:
        wait = _will_wait(session)
        session.will_due_ms = state.now_ms + 1000 * wait
        if wait == 0:
            _say_will(state, session)
        else:
            state.look_again(session.will_due_ms, session)
    ends_at_ms = session.ends_at_ms()
    if ends_at_ms is not None:
        state.look_again(ends_at_ms, session)


def _say_will(state: BrokerState, session: Session) -> None:
    will, session.will, session.will_due_ms = session.will, None, 0
    if will is not None:
        try:
            message, _ = decode_record(will.record)
        except ValueError:
            return
        publish_anywhere(state, _from_now(state, message))


def _from_now(state: BrokerState, message: Message) -> Message:
    """A will's expiry interval begins when it is published: until then it is an interval."""
    if message.expires_at_ms:
        message.expires_at_ms = min(message.expires_at_ms + state.now_ms, TIME_MAX_MS)
    return message


def end_session(state: BrokerState, session: Session, reason: str) -> None:
    """Forget a session and all that it wanted; its will is said now if it waited."""
    for key, spec in list(session.subscriptions.items()):
        remove_subscription(state, session, key, spec)
    session.connected = False
    take_back(state, [session])
    state.routes.full.discard(session.client_id)
    state.replaying.pop(session.client_id, None)
    state.dropped += len(session.outbound)
    session.outbound.leave()
    state.leaving.pop(session.client_id, None)
    del state.sessions[session.client_id]
    state.changes.session_went(session.client_id)
    _say_will(state, session)
    state.emit(SessionEnd(session.client_id, session.epoch, reason))


def end_overfull(state: BrokerState) -> None:
    """End the sessions whose queues became too full, where their tenant chose that (C24)."""
    ending, state.ending = state.ending, {}
    for client_id in ending:
        session = state.sessions.get(client_id)
        if session is not None:
            count_dropped(state, FullQueue.END_SESSION, len(session.outbound))
            state.dropped -= len(session.outbound)  # counted by its own cause
            end_session(state, session, FULL_REASON)


def remove_subscription(
    state: BrokerState, session: Session, key: bytes, spec: SubscriptionSpec
) -> None:
    """End one subscription."""
    state.changes.sessions.add(session.client_id)
    del session.subscriptions[key]
    state.subscription_count -= 1
    if spec.share:
        session.shares -= 1
        membership_changed(state, session, spec, left=True)
        return
    session.replays = [each for each in session.replays if each.filter != spec.filter]
    state.routes.trie.remove(spec.filter, session.client_id)
    subscribers = state.filters[spec.filter]
    del subscribers[session.client_id]
    if not subscribers:
        del state.filters[spec.filter]
    tell(state, spec.filter)


def fence_leaving(state: BrokerState) -> None:
    """End the connections of the sessions that leave, without saying their wills (§2.1.5).

    Their clients are told where to go, and have a while more than usual to come back.
    """
    gone = [state.sessions[client_id] for client_id in state.leaving]
    connected = [session for session in gone if session.connected]
    for session in connected:
        _yield_turns(state, session)
    take_back(state, connected)
    for session in connected:
        _give_time(state, session, MOVE_GRACE_MS)
    for session in gone:
        if not session.is_durable:
            for key, spec in list(session.subscriptions.items()):
                remove_subscription(state, session, key, spec)
            if session.will is None:
                end_session(state, session, "moved")


def _give_time(state: BrokerState, session: Session, time_ms: int) -> None:
    """Count the connection as broken only so much later: until then its client may come back."""
    session.disconnected_at_ms = state.now_ms + time_ms
    if session.will is not None:
        session.will_due_ms = session.disconnected_at_ms + 1000 * _will_wait(session)
        state.look_again(session.will_due_ms, session)
    ends_at_ms = session.ends_at_ms()
    if ends_at_ms is not None:
        state.look_again(ends_at_ms, session)


def _break_connections(state: BrokerState, gone: list[Session]) -> None:
    """End connections that their clients did not end: wills wait for the clients' own time (C23).

    A session that would end with its connection keeps nothing but its will until then.
    """
    for session in gone:  # all of them first: no message is given to the next one to go
        _yield_turns(state, session)
    take_back(state, gone)
    for session in gone:
        if session.will is None:
            _after_connection(state, session)
            continue
        _give_time(state, session, 1000 * session.will.patience_seconds)
        if not session.is_durable:
            for key, spec in list(session.subscriptions.items()):
                remove_subscription(state, session, key, spec)


def apply_leader_started(state: BrokerState, command: LeaderStarted) -> bytes:
    """Every connection of older leaders is gone; no client ended one."""
    state.see_time(command.now_ms)
    state.parts.forget()
    _break_connections(state, [each for each in state.sessions.values() if each.connected])
    return b""


def apply_elapse(state: BrokerState, command: Elapse) -> bytes:
    """Say the wills and end the sessions whose time has come: as many as one entry may hold."""
    state.see_time(command.now_ms)
    if not state.is_open:
        return b""
    state.drop_expired_retained()
    for _ in range(state.settings.elapse_sessions_max):
        session = state.take_due()
        if session is None:
            break
        _look_at(state, session)
    continue_replays(state)
    return b""


def _look_at(state: BrokerState, session: Session) -> None:
    make_room(state, session)
    if session.connected:
        return
    ends_at_ms = session.ends_at_ms()
    if ends_at_ms is not None and ends_at_ms <= state.now_ms:
        end_session(state, session, "expired")
        return
    if session.will_due_ms and session.will_due_ms <= state.now_ms:
        _say_will(state, session)
    for due_ms in (session.will_due_ms, ends_at_ms):
        if due_ms:
            state.look_again(due_ms, session)


def apply_remove_session(state: BrokerState, command: RemoveSession) -> bytes:
    """End a session because an operator wants it."""
    state.see_time(command.now_ms)
    session = state.sessions.get(command.client_id)
    if session is not None:
        session.will = None
        end_session(state, session, "removed by an operator")
    return _encode(session is not None)
