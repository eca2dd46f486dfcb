"""Open the streams of a group: after a clean stop, a crash, or damage (segmented-quorum, C18).

1. The metadata says what each partition has durably, and its policies.
2. The group's log is applied again from the newest snapshot on. No entry of it is dropped: what a
   partition does not have is taken again, idempotently by its index.

A partition whose files reach behind its checkpoint, because power was lost in the middle of a
flush, is rolled back to that checkpoint: the bytes behind it are void.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from clustor.log.errors import ChecksumMismatch, LogError, MissingFile
from clustor.log.keys import KeyRing
from clustor.log.steps import (
    DeleteFile,
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
from clustor.log.types import PartitionId
from clustor.streams.config import StreamConfig
from clustor.streams.files import StreamFiles
from clustor.streams.metadata import (
    METADATA_FILE,
    STORE_FILE,
    STREAMS_DIRECTORY,
    MetadataImage,
    PartitionMeta,
    SegmentMeta,
    StoreRecord,
    decode_store_record,
    encode_batch,
    encode_store_record,
    read_metadata,
)
from clustor.streams.runs import PARTS_DIRECTORY, index_file, part_file
from clustor.streams.store import StreamStore
from clustor.streams.types import StoreId, StreamPartitionId
from clustor.streams.verify import StreamDamage
from clustor.streams.window import StreamMemory


class StreamFindingKind(StrEnum):
    """What a start may come across."""

    TORN_METADATA = "TornMetadata"  # a checkpoint that did not finish; cut off
    LEFTOVER_REMOVED = "LeftoverRemoved"  # a file that no checkpoint names
    ROLLED_BACK = "RolledBack"  # a partition was written behind its checkpoint
    DAMAGE = "Damage"  # a file that a checkpoint names is short or gone; nothing was changed


@dataclass(frozen=True, slots=True)
class StreamFinding:
    """One thing that was found, in words for an operator."""

    kind: StreamFindingKind
    detail: str


@dataclass(slots=True)
class OpenedStore:
    """A store as it was found. Carry out `plan` before anything else."""

    store: StreamStore
    plan: Plan
    findings: list[StreamFinding] = field(default_factory=list)
    damaged: dict[StreamPartitionId, StreamDamage] = field(default_factory=dict)


def create_store(
    group: PartitionId,
    store_id: StoreId,
    keys: KeyRing,
    config: StreamConfig,
    *,
    raft_index: int = 0,
    memory: StreamMemory | None = None,
) -> OpenedStore:
    """Plan an empty store beside a log. Its record comes last: without it there is none yet.

    `store_id` is 16 random bytes, never used before. No entry through `raft_index` has changed
    a stream.
    """
    first = encode_batch(0, raft_index, [])
    image = MetadataImage(durable_raft_index=raft_index, next_batch_seq=1, good_bytes=len(first))
    record = StoreRecord(group, store_id, incarnation=1)
    plan: Plan = (
        MakeDirectory(PARTS_DIRECTORY),
        SyncDirectory(""),
        SyncDirectory(STREAMS_DIRECTORY),
        *plan_replace(METADATA_FILE, first),
        *plan_replace(STORE_FILE, encode_store_record(record)),
    )
    return OpenedStore(StreamStore(config, keys, record, image, {}, memory=memory), plan)


def open_store(
    storage: Storage, keys: KeyRing, config: StreamConfig, memory: StreamMemory | None = None
) -> OpenedStore | None:
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
    return _Opening(storage, keys, config, record, image, memory=memory).run()


def _was_used(storage: Storage) -> bool:
    """Say whether the metadata holds more than a creation that did not finish leaves behind."""
    try:
        image = read_metadata(storage.read(METADATA_FILE, 0, storage.size(METADATA_FILE)))
    except FileNotFoundError:
        return False
    return bool(image.partitions or image.gone)


class _Opening:
    """Turns metadata into partitions, and decides what to mend."""

    def __init__(
        self,
        storage: Storage,
        keys: KeyRing,
        config: StreamConfig,
        record: StoreRecord,
        image: MetadataImage,
        *,
        memory: StreamMemory | None,
    ) -> None:
        self._storage = storage
        self._record = StoreRecord(record.group, record.store_id, record.incarnation + 1)
        self._image = image
        self._names = set(storage.names(PARTS_DIRECTORY))
        self._findings: list[StreamFinding] = []
        self._damaged: dict[StreamPartitionId, StreamDamage] = {}
        self._keys = keys
        self._config = config
        self._memory = memory

    def run(self) -> OpenedStore:
        partitions = {at.partition: self._partition(at) for at in self._image.partitions.values()}
        # The incarnation first: no nonce is used before it is durable.
        steps: list[Step] = list(plan_replace(STORE_FILE, encode_store_record(self._record)))
        steps += self._cut_metadata()
        steps += self._remove_leftovers()
        store = StreamStore(
            self._config, self._keys, self._record, self._image, partitions, memory=self._memory
        )
        return OpenedStore(store, tuple(steps), self._findings, self._damaged)

    def _find(self, kind: StreamFindingKind, detail: str) -> None:
        self._findings.append(StreamFinding(kind, detail))

    def _partition(self, known: PartitionMeta) -> StreamFiles:
        if known.definition is None:
            raise ChecksumMismatch("a partition without a definition", partition=known.partition)
        partition = StreamPartitionId(known.partition)
        segments = known.ordered()
        files = StreamFiles(
            partition,
            known.start_index,
            known.next_index,
            segments,
            known.definition,
            defined_at=known.defined_at,
            digest=known.digest,
            digest_from=known.digest_from,
            is_told=True,
            compacted=known.compacted,
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
        self, partition: StreamPartitionId, name: FileName, segment: SegmentMeta
    ) -> bool:
        """See whether the open file is as long as it was; what is behind that is void."""
        size = self._storage.size(name)
        if size < segment.size_bytes:
            problem = ChecksumMismatch("a partition file is cut short", file=name, size=size)
            self._damage(partition, segment.first_index, problem)
        elif size > segment.size_bytes:
            self._find(StreamFindingKind.ROLLED_BACK, f"{name} to byte {segment.size_bytes}")
        return size >= segment.size_bytes

    def _damage(self, partition: StreamPartitionId, first_index: int, problem: LogError) -> None:
        self._damaged.setdefault(partition, StreamDamage(partition, first_index, problem))
        self._find(StreamFindingKind.DAMAGE, str(problem))

    def _cut_metadata(self) -> list[Step]:
        steps: list[Step] = []
        if self._image.torn:
            self._find(StreamFindingKind.TORN_METADATA, f"from byte {self._image.good_bytes}")
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
        temporary = set(self._storage.names(STREAMS_DIRECTORY)) & {"metadata.log.tmp"}
        files += [FileName(f"{STREAMS_DIRECTORY}/{name}") for name in temporary]
        for file in files:
            self._find(StreamFindingKind.LEFTOVER_REMOVED, file)
        return [*(DeleteFile(file) for file in files), SyncDirectory(PARTS_DIRECTORY)]
