"""The ring grows: each step of a move, caused by a committed command (`REBALANCE.md`)."""

from __future__ import annotations

import msgspec

from quantum.broker.attaching import fence_leaving
from quantum.broker.capturing import tell_fresh_of_streams
from quantum.broker.commands import PRGS_MAX, BeginRebalance, RoutesFlushed
from quantum.broker.congestion import drop_congestion
from quantum.broker.delivering import check_room
from quantum.broker.effects import RingChanged
from quantum.broker.interest import partitions_of, send_item, tell
from quantum.broker.items import Began, Flushed, HandedOver, Interest, Settled
from quantum.broker.limiting import tell_store
from quantum.broker.membership import member_item
from quantum.broker.move import Move
from quantum.broker.moving import hand_over_some, hand_over_turned_away, moving_topics
from quantum.broker.replaying import extend_replays
from quantum.broker.state import BrokerState
from quantum.broker.types import TRANSFER
from quantum.topics import has_wildcard

_encode = msgspec.msgpack.encode


class Rebalanced(msgspec.Struct, array_like=True):
    """The reply to a BeginRebalance: where the ring is now, and why it was refused, if it was."""

    routing_epoch: int
    prg_count: int
    refused: str = ""


def has_more_to_send(state: BrokerState) -> bool:
    """Say whether a move goes on with every `Elapse`."""
    move = state.move
    return move is not None and state.is_open and move.is_cut and not move.is_handed


def apply_begin_rebalance(state: BrokerState, command: BeginRebalance) -> bytes:
    """Let the ring grow, or say why not; the same command again changes nothing."""
    state.see_time(command.now_ms)
    refused = _refuse(state, command)
    if not refused and command.routing_epoch > state.routing_epoch:
        begin(state, Began(command.routing_epoch, state.prg_count, command.prg_count))
        advance(state)
    return _encode(Rebalanced(state.routing_epoch, state.prg_count, refused))


def _refuse(state: BrokerState, command: BeginRebalance) -> str:
    asked = (command.routing_epoch, command.prg_count)
    if asked == (state.routing_epoch, state.prg_count):
        return ""
    if not state.is_open:
        return "the partition is not open"
    if command.routing_epoch != state.routing_epoch + 1:
        return "not the epoch that follows"
    if command.prg_count <= state.prg_count:
        return "a ring only grows"
    if state.move is not None or state.routes.blind:
        return "the change before it is not over"
    return ""


def begin(state: BrokerState, began: Began) -> None:
    """Route by another ring from here on."""
    old_count, here = state.prg_count, state.settings.prg
    state.emit(RingChanged(began.routing_epoch, began.prg_count))
    if state.is_open:
        home, count = state.settings.session_partition, began.prg_count
        leaving = [each for each in state.sessions if home(each, count) != here]
        state.leaving = dict.fromkeys(leaving)
        fence_leaving(state)
    state.move = Move(began.routing_epoch, began.old_count)
    state.routing_epoch, state.prg_count = began.routing_epoch, began.prg_count
    if not state.is_open:
        return
    state.routes.blind += range(old_count, state.prg_count)
    for group in state.groups.values():
        group.rehome(state.home)
    state.note_ring()
    for prg in range(state.prg_count):
        if prg != here:
            send_item(state, _first_way(old_count, prg), began)
    _tell_fresh(state, old_count)
    for prg in range(old_count, state.prg_count):
        tell_store(state, prg)
        tell_fresh_of_streams(state, prg + TRANSFER)
        for section in state.sections.values():
            section.joined(prg)
    extend_replays(state, old_count)


def _first_way(old_count: int, prg: int) -> int:
    return prg if prg < old_count else prg + TRANSFER


def _tell_fresh(state: BrokerState, old_count: int) -> None:
    """Tell the fresh partitions what the sessions here want, those that leave included."""
    for topic_filter, level in state.told.items():
        for prg in partitions_of(state, topic_filter):
            if prg >= old_count:
                send_item(state, prg + TRANSFER, Interest(topic_filter, level))
    for session in state.sessions.values():
        for spec in session.subscriptions.values() if session.shares else ():
            for prg in partitions_of(state, spec.filter) if spec.share else ():
                if prg >= old_count:
                    item = member_item(state, session, spec, left=False)
                    send_item(state, prg + TRANSFER, item)


def apply_routes_flushed(state: BrokerState, command: RoutesFlushed) -> bytes:
    """Tell the old peers that nothing follows which was routed by the old ring."""
    state.see_time(command.now_ms)
    move = state.move
    if move is None or move.is_flushed or move.routing_epoch != command.routing_epoch:
        return b""
    if not state.is_open:
        return b""
    move.is_flushed = True
    for prg in _old_peers(state, move):
        move.places[prg] = send_item(state, prg, Flushed(move.routing_epoch))
    advance(state)
    return b""


def _old_peers(state: BrokerState, move: Move) -> list[int]:
    return [prg for prg in range(move.old_count) if prg != state.settings.prg]


def on_began(state: BrokerState, origin: int, began: Began) -> None:
    """Begin as well, if this partition did not yet; note from when on a peer routes anew."""
    if state.move is None and _follows(state, began):
        begin(state, began)
    move = state.move
    if move is not None and move.routing_epoch == began.routing_epoch:
        move.began.add(origin & (TRANSFER - 1))


def _follows(state: BrokerState, began: Began) -> bool:
    """Say whether another ring may come after this one."""
    if not began.old_count < began.prg_count <= PRGS_MAX:
        return False
    if not state.is_open:  # of all it ever hears, the first word is about its own beginning
        return began.old_count <= state.settings.prg < began.prg_count
    return (began.routing_epoch, began.old_count) == (state.routing_epoch + 1, state.prg_count)


def on_flushed(state: BrokerState, origin: int, flushed: Flushed) -> None:
    move = state.move
    if move is not None and move.routing_epoch == flushed.routing_epoch:
        move.flushed.add(origin)


def on_handed_over(state: BrokerState, origin: int, ended: HandedOver) -> None:
    move = state.move
    if move is not None and move.routing_epoch == ended.routing_epoch:
        move.ended.add(origin & (TRANSFER - 1))


def on_settled(state: BrokerState, origin: int, _settled: Settled) -> None:
    """A fresh partition said what it wants: it need not get everything any more."""
    if origin in state.routes.blind:
        state.routes.blind.remove(origin)
        state.routes.invalidate()


def advance(state: BrokerState) -> None:
    """Take the next steps of a move, as far as nothing is missing for them."""
    move = state.move
    if move is None or not state.is_open:
        return
    if state.settings.prg >= move.old_count:
        _settle(state, move)
        return
    if not move.is_cut:
        if not (move.is_flushed and _have_it(state, move)):
            return
        if not move.flushed >= set(_old_peers(state, move)):
            return
        _cut(state, move)
    if not move.is_handed:
        if not hand_over_some(state, move):
            return
        move.is_handed = True
        for prg in _old_peers(state, move):
            move.places[prg] = state.channels.to(prg).last
    if _have_it(state, move):
        for prg in range(move.old_count, state.prg_count):
            send_item(state, prg + TRANSFER, HandedOver(move.routing_epoch))
        state.move = None


def _have_it(state: BrokerState, move: Move) -> bool:
    channels = state.channels
    return all(channels.to(prg).acked_through >= place for prg, place in move.places.items())


def _cut(state: BrokerState, move: Move) -> None:
    """What moves is the fresh partitions' from this index on; nothing changes it here any more."""
    move.is_cut = True
    drop_congestion(state)
    _forget_exact_filters(state)
    move.topics = moving_topics(state)
    for prg in range(move.old_count, state.prg_count):
        hand_over_turned_away(state, prg + TRANSFER)
    state.note_ring()


def _forget_exact_filters(state: BrokerState) -> None:
    """Forget who elsewhere wants topics that are another partition's now."""
    here = state.settings.prg
    trie = state.routes.trie
    for topic_filter, subscriber, _ in list(trie.items()):
        if isinstance(subscriber, bytes) or has_wildcard(topic_filter):
            continue
        if state.owner(topic_filter) != here:
            trie.remove(topic_filter, subscriber)
            if isinstance(subscriber, tuple):
                del state.groups[subscriber]


def is_complete(state: BrokerState) -> bool:
    """Say whether a fresh partition has everything."""
    move = state.move
    return move is not None and not state.is_open and move.ended >= set(range(move.old_count))


def open_up(state: BrokerState, move: Move) -> None:
    """Own what the ring says from here on; the caller gives out what was held."""
    state.is_open = move.is_cut = True
    here = state.settings.prg
    state.emit(RingChanged(state.routing_epoch, state.prg_count))
    state.routes.blind += [prg for prg in range(move.old_count, state.prg_count) if prg != here]
    state.note_ring()
    for session in state.sessions.values():
        check_room(state, session)
        if session.replays:
            state.replaying[session.client_id] = None
    move.untold = untold_filters(state)


def untold_filters(state: BrokerState) -> list[bytes]:
    """Return what sessions here want and nobody was told of, in an order that all find."""
    return sorted((each for each in state.filters if each not in state.told), reverse=True)


def _settle(state: BrokerState, move: Move) -> None:
    """Tell the next part of what the sessions of a fresh partition want; settled, if it is all.

    Until then it gets everything.
    """
    room, untold = state.settings.elapse_sessions_max, move.untold
    while untold and (room or not _is_untold(state, untold[-1])):
        topic_filter = untold.pop()
        if _is_untold(state, topic_filter):
            room -= 1
            tell(state, topic_filter)
    if untold:
        return
    for prg in range(state.prg_count):
        if prg != state.settings.prg:
            send_item(state, prg, Settled(move.routing_epoch))
    state.move = None


def _is_untold(state: BrokerState, topic_filter: bytes) -> bool:
    return topic_filter in state.filters and topic_filter not in state.told


def waits_for(state: BrokerState) -> list[str]:
    """Say in words what a move waits for, here; nothing where none is under way."""
    move = state.move
    if not state.is_open:
        if move is None:
            return ["the first word of an old partition"]
        missing = set(range(move.old_count)) - move.ended
        return [f"all that moves from partition {prg}" for prg in sorted(missing)]
    found = [f"partition {prg} to say what it wants" for prg in state.routes.blind]
    if move is None:
        return found
    if state.settings.prg >= move.old_count:
        return [f"{len(move.untold)} filters to be told"]
    if not move.is_flushed:
        return ["the answers to what was passed on by the old ring"]
    if move.is_cut and not move.is_handed:
        left = len(state.leaving), len(move.topics)
        return ["{} sessions and {} retained messages to be sent".format(*left)]
    channels = state.channels
    late = [prg for prg, at in move.places.items() if channels.to(prg).acked_through < at]
    words = [f"partition {prg} to take what was sent to it" for prg in late]
    if not move.is_cut:
        missing = set(_old_peers(state, move)) - move.flushed
        words += [f"partition {prg} to route by the new ring" for prg in sorted(missing)]
    return words
