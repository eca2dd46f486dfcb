"""Shared subscriptions at work: giving out, joining, leaving, and giving to another."""

from __future__ import annotations

from quantum.broker.commands import SubscriptionSpec
from quantum.broker.delivering import deliver_targeted
from quantum.broker.interest import partitions_of, send_item
from quantum.broker.items import Member as MemberItem
from quantum.broker.items import Returned, Targeted
from quantum.broker.message import Message
from quantum.broker.outbound import Delivery
from quantum.broker.session import Session
from quantum.broker.shares import Member, ShareGroup
from quantum.broker.state import State

_LEFT = -1
_NOT_RETAINED = False


def share_out(state: State, group: ShareGroup, message: Message) -> None:
    """Give a message to the member whose turn it is."""
    member = group.pick()
    if member is None:
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
        send_item(state, member.prg, item)
        return
    session = state.sessions.get(member.client_id)
    if session is not None:
        identifiers = (member.identifier,) if member.identifier else ()
        delivery = Delivery(message, qos, _NOT_RETAINED, identifiers, group.name, group.filter)
        deliver_targeted(state, session, delivery)


def membership_changed(
    state: State, session: Session, spec: SubscriptionSpec, *, left: bool = False
) -> None:
    """Let every partition that may own such topics know of a member, or that it left."""
    item = MemberItem(
        spec.share,
        spec.filter,
        session.client_id,
        session.epoch,
        _LEFT if left else spec.qos,
        spec.identifier,
        session.connected,
    )
    for prg in partitions_of(state, spec.filter):
        send_item(state, prg, item)
    note_member(state, state.settings.prg, item)


def note_member(state: State, prg: int, item: MemberItem) -> None:
    """Take note of a member here, wherever its session is."""
    key = (item.share, item.filter)
    group = state.groups.get(key)
    if item.qos < 0:
        if group is not None:
            group.leave(prg, item.client_id)
            if not group.members:
                del state.groups[key]
                state.routes.trie.remove(item.filter, key)
        return
    if group is None:
        group = state.groups[key] = ShareGroup(item.share, item.filter)
        state.routes.trie.add(item.filter, key, None)
    group.join(
        Member(prg, item.client_id, item.epoch, item.qos, item.identifier, online=item.online)
    )


def take_back(state: State, session: Session) -> None:
    """Give what a member did not acknowledge to others: it disconnected, or is no more.

    A QoS 2 message that was sent stays with it, or with nobody ([MQTT-4.8.2-4], [MQTT-4.8.2-5]).
    """
    outbound = session.outbound
    shared = [
        each
        for each in outbound.unfinished()
        if each.share and (each.qos < 2 or not each.packet_id)
    ]
    if not shared:
        return
    gone = {id(each) for each in shared}
    outbound.restore(
        [each for each in outbound.in_flight.values() if id(each) not in gone],
        [each for each in outbound.queue if id(each) not in gone],
        outbound.next_id,
    )
    for delivery in shared:
        give_back(state, delivery.share, delivery.filter, delivery.message)


def give_back(state: State, share: bytes, topic_filter: bytes, message: Message) -> None:
    """Send a message back to the partition of its topic, for another member."""
    owner = state.settings.topic_partition(message.topic)
    if owner == state.settings.prg:
        returned(state, share, topic_filter, message)
    else:
        send_item(state, owner, Returned(share, topic_filter, message.record))


def returned(state: State, share: bytes, topic_filter: bytes, message: Message) -> None:
    """Give a message that came back to the next member, if there is one left."""
    group = state.groups.get((share, topic_filter))
    if group is not None:
        share_out(state, group, message)
    else:
        state.dropped += 1
