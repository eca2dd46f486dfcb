"""What the store knows durably of its partitions: a log of changes, and one small record.

`streams/store` is 64 bytes and replaced whole, by a rename:

    magic:8 "SEGSTORE" version:u16 zero:u16 zero:u32 group:u64 incarnation:u64 store_id:16
    zero:12 crc32c:u32

`streams/metadata.log` is a row of batches, each written and synced on its own:

    magic:4 "SMET" version:u16 flags:u16 batch_seq:u64 durable_raft_index:u64 body_bytes:u32
    body_crc32c:u32 head_crc32c:u32                                                = 36 bytes
    body         a msgpack list of `PartitionChange`, each a list in the order of its fields

A batch is the commit point of whatever it tells: a checkpoint, a trim, a removal. Files
that no batch names are void. `durable_raft_index` vouches that every log entry through it stands
durably in the partitions, which is what lets the log be cut; a replica refuses to start on a log
that was cut further. Its head says a batch whole, so that a tail torn by a crash is told from
damage: a torn one has nothing authentic behind it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import msgspec
from crc32c import crc32c

from clustor.log.errors import ChecksumMismatch, UnsupportedFormat
from clustor.log.steps import FileName
from clustor.log.types import PartitionId
from clustor.raft.types import ReplicaId
from clustor.streams.errors import StreamMisuse
from clustor.streams.master import Automatic, Disabled, FixedMaster, MasterPolicy
from clustor.streams.quorum import Custom, FixedSet, Majority, QuorumPolicy, Threshold
from clustor.streams.types import StoreId

STREAMS_DIRECTORY: Final = "streams"
STORE_FILE: Final = FileName(f"{STREAMS_DIRECTORY}/store")
METADATA_FILE: Final = FileName(f"{STREAMS_DIRECTORY}/metadata.log")
STORE_BYTES: Final = 64
ROWS_PER_BATCH: Final = 100_000  # changes and the files in them; a few MiB
BODY_BYTES_MAX: Final = 64 << 20

_STORE_MAGIC: Final = b"SEGSTORE"
_BATCH_MAGIC: Final = b"SMET"
_VERSION: Final = 1
_STORE: Final = struct.Struct("<8sHHIQQ16s12s")
_HEAD: Final = struct.Struct("<4sHHQQII")
_CRC: Final = struct.Struct("<I")
HEAD_BYTES: Final = _HEAD.size + 4


@dataclass(frozen=True, slots=True)
class StoreRecord:
    """Which store this is, and which start of it."""

    group: PartitionId
    store_id: StoreId
    incarnation: int


def encode_store_record(record: StoreRecord) -> bytes:
    body = _STORE.pack(
        _STORE_MAGIC, _VERSION, 0, 0, record.group, record.incarnation, record.store_id, bytes(12)
    )
    return body + _CRC.pack(crc32c(body))


def decode_store_record(data: bytes) -> StoreRecord:
    """Raises ChecksumMismatch for damaged bytes, UnsupportedFormat for a later release's."""
    if len(data) != STORE_BYTES or _CRC.unpack_from(data, _STORE.size)[0] != crc32c(
        data[: _STORE.size]
    ):
        raise ChecksumMismatch("the store's record is damaged", file=STORE_FILE)
    magic, version, _, _, group, incarnation, store_id, _ = _STORE.unpack_from(data)
    if magic != _STORE_MAGIC or version != _VERSION:
        raise UnsupportedFormat("not a store that this release reads", version=version)
    return StoreRecord(PartitionId(group), StoreId(store_id), incarnation)


class SegmentMeta(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A partition file as far as it is durable."""

    file_seq: int
    first_index: int
    next_index: int
    size_bytes: int
    max_timestamp: int
    dek_epoch: int


CompactionMark: TypeAlias = tuple[int, int]
"""How far the files of a partition were compacted: the index below which every record that a later
one supersedes is gone, and the one below which the records that only say so are gone as well."""
NOT_COMPACTED: Final[CompactionMark] = (0, 0)

_MASTER_MODES: Final = {Automatic: "Automatic", FixedMaster: "Fixed", Disabled: "Disabled"}
"""The stored words; a class may get another name."""


class Definition(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A partition's policies and its master, in plain values."""

    quorum: str
    quorum_number: int
    quorum_replicas: tuple[int, ...]
    quorum_name: str
    master_mode: str
    master: int | None

    @classmethod
    def of(
        cls, quorum: QuorumPolicy, master_policy: MasterPolicy, master: ReplicaId | None
    ) -> Definition:
        number = quorum.acks if isinstance(quorum, Threshold) else 0
        replicas = sorted(quorum.replicas) if isinstance(quorum, FixedSet) else ()
        name = quorum.name if isinstance(quorum, Custom) else ""
        return cls(
            quorum=type(quorum).__name__,
            quorum_number=number,
            quorum_replicas=tuple(replicas),
            quorum_name=name,
            master_mode=_MASTER_MODES[type(master_policy)],
            master=master,
        )

    def quorum_policy(self) -> QuorumPolicy:
        """Raises UnsupportedFormat for a policy of a later release."""
        match self.quorum:
            case "Majority":
                return Majority()
            case "Threshold":
                return Threshold(self.quorum_number)
            case "FixedSet":
                return FixedSet(frozenset(ReplicaId(at) for at in self.quorum_replicas))
            case "Custom":
                return Custom(self.quorum_name)
        raise UnsupportedFormat("an unknown quorum policy", quorum=self.quorum)

    def master_policy(self) -> MasterPolicy:
        """Raises UnsupportedFormat for a policy of a later release."""
        match self.master_mode, self.master:
            case "Automatic", _:
                return Automatic()
            case "Fixed", int(replica):
                return FixedMaster(ReplicaId(replica))
            case "Disabled", _:
                return Disabled()
        raise UnsupportedFormat("an unknown master policy", mode=self.master_mode)


class PartitionChange(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What is true of a partition from now on; its other files stay as they were."""

    partition: int
    start_index: int = 0  # the lowest index that is still there
    next_index: int = 0  # `highest_durable_partition_index` + 1
    defined_at: int = 0  # the raft index of its definition, or a later one
    digest: int = 0  # the chained CRC32C of its batches, rows included, from `digest_from` on
    digest_from: int = 0
    segments: tuple[SegmentMeta, ...] = ()  # new, or longer than they were
    removed: tuple[int, ...] = ()  # file numbers
    definition: Definition | None = None  # None: as it was
    gone_at: int = 0  # the raft index at which the partition itself was removed; 0: it is there
    compacted: CompactionMark = NOT_COMPACTED  # written only where it says something


@dataclass(slots=True)
class PartitionMeta:
    """What the changes of one partition add up to."""

    partition: int
    start_index: int = 0
    next_index: int = 0
    defined_at: int = 0
    digest: int = 0
    digest_from: int = 0
    segments: dict[int, SegmentMeta] = field(default_factory=dict)
    definition: Definition | None = None
    compacted: CompactionMark = NOT_COMPACTED

    def ordered(self) -> list[SegmentMeta]:
        return sorted(self.segments.values(), key=lambda segment: segment.first_index)


@dataclass(slots=True)
class MetadataImage:
    """What a metadata log proves. `good_bytes` of it could be believed."""

    partitions: dict[int, PartitionMeta] = field(default_factory=dict)
    gone: dict[int, int] = field(default_factory=dict)  # removed partitions, and at which entry
    durable_raft_index: int = 0
    next_batch_seq: int = 0
    good_bytes: int = 0
    torn: bool = False


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(list[PartitionChange])


def encode_batch(seq: int, durable_raft_index: int, changes: list[PartitionChange]) -> bytes:
    body = _ENCODER.encode([_fields(change) for change in changes])
    if len(body) > BODY_BYTES_MAX:  # what no start would read must not be written
        raise StreamMisuse("a metadata batch too large", given_bytes=len(body))
    head = _HEAD.pack(_BATCH_MAGIC, _VERSION, 0, seq, durable_raft_index, len(body), crc32c(body))
    return head + _CRC.pack(crc32c(head)) + body


def _fields(change: PartitionChange) -> tuple[object, ...]:
    """Leave out what says nothing: the builds before compaction read the rest."""
    fields = msgspec.structs.astuple(change)
    return fields if change.compacted != NOT_COMPACTED else fields[:-1]


def batches_of(
    first_seq: int, before: int, durable_raft_index: int, changes: Iterable[PartitionChange]
) -> Iterator[bytes]:
    """Encode changes of any number. Only the last batch vouches for the new raft index."""
    waiting: list[PartitionChange] = []
    seq, rows = first_seq, 0
    for change in changes:
        added = 1 + len(change.segments) + len(change.removed)
        if waiting and rows + added > ROWS_PER_BATCH:
            yield encode_batch(seq, before, waiting)
            waiting, seq, rows = [], seq + 1, 0
        waiting.append(change)
        rows += added
    yield encode_batch(seq, durable_raft_index, waiting)


def encode_metadata(image: MetadataImage) -> bytes:
    """Encode the shortest metadata log that adds up to `image`, whose batches are now these."""
    raft_index = image.durable_raft_index
    batches = list(batches_of(0, raft_index, raft_index, snapshot_changes(image)))
    image.next_batch_seq = len(batches)
    return b"".join(batches)


def read_metadata(data: bytes) -> MetadataImage:
    """Fold a metadata log. Raises ChecksumMismatch where more than a torn tail is wrong."""
    image = MetadataImage()
    while image.good_bytes < len(data):
        batch = _take_batch(data, image.good_bytes, image.next_batch_seq)
        if batch is None:
            image.torn = True
            _refuse_damage(data, image)
            break
        end, durable_raft_index, changes = batch
        for change in changes:
            fold(image, change)
        if durable_raft_index < image.durable_raft_index:
            raise ChecksumMismatch("durable_raft_index went back", offset=image.good_bytes)
        image.durable_raft_index = durable_raft_index
        image.next_batch_seq += 1
        image.good_bytes = end
    return image


def _take_batch(
    data: bytes, offset: int, seq: int | None
) -> tuple[int, int, list[PartitionChange]] | None:
    """Return the batch at `offset`, or None where there is none that can be believed."""
    if offset + HEAD_BYTES > len(data):
        return None
    if _CRC.unpack_from(data, offset + _HEAD.size)[0] != crc32c(data[offset : offset + _HEAD.size]):
        return None
    magic, version, _, found_seq, raft_index, body_bytes, body_crc = _HEAD.unpack_from(data, offset)
    if magic != _BATCH_MAGIC or (seq is not None and found_seq != seq):
        return None
    if version != _VERSION:
        raise UnsupportedFormat("metadata of a later release", version=version)
    end = offset + HEAD_BYTES + body_bytes
    body = data[offset + HEAD_BYTES : end]
    if body_bytes > BODY_BYTES_MAX or len(body) != body_bytes or crc32c(body) != body_crc:
        return None
    try:
        return end, raft_index, _DECODER.decode(body)
    except msgspec.MsgspecError as error:
        raise ChecksumMismatch("metadata cannot be read", offset=offset) from error


def _refuse_damage(data: bytes, image: MetadataImage) -> None:
    """Raise where a whole batch stands behind what cannot be read: that was durable once."""
    at = data.find(_BATCH_MAGIC, image.good_bytes + 1)
    while at >= 0:
        if _take_batch(data, at, None) is not None:
            raise ChecksumMismatch(
                "a metadata batch is damaged", file=METADATA_FILE, offset=image.good_bytes
            )
        at = data.find(_BATCH_MAGIC, at + 1)


def fold(image: MetadataImage, change: PartitionChange) -> None:
    """Take one change into the picture."""
    if change.gone_at:
        image.partitions.pop(change.partition, None)
        image.gone[change.partition] = change.gone_at
        return
    known = image.partitions.setdefault(change.partition, PartitionMeta(change.partition))
    known.start_index = change.start_index
    known.next_index = change.next_index
    known.defined_at = change.defined_at
    known.digest, known.digest_from = change.digest, change.digest_from
    known.compacted = change.compacted
    for file_seq in change.removed:
        known.segments.pop(file_seq, None)
    for segment in change.segments:
        known.segments[segment.file_seq] = segment
    if change.definition is not None:
        known.definition = change.definition


def snapshot_changes(image: MetadataImage) -> Iterator[PartitionChange]:
    """Yield the shortest list of changes that adds up to the same picture."""
    for known in image.partitions.values():
        yield PartitionChange(
            partition=known.partition,
            start_index=known.start_index,
            next_index=known.next_index,
            defined_at=known.defined_at,
            digest=known.digest,
            digest_from=known.digest_from,
            segments=tuple(known.ordered()),
            definition=known.definition,
            compacted=known.compacted,
        )
    for partition, gone_at in sorted(image.gone.items()):
        yield PartitionChange(partition, gone_at=gone_at)
