"""Repair of a damaged log from peers, by the rule that loses nothing.

Damage here is in entries that the durability ledger proves were written: they may have been
acknowledged, so they are never cut. The replica keeps their indexes and terms, attests nothing
at or above the first of them (what cannot be read stands in the view as an empty data entry of
its term), does not campaign, and votes as if it were whole: a candidate must hold all that this
replica may have acknowledged. It asks every voter for the entries. An entry with the index *and*
the term that the ledger names is the one that was lost, whoever sends it and whether or not it
is committed: one term has one leader, and a leader writes an index once.
"""

from __future__ import annotations

from clustor.log.types import Entry, LogIndex
from clustor.raft.core import Core
from clustor.raft.errors import GroupMisuse
from clustor.raft.messages import RepairEntries, RepairRequest
from clustor.raft.output import EntriesFetch, FetchPurpose, NoteKind, RepairWrite
from clustor.raft.types import ReplicaId


class Repair:
    def __init__(self, core: Core) -> None:
        self._core = core
        self._ask_due_ms = 0
        self._writing = False
        self.write: RepairWrite | None = None
        self.fetches: list[EntriesFetch] = []

    def damaged(self, first: LogIndex, last: LogIndex) -> None:
        """Take in that the log cannot read these entries; the widest known range counts."""
        core = self._core
        log = core.log
        if not log.base_index < first <= last <= log.last_index:
            raise GroupMisuse("damage outside the log", first=first, last=last)
        if core.damaged is not None:
            first, last = min(first, core.damaged[0]), max(last, core.damaged[1])
        core.damaged = (first, last)
        core.durable_beyond_damage = max(core.durable_beyond_damage, core.local_wal_durable_index)
        core.local_wal_durable_index = min(core.local_wal_durable_index, LogIndex(first - 1))
        self._ask_due_ms = core.now_ms
        core.note(NoteKind.LOG_DAMAGED, first=first, last=last)

    def on_tick(self) -> None:
        """Ask every voter again, at the pace of heartbeats."""
        core = self._core
        if core.damaged is None or core.now_ms < self._ask_due_ms:
            return
        self._ask_due_ms = core.now_ms + core.profile.heartbeat_ms
        first, last = core.damaged
        for voter in sorted(core.config.all_voters - {core.id}):
            core.send(voter, RepairRequest(core.hard.term, core.id, first, last))

    def on_request(self, message: RepairRequest) -> None:
        """Send what is whole here, from the window or from disk."""
        core = self._core
        first = max(message.first_index, LogIndex(core.log.base_index + 1))
        last = min(message.last_index, core.log.last_index)
        if core.damaged is not None and core.damaged[0] <= last:
            last = LogIndex(core.damaged[0] - 1)
        bytes_max = core.profile.replication.message_bytes_max
        if first > last:
            return
        if first < core.log.cache_first:
            self.fetches.append(
                EntriesFetch(message.sender, first, last, bytes_max, FetchPurpose.REPAIR)
            )
            return
        self.send_entries(message.sender, core.log.slice(first, last, bytes_max))

    def send_entries(self, to: ReplicaId, entries: list[Entry]) -> None:
        if entries:
            self._core.send(to, RepairEntries(self._core.hard.term, self._core.id, entries))

    def on_entries(self, message: RepairEntries) -> None:
        """Write the entries that stand at the first damaged position, if they are the very ones."""
        core = self._core
        if core.damaged is None or self._writing:
            return
        low, high = core.damaged
        fitting: list[Entry] = []
        for entry in message.entries:
            if entry.index == low + len(fitting) and entry.index <= high:
                if core.log.term_at(entry.index) != entry.term:
                    break
                fitting.append(entry)
        if fitting:
            self._writing = True
            self.write = RepairWrite(tuple(fitting))
            core.log.replace(fitting)
            core.read_configuration()  # a damaged entry may have been a change of members

    def repaired(self, last: LogIndex) -> None:
        """Take the log's word that everything damaged through `last` is whole and durable."""
        core = self._core
        self._writing = False
        if core.damaged is None:
            return
        low, high = core.damaged
        self._ask_due_ms = core.now_ms
        if last < high:
            core.damaged = (LogIndex(max(low, last + 1)), high)
            core.local_wal_durable_index = LogIndex(core.damaged[0] - 1)
            return
        core.heal_through(high)
        core.progress_moved = True
        core.note(NoteKind.LOG_REPAIRED, first=low, last=high)
