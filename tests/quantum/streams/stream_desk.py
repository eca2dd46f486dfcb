"""A desk whose partition has streams: topics, batches, groups and transactions in few words."""

from __future__ import annotations

from typing import Any

from clustor.streams.changes import StreamAppend
from quantum.broker.items import SectionItem
from quantum.broker.sections import SECTION_HEAD
from quantum.broker.streams import (
    STREAM_FAMILY,
    TRANSACTIONAL,
    AppendOutcome,
    CreateTopic,
    StreamBatch,
    StreamSection,
    decode_outcomes,
    encode_appends,
)
from quantum.broker.streams.answers import decode_reply
from quantum.broker.streams.coding import CoordinationCommand
from quantum.broker.streams.section import GROUPS, TOPICS, TRANSACTIONS, encode_stream_command
from quantum.broker.streams.section_items import (
    StreamItem,
    decode_stream_item,
    encode_stream_item,
)
from quantum.protocols.kafka.codec import KafkaRecord, build_batch
from tests.quantum.broker.desk import THERE, Desk

TERM = 5


def kafka_batch(
    count: int = 1, producer_id: int = -1, epoch: int = -1, sequence: int = -1, **more: Any
) -> bytes:
    records = [KafkaRecord(n, 1_000 + n, b"k%d" % n, b"v%d" % n) for n in range(count)]
    facts: dict[str, Any] = {"producer_id": producer_id, "producer_epoch": epoch}
    return build_batch(records, base_sequence=sequence, **facts, **more)


def batch_of(
    number: int,
    partition: int = 0,
    count: int = 1,
    producer: tuple[int, int, int] | None = None,
    *,
    transactional: bool = False,
) -> StreamBatch:
    """A batch as the edge gives it; `producer` is its id, epoch and first sequence."""
    id_, epoch, sequence = producer or (-1, -1, -1)
    flags = TRANSACTIONAL if transactional else 0
    data = kafka_batch(count, id_, epoch, sequence, attributes=0x10 if transactional else 0)
    facts = (id_, max(epoch, 0), max(sequence, 0), flags)
    return StreamBatch(number, partition, count, *facts, 1_000 + count - 1, data)


class StreamDesk(Desk):
    """Four replicas that have streams: each command compares them."""

    @property
    def section(self) -> StreamSection:
        section = self.leader.state.sections[STREAM_FAMILY]
        assert isinstance(section, StreamSection)
        return section

    def order(self, kind: int, command: CoordinationCommand) -> Any:
        reply = decode_reply(self.apply(encode_stream_command(self.now_ms, kind, command))[0])
        assert reply is not None
        self.awaited = reply[0]
        return reply[1]

    def topics(self, command: CoordinationCommand) -> Any:
        return self.order(TOPICS, command)

    def groups(self, command: CoordinationCommand) -> Any:
        return self.order(GROUPS, command)

    def transact(self, command: CoordinationCommand) -> Any:
        return self.order(TRANSACTIONS, command)

    def create(self, name: str, partitions: int = 1, **configs: str) -> Any:
        pairs = tuple((key.replace("_", "."), value) for key, value in configs.items())
        uuid = name.encode().ljust(16, b"-")[:16]
        return self.topics(CreateTopic(0, name, uuid, partitions, pairs))

    def append(self, *batches: StreamBatch, term: int = TERM) -> list[AppendOutcome]:
        command = encode_appends(self.now_ms, term, batches)
        return list(decode_outcomes(self.apply(command)[0]))

    def kept(self) -> list[StreamAppend]:
        return [each for each in self.appended if isinstance(each, StreamAppend)]

    def items_there(self) -> list[StreamItem | None]:
        items = self.to_there()
        return [decode_stream_item(each.data) for each in items if isinstance(each, SectionItem)]

    def hear(self, *items: StreamItem) -> None:
        """Take items of streams of the other partition."""
        self.from_there(*(SectionItem(STREAM_FAMILY, encode_stream_item(each)) for each in items))


assert SECTION_HEAD.size == 9
assert THERE == 1
