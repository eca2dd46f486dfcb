"""Logs for tests: written in memory with the broker's own commands, read through the port."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from clustor.log.types import Entry, EntryKind, LogIndex, PartitionId, Term
from clustor.raft.hard_state import HardState
from clustor.replica import decode_batch, encode_batch
from clustor.replica.header import encode_header, header_of
from quantum.archive.types import Bounds, IndexRange, LogPiece, PrgId, SnapshotRef
from quantum.broker import (
    OWN_ORIGIN,
    Attach,
    Broker,
    Command,
    PublishOnce,
    Release,
    Subscribe,
    SubscriptionSpec,
    encode_command,
    encode_publishes,
    encode_record,
)
from quantum.lake.errors import LogGone
from quantum.routing.ring import HashRing
from quantum.tenants.broker_file import TenantEntry
from quantum.tenants.partition_settings import broker_settings
from quantum.types import TenantId

TENANT = "dev"
DAY_MS = 86_400_000
NOON_MS = 1_794_700_800_000


@dataclass
class MemorySource:
    """`LogSource` over lists."""

    prg_count: int = 2
    queue_messages_max: int = 1_000
    logs: dict[PrgId, list[Entry]] = field(default_factory=dict)
    bases: dict[PrgId, int] = field(default_factory=dict)
    kept: dict[PrgId, dict[int, bytes]] = field(default_factory=dict)
    now_ms: int = NOON_MS

    def __post_init__(self) -> None:
        for number in range(self.prg_count):
            self.logs.setdefault(PrgId(TENANT, number), [])

    # The port.

    def prgs(self) -> list[PrgId]:
        return sorted(self.logs)

    def bounds(self, prg: PrgId) -> Bounds:
        first, last = self.bases.get(prg, 0) + 1, len(self.logs[prg])
        pieces = (LogPiece(first, last, 100 * (last - first + 1)),) if last >= first else ()
        return Bounds(prg, first, last, pieces)

    def entries(self, span: IndexRange) -> Iterator[Entry]:
        if span.first <= self.bases.get(span.prg, 0) or span.last > len(self.logs[span.prg]):
            raise LogGone("compacted", prg=span.prg, first=span.first, last=span.last)
        yield from self.logs[span.prg][span.first - 1 : span.last]

    def snapshots(self, prg: PrgId) -> list[SnapshotRef]:
        return [
            SnapshotRef(prg, LogIndex(index), 1, len(data), str(index), PartitionId(1))
            for index, data in sorted(self.kept.get(prg, {}).items())
        ]

    def open_snapshot(self, ref: SnapshotRef) -> Iterator[bytes]:
        yield self.kept[ref.prg][int(ref.base_index)]

    def tenant_entry(self, name: str) -> TenantEntry | None:
        return TenantEntry(name, self.prg_count, self.queue_messages_max)

    # Writing.

    def append(self, number: int, *commands: bytes | Command) -> int:
        """Add an entry; return its index."""
        log = self.logs[PrgId(TENANT, number)]
        encoded = [each if isinstance(each, bytes) else encode_command(each) for each in commands]
        self.now_ms += 1_000
        log.append(Entry(Term(1), LogIndex(len(log) + 1), encode_batch(encoded)))
        return len(log)

    def no_op(self, number: int) -> int:
        log = self.logs[PrgId(TENANT, number)]
        log.append(Entry(Term(1), LogIndex(len(log) + 1), b"", EntryKind.NO_OP))
        return len(log)

    def publish(self, number: int, *payloads: bytes, topic: str = "t", client: str = "c") -> int:
        """Add an entry of publishes at QoS 1."""
        records = [record(topic, payload, client=client) for payload in payloads]
        return self.append(number, encode_publishes(self.now_ms, OWN_ORIGIN, 0, 0, records))

    def pass_on(self, number: int, origin: int, term: int, first: int, *payloads: bytes) -> int:
        """Add an entry of publishes that another partition's leader passed on."""
        records = [record("t", payload) for payload in payloads]
        return self.append(number, encode_publishes(self.now_ms, origin, term, first, records))

    def attach(self, number: int, client: str) -> int:
        return self.append(
            number,
            Attach(self.now_ms, client.encode(), clean_start=True, expiry_seconds=3_600, window=20),
        )

    def subscribe(self, number: int, client: str, topic_filter: str) -> int:
        wanted = [SubscriptionSpec(topic_filter.encode(), 1)]
        return self.append(number, Subscribe(self.now_ms, client.encode(), 1, wanted))

    def once(self, number: int, client: str, *exchanges: tuple[int, bytes]) -> int:
        """Add publishes at QoS 2 of a lasting session, to a topic of its own partition."""
        topic = topic_of(number, self.prg_count)
        records = [
            record(topic, payload, qos=2, client=client, epoch=1, packet_id=packet_id)
            for packet_id, payload in exchanges
        ]
        return self.append(number, PublishOnce(self.now_ms, records))

    def release(self, number: int, client: str, packet_id: int) -> int:
        return self.append(number, Release(self.now_ms, [(client.encode(), packet_id)]))

    def machine(self, number: int, index: int | None = None) -> Broker:
        """Return the broker after an index, made by the broker itself."""
        tenant = TenantEntry(TENANT, self.prg_count, self.queue_messages_max)
        broker = Broker(broker_settings(tenant, number))
        for entry in self.logs[PrgId(TENANT, number)][:index]:
            if entry.kind is EntryKind.DATA:
                broker.apply_batch(entry.index, decode_batch(entry.payload))
        return broker

    def snapshot_and_compact(self, number: int, index: int) -> None:
        """Keep a snapshot at an index and forget the log before it."""
        prg = PrgId(TENANT, number)
        content = b"".join(self.machine(number, index).snapshot())
        self.kept.setdefault(prg, {})[index] = (
            encode_header(header_of(HardState(), LogIndex(index))) + content
        )
        self.bases[prg] = index


def record(
    topic: str,
    payload: bytes,
    *,
    qos: int = 1,
    client: str = "c",
    epoch: int = 0,
    packet_id: int = 7,
) -> bytes:
    return encode_record(topic.encode(), payload, qos, b"", 0, client.encode(), epoch, packet_id)


def topic_of(number: int, prg_count: int) -> str:
    """Return a topic that a partition owns."""
    ring, tenant = HashRing(), TenantId(TENANT)
    return next(
        f"t/{n}"
        for n in count()
        if ring.topic_partition(tenant, f"t/{n}".encode(), prg_count) == number
    )
