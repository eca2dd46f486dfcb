"""Topics of the simulated broker under drawn faults: the world, and a seed with its verdict.

The nodes are those of every broker world, with few MQTT clients beside the producers and readers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, cast

from clustor.runtime.containment import contained
from clustor.sim.driver import SimNode
from clustor.sim.errors import PromiseBroken
from clustor.sim.run import SeedReport
from clustor.sim.scenario import MS, SECOND, Scenario
from clustor.sim.timeline import Microseconds
from clustor.streams import StreamChunk, StreamFileReader, StreamOutOfRange, UnknownStream
from quantum.broker.streams import StreamRefusal
from quantum.mesh.topic_views import TopicView
from quantum.mesh.topics import TenantTopics
from quantum.partition.leader import PartitionLeader
from quantum.sim.kafka_clients import CommittedReader, PipeliningProducer
from quantum.sim.node import BrokerNode, SimGroup
from quantum.sim.run import LIVENESS_LIMIT, broker_scenario, where
from quantum.sim.topic_clients import (
    PARTITIONS,
    IdempotentProducer,
    TopicOperator,
    TransactionalProducer,
)
from quantum.sim.topic_judge import judge_topics, what_topics_lack
from quantum.sim.topic_readers import TopicReader
from quantum.sim.wire import ClientEnd, SimLine
from quantum.sim.world import BrokerWorld

_STEP = 200 * MS
_LOST_WAY = 0.2
"""How often a client goes to a node that perhaps does not lead what it wants."""


class SimFiles:
    """Reads of files, at once: the disk of a simulation does not hold the loop up."""

    def read_file(
        self,
        prg: PartitionLeader,
        file_id: int,
        offset: int,
        bytes_max: int,
        done: Callable[[list[StreamChunk] | StreamRefusal], None],
    ) -> None:
        try:
            view = prg.group.replica.stream_view(file_id, offset, bytes_max)
            done(_reader_of(prg).read(view, offset, bytes_max))
        except StreamOutOfRange:
            done(StreamRefusal.OFFSET_OUT_OF_RANGE)
        except UnknownStream:
            done(StreamRefusal.TOPIC_UNKNOWN)

    def find_file_time(
        self,
        prg: PartitionLeader,
        file_id: int,
        time_ms: int,
        done: Callable[[int | StreamRefusal | None], None],
    ) -> None:
        streams = prg.group.replica.streams
        assert streams is not None
        done(_reader_of(prg).find_time(streams.whole_view(file_id), time_ms))


def _reader_of(prg: PartitionLeader) -> StreamFileReader:
    group = cast("SimGroup", prg.group)
    streams = group.replica.streams
    assert streams is not None
    return StreamFileReader(group.seat.disk, group.seat.cluster.keys, streams.store.config)


class TopicWorld(BrokerWorld):
    """A broker's world with topics in it."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        rng = self._rng("topics")
        self.operator = TopicOperator(self, Random(rng.getrandbits(64)))  # noqa: S311
        limit = 12 + scenario.seed % 3 * 6
        self.producers = [
            IdempotentProducer(self, Random(rng.getrandbits(64)), f"i{n}", limit)  # noqa: S311
            for n in range(2)
        ]
        self.transactional = [
            TransactionalProducer(self, Random(rng.getrandbits(64)), f"t{n}", limit // 2)  # noqa: S311
            for n in range(3)
        ]
        self.readers = [TopicReader(self, Random(rng.getrandbits(64))) for _ in range(2)]  # noqa: S311
        self.pipelining = [
            PipeliningProducer(self, Random(rng.getrandbits(64)), f"w{n}", 2 * limit)  # noqa: S311
            for n in range(2)
        ]
        self.consumers = [
            CommittedReader(self, Random(rng.getrandbits(64)), p)  # noqa: S311
            for p in range(PARTITIONS)
        ]

    def on_start(self, node: SimNode) -> None:
        super().on_start(node)
        self.brokers[node.id].service.stream_files = SimFiles()

    def topics_of(self, broker: BrokerNode) -> TenantTopics:
        return broker.service.tenants[self.tenant.name].topics

    def any_topics(self, rng: Random) -> TenantTopics | None:
        """Return the topics of some node that runs."""
        if not self.brokers:
            return None
        return self.topics_of(self.brokers[rng.choice(sorted(self.brokers))])

    def dial_kafka(self, client: ClientEnd, place: tuple[str, int], rng: Random) -> SimLine | None:
        """Connect a client to who leads a partition, as metadata says, or to some other node."""
        if not self.brokers:
            return None
        led = None if rng.random() < _LOST_WAY else self._leading(*place)
        broker = led or self.brokers[rng.choice(sorted(self.brokers))]
        line = SimLine(self, broker, client, self.tenant.name, rng, broker.service.kafka)
        self._lines[broker].append(line)
        return line

    def _leading(self, name: str, partition: int) -> BrokerNode | None:
        for node in sorted(self.brokers):
            topics = self.topics_of(self.brokers[node])
            topic = topics.topic(name)
            if topic is not None and topics.leader(topic.prgs[partition]).is_here:
                return self.brokers[node]
        return None

    def led_topics(self, name: str, partition: int) -> tuple[TenantTopics, TopicView] | None:
        """Return the topics of a node that believes to lead a partition."""
        broker = self._leading(name, partition)
        topics = None if broker is None else self.topics_of(broker)
        topic = None if topics is None else topics.topic(name)
        return None if topics is None or topic is None else (topics, topic)


def topic_scenario(seed: int) -> Scenario:
    """Draw what a seed means for topics: few MQTT clients, the same faults."""
    return replace(broker_scenario(seed), clients=1, operations_max=10)


def run_topic_seed(seed: int) -> SeedReport:
    """Run faults, then heal and wait until everybody was answered, then judge."""
    return run_topic_scenario(topic_scenario(seed))


def run_topic_scenario(scenario: Scenario) -> SeedReport:
    """Run one. Whatever is raised is a violation."""
    report = SeedReport(scenario.seed, scenario=scenario, flags="--topics ")
    world: TopicWorld | None = None
    try:
        with contained.raised():
            world = TopicWorld(scenario)
            world.run_until(scenario.duration)
            _come_to_rest(world)
            judge_topics(world)
    except PromiseBroken as broken:
        report.violation, report.detail = str(broken), where(broken)
    except Exception as error:  # noqa: BLE001  # code that raises breaks its promise too
        report.violation, report.detail = f"{type(error).__name__}: {error}", where(error)
    if world is not None:
        _fill(report, world)
    return report


def _come_to_rest(world: TopicWorld) -> None:
    world.injection.heal()
    world.links.are_calm = True
    end = world.timeline.now + LIVENESS_LIMIT
    while missing := what_topics_lack(cast("Any", world)):
        if world.timeline.now >= end:
            raise PromiseBroken(f"no life after healing: {missing}")
        world.run_until(Microseconds(world.timeline.now + _STEP))


def _fill(report: SeedReport, world: TopicWorld) -> None:
    report.trace_hash = world.trace_hash()
    report.simulated_seconds = world.timeline.now / SECOND
    report.acknowledged = sum(len(each.acknowledged) for each in world.producers)
    report.acknowledged += sum(len(each.acknowledged) for each in world.pipelining)
    report.operations = report.acknowledged
    for name, count in sorted(world.counts.items()):
        kind, _, fault = name.partition(" ")
        if kind == "fault":
            report.faults[fault] = count
        elif kind == "topics":
            report.events[fault] = count
    report.events["transactions"] = sum(len(each.done) for each in world.transactional)
    report.events["read"] = sum(len(each.seen) for each in world.readers)
    report.events["consumed"] = sum(len(each.given) for each in world.consumers)
    report.events["read committed"] = sum(len(each.committed) for each in world.readers)
