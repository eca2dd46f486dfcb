"""The catalogue of topics: names, UUIDs, partitions, configs; and how they are made and ended.

The tenant's first PRG numbers topics and tells the others, so each of them begins and ends its
partitions of a topic at one entry of its own log. Where a partition lives is worked out from the
ring that the tenant had when the topic was made: a ring that grows moves none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from quantum.broker.streams.coding import CoordinationCommand, decode_command
from quantum.broker.streams.topic_configs import refuse_configs
from quantum.broker.streams.types import Stamp, StreamRefusal

CATALOGUE_PRG: Final = 0
"""The PRG that numbers the topics of its tenant."""
TOPICS_MAX: Final = 16_384
PARTITIONS_MAX: Final = 10_000
"""Of one topic; its number has 20 bits in the names of files."""
TENANT_PARTITIONS_MAX: Final = 100_000
UUID_BYTES: Final = 16
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_PARTITION_BITS: Final = 20
_TOPIC_FILES: Final = 1 << 62
"""Keeps the files of topics apart from those of captures, which have numbers of their own."""

TopicName = Annotated[str, Meta(max_length=1_024)]
PartitionCount = Annotated[int, Meta(ge=0, le=1 << 31)]
Configs = tuple[tuple[TopicName, Annotated[str, Meta(max_length=32_767)]], ...]


class CreateTopic(CoordinationCommand, tag=0):
    """Begin a topic everywhere. `uuid` is drawn by whoever proposes."""

    now_ms: Stamp
    name: TopicName
    uuid: Annotated[bytes, Meta(max_length=64)]
    partitions: PartitionCount
    configs: Configs = ()


class DeleteTopic(CoordinationCommand, tag=1):
    """End a topic everywhere, with all that it holds."""

    now_ms: Stamp
    name: TopicName


class GrowTopic(CoordinationCommand, tag=2):
    """Give a topic so many partitions; never fewer than it has."""

    now_ms: Stamp
    name: TopicName
    partitions: PartitionCount


class AlterTopic(CoordinationCommand, tag=3):
    """Put these configs in the place of all that the topic had."""

    now_ms: Stamp
    name: TopicName
    configs: Configs


TopicCommand = CreateTopic | DeleteTopic | GrowTopic | AlterTopic
_DECODER: Final[msgspec.msgpack.Decoder[TopicCommand]] = msgspec.msgpack.Decoder(TopicCommand)


def decode_topic_command(data: bytes) -> TopicCommand:
    """Decode a committed command. Raises CommandUnreadable."""
    return decode_command(_DECODER, data)


def file_id_of(number: int, partition: int) -> int:
    """Name a partition of a topic among all that a PRG keeps in files; never another's again."""
    return _TOPIC_FILES | number << _PARTITION_BITS | partition


class TopicSpec(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A topic, the same in every PRG."""

    number: Annotated[int, Meta(ge=1, lt=1 << 40)]
    name: str
    uuid: bytes
    partitions: Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)]
    ring: Annotated[int, Meta(ge=1, le=1 << 20)]
    """How many PRGs there were when it was made: its partitions are placed among these."""
    configs: Configs
    created_ms: int

    def place(self, partition: int, owner: Callable[[bytes, int], int]) -> int:
        """Say which PRG has a partition of it."""
        return owner(self.name.encode() + partition.to_bytes(4, "big"), self.ring)

    def file_id(self, partition: int) -> int:
        """Name a partition among all that a PRG keeps in files."""
        return file_id_of(self.number, partition)


class TopicReply(msgspec.Struct, array_like=True, frozen=True):
    """What became of an order about topics."""

    number: int
    refusal: StreamRefusal | None = None
    reason: str = ""
    """A sentence for people, where something was refused."""


class TopicTable:
    """The topics that one PRG knows, by number, name and UUID. Part of its state."""

    __slots__ = ("_by_name", "_by_number", "_by_uuid", "last_number", "partition_count")

    def __init__(self) -> None:
        self._by_number: dict[int, TopicSpec] = {}
        self._by_name: dict[str, TopicSpec] = {}
        self._by_uuid: dict[bytes, TopicSpec] = {}
        self.last_number = 0
        """The last number that was given; only the catalogue's PRG counts."""
        self.partition_count = 0
        """Partitions of all topics together; it follows from them."""

    def __len__(self) -> int:
        return len(self._by_number)

    def __iter__(self) -> Iterator[TopicSpec]:
        """Walk the topics in the order of their numbers."""
        return (self._by_number[number] for number in sorted(self._by_number))

    def get(self, number: int) -> TopicSpec | None:
        return self._by_number.get(number)

    def named(self, name: str) -> TopicSpec | None:
        return self._by_name.get(name)

    def by_uuid(self, uuid: bytes) -> TopicSpec | None:
        return self._by_uuid.get(uuid)

    def put(self, spec: TopicSpec) -> None:
        """Take a topic, in the place of the one that had its number."""
        self.drop(spec.number)
        self._by_number[spec.number] = spec
        self._by_name[spec.name] = spec
        self._by_uuid[spec.uuid] = spec
        self.partition_count += spec.partitions

    def drop(self, number: int) -> TopicSpec | None:
        spec = self._by_number.pop(number, None)
        if spec is not None:
            del self._by_name[spec.name]
            del self._by_uuid[spec.uuid]
            self.partition_count -= spec.partitions
        return spec

    def judge(self, command: TopicCommand) -> TopicReply | None:
        """Say why an order cannot be carried out; None: it can."""
        known = self.named(command.name)
        if not isinstance(command, CreateTopic) and known is None:
            return _refused(StreamRefusal.TOPIC_UNKNOWN, "there is no topic of this name")
        match command:
            case CreateTopic():
                return self._judge_new(command, known)
            case GrowTopic():
                assert known is not None
                return self._judge_growth(command, known)
            case AlterTopic():
                reason = refuse_configs(command.configs)
                return _refused(StreamRefusal.BAD_CONFIG, reason) if reason else None
            case DeleteTopic():
                return None

    def _judge_new(self, command: CreateTopic, known: TopicSpec | None) -> TopicReply | None:
        if known is not None:
            if known.uuid == command.uuid:
                return TopicReply(known.number)  # its answer was lost
            return _refused(StreamRefusal.TOPIC_EXISTS, "there is a topic of this name")
        if not _NAME.fullmatch(command.name) or command.name in {".", ".."}:
            words = "a name has 1 to 249 letters, digits, dots, dashes or underscores"
            return _refused(StreamRefusal.BAD_TOPIC_NAME, words)
        if len(command.uuid) != UUID_BYTES or self.by_uuid(command.uuid) is not None:
            return _refused(StreamRefusal.BAD_TOPIC_NAME, "a topic has a UUID of its own")
        if len(self) >= TOPICS_MAX:
            return _refused(
                StreamRefusal.TOO_MANY_PARTITIONS, f"a tenant has at most {TOPICS_MAX} topics"
            )
        reason = refuse_configs(command.configs)
        if reason:
            return _refused(StreamRefusal.BAD_CONFIG, reason)
        return self._judge_count(command.partitions, command.partitions)

    def _judge_growth(self, command: GrowTopic, known: TopicSpec) -> TopicReply | None:
        if command.partitions == known.partitions:
            return TopicReply(known.number)  # its answer was lost, or nothing is to be done
        if command.partitions < known.partitions:
            words = f"the topic has {known.partitions} partitions; it can only have more"
            return _refused(StreamRefusal.BAD_PARTITIONS, words)
        return self._judge_count(command.partitions, command.partitions - known.partitions)

    def _judge_count(self, wanted: int, more: int) -> TopicReply | None:
        if not 1 <= wanted <= PARTITIONS_MAX:
            words = f"a topic has 1 to {PARTITIONS_MAX} partitions"
            return _refused(StreamRefusal.BAD_PARTITIONS, words)
        if self.partition_count + more > TENANT_PARTITIONS_MAX:
            words = f"a tenant's topics have at most {TENANT_PARTITIONS_MAX} partitions together"
            return _refused(StreamRefusal.TOO_MANY_PARTITIONS, words)
        return None


def _refused(refusal: StreamRefusal, reason: str) -> TopicReply:
    return TopicReply(0, refusal, reason)
