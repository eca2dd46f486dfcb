"""A partition as it stood at an entry, or at a moment: an archive's log applied again.

The newest archived snapshot at or before the place is restored, and the entries behind it are
applied. Snapshots hold no byte of a stream (and queues' bodies are in streams, too), so whoever
wants those begins further back: at the newest snapshot behind which every record was appended
that is still there at the place, or at the first entry of all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from clustor.log.keys import KeyRing
from clustor.log.types import Entry, LogIndex, PartitionId, Term
from clustor.streams.changes import StreamChange, StreamExtent
from quantum.archive import (
    ArchiveDamaged,
    ArchiveMissing,
    Listing,
    Objects,
    PrgId,
    SnapshotRow,
    read_listing,
)
from quantum.broker import Broker
from quantum.node.archived_log import GroupHistory, LogPlace, Pace, PointInTime
from quantum.tenants.broker_file import TenantEntry, TenantRing
from quantum.tenants.partition_settings import broker_settings


class StreamSink(Protocol):
    """Takes what streams hold, entry by entry."""

    def begin(self, raft_index: int, extents: Iterable[StreamExtent]) -> None:
        """Take note which partitions there are behind an entry; none of their records comes."""

    def feed(self, raft_index: int, changes: Iterable[StreamChange]) -> None:
        """Take what an entry changed."""


@dataclass(frozen=True, slots=True)
class ArchivedState:
    """What a partition knew behind one entry."""

    prg: PrgId
    partition_id: PartitionId
    tenant: TenantEntry
    broker: Broker
    snapshot_index: int
    index: LogIndex
    term: Term
    commands: int

    @property
    def digest(self) -> str:
        return self.broker.digest().hex()

    @property
    def extents(self) -> dict[int, StreamExtent]:
        """What it says there is of its streams, by their numbers."""
        return {each.partition: each for each in self.broker.stream_extents()}


def replay_archive(
    objects: Objects,
    prg: PrgId,
    keys: KeyRing,
    point: PointInTime,
    pace: Pace = lambda _: None,
) -> ArchivedState:
    """Bring a partition back as it stood; raises ArchiveError, LogError and SnapshotFailure.

    ArchiveMissing where the archive begins after the place, or lacks entries before it.
    """
    log = _log(objects, prg, keys, point, pace)
    return _replay(log, log.newest())


def replay_further(
    objects: Objects, keys: KeyRing, state: ArchivedState, counted: Mapping[int, int], pace: Pace
) -> ArchivedState:
    """Apply a log behind a state until what others sent has counted, by their numbers.

    Raises what `replay_archive` raises; ArchiveMissing where the archive ends before.
    """
    log = _log(objects, state.prg, keys, PointInTime(), pace)
    channels = state.broker.state.channels

    def is_enough() -> bool:
        return all(channels.counted.get(each, 0) >= counted[each] for each in counted)

    begun = LogPlace(int(state.index), int(state.term), state.commands)
    found = log.apply(state.broker, begun, is_enough=is_enough)
    if not is_enough():
        raise ArchiveMissing(
            "the archive ends before what another partition was told of it",
            prg=str(state.prg),
            last=found.index,
        )
    return replace(
        state, index=LogIndex(found.index), term=Term(found.term), commands=found.commands
    )


def replay_streams(
    objects: Objects,
    keys: KeyRing,
    state: ArchivedState,
    sink: StreamSink,
    pace: Pace = lambda _: None,
) -> None:
    """Apply a log again as far as `state` is, from where its streams are whole, into a sink.

    Raises what `replay_archive` raises; ArchiveMissing where the archive lacks what one holds.
    """
    log = _log(objects, state.prg, keys, PointInTime(index=int(state.index)), pace)
    again = _replay(log, streams_from(log, state.extents), sink)
    if again.digest != state.digest:
        raise ArchiveDamaged(
            "a log gives another state from another snapshot",
            prg=str(state.prg),
            index=int(state.index),
        )


def lacks_streams(
    objects: Objects, state: ArchivedState, keys: KeyRing, pace: Pace = lambda _: None
) -> bool:
    """Say whether the archive has not all that the streams of a state hold."""
    log = _log(objects, state.prg, keys, PointInTime(index=int(state.index)), pace)
    try:
        streams_from(log, state.extents)
    except ArchiveMissing:
        return True
    return False


def needed_for_streams(objects: Objects, prg: PrgId, keys: KeyRing, index: int | None) -> int:
    """Return the first entry that the streams of a state need; 0: none, or they are lost already.

    Raises what `replay_archive` raises.
    """
    try:
        state = replay_archive(objects, prg, keys, PointInTime(index=index))
        if not state.extents:
            return 0
        log = _log(objects, prg, keys, PointInTime(index=int(state.index)), lambda _: None)
        row = streams_from(log, state.extents)
    except ArchiveMissing:
        return 0
    return 1 if row is None else row.base_index + 1


def streams_from(log: GroupHistory, extents: dict[int, StreamExtent]) -> SnapshotRow | None:
    """Choose the newest snapshot behind which all was appended that these extents hold.

    None: the first entry of the log. Raises ArchiveMissing where there is no such place.
    """
    lacking = 0
    for row in log.snapshots():
        if row is None or not extents:
            return row
        broker = Broker(broker_settings(tenant_of(log.listing), log.listing.prg.number))
        log.restore(broker, row)
        lacking = sum(
            1
            for there in broker.stream_extents()
            if there.next > _start_of(extents.get(there.partition), there)
        )
        if not lacking:
            return row
    raise ArchiveMissing(
        "the archive begins behind records that streams still hold",
        prg=str(log.listing.prg),
        first=log.listing.first,
        streams=lacking,
    )


def _start_of(wanted: StreamExtent | None, there: StreamExtent) -> int:
    """Return from where on records of a stream are wanted; one that is gone wants none."""
    return there.next if wanted is None else wanted.start


def _log(
    objects: Objects, prg: PrgId, keys: KeyRing, point: PointInTime, pace: Pace
) -> GroupHistory:
    return GroupHistory(objects, read_listing(objects, prg, keys), keys, point, pace)


def _replay(
    log: GroupHistory, row: SnapshotRow | None, sink: StreamSink | None = None
) -> ArchivedState:
    listing = log.listing
    tenant = tenant_of(listing)
    settings = broker_settings(tenant, listing.prg.number)
    broker = Broker(settings, keeps_streams=sink is not None)
    base: LogPlace = log.restore(broker, row)
    if sink is not None:
        sink.begin(base.index, broker.stream_extents())

    def applied(entry: Entry) -> None:
        if sink is not None:
            sink.feed(entry.index, broker.take_stream_changes())

    found = log.apply(broker, base, applied)
    return ArchivedState(
        listing.prg,
        PartitionId(listing.partition),
        tenant,
        broker,
        base.index,
        LogIndex(found.index),
        Term(found.term),
        found.commands,
    )


def tenant_of(listing: Listing) -> TenantEntry:
    """Return the numbers under which a tenant's logs are applied; raises ArchiveMissing."""
    numbers = listing.applied_with
    if listing.seq < 0 or numbers is None:
        raise ArchiveMissing("the archive does not say how this log is applied", prg=listing.prg)
    return TenantEntry(
        listing.prg.tenant,
        numbers.prgs,
        numbers.queue_messages_max,
        numbers.queue_bytes_max,
        tuple(TenantRing(count) for count in numbers.rings),
        numbers.dedupe_horizon_seconds,
    )
