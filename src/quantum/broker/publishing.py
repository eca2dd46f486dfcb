"""Publishes: packed ones from the log, forwarded ones, wills; retained and shared on the way."""

from __future__ import annotations

import struct

from quantum.broker.capturing import capture
from quantum.broker.channels import Forwarded
from quantum.broker.commands import (
    OWN_ORIGIN,
    PUBLISHES_HEAD,
    PublishesHead,
    PublishOnce,
    Release,
)
from quantum.broker.congestion import (
    RETAINING,
    is_congested,
    is_stored_full,
    is_without_room,
    note_congestion,
)
from quantum.broker.delivering import deliver_here
from quantum.broker.effects import FanOut, SendPubrec
from quantum.broker.interest import is_peer, send_item
from quantum.broker.items import Deliver, Forward
from quantum.broker.limiting import judge_retained, store_reason
from quantum.broker.message import (
    EXPIRES,
    EXPIRY,
    HEAD_BYTES,
    LENGTH_BYTES,
    QOS_MASK,
    RETAIN,
    Message,
    decode_record,
    flags_of,
    unpack_head,
)
from quantum.broker.reasons import (
    PACKET_ID_NOT_FOUND,
    QUOTA_EXCEEDED,
    SESSION_GONE,
    SUCCESS,
)
from quantum.broker.refusals import NOT_COUNTED, Refusals, encode_refusals
from quantum.broker.routes import TopicRoute
from quantum.broker.session import Session, accepted_at, is_accepted, is_past
from quantum.broker.sharing import share_out
from quantum.broker.state import BrokerState
from quantum.broker.types import TIME_MAX_MS


def apply_publishes(state: BrokerState, data: bytes) -> bytes:
    """Apply packed publishes; the reply names those refused (`decode_refusals`).

    What is no packed command, or is cut short, ends the walk: every replica stops at the same
    byte. The reply is NOT_COUNTED if the records were passed on by a leader that has a
    successor, or behind others that never came: nothing is known of them.
    """
    try:
        head = PublishesHead(*PUBLISHES_HEAD.unpack_from(data))
    except struct.error:
        return b""
    if head.now_ms > TIME_MAX_MS:
        return b""
    state.see_time(head.now_ms)
    if not state.is_open:
        return NOT_COUNTED
    if head.origin == OWN_ORIGIN:
        refused: Refusals = []
        _publish_all(state, data, PUBLISHES_HEAD.size, refused, 0)
        return encode_refusals(refused) if refused else b""
    if not is_peer(state, head.origin):
        return b""
    forwarded = state.channels.forwarded_by(head.origin, head.origin_term)
    if forwarded is None or head.first_sequence > forwarded.number + 1:
        return NOT_COUNTED
    return encode_refusals(_publish_forwarded(state, forwarded, head.first_sequence, data))


def _publish_all(state: BrokerState, data: bytes, at: int, refused: Refusals, number: int) -> int:
    """Publish the records from `at` on, numbered from `number`; return the number after them.

    The busiest loop there is, so `decode_record` is written out here. Most messages are for
    connections of this partition alone: followers only find out that they are.
    """
    end, effects, now_ms = len(data), state.effects, state.now_ms
    known, routes = state.routes.known(), state.routes
    turned_away, full_stores = state.turned_away, state.full_stores
    try:
        while at < end:
            start = at
            length, flags, client, topic_bytes, properties, packet_id, epoch = unpack_head(data, at)
            following = at + LENGTH_BYTES + length
            at += HEAD_BYTES
            expires_at_ms = 0
            if flags & EXPIRES:
                (expires_at_ms,) = EXPIRY.unpack_from(data, at)
                expires_at_ms = min(expires_at_ms, TIME_MAX_MS)
                at += EXPIRY.size
            topic_at = at + client
            properties_at = topic_at + topic_bytes
            payload_at = properties_at + properties
            qos = flags & QOS_MASK
            if payload_at > following or following > end or qos == QOS_MASK:
                break
            if turned_away and turned_away.refuses(data[at:topic_at], qos, flags):
                refused.append((number, QUOTA_EXCEEDED))
                at = following
                number += 1
                continue
            topic = data[topic_at:properties_at]
            route = known.get(topic)
            if route is None:
                route = routes.route(topic)
            retain = flags & RETAIN != 0
            is_light = not retain and (route.is_plain or (route.passes and not full_stores))
            if is_light and route.passes:
                reason = _pass_on(state, route, data[start:following], qos)
                if reason:
                    refused.append((number, reason))
                    turned_away.note(data[at:topic_at], qos, flags, now_ms)
                    at = following
                    number += 1
                    continue
            if is_light and route.captures and qos:
                capture(state, route.captures, data[start:following])
            if not is_light or (effects is not None and route.volatile):
                message = Message(
                    topic,
                    data[payload_at:following],
                    qos,
                    retain,
                    data[properties_at:payload_at],
                    expires_at_ms,
                    data[at:topic_at],
                    epoch,
                    packet_id,
                )
                if is_light:
                    if effects is not None and not 0 < expires_at_ms <= now_ms:
                        effects.append(FanOut(route, message))
                else:
                    reason = publish(state, message, record=data[start:following])
                    if reason:
                        refused.append((number, reason))
                        turned_away.note(message.client_id, qos, flags, state.now_ms)
            at = following
            number += 1
    except struct.error:
        pass  # cut short, for everyone at the same byte
    return number


def _publish_forwarded(
    state: BrokerState, forwarded: Forwarded, first: int, data: bytes
) -> Refusals:
    """Publish what is new among passed-on records; repeat the answers to what is not."""
    at, number = PUBLISHES_HEAD.size, first
    known: Refusals = []
    try:
        while at < len(data) and number <= forwarded.number:
            _, at = decode_record(data, at)
            reason = forwarded.answer(number)
            if reason:
                known.append((number - first, reason))
            number += 1
    except ValueError:
        return known
    refused: Refusals = []
    forwarded.number = max(forwarded.number, _publish_all(state, data, at, refused, number) - 1)
    for refused_number, reason in refused:
        forwarded.refuse(refused_number, reason)
        known.append((refused_number - first, reason))
    return known


def publish(
    state: BrokerState, message: Message, *, force: bool = False, record: bytes | None = None
) -> int:
    """Publish a message whose topic this partition owns; return SUCCESS or QUOTA_EXCEEDED.

    `force` is for what was accepted elsewhere already: it is delivered, room or not. `record` is
    the message's own, where the caller has it.
    """
    route = state.routes.route(message.topic)
    if route.is_elsewhere:
        return _publish_elsewhere(state, message, force=force)
    if message.qos and not force:
        reason = _refuse(state, route, message)
        if reason:
            return reason
    if route.captures and message.qos:
        capture(state, route.captures, message.record if record is None else record)
    if message.retain:
        _retain(state, message)
    if route.is_empty:
        return SUCCESS
    deliver_here(state, route, message)
    if route.remotes:
        _deliver_elsewhere(state, route, message.record, message.qos)
    for group in route.shares:
        share_out(state, group, message)
    return SUCCESS


def _publish_elsewhere(state: BrokerState, message: Message, *, force: bool) -> int:
    """The topic moved: only a leader that has a successor sends such a message, to no effect."""
    if not force:
        return QUOTA_EXCEEDED
    send_item(state, state.owner(message.topic), Forward(message.record))
    return SUCCESS


def _refuse(state: BrokerState, route: TopicRoute, message: Message) -> int:
    """Say why a message is not taken: no room in a queue or channel, or a quota of its tenant."""
    if not _has_room(state, route):
        return QUOTA_EXCEEDED
    if state.full_stores and is_stored_full(state, route):
        return store_reason(state)
    if message.retain and message.payload:
        return judge_retained(state, message.topic, message.weight)
    return SUCCESS


def _has_room(state: BrokerState, route: TopicRoute) -> bool:
    """Whether every queue and every channel that a message needs takes it."""
    if route.is_blocked:
        return False
    channels = state.channels
    for prg in route.remotes:
        if channels.to(state.way(prg)).is_full:
            return False
    if route.shares:
        unreachable = channels.full() | state.full_stores
        if unreachable:
            return not any(group.is_unreachable(unreachable) for group in route.shares)
    return True


def _pass_on(state: BrokerState, route: TopicRoute, record: bytes, qos: int) -> int:
    """Put a record into the channels to other partitions, into all of them or none."""
    if qos and any(state.channels.to(state.way(prg)).is_full for prg in route.remotes):
        return QUOTA_EXCEEDED
    _deliver_elsewhere(state, route, record, qos)
    return SUCCESS


def _deliver_elsewhere(state: BrokerState, route: TopicRoute, record: bytes, qos: int) -> None:
    item = Deliver(record)
    for prg in route.remotes:
        outbox = state.channels.to(state.way(prg))
        if qos or not outbox.is_full:
            outbox.append(item)


def _retain(state: BrokerState, message: Message) -> None:
    """Keep what was taken; what no acknowledgement stands for (QoS 0, a will) within the quota.

    Beyond it there is no retained message at all any more ([MQTT-3.3.1-7] lets a server discard
    one of QoS 0): the old one would not be the last that was said.
    """
    if message.payload and (
        message.packet_id or not judge_retained(state, message.topic, message.weight)
    ):
        state.retain(message)
    else:
        state.drop_retained(message.topic)


def publish_anywhere(state: BrokerState, message: Message) -> None:
    """Publish a message that nobody can take back, here or in the partition of its topic."""
    owner = state.owner(message.topic)
    if owner == state.settings.prg:
        if state.wills is not None:
            state.wills.append((state.now_ms, message))
        publish(state, message, force=True)
    else:
        send_item(state, owner, Forward(message.record))


def publish_forward(state: BrokerState, origin: int, record: bytes) -> None:
    """Publish what came through another partition's channel: its publisher has its word."""
    message, _ = decode_record(record)
    if message.qos and is_without_room(state, message.topic):
        note_congestion(state, origin, message.topic)
    if message.retain and message.qos and judge_retained(state, message.topic, message.weight):
        note_congestion(state, origin, RETAINING)
    publish(state, message, force=True, record=record)


def apply_publish_once(state: BrokerState, command: PublishOnce) -> bytes:
    """Take QoS 2 publishes of sessions that are in the log, each once (quantumqtt §4.2, §4.6).

    The reply names those refused; for the others a PUBREC follows when the topic's partition
    has the message.
    """
    state.see_time(command.now_ms)
    refused: Refusals = []
    for number, record in enumerate(command.records):
        try:
            message, _ = decode_record(record)
        except ValueError:
            refused.append((number, SESSION_GONE))
            continue
        reason = _publish_once(state, message, record)
        if reason:
            refused.append((number, reason))
    return encode_refusals(refused)


def _publish_once(state: BrokerState, message: Message, record: bytes) -> int:
    flags = flags_of(record)
    session = state.sessions.get(message.client_id)
    if session is None or session.epoch != message.epoch or message.client_id in state.leaving:
        return SESSION_GONE
    state.changes.sessions.add(message.client_id)
    turned_away = state.turned_away
    is_behind = turned_away and turned_away.refuses(message.client_id, message.qos, flags)
    known = session.received.get(message.packet_id)
    if known is not None and is_past(known[1], state.now_ms, state.settings.dedupe_horizon_ms):
        del session.received[message.packet_id]
        known = None
    if known is not None:  # sent again
        if is_accepted(known[1]):
            state.emit(SendPubrec(session.client_id, message.packet_id))
        return SUCCESS
    if is_behind:
        return QUOTA_EXCEEDED
    reason = _take_once(state, session, message, record)
    if reason:
        turned_away.note(message.client_id, message.qos, flags, state.now_ms)
    return reason


def _take_once(state: BrokerState, session: Session, message: Message, record: bytes) -> int:
    if len(session.received) >= state.settings.received_max:
        _forget_past(state, session)
        if len(session.received) >= state.settings.received_max:
            return QUOTA_EXCEEDED
    owner = state.owner(message.topic)
    if owner != state.settings.prg:
        return _forward_once(state, session, owner, message)
    reason = publish(state, message, record=record)
    if reason == SUCCESS:
        session.received[message.packet_id] = (owner, accepted_at(state.now_ms))
        state.emit(SendPubrec(session.client_id, message.packet_id))
    return reason


def _forget_past(state: BrokerState, session: Session) -> None:
    """Make room: what was accepted before the horizon is not remembered (quantumqtt §4.2)."""
    horizon_ms = state.settings.dedupe_horizon_ms
    session.received = {
        packet_id: known
        for packet_id, known in session.received.items()
        if not is_past(known[1], state.now_ms, horizon_ms)
    }


def _forward_once(state: BrokerState, session: Session, owner: int, message: Message) -> int:
    if is_congested(state, message.topic) or (message.retain and is_congested(state, RETAINING)):
        return QUOTA_EXCEEDED
    if state.channels.to(owner).is_full:
        return QUOTA_EXCEEDED
    place = send_item(state, owner, Forward(message.record))
    session.received[message.packet_id] = (owner, place)
    return SUCCESS


def apply_release(state: BrokerState, command: Release) -> bytes:
    """End QoS 2 exchanges; the reply has one reason for each."""
    state.see_time(command.now_ms)
    reasons = bytearray()
    for client_id, packet_id in command.releases:
        session = state.sessions.get(client_id)
        known = session.received.pop(packet_id, None) if session is not None else None
        if known is not None:
            state.changes.sessions.add(client_id)
        reasons.append(SUCCESS if known is not None else PACKET_ID_NOT_FOUND)
    return bytes(reasons)


def forward_acked(state: BrokerState, peer: int, sequence: int, forward: Forward) -> None:
    """The topic's partition has a message (`PublishAcked`): its publisher may be told."""
    message, _ = decode_record(forward.record)
    if message.qos != 2:
        return
    session = state.sessions.get(message.client_id)
    if session is None or session.received.get(message.packet_id) != (peer, sequence):
        return  # the session ended meanwhile, or a will
    state.changes.sessions.add(message.client_id)
    session.received[message.packet_id] = (peer, accepted_at(state.now_ms))
    state.emit(SendPubrec(session.client_id, message.packet_id))
