"""What changed in a broker's state since a mark, as frames; and back, into a state like that.

A session that changed is told whole, with its queue. Of groups, filters that others were told of,
interests of other partitions and retained messages those are told that changed; channels go on
where they were; the rest is small and told whole. There is no delta across a change of the ring:
its steps move everything at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from quantum.broker.capturing import end_stream
from quantum.broker.changes import Changes, GroupKey
from quantum.broker.errors import SnapshotUnusable
from quantum.broker.frames import (
    BrokerHeader,
    DeltaHeader,
    End,
    Frame,
    FrozenChannel,
    FrozenDeliveries,
    FrozenGone,
    FrozenGroup,
    FrozenHeld,
    FrozenInterests,
    FrozenMove,
    FrozenPage,
    FrozenRetained,
    FrozenSession,
    FrozenStreams,
)
from quantum.broker.full_queues import FullQueue
from quantum.broker.marks import Mark, Totals, is_calm, totals
from quantum.broker.restoring import (
    finish,
    restore_deliveries,
    restore_header,
    restore_session,
    restore_table,
)
from quantum.broker.session import Session
from quantum.broker.snapshot import (
    frozen_group,
    header_frame,
    in_pages,
    interest_frames,
    item_frames,
    page_frames,
    places_frame,
    retained_frames,
    session_frames,
    small_frames,
    stream_frames,
)
from quantum.broker.state import BrokerState

NAME: Final = "quantum.broker.delta"
VERSION: Final = 1


@dataclass(slots=True)
class Contents:
    """What a delta tells of, in its order: enough to make it again from the state it leads to."""

    since_index: int
    since: Totals
    gone: list[FrozenGone] = field(default_factory=list)
    sessions: list[bytes] = field(default_factory=list)
    groups: list[GroupKey] = field(default_factory=list)
    told: list[bytes] = field(default_factory=list)
    retained: list[bytes] = field(default_factory=list)
    interests: list[tuple[bytes, int]] = field(default_factory=list)
    streams: list[int] = field(default_factory=list)
    pages: list[tuple[int, bytes]] = field(default_factory=list)
    channels: dict[int, int] = field(default_factory=dict)


def plan_delta(state: BrokerState, mark: Mark, changes: Changes) -> Contents | None:
    """Say what a delta from a mark to now tells of; None where the ring changed since."""
    if not (mark.is_calm and is_calm(state)):
        return None
    if mark.totals[ROUTING_EPOCH_AT] != state.routing_epoch:
        return None
    contents = Contents(mark.applied_index, mark.totals, channels=dict(mark.channels))
    contents.gone = list(_gone(state, changes))
    places = changes.session_places
    contents.sessions = [
        *sorted(each for each in changes.sessions if each in state.sessions and each not in places),
        *(each for each in places if each in state.sessions),
    ]
    contents.groups = [
        *sorted(
            each
            for each in changes.groups
            if each in state.groups and each not in changes.group_places
        ),
        *(each for each in changes.group_places if each in state.groups),
    ]
    contents.told = [
        *sorted(
            each for each in changes.told if each in state.told and each not in changes.told_places
        ),
        *(each for each in changes.told_places if each in state.told),
    ]
    contents.retained = sorted(
        topic for topic in changes.retained if state.retained.get(topic) is not None
    )
    contents.streams = sorted(n for n in changes.streams if state.streams.get(n) is not None)
    contents.pages = sorted(each for each in changes.pages if _has_page(state, each))
    trie = state.routes.trie
    contents.interests = sorted(each for each in changes.interests if trie.get(*each) is not None)
    return contents


def _has_page(state: BrokerState, page: tuple[int, bytes]) -> bool:
    return state.sections[page[0]].page(page[1]) is not None


ROUTING_EPOCH_AT: Final = 4
"""Its place in `totals`."""


def _gone(state: BrokerState, changes: Changes) -> Iterator[FrozenGone]:
    """Name what is taken out before the rest is put in: also what came anew, at another place."""
    for sessions in in_pages(sorted(changes.session_places)):
        yield FrozenGone(sessions=sessions)
    for groups in in_pages(sorted(changes.group_places)):
        yield FrozenGone(groups=groups)
    for told in in_pages(sorted(changes.told_places)):
        yield FrozenGone(told=told)
    retained = sorted(each for each in changes.retained if state.retained.get(each) is None)
    for topics in in_pages(retained):
        yield FrozenGone(retained=topics)
    trie = state.routes.trie
    lost = sorted(each for each in changes.interests if trie.get(*each) is None)
    for interests in in_pages(lost):
        yield FrozenGone(interests=interests)
    for numbers in in_pages(sorted(n for n in changes.streams if state.streams.get(n) is None)):
        yield FrozenGone(streams=numbers)
    for pages in in_pages(sorted(p for p in changes.pages if not _has_page(state, p))):
        yield FrozenGone(pages=pages)


def delta_frames(state: BrokerState, contents: Contents) -> Iterator[Frame]:
    """Walk a delta; whoever keeps the frames keeps the moment."""
    count = 0
    for frame in _frames(state, contents):
        count += 1
        yield frame
    yield End(count)


def _frames(state: BrokerState, contents: Contents) -> Iterator[Frame]:
    yield DeltaHeader(NAME, VERSION, contents.since_index, contents.since, totals(state))
    yield header_frame(state)
    yield from contents.gone
    for client_id in contents.sessions:
        yield from session_frames(state.sessions[client_id])
    for key in contents.groups:
        yield frozen_group(state.groups[key])
    found = (state.retained.get(topic) for topic in contents.retained)
    yield from retained_frames(message for message in found if message is not None)
    for prg, outbox in sorted(state.channels.outboxes().items()):
        if outbox.last:
            after = max(contents.channels.get(prg, 0), outbox.acked_through)
            yield FrozenChannel(prg, outbox.acked_through, after)
            new = islice(outbox.items, after - outbox.acked_through, None)
            yield from item_frames(prg, outbox, new)
    yield places_frame(state)
    trie = state.routes.trie
    levels = [(*each, trie.get(*each)) for each in contents.interests]
    remote = [(name, prg, level) for name, prg, level in levels if isinstance(level, int)]
    yield from interest_frames([(each, state.told[each]) for each in contents.told], remote)
    streams = (state.streams.get(number) for number in contents.streams)
    yield from stream_frames(state, [stream for stream in streams if stream is not None])
    yield from page_frames(state, contents.pages)
    yield from small_frames(state)


def restore_delta(state: BrokerState, frames: Iterable[Frame]) -> Contents:
    """Go on from the state that a delta begins at; return what it told of.

    Raises SnapshotUnusable, also where it does not lead to what it says: the state is then of no
    use any more.
    """
    restoring = _Restoring(state)
    for frame in frames:
        restoring.take(frame)
    return restoring.ended()


class _Restoring:
    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._header: DeltaHeader | None = None
        self._contents = Contents(0, ())
        self._session: Session | None = None
        self._count = 0
        self._is_over = False

    def take(self, frame: Frame) -> None:
        is_second = self._count == 1
        if self._is_over or (self._count == 0) != isinstance(frame, DeltaHeader):
            raise SnapshotUnusable("a frame where none belongs", number=self._count)
        if is_second != isinstance(frame, BrokerHeader):
            raise SnapshotUnusable("a frame where none belongs", number=self._count)
        state = self._state
        match frame:
            case DeltaHeader():
                self._begin(frame)
            case BrokerHeader():
                restore_header(state, frame)
                _empty_small_tables(state)
            case FrozenGone():
                self._contents.gone.append(frame)
                _take_out(state, frame)
            case FrozenSession():
                self._contents.sessions.append(frame.client_id)
                _forget_session(state, frame.client_id)
                self._session = restore_session(state, frame)
            case FrozenDeliveries():
                restore_deliveries(self._session, frame)
            case FrozenChannel():
                self._go_on(frame)
            case FrozenMove() | FrozenHeld():
                raise SnapshotUnusable("a change of the ring in a delta", number=self._count)
            case End(frames=expected):
                if expected != self._count:
                    raise SnapshotUnusable("frames are missing", expected=expected)
                self._is_over = True
            case _:
                self._note(frame)
                restore_table(state, frame)
        self._count += 1

    def _begin(self, header: DeltaHeader) -> None:
        state = self._state
        if header.name != NAME or header.version != VERSION:
            raise SnapshotUnusable("not a delta of this version", version=header.version)
        if (header.since_index, header.since) != (state.applied_index, totals(state)):
            raise SnapshotUnusable("a delta of another state", since_index=header.since_index)
        self._header = header
        channels = {prg: int(outbox.last) for prg, outbox in state.channels.outboxes().items()}
        self._contents = Contents(header.since_index, header.since, channels=channels)

    def _go_on(self, channel: FrozenChannel) -> None:
        if not self._state.channels.to(channel.prg).advance(channel.acked_through, channel.after):
            raise SnapshotUnusable("a channel does not go on where it was", prg=channel.prg)

    def _note(self, frame: Frame) -> None:
        """Remember what is told of, in its order."""
        contents = self._contents
        match frame:
            case FrozenGroup():
                contents.groups.append((frame.name, frame.filter))
            case FrozenRetained():
                contents.retained += [message.topic for message in frame.messages]
            case FrozenStreams():
                contents.streams += [spec.number for spec, _, _ in frame.streams]
            case FrozenPage():
                contents.pages.append((frame.family, frame.key))
            case FrozenInterests():
                contents.told += [name for name, _ in frame.told]
                contents.interests += [(name, prg) for name, prg, _ in frame.remote]
            case _:
                pass

    def ended(self) -> Contents:
        state, header = self._state, self._header
        if header is None or not self._is_over:
            raise SnapshotUnusable("the delta has no end", frames=self._count)
        finish(state)
        if totals(state) != header.totals:
            raise SnapshotUnusable("a delta does not lead to what it says")
        return self._contents


def _empty_small_tables(state: BrokerState) -> None:
    """Forget what every delta tells whole."""
    state.routes.full.clear()
    state.congested.clear()
    state.refusing.clear()
    state.replaying.clear()
    state.full_stores.clear()
    state.full_queues = FullQueue.BLOCK
    state.dropped_full.clear()
    state.parts.forget()


def _take_out(state: BrokerState, gone: FrozenGone) -> None:
    trie = state.routes.trie
    for client_id in gone.sessions:
        _forget_session(state, client_id)
        state.sessions.pop(client_id, None)
    for key in gone.groups:
        if state.groups.pop(key, None) is not None:
            trie.remove(key[1], key)
    for topic_filter in gone.told:
        state.told.pop(topic_filter, None)
    for topic in gone.retained:
        state.drop_retained(topic)
    for topic_filter, prg in gone.interests:
        trie.remove(topic_filter, prg)
    for number in gone.streams:
        end_stream(state, number)
    for family, page in gone.pages:
        if family in state.sections:
            state.sections[family].drop_page(page)


def _forget_session(state: BrokerState, client_id: bytes) -> None:
    """Take a session out of everything but its place among the others."""
    session = state.sessions.get(client_id)
    if session is None:
        return
    session.outbound.leave()
    state.subscription_count -= len(session.subscriptions)
    for spec in session.subscriptions.values():
        if not spec.share:
            state.routes.trie.remove(spec.filter, client_id)
            subscribers = state.filters[spec.filter]
            subscribers.pop(client_id, None)
            if not subscribers:
                del state.filters[spec.filter]
