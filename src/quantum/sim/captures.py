"""Captures in the simulated broker: made and trimmed under faults, judged by replicas' files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Final, Protocol

import msgspec

from clustor.raft.types import ReplicaId
from clustor.sim.driver import ReplicaDriver, SimNode
from clustor.sim.errors import PromiseBroken
from clustor.sim.scenario import MS, Scenario
from clustor.sim.timeline import Microseconds
from clustor.streams import StreamFileReader, take_view
from quantum.broker import (
    Broker,
    Command,
    CreateStream,
    StreamReply,
    TrimStreams,
    decode_record,
    encode_command,
)
from quantum.broker.stream_table import CATALOGUE_PRG
from quantum.model.records import MQTT_RECORDS

EVERYTHING: Final = (b"everything", b"t/#")
TRIMMED: Final = (b"trimmed", b"t/+/x")
_READ_BYTES: Final = 1_000


class CapturedPublisher(Protocol):
    """A publisher, as far as its messages are looked for in streams."""

    name: str
    qos: int
    next_number: int
    acknowledged: set[int]


class CapturingWorld(Protocol):
    """A world whose broker captures."""

    scenario: Scenario
    counts: Counter[str]

    @property
    def now(self) -> Microseconds: ...
    @property
    def nodes(self) -> Mapping[ReplicaId, SimNode]: ...
    @property
    def publishers(self) -> Sequence[CapturedPublisher]: ...
    @property
    def captures(self) -> Captures: ...
    def later(self, delay: int, call: Callable[[], None], /) -> None: ...
    def leader(self, group: int, /) -> ReplicaDriver | None: ...
    def propose(self, group: int, command: bytes, told: Callable[[bytes | None], None], /) -> None:
        """Let the leader of a partition propose a command, if there is one."""


class Captures:
    """An operator with two streams: one keeps everything, one is trimmed now and then."""

    def __init__(self, world: CapturingWorld, rng: Random) -> None:
        self._world = world
        self._rng = rng
        self._awaited: dict[bytes, list[tuple[int, int]]] = {}
        self.before: dict[str, int] | None = None
        """How far each publisher was when both were everywhere; None: they are not yet."""
        world.later(rng.randint(1, 400) * MS, self._create)
        world.later(rng.randint(300, 900) * MS, self._trim)

    @property
    def are_everywhere(self) -> bool:
        return self.before is not None

    def _create(self) -> None:
        for name, topic_filter in (EVERYTHING, TRIMMED):
            if name not in self._awaited:
                self._say(CATALOGUE_PRG, CreateStream(self._now_ms, name, [topic_filter]), name)
        self._look()
        if not self.are_everywhere:
            self._world.later(self._rng.randint(50, 300) * MS, self._create)

    def _look(self) -> None:
        if self.before is None and len(self._awaited) == 2 and self._are_taken():
            self.before = {each.name: each.next_number for each in self._world.publishers}

    def _say(self, group: int, command: Command, name: bytes | None = None) -> None:
        """Let the leader propose it, if there is one; nobody answers for it."""
        self._world.propose(group, encode_command(command), lambda reply: self._told(name, reply))

    def _told(self, name: bytes | None, reply: bytes | None) -> None:
        if name is None or not reply or name in self._awaited:
            return
        answer = msgspec.msgpack.decode(reply, type=StreamReply)
        if not answer.refused:  # a channel may be full while another partition is away
            self._awaited[name] = answer.awaited
            self._look()

    def _are_taken(self) -> bool:
        """Say whether every partition has taken both, as the catalogue's leader knows."""
        leader = self._world.leader(CATALOGUE_PRG)
        if leader is None or leader.replica is None:
            return False
        channels = _broker(leader).state.channels
        places = [place for awaited in self._awaited.values() for place in awaited]
        return all(channels.to(way).acked_through >= place for way, place in places)

    def _trim(self) -> None:
        group = self._rng.randrange(self._world.scenario.groups)
        leader = self._world.leader(group)
        if leader is not None and leader.replica is not None:
            stream = _broker(leader).state.streams.named(TRIMMED[0])
            if stream is not None:
                offset = self._rng.randint(stream.start_offset, stream.next_offset)
                self._say(group, TrimStreams(self._now_ms, [(stream.number, offset)]))
        self._world.later(self._rng.randint(200, 900) * MS, self._trim)

    @property
    def _now_ms(self) -> int:
        return self._world.now // MS


def _broker(seat: ReplicaDriver) -> Broker:
    machine = seat.running.machine
    assert isinstance(machine, Broker)
    return machine


def judge_captures(world: CapturingWorld) -> None:
    """Replicas hold the same; nothing acknowledged is missing, and of QoS 2 nothing is twice."""
    kept: Counter[tuple[str, int]] = Counter()
    for group in range(world.scenario.groups):
        seats = [node.seats[group] for node in world.nodes.values()]
        contents = [dict(_contents(seat)) for seat in seats]
        applied = {seat.running.applied_index for seat in seats}
        if len(applied) == 1 and any(each != contents[0] for each in contents):
            raise PromiseBroken(f"partition {group}: replicas keep different streams")
        name = EVERYTHING[0]
        for payload in contents[0].get(name, []):
            said_by, _, number_said = payload.decode().partition(":")
            kept[said_by, int(number_said)] += 1
    world.counts["captured"] = kept.total()
    for publisher in world.publishers:
        first = (world.captures.before or {}).get(publisher.name, 1 << 60)
        for number in publisher.acknowledged:
            count = kept[publisher.name, number]
            if number >= first and not count:
                raise PromiseBroken(f"no stream has {publisher.name}'s {number}")
            if count > 1 and publisher.qos == 2:
                raise PromiseBroken(f"a stream has {publisher.name}'s {number} {count} times")


def _contents(seat: ReplicaDriver) -> Iterator[tuple[bytes, list[bytes]]]:
    """Read every stream of a replica from its files, and compare it with what its state says."""
    streams = seat.running.streams
    broker = _broker(seat)
    assert streams is not None
    reader = StreamFileReader(seat.disk, seat.cluster.keys, streams.store.config)
    for stream in broker.state.streams:
        view = take_view(streams.store, stream.file_id)
        index, payloads = view.start_index, []
        if (index, view.readable_next) != (stream.start_offset, stream.next_offset):
            raise PromiseBroken(f"{seat.replica_id}: files of {stream.spec.name!r} end elsewhere")
        while chunks := reader.read(view, index, _READ_BYTES):
            for batch in (batch for chunk in chunks for batch in chunk.batches()):
                at = len(MQTT_RECORDS)
                for offset in range(batch.first_index, batch.first_index + batch.count):
                    message, at = decode_record(batch.payload, at)
                    if offset >= index:
                        payloads.append(message.payload)
                index = max(index, batch.first_index + batch.count)
        if index != view.readable_next:
            raise PromiseBroken(f"{seat.replica_id}: {stream.spec.name!r} ends at {index}")
        yield stream.spec.name, payloads
