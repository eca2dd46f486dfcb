"""Shared subscriptions at work: giving out, and giving to another."""

from __future__ import annotations

from collections.abc import Sequence

from quantum.broker.delivering import check_room, deliver_targeted
from quantum.broker.interest import send_item
from quantum.broker.items import Returned, Targeted
from quantum.broker.message import Message
from quantum.broker.message_key import message_key
from quantum.broker.outbound import Delivery
from quantum.broker.session import Session
from quantum.broker.shares import ShareGroup
from quantum.broker.state import BrokerState
from quantum.broker.types import QOS_2

_NOT_RETAINED = False


def share_out(state: BrokerState, group: ShareGroup, message: Message) -> None:
    """Give a message to the member whose turn it is."""
    state.changes.groups.add((group.name, group.filter))
    member = group.pick(state.channels.full() | state.full_stores, share_key(state, message))
    if member is None:
        state.dropped += 1
        return
    qos = min(message.qos, member.qos)
    if member.prg != state.settings.prg:
        item = Targeted(
            member.client_id,
            member.epoch,
            message.record,
            qos,
            retain=False,
            identifier=member.identifier,
            share=group.name,
            filter=group.filter,
        )
        send_item(state, state.way(member.prg), item)
        return
    session = state.sessions.get(member.client_id)
    if session is not None:
        identifiers = (member.identifier,) if member.identifier else ()
        delivery = Delivery(message, qos, _NOT_RETAINED, identifiers, group.name, group.filter)
        deliver_targeted(state, session, delivery)


def share_key(state: BrokerState, message: Message) -> bytes | None:
    """Return by what the member is chosen that gets a message; None: by whose turn it is."""
    return message_key(message) if state.hashes_shares else None


def take_back(state: BrokerState, sessions: Sequence[Session]) -> None:
    """Give what members did not acknowledge to others: they disconnected, or are no more.

    A QoS 2 exchange that has begun stays: it is completed with this very client, or with
    nobody ([MQTT-4.8.2-4], [MQTT-4.8.2-5]).
    """
    gone: list[Delivery] = []
    for session in sessions:
        found = session.outbound.take_out(_is_another_members)
        if found:
            state.changes.sessions.add(session.client_id)
            gone += found
            check_room(state, session)
    for delivery in gone:
        give_back(state, delivery.share, delivery.filter, delivery.message)


def _is_another_members(delivery: Delivery) -> bool:
    return bool(delivery.share) and (delivery.packet_id == 0 or delivery.qos != QOS_2)


def give_back(state: BrokerState, share: bytes, topic_filter: bytes, message: Message) -> None:
    """Send a message back to the partition of its topic, for another member."""
    owner = state.owner(message.topic)
    if owner == state.settings.prg:
        returned(state, share, topic_filter, message)
    else:
        send_item(state, owner, Returned(share, topic_filter, message.record))


def returned(state: BrokerState, share: bytes, topic_filter: bytes, message: Message) -> None:
    """Give a message that came back to the next member, if there is one left."""
    group = state.groups.get((share, topic_filter))
    if group is not None:
        share_out(state, group, message)
    else:
        state.dropped += 1
