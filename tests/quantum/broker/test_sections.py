"""Sections of a partition: commands, items, pages and times, told by a small one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from clustor.streams.changes import StreamExtent
from quantum.broker import Broker
from quantum.broker.errors import SnapshotUnusable, UnknownCommand
from quantum.broker.items import SectionItem
from quantum.broker.parts import stamp_of
from quantum.broker.sections import SECTION_HEAD, SectionEffect, SectionWorld
from tests.quantum.broker.desk import HERE, SETTINGS, THERE, Desk

FAMILY = 0x70


class Noted(SectionEffect):
    word: bytes


class Notes:
    """A section that keeps words: `put`, `drop`, `send` them, and forgets `late` ones in time."""

    family = FAMILY

    def __init__(self, world: SectionWorld) -> None:
        self._world = world
        self.words: dict[bytes, bytes] = {}

    def apply(self, data: bytes) -> bytes:
        verb, _, word = data[SECTION_HEAD.size :].partition(b" ")
        world = self._world
        if verb == b"send":
            for prg in (HERE, THERE):
                world.send(prg, word)
            return b"sent"
        if verb == b"drop":
            self.words.pop(word, None)
        else:
            self.words[word] = b"%d" % world.now_ms
            world.emit(Noted(word))
        world.page_changed(word)
        return b"%d" % len(self.words)

    def receive(self, origin: int, data: bytes) -> None:
        self.words[data] = b"from %d" % origin
        self._world.page_changed(data)

    def joined(self, prg: int) -> None:
        self._world.send(prg, b"welcome")

    def elapse(self) -> None:
        due = self.next_deadline_ms()
        if due is not None and due <= self._world.now_ms:
            del self.words[b"late"]
            self._world.page_changed(b"late")

    def next_deadline_ms(self) -> int | None:
        return int(self.words[b"late"]) + 1_000 if b"late" in self.words else None

    def page_keys(self) -> Iterable[bytes]:
        return sorted(self.words)

    def page(self, key: bytes) -> bytes | None:
        return self.words.get(key)

    def put_page(self, key: bytes, data: bytes) -> None:
        self.words[key] = data

    def drop_page(self, key: bytes) -> None:
        self.words.pop(key, None)

    def restored(self) -> None:
        pass

    def stream_extents(self) -> Iterator[StreamExtent]:
        yield from ()


class NotesDesk(Desk):
    """All four replicas of the desk have the section: each command compares them."""

    def _broker(self) -> Broker:
        return Broker(self.settings, keeps_streams=True, sections=(Notes,))

    def say(self, words: bytes) -> bytes:
        return self.apply(SECTION_HEAD.pack(FAMILY, self.now_ms) + words)[0]

    @property
    def notes(self) -> dict[bytes, bytes]:
        section = self.leader.state.sections[FAMILY]
        assert isinstance(section, Notes)
        return section.words


def test_commands_reach_their_section_and_every_replica_agrees() -> None:
    desk = NotesDesk()
    assert desk.say(b"put a") == b"1"
    assert desk.effects == [Noted(b"a")]
    desk.now_ms = 2_000
    assert desk.say(b"put b") == b"2"
    assert desk.notes == {b"a": b"1000", b"b": b"2000"}
    assert desk.say(b"drop a") == b"1"
    assert desk.notes == {b"b": b"2000"}


def test_items_count_once_here_and_in_the_other_partition() -> None:
    desk = NotesDesk()
    assert desk.say(b"send x") == b"sent"
    assert desk.notes == {b"x": b"from 0"}
    outbox = desk.leader.state.channels.to(THERE)
    assert list(outbox.items) == [SectionItem(FAMILY, b"x")]
    desk.from_there(SectionItem(FAMILY, b"y"))
    assert desk.notes[b"y"] == b"from 1"


def test_what_is_due_happens_by_the_logs_clock() -> None:
    desk = NotesDesk()
    desk.say(b"put late")
    assert desk.leader.next_deadline_ms() == 2_000
    desk.elapse(0.999)
    assert b"late" in desk.notes
    desk.elapse(0.001)
    assert desk.notes == {}


def test_a_command_or_a_page_of_a_section_that_is_not_here_stops_the_replica() -> None:
    desk = NotesDesk()
    desk.say(b"put a")
    bare = Broker(SETTINGS, sections=())
    with pytest.raises(UnknownCommand):
        bare.apply_batch(1, [SECTION_HEAD.pack(FAMILY, 1) + b"put a"])
    with pytest.raises(SnapshotUnusable):
        Broker(SETTINGS, sections=()).restore(desk.leader.snapshot())


def test_a_large_command_keeps_its_stamp_in_its_parts() -> None:
    assert stamp_of(SECTION_HEAD.pack(FAMILY, 77) + b"x" * (1 << 20)) == 77
