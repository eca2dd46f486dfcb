"""A `LogSource` in memory: entries, holes, snapshots, and what goes wrong on purpose."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from clustor.log.types import Entry, LogIndex, PartitionId, Term
from clustor.raft.hard_state import HardState
from clustor.replica.batch import encode_batch
from clustor.replica.header import encode_header, header_of
from quantum.archive.types import Bounds, IndexRange, LogPiece, PrgId, SnapshotRef
from quantum.broker import Broker
from quantum.lake.errors import LogGone
from quantum.tenants.broker_file import TenantEntry


@dataclass
class MemorySource:
    """What `LogSource` promises, of entries that a test makes."""

    logs: dict[PrgId, dict[int, Entry]] = field(default_factory=dict)
    states: dict[tuple[PrgId, int], bytes] = field(default_factory=dict)
    tenants: dict[str, TenantEntry] = field(default_factory=dict)
    entries_per_piece: int = 4

    def append(self, prg: PrgId, batches: Iterable[list[bytes]]) -> None:
        """Add one entry for each batch of commands."""
        log = self.logs.setdefault(prg, {})
        for commands in batches:
            index = max(log, default=0) + 1
            log[index] = Entry(Term(1), LogIndex(index), encode_batch(commands))

    def drop(self, prg: PrgId, indexes: Iterable[int]) -> None:
        for index in indexes:
            del self.logs[prg][index]

    def snapshot(self, prg: PrgId, index: int, broker: Broker) -> None:
        header = encode_header(header_of(HardState(), LogIndex(index)))
        self.states[prg, index] = header + b"".join(broker.snapshot())

    def tenant_entry(self, name: str) -> TenantEntry | None:
        return self.tenants.get(name)

    # LogSource.

    def prgs(self) -> list[PrgId]:
        return sorted(self.logs)

    def bounds(self, prg: PrgId) -> Bounds:
        log = self.logs[prg]
        if not log:
            return Bounds(prg, 1, 0)
        return Bounds(prg, min(log), max(log), tuple(self._pieces(log)))

    def _pieces(self, log: dict[int, Entry]) -> Iterator[LogPiece]:
        first = last = min(log)
        for index in [*sorted(log)[1:], max(log) + 2]:
            if index != last + 1 or index - first >= self.entries_per_piece:
                size = sum(len(log[each].payload) for each in range(first, last + 1))
                yield LogPiece(first, last, size)
                first = index
            last = index

    def entries(self, span: IndexRange) -> Iterator[Entry]:
        for index in range(span.first, span.last + 1):
            entry = self.logs[span.prg].get(index)
            if entry is None:
                raise LogGone("gone", prg=span.prg, first=index, last=index)
            yield entry

    def snapshots(self, prg: PrgId) -> list[SnapshotRef]:
        return [
            SnapshotRef(prg, LogIndex(index), 1, len(self.states[each, index]), "", PartitionId(1))
            for each, index in sorted(self.states)
            if each == prg
        ]

    def open_snapshot(self, ref: SnapshotRef) -> Iterator[bytes]:
        yield self.states[ref.prg, ref.base_index]
