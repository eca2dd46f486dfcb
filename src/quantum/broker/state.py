"""All that a partition's broker knows. Equal commands in equal order make it equal everywhere."""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from typing import Final

from clustor.streams.changes import StreamChange
from quantum.broker.changes import UNHEARD, Changes
from quantum.broker.channels import Channels
from quantum.broker.effects import Effect
from quantum.broker.full_queues import FullQueue
from quantum.broker.holdings import Holdings
from quantum.broker.items import SectionItem
from quantum.broker.message import Message
from quantum.broker.move import Move
from quantum.broker.outbound import Total
from quantum.broker.parts import Parts
from quantum.broker.routes import Routes
from quantum.broker.section_list import SECTIONS
from quantum.broker.sections import BrokerSection, SectionEffect, SectionFactory
from quantum.broker.session import Session
from quantum.broker.settings import BrokerSettings
from quantum.broker.shares import ShareGroup
from quantum.broker.stream_table import Stream, StreamTable
from quantum.broker.turned_away import TurnedAway
from quantum.broker.types import TRANSFER
from quantum.routing.retained import RetainedIndex

STALE_MAX: Final = 64
"""A heap may hold this many outdated deadlines more than it has live ones."""


class BrokerState:
    """The tables, and the list of effects of the command that is being applied."""

    __slots__ = (
        "applied_index",
        "attachments",
        "captured",
        "changes",
        "channels",
        "congested",
        "deadlines",
        "dropped",
        "dropped_full",
        "effects",
        "ending",
        "epoch",
        "filters",
        "full_queues",
        "full_stores",
        "groups",
        "hashes_shares",
        "holdings",
        "is_open",
        "leaving",
        "move",
        "now_ms",
        "parts",
        "prg_count",
        "queued",
        "refusing",
        "replaying",
        "retained",
        "retained_bytes",
        "retained_deadlines",
        "routes",
        "routing_epoch",
        "section_items",
        "sections",
        "sessions",
        "settings",
        "stream_changes",
        "streams",
        "subscription_count",
        "told",
        "turned_away",
        "wills",
    )

    def __init__(
        self, settings: BrokerSettings, sections: tuple[SectionFactory, ...] = SECTIONS
    ) -> None:
        self.settings = settings
        self.applied_index = 0
        self.now_ms = 0
        """The latest stamp seen: a leader whose clock is behind does not turn time back."""
        self.epoch = 0
        """Counts the sessions that were ever made here, so that no epoch comes twice."""
        self.attachments = 0
        """Counts the connections that sessions ever had, so that no number comes twice."""
        self._place_in_ring(settings)
        self.sessions: dict[bytes, Session] = {}
        self.groups: dict[tuple[bytes, bytes], ShareGroup] = {}
        self.routes = Routes(self.sessions, self.groups)
        self.filters: dict[bytes, dict[bytes, None]] = {}
        """Who here has an ordinary subscription to a filter."""
        self.told: dict[bytes, int] = {}
        """The level of interest that the other partitions were told of."""
        self.congested: dict[bytes, list[int]] = {}
        """Topics of this partition whose subscribers had no room, and whom we told."""
        self.refusing: dict[bytes, None] = {}
        """Topics of other partitions of which the same was told to us."""
        self.retained: RetainedIndex[Message] = RetainedIndex()
        self.retained_bytes = 0
        """What all retained messages weigh; it follows from them."""
        self.subscription_count = 0
        """How many subscriptions all sessions have; it follows from them."""
        self.queued = Total()
        """What is on its way to all sessions weighs together; it follows from them."""
        self.holdings = Holdings(settings)
        """What may be held here of the tenant's quotas."""
        self.parts = Parts()
        """A command that has not wholly come yet."""
        self.hashes_shares = False
        """Whether shared subscriptions share by the messages' keys, not in turn (C12)."""
        self.full_queues = FullQueue.BLOCK
        """What becomes of messages for a session without room (C24)."""
        self.dropped_full: dict[int, int] = {}
        """How many messages full queues cost, by the choice that was in force."""
        self.full_stores: set[int] = set()
        """Partitions whose queues hold all that they may, this one included."""
        self.replaying: dict[bytes, None] = {}
        """Clients for whom the next page of what is retained here can be sent."""
        self.turned_away = TurnedAway()
        """Publishers that were refused and cannot be told."""
        self.channels = Channels(settings.channel_items_max, settings.channel_bytes_max)
        self.deadlines: list[tuple[int, bytes]] = []
        """A heap of when to look at sessions: one live place for each (its `look_at_ms`)."""
        self.retained_deadlines: list[tuple[int, bytes]] = []
        """A heap of when retained messages expire; what was replaced meanwhile does no harm."""
        self.dropped = 0
        """How many messages were dropped because they expired or nobody was left to have them."""
        self.streams = StreamTable()
        """What is kept by offset here, and how far it reaches."""
        self.sections: dict[int, BrokerSection] = {}
        """The other parts of this partition's machine, by the family of their commands."""
        self._begin_passing()
        for make in sections:
            self._add_section(make)

    def _place_in_ring(self, settings: BrokerSettings) -> None:
        """Stand where the tenant's first ring has this partition."""
        self.routing_epoch = 0
        """Counts the rings that the tenant had; 0: the one it was made with."""
        self.prg_count = settings.prg_count
        """How many partitions the ring of this epoch has."""
        self.is_open = settings.prg < settings.prg_count
        """Whether this partition owns what the ring says: a fresh one does not until it opens."""
        self.move: Move | None = None
        """The change of the ring that is under way here."""
        self.leaving: dict[bytes, None] = {}
        """Sessions that this change takes away; they are fenced until then."""

    def _begin_passing(self) -> None:
        """Hold nothing that passes: what a command under way brings, and what leaves by it."""
        self.ending: dict[bytes, None] = {}
        """Sessions that end with the command that is being applied; empty between two."""
        self.effects: list[Effect] | None = None
        """None where nobody wants to know: this replica does not lead."""
        self.changes: Changes = UNHEARD
        """What changed since the newest mark, by key; of no replica's state (`changes`)."""
        self.captured: dict[Stream, list[bytes]] = {}
        """What the command that is being applied brought for streams; empty between two."""
        self.stream_changes: list[StreamChange] | None = None
        """What became of streams since somebody asked; None where nobody keeps their files."""
        self.section_items: deque[tuple[int, bytes]] = deque()
        """What sections sent to themselves with the command that is being applied."""
        self.wills: list[tuple[int, Message]] | None = None
        """Wills that were said about topics of this partition, and when: the log has no record
        of them. None where nobody wants to know."""

    def _add_section(self, make: SectionFactory) -> None:
        world = _World(self)
        section = make(world)
        assert section.family not in self.sections, "two sections of one family"
        world.family = section.family
        self.sections[section.family] = section

    def owner(self, topic: bytes) -> int:
        """Return the partition that owns a topic."""
        return self.settings.topic_partition(topic, self.prg_count)

    def home(self, client_id: bytes) -> int:
        """Return the partition that a client's session belongs to."""
        return self.settings.session_partition(client_id, self.prg_count)

    def is_fenced(self, client_id: bytes) -> bool:
        """Say whether a client's session is not this partition's, or not any more."""
        if self.routing_epoch == 0:
            return not self.is_open
        return not self.is_open or self.home(client_id) != self.settings.prg

    def way(self, prg: int) -> int:
        """Name the channel for a message to a partition's sessions (`REBALANCE.md`)."""
        move = self.move
        if move is None or move.is_cut or prg < move.old_count:
            return prg
        return prg + TRANSFER

    def note_ring(self) -> None:
        """Let routes know which topics are another partition's since the ring changed."""
        is_over = self.move is None or self.move.is_cut
        here = self.settings.prg
        self.routes.is_elsewhere = (
            (lambda topic: self.owner(topic) != here) if self.routing_epoch and is_over else None
        )
        self.routes.invalidate()

    def see_time(self, now_ms: int) -> None:
        self.now_ms = max(self.now_ms, now_ms)

    def next_attachment(self) -> int:
        self.attachments += 1
        return self.attachments

    def emit(self, effect: Effect) -> None:
        if self.effects is not None:
            self.effects.append(effect)

    def note_stream(self, change: StreamChange) -> None:
        if self.stream_changes is not None:
            self.stream_changes.append(change)

    def look_again(self, at_ms: int, session: Session) -> None:
        """Let `Elapse` look at a session when that time has come, or earlier."""
        if 0 < session.look_at_ms <= at_ms:
            return
        session.look_at_ms = at_ms
        self.changes.sessions.add(session.client_id)
        heappush(self.deadlines, (at_ms, session.client_id))
        if len(self.deadlines) > 2 * len(self.sessions) + STALE_MAX:
            self.deadlines = sorted(
                (each.look_at_ms, each.client_id)
                for each in self.sessions.values()
                if each.look_at_ms
            )

    def take_due(self) -> Session | None:
        """Take out a session whose time has come."""
        while self.deadlines and self.deadlines[0][0] <= self.now_ms:
            at_ms, client_id = heappop(self.deadlines)
            session = self.sessions.get(client_id)
            if session is not None and session.look_at_ms == at_ms:
                session.look_at_ms = 0
                self.changes.sessions.add(client_id)
                return session
        return None

    def retain(self, message: Message) -> None:
        """Keep a message as its topic's retained one."""
        self.put_retained(message)
        if message.expires_at_ms:
            heappush(self.retained_deadlines, (message.expires_at_ms, message.topic))
            if len(self.retained_deadlines) > 2 * len(self.retained) + STALE_MAX:
                self.retained_deadlines = [
                    (each.expires_at_ms, topic)
                    for topic, each in self.retained.items()
                    if each.expires_at_ms
                ]
                heapify(self.retained_deadlines)

    def put_retained(self, message: Message) -> None:
        old = self.retained.put(message.topic, message)
        self.changes.retained.add(message.topic)
        self.retained_bytes += message.weight - (0 if old is None else old.weight)

    def drop_retained(self, topic: bytes) -> None:
        old = self.retained.delete(topic)
        self.changes.retained.add(topic)
        self.retained_bytes -= 0 if old is None else old.weight

    def drop_expired_retained(self) -> None:
        """Forget what is retained and has expired."""
        while self.retained_deadlines and self.retained_deadlines[0][0] <= self.now_ms:
            _, topic = heappop(self.retained_deadlines)
            message = self.retained.get(topic)
            if message is not None and 0 < message.expires_at_ms <= self.now_ms:
                self.drop_retained(topic)

    def next_deadline_ms(self) -> int | None:
        """When an `Elapse` has something to do, at the earliest; never too late."""
        if not self.is_open:
            return None
        if self.move is not None and self.move.is_cut and not self.move.is_handed:
            return self.now_ms
        if self.replaying:
            return self.now_ms
        heads = [heap[0][0] for heap in (self.deadlines, self.retained_deadlines) if heap]
        due = (section.next_deadline_ms() for section in self.sections.values())
        heads += [each for each in due if each is not None]
        return min(heads, default=None)


class _World:
    """The partition as one of its sections knows it (`SectionWorld`)."""

    __slots__ = ("_state", "family")

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self.family = 0

    @property
    def prg(self) -> int:
        return self._state.settings.prg

    @property
    def prg_count(self) -> int:
        return self._state.prg_count

    @property
    def first_prg_count(self) -> int:
        return self._state.settings.prg_count

    @property
    def now_ms(self) -> int:
        return self._state.now_ms

    def place(self, key: bytes, prg_count: int) -> int:
        return self._state.settings.topic_partition(key, prg_count)

    def send(self, prg: int, data: bytes) -> int:
        state = self._state
        if prg == state.settings.prg:
            state.section_items.append((self.family, data))
            return 0
        return state.channels.to(state.way(prg)).append(SectionItem(self.family, data))

    def is_channel_full(self, prg: int) -> bool:
        state = self._state
        return prg != state.settings.prg and state.channels.to(state.way(prg)).is_full

    def note_stream(self, change: StreamChange) -> None:
        self._state.note_stream(change)

    def emit(self, effect: SectionEffect) -> None:
        self._state.emit(effect)

    def page_changed(self, key: bytes) -> None:
        self._state.changes.pages.add((self.family, key))
