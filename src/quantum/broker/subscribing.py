"""Subscriptions begin and end; what is retained is sent once, in order with what follows."""

from __future__ import annotations

import msgspec

from quantum.broker.attaching import make_session, remove_subscription
from quantum.broker.commands import Subscribe, SubscriptionSpec, Unsubscribe
from quantum.broker.holdings import GROUPS, SESSIONS, SUBSCRIPTIONS
from quantum.broker.interest import partitions_of, tell
from quantum.broker.limiting import judge
from quantum.broker.membership import membership_changed
from quantum.broker.reasons import (
    NO_SUBSCRIPTION_EXISTED,
    QUOTA_EXCEEDED,
    SESSION_GONE,
    SUCCESS,
)
from quantum.broker.replaying import begin_replay
from quantum.broker.session import Session
from quantum.broker.state import BrokerState

_encode = msgspec.msgpack.encode

SEND_ALWAYS = 0  # retain handling, MQTT 5 3.8.3.1
SEND_IF_NEW = 1


class SubscribeReply(msgspec.Struct, array_like=True):
    """The reply to a Subscribe or Unsubscribe: SUBACK waits until `awaited` partitions have it."""

    epoch: int
    attachment: int
    reasons: list[int]
    awaited: list[tuple[int, int]]


def shared_key(spec: SubscriptionSpec) -> bytes:
    """Return the filter as the client wrote it."""
    return spec.key


def apply_subscribe(state: BrokerState, command: Subscribe) -> bytes:
    """Subscribe a client; one that only its connection knows gets a session now."""
    state.see_time(command.now_ms)
    session = state.sessions.get(command.client_id)
    if state.is_fenced(command.client_id):
        return _encode(SubscribeReply(0, 0, [SESSION_GONE] * len(command.subscriptions), []))
    if session is None and command.epoch == 0:
        reason = judge(state, SESSIONS, 1)
        if reason:
            return _encode(SubscribeReply(0, 0, [reason] * len(command.subscriptions), []))
        session = make_session(state, command.client_id)
        session.outbound.set_window(command.window)
    if session is None or (command.epoch and command.epoch != session.epoch):
        gone = [SESSION_GONE] * len(command.subscriptions)
        return _encode(SubscribeReply(0, 0, gone, []))
    state.changes.sessions.add(command.client_id)
    reasons = [_subscribe(state, session, spec) for spec in command.subscriptions]
    awaited = _awaited(state, [spec.filter for spec in command.subscriptions])
    return _encode(SubscribeReply(session.epoch, session.attachment, reasons, awaited))


def _awaited(state: BrokerState, filters: list[bytes]) -> list[tuple[int, int]]:
    """Name the channels to wait for, and the place in each.

    What a partition has to know may have been said before, for another client or for a
    subscription whose answer was lost: whatever is still on its way there is waited for.
    """
    concerned = {prg for each in filters for prg in partitions_of(state, each)}
    outboxes = [(prg, state.channels.to(prg)) for prg in sorted(concerned)]
    return [(prg, outbox.last) for prg, outbox in outboxes if outbox.items]


def _subscribe(state: BrokerState, session: Session, spec: SubscriptionSpec) -> int:
    key = shared_key(spec)
    is_new = key not in session.subscriptions
    if is_new and len(session.subscriptions) >= state.settings.subscriptions_max:
        return QUOTA_EXCEEDED
    if is_new and _forks_too_far(state, spec.filter):
        return QUOTA_EXCEEDED
    reason = _judge(state, spec) if is_new else SUCCESS
    if reason:
        return reason
    if any(state.channels.to(prg).is_full for prg in partitions_of(state, spec.filter)):
        return QUOTA_EXCEEDED
    session.subscriptions[key] = spec
    state.subscription_count += is_new
    if spec.share:
        if is_new:
            session.shares += 1
        membership_changed(state, session, spec)
        return spec.qos
    state.routes.trie.add(spec.filter, session.client_id, spec)
    state.filters.setdefault(spec.filter, {})[session.client_id] = None
    tell(state, spec.filter)
    if spec.retain_handling == SEND_ALWAYS or (spec.retain_handling == SEND_IF_NEW and is_new):
        begin_replay(state, session, spec)
    return spec.qos


def _forks_too_far(state: BrokerState, topic_filter: bytes) -> bool:
    """Say whether a filter would add to what every publish costs, and that costs enough."""
    trie = state.routes.trie
    added = trie.forks_with(topic_filter) > trie.wild_forks
    return added and trie.wild_forks >= state.settings.wild_forks_max


def _judge(state: BrokerState, spec: SubscriptionSpec) -> int:
    """Say whether the tenant may have one more subscription, and one more group if it is one."""
    reason = judge(state, SUBSCRIPTIONS, 1)
    if not reason and spec.share and (spec.share, spec.filter) not in state.groups:
        reason = judge(state, GROUPS, 1)
    return reason


def apply_unsubscribe(state: BrokerState, command: Unsubscribe) -> bytes:
    """Unsubscribe a client; a reason for each filter."""
    state.see_time(command.now_ms)
    session = state.sessions.get(command.client_id)
    if session is None or (command.epoch and session.epoch != command.epoch):
        gone = [NO_SUBSCRIPTION_EXISTED] * len(command.filters)
        return _encode(SubscribeReply(0, 0, gone, []))
    reasons = []
    filters = []
    for key in command.filters:
        spec = session.subscriptions.get(key)
        if spec is not None:
            filters.append(spec.filter)
            remove_subscription(state, session, key, spec)
        reasons.append(SUCCESS if spec is not None else NO_SUBSCRIPTION_EXISTED)
    awaited = _awaited(state, filters)
    return _encode(SubscribeReply(session.epoch, session.attachment, reasons, awaited))
