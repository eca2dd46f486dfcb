"""A broker's state as frames: the same frames for the same state.

What follows from other things (routes, deadlines, weights) is left out. Frames refer to messages
and items, which never change once they are there: their bytes can be made later, piece by piece,
and still show one moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from quantum.broker.channels import Outbox, item_weight
from quantum.broker.frames import (
    BrokerHeader,
    End,
    Frame,
    FrozenDeliveries,
    FrozenFullQueues,
    FrozenGroup,
    FrozenHeld,
    FrozenHoldings,
    FrozenInterests,
    FrozenMove,
    FrozenOutbox,
    FrozenPage,
    FrozenPart,
    FrozenPlaces,
    FrozenPressure,
    FrozenRetained,
    FrozenSession,
    FrozenStreams,
)
from quantum.broker.items import FrozenDelivery, Item
from quantum.broker.message import Message
from quantum.broker.moving import frozen_delivery
from quantum.broker.session import Session
from quantum.broker.shares import ShareGroup
from quantum.broker.state import BrokerState
from quantum.broker.stream_table import Stream

NAME: Final = "quantum.broker"
VERSION: Final = 4
READABLE: Final = (2, 3, 4)
_PAGE: Final = 64
_PAGE_BYTES: Final = 256 << 10
_MANY: Final = 4_096

T = TypeVar("T")


def state_frames(state: BrokerState) -> Iterator[Frame]:
    """Walk the state of this moment; whoever keeps the frames keeps the moment."""
    count = 0
    for frame in _frames(state):
        count += 1
        yield frame
    yield End(count)


def _frames(state: BrokerState) -> Iterator[Frame]:
    yield header_frame(state)
    yield from _move_frames(state)
    for session in state.sessions.values():
        yield from session_frames(session)
    for group in state.groups.values():
        yield frozen_group(group)
    yield from retained_frames(message for _, message in state.retained.items())
    for prg, outbox in sorted(state.channels.outboxes().items()):
        if outbox.last:  # asking for a channel makes an empty one: that is no state
            yield FrozenOutbox(prg, outbox.acked_through, [])
            yield from item_frames(prg, outbox, iter(outbox.items))
    yield places_frame(state)
    yield from interest_frames(list(state.told.items()), _remote_interests(state))
    yield from stream_frames(state, list(state.streams))
    for family, section in sorted(state.sections.items()):
        yield from page_frames(state, ((family, key) for key in section.page_keys()))
    yield from small_frames(state)


def header_frame(state: BrokerState) -> BrokerHeader:
    """Return all that is a number."""
    return BrokerHeader(
        NAME,
        VERSION,
        state.settings.prg,
        state.applied_index,
        state.now_ms,
        state.epoch,
        state.attachments,
        state.dropped,
        state.routing_epoch,
        state.prg_count,
        state.is_open,
        list(state.routes.blind),
    )


def small_frames(state: BrokerState) -> Iterator[Frame]:
    """Walk what is small, and told whole in every delta."""
    yield FrozenPressure(
        sorted(state.routes.full),
        [(topic, list(told)) for topic, told in state.congested.items()],
        list(state.refusing),
        list(state.replaying),
        state.turned_away.frozen(),
    )
    yield FrozenHoldings(*state.holdings.frozen(), sorted(state.full_stores), state.hashes_shares)
    if state.full_queues or state.dropped_full:
        yield FrozenFullQueues(int(state.full_queues), sorted(state.dropped_full.items()))
    for data in state.parts.pieces:
        yield FrozenPart(data)


def _move_frames(state: BrokerState) -> Iterator[Frame]:
    move = state.move
    if move is None:
        return
    yield FrozenMove(
        move.routing_epoch,
        move.old_count,
        sorted(move.began),
        sorted(move.flushed),
        move.is_flushed,
        move.is_cut,
        move.is_handed,
        sorted(move.places.items()),
        sorted(move.ended),
    )
    for page in _pages(iter(move.held), _held_weight):
        yield FrozenHeld(page)


def _held_weight(held: tuple[int, Item]) -> int:
    return item_weight(held[1])


def session_frames(session: Session) -> Iterator[Frame]:
    """Walk one session with what is on its way to it."""
    outbound = session.outbound
    yield FrozenSession(
        session.client_id,
        session.epoch,
        session.expiry_seconds,
        session.attachment,
        session.connected,
        session.disconnected_at_ms,
        list(session.subscriptions.items()),
        [(packet_id, *place) for packet_id, place in session.received.items()],
        session.will,
        session.will_due_ms,
        session.keeps_queue,
        session.look_at_ms,
        [
            (each.prg, each.filter, each.qos, each.identifier, each.after)
            for each in session.replays
        ],
        outbound.window,
        outbound.next_id,
        list(outbound.unsent),
        session.identity,
    )
    if outbound:
        for page in _pages(map(frozen_delivery, outbound.unfinished()), _delivery_weight):
            yield FrozenDeliveries(page)


def frozen_group(group: ShareGroup) -> FrozenGroup:
    members = [
        (each.prg, each.client_id, each.epoch, each.qos, each.identifier, each.online, each.full)
        for each in group.members.values()
    ]
    return FrozenGroup(group.name, group.filter, group.turn, members)


def retained_frames(messages: Iterator[Message]) -> Iterator[Frame]:
    for page in _pages(messages, _message_weight):
        yield FrozenRetained(page)


def item_frames(prg: int, outbox: Outbox, items: Iterator[Item]) -> Iterator[Frame]:
    for page in _pages(items, item_weight):
        yield FrozenOutbox(prg, outbox.acked_through, page)


def places_frame(state: BrokerState) -> FrozenPlaces:
    """Return how far each channel to here has counted."""
    channels = state.channels
    return FrozenPlaces(
        sorted(channels.counted.items()),
        [
            (prg, each.term, each.number, each.forgotten_through, list(each.refused.items()))
            for prg, each in sorted(channels.forwarded.items())
        ],
    )


def _remote_interests(state: BrokerState) -> list[tuple[bytes, int, int]]:
    return sorted(
        (topic_filter, subscriber, wish)
        for topic_filter, subscriber, wish in state.routes.trie.items()
        if isinstance(subscriber, int) and isinstance(wish, int)
    )


def interest_frames(
    told: list[tuple[bytes, int]], remote: list[tuple[bytes, int, int]]
) -> Iterator[Frame]:
    for some in in_pages(told):
        yield FrozenInterests(some, [])
    for others in in_pages(remote):
        yield FrozenInterests([], others)


def stream_frames(state: BrokerState, streams: list[Stream]) -> Iterator[Frame]:
    """Walk some streams; the first frame says how many there ever were."""
    frozen = [(each.spec, each.start_offset, each.next_offset) for each in streams]
    if state.streams.last_number or frozen:
        for page in in_pages(frozen) if frozen else ([],):
            yield FrozenStreams(state.streams.last_number, page)


def page_frames(state: BrokerState, keys: Iterable[tuple[int, bytes]]) -> Iterator[Frame]:
    """Walk some pages of sections."""
    for family, key in keys:
        data = state.sections[family].page(key)
        if data is not None:
            yield FrozenPage(family, key, data)


def in_pages(things: list[T]) -> Iterator[list[T]]:
    """Cut a list of small things into pages."""
    for at in range(0, len(things), _MANY):
        yield things[at : at + _MANY]


def _pages(things: Iterator[T], weight: Callable[[T], int]) -> Iterator[list[T]]:
    """Cut things into pages that are neither long nor heavy."""
    page: list[T] = []
    size = 0
    for thing in things:
        page.append(thing)
        size += weight(thing)
        if len(page) == _PAGE or size >= _PAGE_BYTES:
            yield page
            page, size = [], 0
    if page:
        yield page


def _message_weight(message: Message) -> int:
    return message.weight


def _delivery_weight(delivery: FrozenDelivery) -> int:
    return delivery[0].weight
