"""The session processor of one partition: committed commands in, effects out (quantumqtt §6).

It is the replicated machine of a Clustor group. No clock, no chance, no I/O; no bytes make it
raise, but for a command that only a later release knows: then the group stops. A leader asks for
the effects of an index once the group allows its acknowledgement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, assert_never

import msgspec
from xxhash import xxh3_128

from clustor.streams.changes import StreamChange, StreamExtent
from quantum.broker.attaching import (
    apply_attach,
    apply_detach,
    apply_elapse,
    apply_leader_started,
    apply_remove_session,
    end_overfull,
)
from quantum.broker.capturing import (
    append_captured,
    apply_create_stream,
    apply_delete_stream,
    apply_trim_streams,
)
from quantum.broker.commands import (
    PUBLISHES,
    Acknowledge,
    Attach,
    BeginRebalance,
    ChannelAcked,
    ChannelItems,
    Command,
    CreateStream,
    DeleteStream,
    Detach,
    Elapse,
    LeaderStarted,
    Part,
    PublishOnce,
    Release,
    RemoveSession,
    RoutesFlushed,
    SetFullQueues,
    SetPolicy,
    Subscribe,
    TrimStreams,
    Unsubscribe,
    decode_command,
    unknown_family,
)
from quantum.broker.congestion import RETAINING, lift_congestion
from quantum.broker.delta import Contents, delta_frames, plan_delta, restore_delta
from quantum.broker.effects import Effect
from quantum.broker.errors import BrokerMisuse, UnknownCommand
from quantum.broker.frames import decode_frames, encode_frames, encode_frames_later
from quantum.broker.holdings import SESSION_BYTES
from quantum.broker.limiting import apply_set_full_queues, apply_set_policy, check_store
from quantum.broker.marks import Marks, bound_changes
from quantum.broker.parts import is_part
from quantum.broker.publishing import apply_publish_once, apply_publishes, apply_release
from quantum.broker.rebalancing import advance, apply_begin_rebalance, apply_routes_flushed
from quantum.broker.receiving import (
    apply_acknowledge,
    apply_channel_acked,
    apply_channel_items,
)
from quantum.broker.refusals import NOT_COUNTED
from quantum.broker.restoring import restore_state
from quantum.broker.routes import TopicRoute
from quantum.broker.section_list import SECTIONS
from quantum.broker.sections import SectionFactory, is_section_command, section_stamp
from quantum.broker.settings import BrokerSettings
from quantum.broker.snapshot import state_frames
from quantum.broker.state import BrokerState
from quantum.broker.subscribing import apply_subscribe, apply_unsubscribe

_BOUND_EVERY: Final = 64
"""So many entries add less than a bound may be exceeded by."""


class Broker:
    """One replica's copy of a partition's sessions, subscriptions, queues and retained messages."""

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        keeps_streams: bool = False,
        sections: tuple[SectionFactory, ...] = SECTIONS,
    ) -> None:
        self.settings = settings
        self._sections = sections
        self._keeps_streams = keeps_streams
        """Whether somebody takes what is appended to streams; it would gather otherwise."""
        self.state = self._new_state()
        self._effects: dict[int, tuple[list[Effect], list[int]]] = {}
        """Of each entry its effects, and where those of each of its commands end."""
        self._collects = False
        self._lifted_at = (-1, -1)
        """The version of the routes that was looked at; saves work, is no state."""
        self._marks = Marks()
        self._delta: Contents | None = None
        """What the delta told of that was restored last."""

    # What is replicated.

    def apply_batch(self, index: int, commands: Sequence[bytes]) -> list[bytes]:
        """Apply the commands of one committed entry, in order; one reply for each."""
        state = self.state
        if index <= state.applied_index:
            raise BrokerMisuse("applied already", index=index, applied_index=state.applied_index)
        state.applied_index = index
        if index % _BOUND_EVERY == 0:
            bound_changes(state)
        if not self._collects:
            return self._apply_all(commands, [], [])
        effects: list[Effect] = []
        ends: list[int] = []
        state.effects = effects
        replies = self._apply_all(commands, effects, ends)
        state.effects = None
        if effects:
            self._effects[index] = (effects, ends)
        return replies

    def _apply_all(
        self, commands: Sequence[bytes], effects: list[Effect], ends: list[int]
    ) -> list[bytes]:
        state = self.state
        replies = []
        for command in commands:
            replies.append(self._apply(command))
            while state.section_items:
                family, item = state.section_items.popleft()
                state.sections[family].receive(state.settings.prg, item)
            if state.captured:
                append_captured(state)
            if state.ending:
                end_overfull(state)
            ends.append(len(effects))
        if state.congested and (
            state.routes.version != self._lifted_at or RETAINING in state.congested
        ):
            lift_congestion(state)
            self._lifted_at = state.routes.version
        if state.full_stores or state.queued.amount > state.holdings.shares[SESSION_BYTES]:
            check_store(state)
        return replies

    def _apply(self, data: bytes) -> bytes:
        if data[:1] == b"\0":
            return apply_publishes(self.state, data)
        if is_section_command(data) and data[0] in self.state.sections:
            self.state.see_time(section_stamp(data))
            return self.state.sections[data[0]].apply(data)
        try:
            command = decode_command(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            family = unknown_family(data, self.state.sections)
            if family is not None:
                raise UnknownCommand("a command of a later release", family=family) from None
            return b""
        return self._execute(command)

    def _execute(self, command: Command) -> bytes:
        state = self.state
        match command:
            case Acknowledge():
                return apply_acknowledge(state, command)
            case PublishOnce():
                return apply_publish_once(state, command)
            case Release():
                return apply_release(state, command)
            case ChannelItems():
                return apply_channel_items(state, command)
            case ChannelAcked():
                return apply_channel_acked(state, command)
            case Attach():
                return apply_attach(state, command)
            case Detach():
                return apply_detach(state, command)
            case Subscribe():
                return apply_subscribe(state, command)
            case Unsubscribe():
                return apply_unsubscribe(state, command)
            case LeaderStarted():
                return apply_leader_started(state, command)
            case Elapse():
                return self._elapse(command)
            case RemoveSession():
                return apply_remove_session(state, command)
            case BeginRebalance():
                return apply_begin_rebalance(state, command)
            case RoutesFlushed():
                return apply_routes_flushed(state, command)
            case Part():
                return self._take_part(command)
            case SetPolicy():
                return apply_set_policy(state, command)
            case SetFullQueues():
                return apply_set_full_queues(state, command)
            case CreateStream():
                return apply_create_stream(state, command)
            case DeleteStream():
                return apply_delete_stream(state, command)
            case TrimStreams():
                return apply_trim_streams(state, command)
            case _:
                assert_never(command)

    def _take_part(self, part: Part) -> bytes:
        """Apply a command with its last part; NOT_COUNTED where a part of it is missing.

        Parts of parts are no commands.
        """
        whole = self.state.parts.take(part)
        if whole is None or is_part(whole):
            return NOT_COUNTED
        return self._apply(whole) if whole else b""

    def _elapse(self, command: Elapse) -> bytes:
        reply = apply_elapse(self.state, command)
        for section in self.state.sections.values():
            section.elapse()
        if self.state.move is not None:
            advance(self.state)
        return reply

    def snapshot(self) -> Iterator[bytes]:
        """Give the state of this moment; of messages only references are taken now."""
        return encode_frames_later(state_frames(self.state))

    def frozen(self) -> tuple[Iterator[bytes], Callable[[], bytes]]:
        """Give the state of this moment and, once all of it was taken, its digest."""
        return _digested(self.snapshot())

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Become what a snapshot says, or raise SnapshotUnusable and be unchanged."""
        self.state = self._kept(restore_state(self.settings, decode_frames(chunks), self._sections))
        self._marks, self._delta = Marks(), None
        self._effects.clear()
        self._lifted_at = (-1, -1)

    def digest(self) -> bytes:
        """Return bytes that are equal for equal state."""
        return _digest_of(encode_frames(state_frames(self.state)))

    # Deltas.

    def mark(self, base_index: int) -> None:
        """Remember this moment under its index: a delta can begin at it."""
        self._marks.mark(self.state, base_index)

    def delta(self, base_index: int) -> Iterator[bytes] | None:
        """Give what changed since the mark of this index; None where there is no delta."""
        found = self._marks.since(base_index)
        contents = None if found is None else plan_delta(self.state, *found)
        if contents is None:
            return None
        return encode_frames_later(delta_frames(self.state, contents))

    def frozen_delta(self, base_index: int) -> tuple[Iterator[bytes], Callable[[], bytes]] | None:
        """Give the same and, once all of it was taken, its digest."""
        pieces = self.delta(base_index)
        return None if pieces is None else _digested(pieces)

    def restore_delta(self, chunks: Iterable[bytes]) -> None:
        """Go on to what a delta ends with, or raise SnapshotUnusable and be empty."""
        state, self.state = self.state, self._new_state()
        self._marks, self._delta = Marks(), None
        self._effects.clear()
        self._lifted_at = (-1, -1)
        self._delta = restore_delta(state, decode_frames(chunks))
        self.state = self._kept(state)

    def _new_state(self) -> BrokerState:
        return self._kept(BrokerState(self.settings, self._sections))

    def _kept(self, state: BrokerState) -> BrokerState:
        state.stream_changes = [] if self._keeps_streams else None
        return state

    def delta_digest(self) -> bytes:
        """Make the delta anew that was restored last, from what it led to, and digest it."""
        if self._delta is None:
            raise BrokerMisuse("no delta was restored", applied_index=self.applied_index)
        return _digest_of(encode_frames(delta_frames(self.state, self._delta)))

    @property
    def applied_index(self) -> int:
        return self.state.applied_index

    # Streams: the replica keeps their files (`clustor.replica.machine.StreamMachine`).

    def take_stream_changes(self) -> list[StreamChange]:
        """Return what became of streams since the last call, in order."""
        changes = self.state.stream_changes
        if not changes:
            return []
        self.state.stream_changes = []
        return changes

    def stream_extents(self) -> Iterator[StreamExtent]:
        """Say which partitions of streams there are, and how far they reach."""
        for stream in self.state.streams:
            yield StreamExtent(stream.file_id, stream.start_offset, stream.next_offset)
        for section in self.state.sections.values():
            yield from section.stream_extents()

    # What a leader asks.

    def collect(self, wanted: bool) -> None:  # a switch
        """Collect effects from now on, or stop and forget those that were not taken."""
        self._collects = wanted
        self._effects.clear()

    def take_effects(self, index: int) -> list[Effect]:
        """Return the effects of the entry at `index`; what older entries left is dropped."""
        return [effect for of_command in self.take_effects_each(index) for effect in of_command]

    def take_effects_each(self, index: int) -> list[list[Effect]]:
        """Return the same, command by command; nothing at all where there are none.

        A leader tells of a command before it carries out its effects, and carries out those of
        the commands before it first: a client that came back in the middle of an entry must not
        get a newer message before the older ones that are sent to it again.
        """
        effects, ends = self._effects.pop(index, ([], []))
        for older in [each for each in self._effects if each < index]:
            del self._effects[older]
        if not effects:
            return []
        ends[-1] = len(effects)
        return [effects[begin:end] for begin, end in pairwise([0, *ends])]

    def route(self, topic: bytes) -> TopicRoute:
        """Say where a topic's messages go now, for what is not logged (QoS 0)."""
        return self.state.routes.route(topic)

    def next_deadline_ms(self) -> int | None:
        """When an `Elapse` is due, at the earliest."""
        return self.state.next_deadline_ms()


def _digest_of(pieces: Iterable[bytes]) -> bytes:
    digest = xxh3_128()
    for piece in pieces:
        digest.update(piece)
    return digest.digest()


def _digested(taken: Iterator[bytes]) -> tuple[Iterator[bytes], Callable[[], bytes]]:
    digest = xxh3_128()

    def pieces() -> Iterator[bytes]:
        for piece in taken:
            digest.update(piece)
            yield piece

    return pieces(), digest.digest


assert PUBLISHES == 0
