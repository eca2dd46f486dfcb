"""From the frames of a snapshot to a state that behaves as the frozen one would have."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify
from typing import TypeAlias, assert_never

from quantum.broker.capturing import watch_filters
from quantum.broker.channels import Forwarded
from quantum.broker.errors import SnapshotUnusable
from quantum.broker.frames import (
    BrokerHeader,
    DeltaHeader,
    End,
    Frame,
    FrozenChannel,
    FrozenDeliveries,
    FrozenFullQueues,
    FrozenGone,
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
from quantum.broker.full_queues import FullQueue
from quantum.broker.move import Move
from quantum.broker.moving import moving_topics
from quantum.broker.outbound import Delivery
from quantum.broker.rebalancing import untold_filters
from quantum.broker.section_list import SECTIONS
from quantum.broker.sections import SectionFactory
from quantum.broker.session import Replay, Session, new_outbound
from quantum.broker.settings import BrokerSettings
from quantum.broker.shares import ShareGroup, ShareMember
from quantum.broker.snapshot import NAME, READABLE
from quantum.broker.state import BrokerState
from quantum.broker.stream_table import Stream
from quantum.broker.types import ClientId, Sequence, SessionEpoch


def restore_state(
    settings: BrokerSettings,
    frames: Iterable[Frame],
    sections: tuple[SectionFactory, ...] = SECTIONS,
) -> BrokerState:
    """Make the state that a snapshot says. Raises SnapshotUnusable."""
    state = BrokerState(settings, sections)
    last: Session | None = None
    count, ended = 0, False
    for frame in frames:
        if ended or (count == 0) != isinstance(frame, BrokerHeader):
            raise SnapshotUnusable("a frame where none belongs", number=count)
        match frame:
            case BrokerHeader():
                restore_header(state, frame)
            case FrozenSession():
                last = restore_session(state, frame)
            case FrozenDeliveries():
                restore_deliveries(last, frame)
            case End(frames=expected):
                if expected != count:
                    raise SnapshotUnusable("frames are missing", expected=expected, got=count)
                ended = True
            case DeltaHeader() | FrozenGone() | FrozenChannel():
                raise SnapshotUnusable("a delta is no snapshot", number=count)
            case _:
                restore_table(state, frame)
        count += 1
    if not ended:
        raise SnapshotUnusable("the snapshot has no end", frames=count)
    finish(state)
    return state


def restore_header(state: BrokerState, header: BrokerHeader) -> None:
    if header.name != NAME or header.version not in READABLE:
        raise SnapshotUnusable("not a snapshot of this version", version=header.version)
    if header.prg != state.settings.prg:
        raise SnapshotUnusable("another partition's snapshot", prg=header.prg)
    state.applied_index, state.now_ms = header.applied_index, header.now_ms
    state.epoch, state.attachments = header.epoch, header.attachments
    state.dropped = header.dropped
    if header.prg_count:
        state.routing_epoch, state.prg_count = header.routing_epoch, header.prg_count
        state.is_open = header.is_open
        state.routes.blind = list(header.blind)


def restore_session(state: BrokerState, frozen: FrozenSession) -> Session:
    outbound = new_outbound(frozen.window, state.queued)
    outbound.unsent = list(frozen.unsent)
    outbound.restore([], [], frozen.next_id)
    session = Session(
        ClientId(frozen.client_id),
        SessionEpoch(frozen.epoch),
        frozen.expiry_seconds,
        outbound,
        frozen.attachment,
        frozen.connected,
        frozen.disconnected_at_ms,
        dict(frozen.subscriptions),
        {packet_id: (prg, place) for packet_id, prg, place in frozen.received},
        frozen.will,
        frozen.will_due_ms,
        sum(1 for _, spec in frozen.subscriptions if spec.share),
        frozen.keeps_queue,
        frozen.look_at_ms,
        [Replay(*each) for each in frozen.replays],
        frozen.identity,
    )
    state.subscription_count += len(session.subscriptions)
    state.sessions[session.client_id] = session
    for spec in session.subscriptions.values():
        if not spec.share:
            state.routes.trie.add(spec.filter, session.client_id, spec)
            state.filters.setdefault(spec.filter, {})[session.client_id] = None
    return session


def restore_deliveries(session: Session | None, frozen: FrozenDeliveries) -> None:
    if session is None:
        raise SnapshotUnusable("deliveries of no session")
    outbound = session.outbound
    for each in frozen.deliveries:
        delivery = Delivery(*each)
        outbound.put_on(delivery.message.weight)
        if delivery.packet_id:
            outbound.in_flight[delivery.packet_id] = delivery
        else:
            outbound.queue.append(delivery)


Table: TypeAlias = (
    FrozenGroup
    | FrozenRetained
    | FrozenOutbox
    | FrozenPlaces
    | FrozenInterests
    | FrozenPressure
    | FrozenMove
    | FrozenHeld
    | FrozenHoldings
    | FrozenFullQueues
    | FrozenStreams
    | FrozenPage
    | FrozenPart
)


def restore_table(state: BrokerState, frame: Table) -> None:
    match frame:
        case FrozenGroup():
            _restore_group(state, frame)
        case FrozenRetained():
            for message in frame.messages:
                state.put_retained(message)
        case FrozenOutbox():
            outbox = state.channels.to(frame.prg)
            outbox.acked_through = Sequence(frame.acked_through)
            for item in frame.items:
                outbox.append(item)
        case FrozenPlaces():
            _restore_places(state, frame)
        case FrozenInterests():
            state.told.update(frame.told)
            for topic_filter, prg, level in frame.remote:
                state.routes.trie.add(topic_filter, prg, level)
        case FrozenPressure():
            state.routes.full.update(frame.full)
            state.congested.update(frame.congested)
            state.refusing.update(dict.fromkeys(frame.refusing))
            state.replaying.update(dict.fromkeys(frame.replaying))
            state.turned_away.restore(frame.turned_away)
        case FrozenMove():
            _restore_move(state, frame)
        case FrozenHeld():
            if state.move is None:
                raise SnapshotUnusable("messages that wait for no move")
            state.move.held += frame.held
        case FrozenPart():
            state.parts.add(frame.data)
        case FrozenHoldings():
            state.holdings.restore(frame.shares, frame.ceilings, frame.graces)
            state.full_stores.update(frame.full_stores)
            state.hashes_shares = frame.hashes_shares
        case FrozenStreams():
            restore_streams(state, frame)
        case FrozenPage():
            section = state.sections.get(frame.family)
            if section is None:
                raise SnapshotUnusable("a section of a later release", family=frame.family)
            section.put_page(frame.key, frame.data)
        case FrozenFullQueues():
            state.full_queues = FullQueue(frame.policy)
            state.dropped_full = dict(frame.dropped)
        case _:
            assert_never(frame)


def restore_streams(state: BrokerState, frozen: FrozenStreams) -> None:
    """Put streams in, or other offsets in the place of theirs."""
    state.streams.last_number = frozen.last_number
    for spec, start_offset, next_offset in frozen.streams:
        if not start_offset <= next_offset:
            raise SnapshotUnusable("a stream that ends before it starts", number=spec.number)
        stream = state.streams.get(spec.number)
        if stream is None:
            stream = Stream(spec, state.settings.prg)
            state.streams.put(stream)
            watch_filters(state, stream)
        stream.start_offset, stream.next_offset = start_offset, next_offset


def _restore_move(state: BrokerState, frozen: FrozenMove) -> None:
    state.move = Move(
        frozen.routing_epoch,
        frozen.old_count,
        set(frozen.began),
        set(frozen.flushed),
        frozen.is_flushed,
        frozen.is_cut,
        frozen.is_handed,
        dict(frozen.places),
        set(frozen.ended),
    )


def _restore_group(state: BrokerState, frozen: FrozenGroup) -> None:
    group = ShareGroup(frozen.name, frozen.filter, turn=frozen.turn)
    for each in frozen.members:
        group.join(ShareMember(*each))
    key = (frozen.name, frozen.filter)
    state.groups[key] = group
    state.routes.trie.add(frozen.filter, key, None)


def _restore_places(state: BrokerState, frozen: FrozenPlaces) -> None:
    state.channels.counted.update(frozen.counted)
    for prg, term, number, forgotten_through, refused in frozen.forwarded:
        state.channels.forwarded[prg] = Forwarded(term, number, dict(refused), forgotten_through)


def finish(state: BrokerState) -> None:
    """Work out what the frames do not say."""
    state.note_ring()
    for section in state.sections.values():
        section.restored()
    move, here = state.move, state.settings.prg
    if move is not None and state.is_open:
        leaving = [each for each in state.sessions if state.home(each) != here]
        state.leaving = dict.fromkeys(leaving)
        move.topics = moving_topics(state) if move.is_cut else []
        move.untold = untold_filters(state) if here >= move.old_count else []
    if not state.replaying.keys() <= state.sessions.keys():
        raise SnapshotUnusable("a replay of no session")
    state.deadlines = [
        (each.look_at_ms, each.client_id) for each in state.sessions.values() if each.look_at_ms
    ]
    heapify(state.deadlines)
    state.retained_deadlines = [
        (message.expires_at_ms, topic)
        for topic, message in state.retained.items()
        if message.expires_at_ms
    ]
    heapify(state.retained_deadlines)
