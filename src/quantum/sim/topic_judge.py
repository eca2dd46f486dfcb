"""What must be true of topics, by the protocol alone: judged from the files of every replica.

Nothing acknowledged is lost, nothing is there twice, no offset is missing, transactions are whole
or absent, the start never goes back. Markers in the log say what was committed, not our state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, Protocol

from clustor.raft.types import ReplicaId
from clustor.sim.driver import ReplicaDriver, SimNode
from clustor.sim.errors import PromiseBroken
from clustor.sim.judge import GroupJudge
from clustor.sim.scenario import Scenario
from clustor.streams import StreamFileReader, take_view
from quantum.broker import Broker
from quantum.broker.streams import CommittedOffset
from quantum.mesh.topic_reads import batches_of
from quantum.partition.stream_side import section_of
from quantum.protocols.kafka.codec import MarkerKind, check_stored, read_marker
from quantum.sim.kafka_clients import CommittedReader, PipeliningProducer
from quantum.sim.topic_clients import (
    MIRROR,
    PARTITIONS,
    PLAIN,
    SINK,
    TRIMMED,
    Ended,
    IdempotentProducer,
    TopicOperator,
    TransactionalProducer,
)
from quantum.sim.topic_readers import TopicReader, values_of

_READ_BYTES: Final = 2_000


class JudgedWorld(Protocol):
    """A world with topics that has come to rest."""

    scenario: Scenario
    counts: Counter[str]
    judges: list[GroupJudge]
    operator: TopicOperator
    producers: list[IdempotentProducer]
    transactional: list[TransactionalProducer]
    readers: list[TopicReader]
    pipelining: list[PipeliningProducer]
    consumers: list[CommittedReader]

    @property
    def nodes(self) -> Mapping[ReplicaId, SimNode]: ...
    def leader(self, group: int, /) -> ReplicaDriver | None: ...


@dataclass(slots=True)
class KeptLog:
    """One partition as a replica's files have it."""

    start: int
    end: int
    values: dict[int, str] = field(default_factory=dict)
    committed: dict[int, str] = field(default_factory=dict)
    """What a reader with read_committed gets, by the markers."""
    open_producers: dict[int, list[tuple[int, str]]] = field(default_factory=dict)
    """Transactions without an end."""


Logs = dict[tuple[str, int], KeptLog]


def what_topics_lack(world: JudgedWorld) -> str:
    """Say what is still awaited; empty: everything has come to rest."""
    for group in range(world.scenario.groups):
        if world.leader(group) is None:
            return f"partition {group} has no leader"
    if not world.operator.is_idle:
        return f"topics are not made: {world.operator.wanted}"
    awaited = [(each.name, each.is_idle) for each in world.producers]
    awaited += [(each.name, each.is_idle) for each in world.transactional]
    awaited += [(each.name, each.is_idle) for each in world.pipelining]
    for name, is_idle in awaited:
        if not is_idle:
            return f"{name} waits"
    for group, judge in enumerate(world.judges):
        for seat in (node.seats[group] for node in world.nodes.values()):
            floor = max(judge.acknowledged, default=0)
            if seat.replica is None or seat.replica.applied_index < floor:
                return f"partition {group}: {seat.replica_id} has not applied {floor}"
    for seat in _leaders(world):
        section = section_of(_broker(seat))
        if any(hosted.log.open_transactions() for hosted in section.partitions.values()):
            return "a transaction is open"
        if section.state.transaction_due:
            return "a transaction may still time out"
        for name in section.transactions.ids():
            known = section.transactions.get(name)
            if known is not None and (known.partitions or known.groups):
                return f"{name} waits for its markers"
        for reader in world.consumers:
            spec = section.topics.named(reader.place[0])
            hosted = spec and section.partitions.get((spec.number, reader.place[1]))
            if hosted and reader.position < hosted.log.end_offset:
                return f"{reader.name} has read up to {reader.position}"
    return ""


def _leaders(world: JudgedWorld) -> Iterator[ReplicaDriver]:
    for group in range(world.scenario.groups):
        leader = world.leader(group)
        assert leader is not None
        yield leader


def judge_topics(world: JudgedWorld) -> None:
    """Judge a world that has come to rest."""
    every = [_logs_of(world, node) for node in world.nodes.values()]
    logs = every[0]
    if len(logs) != 3 * PARTITIONS:
        raise PromiseBroken(f"partitions are missing: {sorted(logs)}")
    for other in every[1:]:
        for place, log in logs.items():
            if other.get(place) != log:
                raise PromiseBroken(f"{place}: replicas keep different logs")
    _judge_producers(world, logs)
    _judge_transactions(world, logs)
    _judge_readers(world, logs)
    _judge_starts(world, logs)
    _judge_offsets(world)
    world.counts["topics kept"] = sum(len(each.values) for each in logs.values())
    for group, judge in enumerate(world.judges):
        seats = [node.seats[group] for node in world.nodes.values()]
        judge.check_matching([(seat.replica_id, seat.entries_on_disk()) for seat in seats])
        for seat in seats:
            judge.check_acknowledged(seat.view, seat.replica_id)
            seat.check_replay()


def _logs_of(world: JudgedWorld, node: SimNode) -> Logs:
    logs: Logs = {}
    for group in range(world.scenario.groups):
        seat = node.seats[group]
        section = section_of(_broker(seat))
        for (number, partition), hosted in section.partitions.items():
            spec = section.topics.get(number)
            assert spec is not None
            if (spec.name, partition) in logs:
                raise PromiseBroken(f"{spec.name} {partition} lives in two places")
            logs[spec.name, partition] = log = _read(seat, hosted.file_id, spec.name)
            if (log.start, log.end) != (hosted.log.start_offset, hosted.log.end_offset):
                raise PromiseBroken(f"{spec.name} {partition}: files end elsewhere")
    return logs


def _broker(seat: ReplicaDriver) -> Broker:
    machine = seat.running.machine
    assert isinstance(machine, Broker)
    return machine


def _read(seat: ReplicaDriver, file_id: int, name: str) -> KeptLog:
    """Read a partition from a replica's files, batch by batch, without a gap."""
    streams = seat.running.streams
    assert streams is not None
    reader = StreamFileReader(seat.disk, seat.cluster.keys, streams.store.config)
    view = take_view(streams.store, file_id)
    log = KeptLog(view.start_index, view.readable_next)
    at, epoch = view.start_index, -1
    while chunks := reader.read(view, at, _READ_BYTES):
        for batch in batches_of(chunks):
            header = check_stored(batch.data)
            if not batch.base_offset <= at or batch.base_offset + batch.count <= at:
                raise PromiseBroken(f"{name}: a gap at {at}, then {batch.base_offset}")
            if (header.base_offset, header.record_count) != (batch.base_offset, batch.count):
                raise PromiseBroken(f"{name}: {header} does not stand at {batch.base_offset}")
            if header.leader_epoch < epoch:
                raise PromiseBroken(f"{name}: leader epoch {header.leader_epoch} behind {epoch}")
            at, epoch = batch.base_offset + batch.count, header.leader_epoch
            _take(log, batch, header)
    if at != view.readable_next:
        raise PromiseBroken(f"{name} ends at {at}, not at {view.readable_next}")
    return log


def _take(log: KeptLog, batch: Any, header: Any) -> None:
    if header.is_control:
        rows = log.open_producers.pop(header.producer_id, [])
        if read_marker(batch.data).kind is MarkerKind.COMMIT:
            log.committed.update(rows)
        return
    rows = [each for each in values_of(batch) if each[0] >= log.start]
    log.values.update(rows)
    if header.is_transactional:
        log.open_producers.setdefault(header.producer_id, []).extend(rows)
    else:
        log.committed.update(rows)


def _judge_producers(world: JudgedWorld, logs: Logs) -> None:
    for name in (PLAIN, TRIMMED):
        last: dict[tuple[int, str], int] = {}
        counts: Counter[str] = Counter()
        for p in range(PARTITIONS):
            for _, value in sorted(logs[name, p].values.items()):
                counts[value] += 1
                said_by, _, number = value.partition(":")
                if int(number) <= last.get((p, said_by), 0):
                    raise PromiseBroken(f"{name} {p}: {value} behind {last[p, said_by]}")
                last[p, said_by] = int(number)
        twice = [value for value, count in counts.items() if count > 1]
        if twice:
            raise PromiseBroken(f"{name}: twice: {twice[:5]}")
    told = [each.acknowledged for each in world.producers]
    told += [each.acknowledged for each in world.pipelining]
    for value, (topic, p, offset) in chain.from_iterable(each.items() for each in told):
        log = logs[topic, p]
        if offset >= log.start and log.values.get(offset) != value:
            raise PromiseBroken(f"{topic} {p}: {value} was acknowledged at {offset}")


def _judge_transactions(world: JudgedWorld, logs: Logs) -> None:
    for p in range(PARTITIONS):
        if logs[MIRROR, p].open_producers:
            raise PromiseBroken(f"a transaction hangs in {p}: {logs[MIRROR, p].open_producers}")
    committed = Counter(
        value for p in range(PARTITIONS) for value in logs[MIRROR, p].committed.values()
    )
    for producer in world.transactional:
        for each in producer.done:
            counts = [committed[value] for value in each.values.values()]
            if any(count > 1 for count in counts):
                raise PromiseBroken(f"{producer.name} {each.number}: twice: {counts}")
            world.counts[f"topics {each.ended.name.lower()}"] += 1
            allowed = {
                Ended.COMMITTED: {1},
                Ended.ABORTED: {0},
                Ended.UNKNOWN: {min(counts)},
            }[each.ended]
            if set(counts) != allowed:
                raise PromiseBroken(f"{producer.name} {each.number}: {each.ended}, but {counts}")


def _judge_readers(world: JudgedWorld, logs: Logs) -> None:
    for reader in world.readers:
        for (topic, p, offset), value in reader.seen.items():
            log = logs[topic, p]
            if offset >= log.start and log.values.get(offset) != value:
                raise PromiseBroken(f"{topic} {p}: a reader had {value} at {offset}")
        twice = Counter((p, offset) for p, offset, _ in reader.committed)
        if any(count > 1 for count in twice.values()):
            raise PromiseBroken("a reader was given something twice")
        for p, offset, value in reader.committed:
            if logs[MIRROR, p].committed.get(offset) != value:
                raise PromiseBroken(f"{value} was given as committed, at {offset}")
        _judge_skipped(reader, logs)
    for consumer in world.consumers:
        if consumer.given != logs[consumer.place].committed:
            differ = set(consumer.given.items()) ^ set(logs[consumer.place].committed.items())
            raise PromiseBroken(f"{consumer.name} did not get what was committed: {differ}")


def _judge_skipped(reader: TopicReader, logs: Logs) -> None:
    """Whoever reads on has been given all that lies behind: nothing is skipped for ever."""
    given = {(p, offset) for p, offset, _ in reader.committed}
    for (name, p), position in reader.positions.items():
        log = logs[name, p]
        if name == MIRROR:
            missed = [o for o in log.committed if o < position and (p, o) not in given]
        elif name == PLAIN:
            missed = [o for o in log.values if o < position and (name, p, o) not in reader.seen]
        else:
            missed = []  # what was deleted need not be read
        if missed:
            raise PromiseBroken(f"{name} {p}: a reader at {position} was not given {missed[:5]}")


def _judge_starts(world: JudgedWorld, logs: Logs) -> None:
    for p, start in enumerate(world.operator.starts):
        if logs[TRIMMED, p].start < start:
            raise PromiseBroken(f"the start of {p} went back from {start}")
    for reader in world.readers:
        for place, start in reader.starts.items():
            if logs[place].start < start:
                raise PromiseBroken(f"the start of {place} went back from {start}")


def _judge_offsets(world: JudgedWorld) -> None:
    """The group's offset is that of the last transaction that was committed."""
    group = None
    for seat in _leaders(world):
        group = section_of(_broker(seat)).groups.get(SINK) or group
    for producer in world.transactional:
        sure = [each.number for each in producer.done if each.ended is Ended.COMMITTED]
        perhaps = [each.number for each in producer.done if each.ended is Ended.UNKNOWN]
        found = None if group is None else group.offsets.get((producer.name, 0))
        offset = found.offset if isinstance(found, CommittedOffset) else 0
        newest = max(sure, default=0)
        if offset != newest and not (offset in perhaps and offset > newest):
            raise PromiseBroken(f"{producer.name}: offset {offset}, not {newest} of {perhaps}")
