"""Readers of topics in the simulated broker: they follow leaders, and remember what they got."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from clustor.sim.errors import PromiseBroken
from quantum.broker.streams import StreamRefusal
from quantum.mesh.topic_views import FetchedBatch, ReadOutcome, TopicView
from quantum.mesh.topics import TenantTopics
from quantum.protocols.kafka.codec import MarkerKind, iterate_records, read_header, read_marker
from quantum.sim.topic_clients import MIRROR, PARTITIONS, PLAIN, TRIMMED, TopicClient, TopicsWorld

_R = StreamRefusal


def values_of(batch: FetchedBatch) -> Iterator[tuple[int, str]]:
    """Walk (offset, value) of a batch of data."""
    for record in iterate_records(batch.data):
        assert record.value is not None
        yield record.offset, record.value.decode()


class TopicReader(TopicClient):
    """Follows every partition at its leader, and remembers all that it was given."""

    def __init__(self, world: TopicsWorld, rng: Random) -> None:
        super().__init__(world, rng)
        self.positions: dict[tuple[str, int], int] = {}
        self._epochs: dict[tuple[str, int], int] = {}
        self.starts: dict[tuple[str, int], int] = {}
        self.seen: dict[tuple[str, int, int], str] = {}
        """What was read at each offset, committed or not."""
        self.committed: list[tuple[int, int, str]] = []
        """Partition, offset and value of what a reader of `mirror` with read_committed gets."""
        self._stable: dict[int, int] = {}

    def step(self) -> None:
        place = (self.rng.choice((PLAIN, MIRROR, TRIMMED)), self.rng.randrange(PARTITIONS))
        led = self.world.led_topics(*place)
        if led is None or led[0].leader(led[1].prgs[place[1]]).epoch < self._epochs.get(place, 0):
            self.again()
            return
        topics, topic = led
        self._epochs[place] = topics.leader(topic.prgs[place[1]]).epoch
        at = self.positions.get(place, 0)

        def read(outcome: ReadOutcome | None) -> None:
            if outcome is not None:
                self._take(place, at, outcome)
                self._take_committed(topics, topic, place, at, outcome)
            self.again()

        bytes_max = self.rng.choice((1, 300, 4_000))
        self.ask(topics, lambda t, done: t.read(topic, place[1], at, bytes_max, done), read)

    def _take(self, place: tuple[str, int], at: int, outcome: ReadOutcome) -> None:
        if outcome.refusal is _R.TOPIC_UNKNOWN:
            return
        if outcome.start < self.starts.get(place, 0):
            raise PromiseBroken(f"{place}: the start goes back to {outcome.start}")
        self.starts[place] = outcome.start
        if outcome.refusal is _R.OFFSET_OUT_OF_RANGE:
            if at >= outcome.start:
                raise PromiseBroken(f"{place}: {at} is not there any more: {outcome}")
            self.positions[place] = outcome.start
            return
        for batch in outcome.batches:
            if not batch.base_offset <= at < batch.base_offset + batch.count:
                raise PromiseBroken(f"{place}: {batch.base_offset} came for {at}")
            at = batch.base_offset + batch.count
            if not read_header(batch.data).is_control:
                for offset, value in values_of(batch):
                    self.seen[*place, offset] = value
        self.positions[place] = at

    def _take_committed(
        self,
        topics: TenantTopics,
        topic: TopicView,
        place: tuple[str, int],
        at: int,
        outcome: ReadOutcome,
    ) -> None:
        """Read as stock consumers do: up to the last stable offset, without what was aborted."""
        if place[0] != MIRROR or not outcome.batches:
            return
        waiting = sorted(
            topics.aborted(topic, place[1], at, outcome.last_stable), key=lambda r: r.first_offset
        )
        gone: set[int] = set()
        for batch in outcome.batches:
            if batch.base_offset >= outcome.last_stable:
                self.positions[place] = batch.base_offset  # it is read again when it is decided
                return
            while waiting and waiting[0].first_offset <= batch.base_offset:
                gone.add(waiting.pop(0).producer_id)
            header = read_header(batch.data)
            if header.is_control:
                if read_marker(batch.data).kind is MarkerKind.ABORT:
                    gone.discard(header.producer_id)
            elif header.producer_id not in gone:
                self.committed += [(place[1], *each) for each in values_of(batch)]
