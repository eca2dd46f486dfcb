"""The leader's side of a partition's streams: one turn's batches in one command, answers held.

What adapters bring between two turns becomes few commands of the log. An answer that rests on
another partition's log waits until that has it. Whoever is waiting when the leadership ends is told
that nobody knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

from quantum.broker import Broker
from quantum.broker.parts import PART_BYTES_MAX
from quantum.broker.streams import (
    STREAM_FAMILY,
    AppendOutcome,
    GroupEvent,
    StreamBatch,
    StreamSection,
    decode_outcomes,
    encode_appends,
)
from quantum.broker.streams.answers import decode_reply
from quantum.broker.streams.appending import APPENDS, HEAD_BYTES, KIND_AT, with_term
from quantum.broker.streams.section import COMPACT, TERM, TRIMS, encode_term
from quantum.broker.streams.section_state import GroupHappened
from quantum.partition.group_sessions import GroupSessions
from quantum.partition.ports import Completion

COMMAND_BYTES_MAX: Final = PART_BYTES_MAX - (64 << 10)
"""What is gathered into one command: below the size at which a command goes in parts."""
_SESSIONS_TICKS: Final = 30
_APPENDS_KIND: Final = bytes((APPENDS,))
_FLAT: Final = frozenset((APPENDS, TRIMS, TERM, COMPACT))
"""Kinds of commands whose replies name nothing to wait for."""

AppendDone: TypeAlias = "Callable[[list[AppendOutcome] | None], None]"
_Request: TypeAlias = "tuple[int, Sequence[StreamBatch]]"


class StreamLeader(Protocol):
    """A partition's leader, as far as its streams need it."""

    number: int
    term: int
    leading: bool

    @property
    def broker(self) -> Broker: ...
    def now_ms(self) -> int: ...
    def touch(self) -> None: ...
    def propose(self, command: bytes, completion: Completion | None = None) -> None: ...
    def submit(
        self, command: bytes, completion: Completion | None = None, *, asks: bool = False
    ) -> None: ...
    def when_taken(self, places: list[tuple[int, int]], then: Callable[[], None]) -> None: ...


def section_of(broker: Broker) -> StreamSection:
    """Return the streams of a partition's machine."""
    section = broker.state.sections[STREAM_FAMILY]
    assert isinstance(section, StreamSection)
    return section


class StreamSide:
    """The streams' part in one partition, for as long as this node has a replica of it."""

    def __init__(
        self,
        leader: StreamLeader,
        knows: Callable[[], bool],
        on_events: Callable[[int, tuple[GroupEvent, ...]], None],
    ) -> None:
        self._leader = leader
        self._knows = knows
        self._on_events = on_events
        self._is_known = False
        """Whether every replica can apply these commands; once it is so, it stays so."""
        self._fresh: list[_Request] = []
        """What this turn brought: the number of who waits, and its batches."""
        self._open: dict[int, Callable[[Any], None]] = {}
        """Who waits for an answer, by number; each is told once."""
        self._number = 0
        self._noted_term = 0
        self._ticks = 0
        self.sessions = GroupSessions()

    @property
    def effects(self) -> Mapping[type, Callable[[Any], None]]:
        return {GroupHappened: self._on_happened}

    @property
    def unlogged(self) -> Mapping[type, Callable[[Any], object | None]]:
        return {}

    @property
    def section(self) -> StreamSection:
        return section_of(self._leader.broker)

    def may_log(self) -> bool:
        """Say whether commands of streams may enter the log now."""
        if not self._is_known:
            self._is_known = self._knows()
        return self._leader.leading and self._is_known

    # Into the log.

    def append(self, batches: Sequence[StreamBatch], done: AppendDone) -> None:
        """Log batches with what else this turn brings; None where this node does not lead."""
        if not self.may_log():
            done(None)
            return
        self._fresh.append((self._wait(done), batches))
        self._leader.touch()

    def order(self, command: bytes, done: Completion) -> None:
        """Log another command of streams; its reply is given once all that it rests on is so."""
        if not self.may_log():
            done(None)
            return
        number = self._wait(done)
        is_flat = command[KIND_AT : KIND_AT + 1] and command[KIND_AT] in _FLAT

        def replied(reply: bytes | None) -> None:
            decoded = None if reply is None or is_flat else decode_reply(reply)
            if decoded is not None and decoded[0]:
                self._leader.when_taken(decoded[0], lambda: self._tell(number, reply))
            else:
                self._tell(number, reply)

        if command[KIND_AT : KIND_AT + 1] == _APPENDS_KIND and len(command) >= HEAD_BYTES:
            command = with_term(command, self._leader.term)  # another node's word may be older
        self._leader.propose(command, replied)

    def _wait(self, done: Callable[[Any], None]) -> int:
        self._number += 1
        self._open[self._number] = done
        return self._number

    def _tell(self, number: int, answer: object) -> None:
        done = self._open.pop(number, None)
        if done is not None:
            done(answer)

    def prepare(self, now_ms: int) -> None:
        """Submit the commands of what this turn brought."""
        if not self._fresh:
            return
        fresh, self._fresh = self._fresh, []
        self._note_term(now_ms)
        some: list[_Request] = []
        size = 0
        for request in fresh:
            weight = sum(len(each.data) + 64 for each in request[1])
            if some and size + weight > COMMAND_BYTES_MAX:
                self._submit(now_ms, some)
                some, size = [], 0
            some.append(request)
            size += weight
        self._submit(now_ms, some)

    def _submit(self, now_ms: int, requests: list[_Request]) -> None:
        batches = [each for _, some in requests for each in some]

        def appended(reply: bytes | None) -> None:
            outcomes = [] if reply is None else list(decode_outcomes(reply))
            at = 0
            for number, some in requests:
                mine = outcomes[at : at + len(some)]
                at += len(some)
                self._tell(number, mine if len(mine) == len(some) else None)

        command = encode_appends(now_ms, self._leader.term, batches)
        self._leader.submit(command, appended, asks=True)

    def _note_term(self, now_ms: int) -> None:
        """Let the log know the term, before anything of it is written: markers carry it."""
        if self._noted_term != self._leader.term:
            self._noted_term = self._leader.term
            self._leader.submit(encode_term(now_ms, self._noted_term))

    # Out of it.

    def _on_happened(self, effect: GroupHappened) -> None:
        self._on_events(self._leader.number, effect.events)

    def ended(self, _why: str) -> None:
        """Tell everyone who waits that nobody knows; heartbeats are the next leader's."""
        self._fresh = []
        self.sessions = GroupSessions()
        waiting, self._open = self._open, {}
        for done in waiting.values():
            done(None)

    def ring_changed(self) -> None:
        """Partitions of topics stay where they are."""

    def on_tick(self, tick_ms: int) -> None:
        """Note the term of a new leader, and expire members that were silent for too long."""
        if not self._leader.leading:
            return
        self._ticks += 1
        if self._ticks % _SESSIONS_TICKS or not self.may_log():
            return
        section = self.section
        if section.partitions and self._noted_term != self._leader.term:
            self._noted_term = self._leader.term
            self._leader.propose(encode_term(self._leader.now_ms(), self._noted_term))
        for command in self.sessions.expired(section.groups, tick_ms, self._leader.now_ms()):
            self.order(command, _nobody)


def _nobody(_reply: bytes | None) -> None:
    """A member that expires is told by nobody: it will ask."""
