"""What is committed reaches the machine here: entries, snapshots, and a definition on trial.

A leader applies at once, because somebody waits; a follower puts it off until the disk has its
work and the peers their messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from clustor.log.types import Entry, EntryKind, LogIndex
from clustor.raft.group import Group
from clustor.raft.output import SnapshotInstall
from clustor.replica.activation import apply_entry, commands_of
from clustor.replica.machine import DefinableMachine, StateMachine, StreamMachine
from clustor.replica.proposals import Proposals
from clustor.replica.settings import ReplicaSettings
from clustor.replica.shadow import Shadow, copy_under
from clustor.replica.streams import ReplicaStreams


class Applying:
    """The machine, and how far it is."""

    def __init__(
        self,
        settings: ReplicaSettings,
        group: Group,
        machine: StateMachine,
        *,
        streams: ReplicaStreams | None,
        proposals: Proposals,
        applied_index: LogIndex,
    ) -> None:
        self._settings = settings
        self._group = group
        self._streams = streams
        self._proposals = proposals
        self._waiting: list[Entry] = []  # a follower's: nobody waits for them
        self.machine = machine
        self.applied_index = applied_index
        self.seconds: list[float] = []
        """How long each batch took to apply, for who has given a clock, and empties this."""
        self.shadow: Shadow | None = None
        """A definition on trial: it is fed with all that is applied here."""

    @property
    def is_behind(self) -> bool:
        return bool(self._waiting)

    def add(self, entries: list[Entry]) -> None:
        """Take committed entries, to be applied by `catch_up`."""
        self._waiting += entries

    def catch_up(self, bytes_max: int | None = None) -> bool:
        """Apply what waits, or about so much of it; say whether there was something."""
        entries, self._waiting = self._waiting, []
        if not entries:
            return False
        if bytes_max is not None:
            share = _entries_within(entries, bytes_max)
            entries, self._waiting = entries[:share], entries[share:]
        clock = self._settings.measuring_clock
        began = clock() if clock is not None else 0.0
        self._apply(entries)
        if clock is not None:
            self.seconds.append(clock() - began)
        return True

    def _apply(self, entries: list[Entry]) -> None:
        for entry in entries:
            replies = apply_entry(self.machine, entry)
            if self._streams is not None:
                machine = cast("StreamMachine", self.machine)  # to ask costs more than to apply
                self._streams.feed(entry.index, machine.take_stream_changes())
            if entry.kind is EntryKind.DATA:
                self._proposals.applied(entry, replies)
                if self.shadow is not None:
                    self.shadow.offer(entry.index, commands_of(entry), replies)
            elif entry.kind is EntryKind.DEFINE_ACTIVATE:
                self.shadow = None  # it was a trial against the rules before
        self.applied_index = entries[-1].index
        # The state is as durable as the log and the snapshot that it is rebuilt from.
        self._group.applied(self.applied_index, self.applied_index)

    def installed(self, install: SnapshotInstall, machine: StateMachine) -> None:
        """Take the restored machine into use: the log stands on its snapshot now."""
        self.catch_up()
        if install.base_index > self.applied_index:
            self.machine = machine
            self.applied_index = install.base_index
            if self._streams is not None:
                self._streams.installed(machine, install.base_index)
            self.shadow = None  # it has not seen what the snapshot brought

    def begin_shadow(
        self, definition: bytes
    ) -> Callable[[], tuple[DefinableMachine | None, int, int]] | None:
        """Put a definition on trial, and return the job that copies the state for it.

        What the job returns goes to `Shadow.copied` of the shadow that stands here now. None:
        this machine has no definition.
        """
        if not isinstance(self.machine, DefinableMachine):
            return None
        self.shadow = Shadow(definition, self.applied_index)
        return copy_under(self._settings.new_machine, self.machine.snapshot(), definition)


def _entries_within(entries: list[Entry], bytes_max: int) -> int:
    """Return how many of the first entries have so many bytes together; one at least."""
    total = 0
    for number, entry in enumerate(entries):
        total += len(entry.payload)
        if total > bytes_max:
            return max(1, number)
    return len(entries)
