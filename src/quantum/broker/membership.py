"""Who is in which shared subscription, and who has room: what every partition must know."""

from __future__ import annotations

from quantum.broker.commands import SubscriptionSpec
from quantum.broker.interest import partitions_of, send_item, tell
from quantum.broker.items import MemberItem
from quantum.broker.session import Session
from quantum.broker.shares import ShareGroup, ShareMember
from quantum.broker.state import BrokerState

_LEFT = -1


def membership_changed(
    state: BrokerState, session: Session, spec: SubscriptionSpec, *, left: bool = False
) -> None:
    """Let every partition that may own such topics know of a member, or that it left."""
    item = member_item(state, session, spec, left=left)
    for prg in partitions_of(state, spec.filter):
        send_item(state, prg, item)
    note_member(state, state.settings.prg, item)


def member_item(
    state: BrokerState, session: Session, spec: SubscriptionSpec, *, left: bool
) -> MemberItem:
    """Say all that others must know of a member."""
    return MemberItem(
        spec.share,
        spec.filter,
        session.client_id,
        session.epoch,
        _LEFT if left else spec.qos,
        spec.identifier,
        session.connected,
        session.client_id in state.routes.full,
    )


def condition_changed(state: BrokerState, session: Session) -> None:
    """Tell where a member's turns come from that it is connected or not, has room or not.

    A channel that holds too much is spared: this is advice, and nothing is lost without it.
    """
    if not session.shares:
        return
    for spec in session.subscriptions.values():
        if not spec.share:
            continue
        item = member_item(state, session, spec, left=False)
        for prg in partitions_of(state, spec.filter):
            if not state.channels.to(prg).is_full:
                send_item(state, prg, item)
        note_member(state, state.settings.prg, item)


def room_changed(state: BrokerState, session: Session) -> None:
    """Tell everyone about every filter of a session whose queue became full, or is not any more."""
    state.routes.invalidate()
    for spec in session.subscriptions.values():
        if not spec.share:
            tell(state, spec.filter)
    condition_changed(state, session)


def note_member(state: BrokerState, prg: int, item: MemberItem) -> None:
    """Take note of a member here, wherever its session is."""
    if state.routing_epoch:
        prg = state.home(item.client_id)
    key = (item.share, item.filter)
    group = state.groups.get(key)
    if item.qos < 0:
        if group is not None:
            state.changes.groups.add(key)
            group.leave(prg, item.client_id)
            if not group.members:
                del state.groups[key]
                state.changes.group_went(key)
                state.routes.trie.remove(item.filter, key)
            state.routes.invalidate()
        return
    if group is None:
        group = state.groups[key] = ShareGroup(item.share, item.filter)
        state.changes.group_came(key)
        state.routes.trie.add(item.filter, key, None)
    was_blocked = group.is_blocked
    state.changes.groups.add(key)
    group.join(
        ShareMember(
            prg,
            item.client_id,
            item.epoch,
            item.qos,
            item.identifier,
            online=item.online,
            full=item.full,
        )
    )
    if group.is_blocked != was_blocked:
        state.routes.invalidate()
