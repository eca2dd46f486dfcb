"""Open a segmented log: after a clean stop, a crash, or damage (segmented-quorum, C18).

1. The metadata says what each partition has durably, its policies and its master.
2. The log, already recovered and so without anything that its ledger does not prove, is read from
   its start. No entry of it is dropped: what a partition does not have is applied to it again,
   idempotently by its `partition_log_index`, as far as Raft has committed it.
3. The same pass rebuilds the tracking of every entry that is left.
4. The truncation watermark follows from these.

A partition whose files reach behind its checkpoint, because power was lost in the middle of a
flush, is rolled back to that checkpoint: the bytes behind it are void. The lowest checkpoint of
all is the lowest safe raft index, from which entries are applied again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from clustor.log.errors import ChecksumMismatch, LogError, MissingFile
from clustor.log.keys import KeyRing
from clustor.log.log import Log
from clustor.log.reader import read_entries
from clustor.log.steps import (
    Delete,
    FileName,
    MakeDirectory,
    Plan,
    Step,
    Storage,
    Sync,
    SyncDirectory,
    Truncate,
    plan_replace,
)
from clustor.log.types import Entry, LogIndex, PartitionId
from clustor.segmented.config import SegmentedConfig
from clustor.segmented.errors import EntryOutOfOrder, MetadataBehindLog
from clustor.segmented.files import PartitionFiles
from clustor.segmented.group import SegmentedGroup, rows_of
from clustor.segmented.importing import Import
from clustor.segmented.metadata import (
    METADATA_FILE,
    SEGMENTED_DIRECTORY,
    STORE_FILE,
    MetadataImage,
    PartitionMeta,
    SegmentMeta,
    StoreRecord,
    decode_store_record,
    encode_batch,
    encode_store_record,
    read_metadata,
)
from clustor.segmented.quorum import PolicyRegistry, Replicas
from clustor.segmented.runs import PARTS_DIRECTORY, index_file, part_file
from clustor.segmented.store import Store
from clustor.segmented.tracker import Tracker
from clustor.segmented.types import ReplicaId, StoreId, TopicPartitionId
from clustor.segmented.verify import Damage


class FindingKind(StrEnum):
    """What a start may come across."""

    TORN_METADATA = "TornMetadata"  # a checkpoint that did not finish; cut off
    LEFTOVER_REMOVED = "LeftoverRemoved"  # a file that no checkpoint names
    ROLLED_BACK = "RolledBack"  # a partition was written behind its checkpoint
    DAMAGE = "Damage"  # a file that a checkpoint names is short or gone; nothing was changed


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found, in words for an operator."""

    kind: FindingKind
    detail: str


@dataclass(slots=True)
class OpenedStore:
    """A store as it was found. Carry out `plan` before anything else."""

    store: Store
    image: MetadataImage
    plan: Plan
    findings: list[Finding] = field(default_factory=list)
    damaged: dict[TopicPartitionId, Damage] = field(default_factory=dict)


def create_group(
    group: PartitionId,
    store_id: StoreId,
    keys: KeyRing,
    config: SegmentedConfig,
    *,
    members: Iterable[ReplicaId],
    registry: PolicyRegistry,
) -> tuple[SegmentedGroup, Plan]:
    """Plan the empty store of a new log. Its record comes last: without it there is none yet.

    `store_id` is 16 random bytes, never used before.
    """
    first = encode_batch(0, 0, [])
    image = MetadataImage(next_batch_seq=1, good_bytes=len(first))
    record = StoreRecord(group, store_id, incarnation=1)
    plan: Plan = (
        MakeDirectory(PARTS_DIRECTORY),
        SyncDirectory(""),
        SyncDirectory(SEGMENTED_DIRECTORY),
        *plan_replace(METADATA_FILE, first),
        *plan_replace(STORE_FILE, encode_store_record(record)),
    )
    replicas = Replicas(members)
    tracker = Tracker(replicas, registry, ack_runs_max=config.ack_runs_max)
    store = Store(config, keys, record, image, {})
    return SegmentedGroup(store, tracker, replicas, LogIndex(0)), plan


def open_store(storage: Storage, keys: KeyRing, config: SegmentedConfig) -> OpenedStore | None:
    """Open the store that `storage` holds, or return None where none was ever finished.

    Raises CorruptLog, MissingFile or UnsupportedFormat where its record or its metadata cannot
    be believed; nothing has been changed then. No partition's file is opened.
    """
    try:
        record = decode_store_record(storage.read(STORE_FILE, 0, 4096))
    except FileNotFoundError:
        if storage.names(PARTS_DIRECTORY) or _was_used(storage):
            raise MissingFile("the store's record is gone, and its files are not") from None
        return None
    try:
        image = read_metadata(storage.read(METADATA_FILE, 0, storage.size(METADATA_FILE)))
    except FileNotFoundError:
        raise MissingFile("the store's metadata is gone", file=METADATA_FILE) from None
    return _Opening(storage, keys, config, record, image).run()


def _was_used(storage: Storage) -> bool:
    """Say whether the metadata holds more than a creation that did not finish leaves behind."""
    try:
        data = storage.read(METADATA_FILE, 0, storage.size(METADATA_FILE))
    except FileNotFoundError:
        return False
    return data != encode_batch(0, 0, [])


def open_for_import(
    storage: Storage, keys: KeyRing, config: SegmentedConfig
) -> tuple[Import, Plan] | None:
    """Open a store only to put an export in its place; None where there is no store.

    For a store that nobody has open. Carry the plan out before anything of the import.
    """
    opened = open_store(storage, keys, config)
    return None if opened is None else (Import(opened.store), opened.plan)


class _Opening:
    """Turns metadata into partitions, and decides what to mend."""

    def __init__(
        self,
        storage: Storage,
        keys: KeyRing,
        config: SegmentedConfig,
        record: StoreRecord,
        image: MetadataImage,
    ) -> None:
        self._storage = storage
        self._record = StoreRecord(record.group, record.store_id, record.incarnation + 1)
        self._image = image
        self._names = set(storage.names(PARTS_DIRECTORY))
        self._findings: list[Finding] = []
        self._damaged: dict[TopicPartitionId, Damage] = {}
        self._keys = keys
        self._config = config

    def run(self) -> OpenedStore:
        partitions = {at.partition: self._partition(at) for at in self._image.partitions.values()}
        # The incarnation first: no nonce is used before it is durable.
        steps: list[Step] = list(plan_replace(STORE_FILE, encode_store_record(self._record)))
        steps += self._cut_metadata()
        steps += self._remove_leftovers()
        store = Store(self._config, self._keys, self._record, self._image, partitions)
        return OpenedStore(store, self._image, tuple(steps), self._findings, self._damaged)

    def _find(self, kind: FindingKind, detail: str) -> None:
        self._findings.append(Finding(kind, detail))

    def _partition(self, known: PartitionMeta) -> PartitionFiles:
        if known.definition is None:
            raise ChecksumMismatch("a partition without a definition", partition=known.partition)
        partition = TopicPartitionId(known.partition)
        segments = known.ordered()
        files = PartitionFiles(
            partition,
            known.start_index,
            known.next_index,
            known.clean_next,
            segments,
            known.definition,
        )
        for nth, segment in enumerate(segments):
            name = part_file(partition, segment.file_seq)
            if name.rpartition("/")[2] not in self._names:
                problem = MissingFile("a partition file is gone", file=name)
                self._damage(partition, segment.first_index, problem)
            elif nth == len(segments) - 1:
                files.resumable = self._check_last(partition, name, segment)
        return files

    def _check_last(
        self, partition: TopicPartitionId, name: FileName, segment: SegmentMeta
    ) -> bool:
        """See whether the open file is as long as it was; what is behind that is void."""
        size = self._storage.size(name)
        if size < segment.size_bytes:
            problem = ChecksumMismatch("a partition file is cut short", file=name, size=size)
            self._damage(partition, segment.first_index, problem)
        elif size > segment.size_bytes:
            self._find(FindingKind.ROLLED_BACK, f"{name} to byte {segment.size_bytes}")
        return size >= segment.size_bytes

    def _damage(self, partition: TopicPartitionId, first_index: int, problem: LogError) -> None:
        self._damaged.setdefault(partition, Damage(partition, first_index, problem))
        self._find(FindingKind.DAMAGE, str(problem))

    def _cut_metadata(self) -> list[Step]:
        steps: list[Step] = []
        if self._image.torn:
            self._find(FindingKind.TORN_METADATA, f"from byte {self._image.good_bytes}")
            steps.append(Truncate(METADATA_FILE, self._image.good_bytes))
        # Synced in any case: this process did not see the sync of what it now relies on.
        steps.append(Sync(METADATA_FILE))
        return steps

    def _remove_leftovers(self) -> list[Step]:
        named: set[str] = set()
        for known in self._image.partitions.values():
            files = [part_file(known.partition, at.file_seq) for at in known.ordered()]
            named.update(file.rpartition("/")[2] for file in files)
            # The last file may be written on. An index of it would be that of a close which
            # nothing committed, and could fit what is written now in nothing but its length.
            closed = [index_file(known.partition, at.file_seq) for at in known.ordered()[:-1]]
            named.update(file.rpartition("/")[2] for file in closed)
        void = sorted(self._names - named)
        files = [FileName(f"{PARTS_DIRECTORY}/{name}") for name in void]
        temporary = set(self._storage.names(SEGMENTED_DIRECTORY)) & {"metadata.log.tmp"}
        files += [FileName(f"{SEGMENTED_DIRECTORY}/{name}") for name in temporary]
        for file in files:
            self._find(FindingKind.LEFTOVER_REMOVED, file)
        return [*(Delete(file) for file in files), SyncDirectory(PARTS_DIRECTORY)]


@dataclass(slots=True)
class GroupRecovery:
    """What was found. Carry out `plan`, then `replay` until it is done, then go on.

    A long log is replayed in pieces, so that a flush between them can free memory.

    It ends before an entry whose partition is not defined here: the log took it before the
    command was applied that defines it. From there on the caller has to hand entries to
    `appended` and `apply` in their turn, as it does with new ones.
    """

    group: SegmentedGroup
    plan: Plan
    findings: list[Finding]
    damaged: dict[TopicPartitionId, Damage]
    replay_from: LogIndex  # the lowest safe raft index: what stands behind is applied again
    reapplied: list[LogIndex]  # the first and the last entry that some partition did not have
    _entries: Iterator[Entry]
    _tracker: Tracker
    _committed_index: LogIndex
    _now: int
    _seen: set[int] = field(default_factory=set)
    stopped_before: LogIndex | None = None  # the first entry that was not replayed, if any

    def replay(self, bytes_max: int | None = None) -> bool:
        """Track and apply entries of the log until memory holds `bytes_max`; say if any are left.

        Raises EntryOutOfOrder where entries are missing between a partition and the log.
        """
        for entry in self._entries:
            if self.stopped_before is None and self._is_early(entry):
                self.stopped_before = entry.index
            if self.stopped_before is not None:
                return False
            self._take(entry)
            if bytes_max is not None and self.group.store.tail_bytes >= bytes_max:
                return True
        return False

    def _is_early(self, entry: Entry) -> bool:
        """Say whether an entry names a partition that is still to be defined."""
        store = self.group.store
        return entry.index > store.durable_raft_index and any(
            row[0] not in store.partitions and row[0] not in store.gone for row in rows_of(entry)
        )

    def _take(self, entry: Entry) -> None:
        store = self.group.store
        rows = [row for row in rows_of(entry) if row[0] not in store.gone]
        for partition, first, _, _, _ in rows:
            if partition not in self._seen:
                self._seen.add(partition)
                self._check_joined(partition, first, entry.index)
                self._tracker.resume(partition, first, store.quorum_persisted(partition))
        self._tracker.appended(entry.index, rows, len(entry.payload), self._now)
        if entry.index <= self._committed_index:
            before = store.tail_bytes
            self.group.apply([entry])
            if store.tail_bytes > before:
                self.reapplied[1:] = [entry.index]

    def _check_joined(self, partition: int, first: int, raft_index: int) -> None:
        reached = self.group.store.files(partition).next_index
        if first > reached:
            raise EntryOutOfOrder(
                "entries are missing between a partition and the log",
                partition=partition,
                expected=reached,
                first=first,
                raft_index=raft_index,
            )


def recover_group(
    storage: Storage,
    keys: KeyRing,
    config: SegmentedConfig,
    log: Log,
    *,
    members: Iterable[ReplicaId],
    registry: PolicyRegistry,
    committed_index: LogIndex,
    now: int,
) -> GroupRecovery | None:
    """Open the partitions beside a log that was recovered; None where there is no store yet.

    `committed_index` is as far as the caller knows Raft to have committed. Proven entries behind
    it stay in the log and are tracked; they are applied when they are committed again.

    A log that ends before what the partitions hold is no harm: its entries come again, and are
    passed over. That is what a crash leaves between an import and the log's own installation.

    Raises what `open_store` raises, UnknownPolicy, and MetadataBehindLog where the log was cut
    further than the metadata vouches for. Nothing has been changed then; `open_for_import` lets
    the snapshot in that the log stands on.
    """
    opened = open_store(storage, keys, config)
    if opened is None:
        return None
    base = log.entries.base_index
    if base > opened.image.durable_raft_index:
        raise MetadataBehindLog(
            "the log was cut further than the partitions are durable",
            log_base=base,
            durable_raft_index=opened.image.durable_raft_index,
        )
    replicas = Replicas(members)
    tracker = Tracker(replicas, registry, ack_runs_max=config.ack_runs_max)
    tracker.start_behind(base)
    for known in opened.image.partitions.values():
        files = opened.store.files(known.partition)
        policy = files.definition.quorum_policy()
        # Unless the log still holds some of it, all of it was on a quorum.
        tracker.define(files.partition, policy, known.next_index, known.next_index)
    if log.durable_index < opened.image.durable_raft_index:
        tracker.expect_again(opened.image.durable_raft_index)
    return GroupRecovery(
        group=SegmentedGroup(opened.store, tracker, replicas, log.durable_index),
        plan=opened.plan,
        findings=opened.findings,
        damaged=opened.damaged,
        replay_from=LogIndex(max(opened.image.durable_raft_index, base) + 1),
        reapplied=[],
        _entries=read_entries(storage, keys, log.entries, base + 1, log.durable_index),
        _tracker=tracker,
        _committed_index=committed_index,
        _now=now,
    )
