"""What moves, as items: handed over by its old partition, taken in by a fresh one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final, TypeVar

from quantum.broker.commands import SubscriptionSpec
from quantum.broker.interest import send_item, tell
from quantum.broker.items import (
    FrozenDelivery,
    MovedDeliveries,
    MovedRetained,
    MovedSession,
    MovedSubscriptions,
    MovedTurnedAway,
)
from quantum.broker.message import Message
from quantum.broker.move import Move
from quantum.broker.outbound import Delivery
from quantum.broker.session import Replay, Session, accepted_at, is_accepted, new_outbound
from quantum.broker.state import BrokerState
from quantum.broker.types import TRANSFER, ClientId, SessionEpoch

PAGE_BYTES_MAX: Final = 128 << 10
"""An item with more in it would not fit an entry beside others."""
_ITEM_BYTES: Final = 64

T = TypeVar("T")


def moving_topics(state: BrokerState) -> list[bytes]:
    """Return the topics that are retained here and another partition's, the first one last."""
    here = state.settings.prg
    found = [topic for topic, _ in state.retained.items() if state.owner(topic) != here]
    found.reverse()
    return found


def hand_over_some(state: BrokerState, move: Move) -> bool:
    """Send the next part of what moves, and forget it; say whether it was the last one.

    It is the same part for a replica that was restored meanwhile: what ended or expired since the
    cut does not count.
    """
    _hand_over_retained(state, move.topics)
    _hand_over_sessions(state)
    return not move.topics and not state.leaving


def hand_over_turned_away(state: BrokerState, channel: int) -> None:
    """Tell a fresh partition whom nothing is taken from until they begin anew.

    What such a client sent behind a refused publish may be on its way there, by the new ring.
    """
    for page in _pages(state.turned_away.frozen(), _client_weight):
        send_item(state, channel, MovedTurnedAway(page))


def _client_weight(client: tuple[bytes, int, int]) -> int:
    return len(client[0]) + _ITEM_BYTES


def _hand_over_retained(state: BrokerState, topics: list[bytes]) -> None:
    moving: dict[int, list[Message]] = {}
    room = state.settings.retained_page
    while topics and (room or state.retained.get(topics[-1]) is None):
        message = state.retained.get(topics.pop())
        if message is not None:
            room -= 1
            moving.setdefault(state.owner(message.topic), []).append(message)
            state.drop_retained(message.topic)
    for owner, messages in moving.items():
        for page in _pages(messages, _message_weight):
            send_item(state, owner + TRANSFER, MovedRetained(page))


def _hand_over_sessions(state: BrokerState) -> None:
    filters: dict[bytes, None] = {}
    for client_id in list(islice(state.leaving, state.settings.elapse_sessions_max)):
        del state.leaving[client_id]
        session = state.sessions.pop(client_id)
        _hand_over(state, state.home(client_id) + TRANSFER, session)
        session.outbound.leave()
        filters |= dict.fromkeys(_forget_subscriptions(state, session))
        state.routes.full.discard(client_id)
        state.replaying.pop(client_id, None)
    for topic_filter in filters:
        tell(state, topic_filter)


def _hand_over(state: BrokerState, channel: int, session: Session) -> None:
    assert all(is_accepted(place) for _, place in session.received.values())
    outbound = session.outbound
    image = MovedSession(
        session.client_id,
        session.epoch,
        session.expiry_seconds,
        session.attachment,
        session.disconnected_at_ms,
        list(session.received),
        session.will,
        session.will_due_ms,
        session.keeps_queue,
        [
            (each.prg, each.filter, each.qos, each.identifier, each.after)
            for each in session.replays
        ],
        outbound.window,
        outbound.next_id,
        session.identity,
    )
    send_item(state, channel, image)
    for specs in _pages(session.subscriptions.values(), _spec_weight):
        send_item(state, channel, MovedSubscriptions(session.client_id, specs))
    for page in _pages(map(frozen_delivery, outbound.unfinished()), _delivery_weight):
        send_item(state, channel, MovedDeliveries(session.client_id, page))


def _forget_subscriptions(state: BrokerState, session: Session) -> Iterator[bytes]:
    """Take a session's subscriptions out of the tables; membership in groups is by client."""
    state.subscription_count -= len(session.subscriptions)
    for spec in session.subscriptions.values():
        if not spec.share:
            state.routes.trie.remove(spec.filter, session.client_id)
            subscribers = state.filters[spec.filter]
            del subscribers[session.client_id]
            if not subscribers:
                del state.filters[spec.filter]
            yield spec.filter


def take_in_retained(state: BrokerState, item: MovedRetained) -> None:
    for message in item.messages:
        state.retain(message)


def take_in_session(state: BrokerState, item: MovedSession) -> None:
    """Keep a session that moved here; its epoch and its connections' numbers stay unique."""
    outbound = new_outbound(item.window, state.queued)
    outbound.restore([], [], item.next_id)
    here = state.settings.prg
    session = Session(
        ClientId(item.client_id),
        SessionEpoch(item.epoch),
        item.expiry_seconds,
        outbound,
        item.attachment,
        connected=False,
        disconnected_at_ms=item.disconnected_at_ms,
        received=dict.fromkeys(item.received, (here, accepted_at(state.now_ms))),
        will=item.will,
        will_due_ms=item.will_due_ms,
        keeps_queue=item.keeps_queue,
        replays=[Replay(*each) for each in item.replays],
        identity=item.identity,
    )
    state.sessions[item.client_id] = session
    state.epoch = max(state.epoch, item.epoch)
    state.attachments = max(state.attachments, item.attachment)
    for due_ms in (session.will_due_ms, session.ends_at_ms()):
        if due_ms:
            state.look_again(due_ms, session)


def take_in_subscriptions(state: BrokerState, item: MovedSubscriptions) -> None:
    session = state.sessions.get(item.client_id)
    if session is None:
        return
    for spec in item.specs:
        session.subscriptions[spec.key] = spec
        state.subscription_count += 1
        if spec.share:
            session.shares += 1
        else:
            state.routes.trie.add(spec.filter, session.client_id, spec)
            state.filters.setdefault(spec.filter, {})[session.client_id] = None


def take_in_deliveries(state: BrokerState, item: MovedDeliveries) -> None:
    session = state.sessions.get(item.client_id)
    if session is None:
        return
    outbound = session.outbound
    for each in item.deliveries:
        delivery = Delivery(*each)
        outbound.put_on(delivery.message.weight)
        if delivery.packet_id:
            outbound.in_flight[delivery.packet_id] = delivery
        else:
            outbound.queue.append(delivery)


def frozen_delivery(delivery: Delivery) -> FrozenDelivery:
    """Return all that a delivery is; `Delivery(*…)` is the inverse."""
    return (
        delivery.message,
        delivery.qos,
        delivery.retain,
        delivery.identifiers,
        delivery.share,
        delivery.filter,
        delivery.packet_id,
        delivery.state,
        delivery.drop_at_ms,
    )


def _pages(things: Iterable[T], weight: Callable[[T], int]) -> Iterator[list[T]]:
    """Cut things into pages that fit an entry, one alone if it is that heavy."""
    page: list[T] = []
    size = 0
    for thing in things:
        more = weight(thing)
        if page and size + more > PAGE_BYTES_MAX:
            yield page
            page, size = [], 0
        page.append(thing)
        size += more
    if page:
        yield page


def _message_weight(message: Message) -> int:
    return message.weight + len(message.client_id)


def _delivery_weight(delivery: FrozenDelivery) -> int:
    return _message_weight(delivery[0]) + len(delivery[4]) + len(delivery[5]) + _ITEM_BYTES


def _spec_weight(spec: SubscriptionSpec) -> int:
    return len(spec.filter) + len(spec.share) + _ITEM_BYTES
