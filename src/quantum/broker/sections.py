"""Sections: parts of a partition's machine with commands, items and state of their own.

The session processor is one part of a partition; streams with their producers and groups are
another, queues a third. All of them live in one log, so that one entry makes durable whatever came
in one turn. A command whose first byte is a section's `family` is that section's alone: the rest of
the machine does not look inside. What a section has for the same section of another partition goes
through the channels: it arrives, in order, and counts once.

A section's state is a set of **pages**: a key, and bytes that are equal for equal state. A snapshot
has all of them, a delta those that changed, and neither knows what is on them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol, TypeAlias

import msgspec

from clustor.streams.changes import StreamChange, StreamExtent
from quantum.broker.types import TIME_MAX_MS

SECTION_HEAD: Final = struct.Struct("<BQ")
"""How every command of a section begins: its family, and the leader's stamp in milliseconds."""


FAMILIES: Final = range(1, 0x80)
"""No record of the session processor begins with these, nor do packed publishes."""


def is_section_command(command: bytes) -> bool:
    """Say whether a command is a section's: no other one begins like that."""
    return len(command) >= SECTION_HEAD.size and command[0] in FAMILIES


def section_stamp(command: bytes) -> int:
    """Return the time that a section's command says; never one that cannot be kept."""
    return min(int(SECTION_HEAD.unpack_from(command)[1]), TIME_MAX_MS)


class SectionEffect(msgspec.Struct, gc=False):
    """Something for a section's leader to do: each kind of it is a class of its own below this."""


class SectionWorld(Protocol):
    """What a section may ask of its partition while a command is applied."""

    @property
    def prg(self) -> int:
        """The number of this partition."""
        ...

    @property
    def prg_count(self) -> int:
        """How many partitions the tenant's ring has now, as this log knows."""
        ...

    @property
    def first_prg_count(self) -> int:
        """How many the ring had when the tenant was made: places by it never move."""
        ...

    @property
    def now_ms(self) -> int:
        """The log's own clock: the latest stamp that any command brought."""
        ...

    def place(self, key: bytes, prg_count: int) -> int:
        """Say which partition owns a key in a ring of so many: the same on every node."""
        ...

    def send(self, prg: int, data: bytes) -> int:
        """Send an item to this section in another partition, or here: it counts once.

        What is for this partition itself is received behind the command that is being applied.
        Returns the item's place in the channel; 0 for one that stays here.
        """
        ...

    def is_channel_full(self, prg: int) -> bool:
        """Say whether a partition is gone or far behind: refuse what would send it more."""
        ...

    def note_stream(self, change: StreamChange) -> None:
        """Let the replica's files of streams follow."""

    def emit(self, effect: SectionEffect) -> None:
        """Let the leader do something once the entry is durable (`ProtocolFamily.effects`)."""

    def page_changed(self, key: bytes) -> None:
        """Note that a page is another one from now on, or is gone."""


class BrokerSection(Protocol):
    """One part of a partition's machine. Pure, as the machine is; no bytes make it raise.

    Only `put_page` may raise: SnapshotUnusable, for a page that cannot be read.
    """

    @property
    def family(self) -> int:
        """The first byte of its commands, 1 to 0x7F; no two sections have the same."""
        ...

    def apply(self, data: bytes) -> bytes:
        """Apply one committed command, head included; its stamp is in the log's clock already."""
        ...

    def receive(self, origin: int, data: bytes) -> None:
        """Take what the same section of another partition sent, or this one sent to itself."""

    def joined(self, prg: int) -> None:
        """A partition joins the ring: send it what every partition has to know."""

    def elapse(self) -> None:
        """Do what is due by the log's clock (`next_deadline_ms`)."""

    def next_deadline_ms(self) -> int | None:
        """When `elapse` has something to do, at the earliest; None: nothing is due."""
        ...

    def page_keys(self) -> Iterable[bytes]:
        """Name all pages, sorted."""
        ...

    def page(self, key: bytes) -> bytes | None:
        """Return a page; None where there is none of this key."""
        ...

    def put_page(self, key: bytes, data: bytes) -> None:
        """Take a page of a snapshot, in the place of the one that was there."""

    def drop_page(self, key: bytes) -> None:
        """Let go of a page that a delta says is gone."""

    def restored(self) -> None:
        """All pages of a snapshot or delta are there: work out what they do not say."""

    def stream_extents(self) -> Iterator[StreamExtent]:
        """Say which partitions of streams are this section's, and how far they reach."""
        ...


SectionFactory: TypeAlias = Callable[[SectionWorld], BrokerSection]
