"""Publishes: packed ones from the log, forwarded ones, wills; retained and shared on the way."""

from __future__ import annotations

import struct

import msgspec

from quantum.broker.channels import Counted
from quantum.broker.commands import (
    OWN_ORIGIN,
    PUBLISHES_HEAD,
    PublishesHead,
    PublishOnce,
    Release,
)
from quantum.broker.delivering import deliver_here
from quantum.broker.effects import SendPubrec
from quantum.broker.interest import send_item
from quantum.broker.items import Deliver, Forward
from quantum.broker.message import (
    EXPIRES,
    EXPIRY,
    HEAD,
    HEAD_BYTES,
    LENGTH_BYTES,
    RETAIN,
    Message,
    decode_record,
)
from quantum.broker.reasons import (
    NOT_YET,
    PACKET_ID_NOT_FOUND,
    QUOTA_EXCEEDED,
    SESSION_GONE,
    SUCCESS,
)
from quantum.broker.session import ACCEPTED, Session
from quantum.broker.sharing import share_out
from quantum.broker.state import State

_encode = msgspec.msgpack.encode


def apply_publishes(state: State, data: bytes) -> bytes:
    """Apply packed publishes; the reply lists (number of the record, reason) of those refused.

    NOT_YET as a reason says that this one and all behind it did not count.

    What is no packed command, or is cut short, ends the walk: every replica stops at the same
    byte.
    """
    try:
        head = PublishesHead(*PUBLISHES_HEAD.unpack_from(data))
    except struct.error:
        return b""
    state.see_time(head.now_ms)
    refused: list[tuple[int, int]] = []
    at, end, number = PUBLISHES_HEAD.size, len(data), 0
    own = head.origin == OWN_ORIGIN
    channels = state.channels
    while at < end:
        counted = Counted.COUNTS
        if not own:
            sequence = head.first_sequence + number
            counted = channels.count_forward(head.origin, head.origin_term, sequence)
            if counted is Counted.TOO_EARLY:
                refused.append((number, NOT_YET))
                break
        try:
            message, following = (
                decode_record(data, at)
                if state.effects is not None
                else _decode_if_needed(state, data, at)
            )
        except ValueError:
            break
        if counted is Counted.COUNTS and message is not None:
            reason = publish(state, message)
            if reason >= QUOTA_EXCEEDED:
                refused.append((number, reason))
        at = following
        number += 1
    return _encode(refused) if refused else b""


def _decode_if_needed(state: State, data: bytes, at: int) -> tuple[Message | None, int]:
    """Decode a record unless it changes nothing here: connections elsewhere are all it is for."""
    try:
        length, flags, client, topic, _, _, _ = HEAD.unpack_from(data, at)
    except struct.error:
        raise ValueError("a record is cut short") from None
    following = at + LENGTH_BYTES + length
    if not flags & RETAIN and following <= len(data):
        topic_at = at + HEAD_BYTES + client
        if flags & EXPIRES:
            topic_at += EXPIRY.size
        route = state.routes.route(data[topic_at : topic_at + topic])
        if not route.kept and not route.remotes and not route.shares:
            return None, following
    return decode_record(data, at)


def publish(state: State, message: Message) -> int:
    """Publish a message whose topic this partition owns; return an MQTT 5 reason code."""
    route = state.routes.route(message.topic)
    if route.is_blocked and message.qos:
        return QUOTA_EXCEEDED
    if message.retain:
        _retain(state, message)
    if route.is_empty:
        return SUCCESS
    deliver_here(state, route, message)
    if route.remotes:
        item = Deliver(message.record)
        for prg in route.remotes:
            send_item(state, prg, item)
    for group in route.shares:
        share_out(state, group, message)
    return SUCCESS


def _retain(state: State, message: Message) -> None:
    if not message.payload:
        state.retained.delete(message.topic)
    elif (
        len(state.retained) < state.settings.retained_topics_max
        or state.retained.get(message.topic) is not None
    ):
        state.retained.put(message.topic, message)


def publish_anywhere(state: State, message: Message) -> None:
    """Publish a message, or send it to the partition that owns its topic."""
    owner = state.settings.topic_partition(message.topic)
    if owner == state.settings.prg:
        publish(state, message)
    else:
        send_item(state, owner, Forward(message.record))


def apply_publish_once(state: State, command: PublishOnce) -> bytes:
    """Take QoS 2 publishes of sessions that are in the log, each once (quantumqtt §4.2, §4.6).

    The reply lists (number, reason) of those refused; for the others a PUBREC follows when the
    topic's partition has the message.
    """
    state.see_time(command.now_ms)
    refused: list[tuple[int, int]] = []
    for number, record in enumerate(command.records):
        try:
            message, _ = decode_record(record)
        except ValueError:
            continue
        session = state.sessions.get(message.client_id)
        if session is None or session.epoch != message.epoch:
            refused.append((number, SESSION_GONE))
            continue
        reason = _publish_once(state, session, message)
        if reason >= QUOTA_EXCEEDED:
            refused.append((number, reason))
    return _encode(refused) if refused else b""


def _publish_once(state: State, session: Session, message: Message) -> int:
    packet_id = message.packet_id
    known = session.received.get(packet_id)
    if known is not None:  # sent again
        if known[1] == ACCEPTED:
            state.emit(SendPubrec(session.client_id, packet_id))
        return SUCCESS
    if len(session.received) >= state.settings.received_max:
        return QUOTA_EXCEEDED
    owner = state.settings.topic_partition(message.topic)
    if owner != state.settings.prg:
        session.received[packet_id] = (owner, send_item(state, owner, Forward(message.record)))
        return SUCCESS
    reason = publish(state, message)
    if reason < QUOTA_EXCEEDED:
        session.received[packet_id] = (owner, ACCEPTED)
        state.emit(SendPubrec(session.client_id, packet_id))
    return reason


def apply_release(state: State, command: Release) -> bytes:
    """End QoS 2 exchanges; the reply has one reason for each."""
    state.see_time(command.now_ms)
    reasons = bytearray()
    for client_id, packet_id in command.releases:
        session = state.sessions.get(client_id)
        known = session.received.pop(packet_id, None) if session is not None else None
        reasons.append(SUCCESS if known is not None else PACKET_ID_NOT_FOUND)
    return bytes(reasons)


def forward_acked(state: State, peer: int, sequence: int, forward: Forward) -> None:
    """The topic's partition has a message (`PublishAcked`): its publisher may be told."""
    message, _ = decode_record(forward.record)
    if message.qos != 2:
        return
    session = state.sessions.get(message.client_id)
    if session is None or session.received.get(message.packet_id) != (peer, sequence):
        return  # the session ended meanwhile, or a will
    session.received[message.packet_id] = (peer, ACCEPTED)
    state.emit(SendPubrec(session.client_id, message.packet_id))
