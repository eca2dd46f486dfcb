"""A replica that lacks data fetches it from a peer whose files are compacted."""

from __future__ import annotations

from random import Random

import pytest

from clustor.replica.stream_fetch import ReadStreams, StreamFetch, parts_of
from clustor.replica.streams import ReplicaStreams
from clustor.replica.transfer import StreamPiece, StreamsSent, StreamsWanted
from clustor.streams import PolicyRegistry, StreamExtent
from tests.clustor.streams.test_rewriting import PART, filled, rewrite
from tests.clustor.streams.world import World, held


class Receiver:
    """A replica's streams that ask a source until they have all, or give up."""

    def __init__(self, source: World, world: World) -> None:
        self.world = world
        self.source = source
        self.damage: list[str] = []
        self.done = self.failed = False
        self.wanted: list[StreamsWanted] = []
        streams = ReplicaStreams(world.store, PolicyRegistry(), self.damage.append)
        self.fetch = StreamFetch(
            streams,
            len(source.changes),
            self.wanted.append,
            lambda: None,
            lambda: setattr(self, "failed", True),
        )

    def run(self) -> None:
        files = self.source.store.files(PART)
        self.fetch.begin([StreamExtent(PART, files.start_index, files.next_index)], 0)
        while self.wanted and self.fetch.missing and not self.failed:
            self.answer(self.wanted.pop(0))

    def answer(self, wanted: StreamsWanted) -> None:
        source = self.source
        job = ReadStreams(parts_of(source.store, wanted), source.keys, source.config, 400)
        pieces: tuple[StreamPiece, ...] = job.run(source.disk)
        self.fetch.on_sent(StreamsSent(wanted.base_index, pieces), 0)


def started(source: World, batches: int) -> World:
    """A store that has the first batches of a source, as they were appended."""
    world = World()
    for change in source.changes[: batches + 1]:
        world.take(change)
    world.carry_out(world.store.plan_checkpoint())
    return world


@pytest.mark.parametrize("batches", [0, 1, 25, 59])
def test_gaps_come_as_gaps_and_the_own_beginning_stays(batches: int) -> None:
    source = filled(Random(batches))
    end = source.twin.next_of(PART)
    rewrite(source, 3, (end, 0))
    world = started(source, batches)
    own = world.held()[PART][2] if batches else []
    receiver = Receiver(source, world)
    receiver.run()
    assert not receiver.damage and not receiver.failed and not receiver.fetch.missing
    found = held(world.disk, world.keys, world.store)[PART]
    behind = [data for first, _, data in source.twin.batches[PART][batches:] if first % 3 == 0]
    assert found == (0, end, own + behind)
    assert world.store.files(PART).compacted == ((0, 0) if batches else (end, 0))


def test_a_purged_source_is_not_joined_to_an_older_beginning() -> None:
    source = filled(Random(5))
    end = source.twin.next_of(PART)
    rewrite(source, 3, (end, end))
    receiver = Receiver(source, started(source, 20))
    receiver.run()
    assert receiver.failed and receiver.damage == ["partition 7 lacks what a peer has compacted"]
    alone = Receiver(source, World())
    alone.run()
    assert not alone.failed
    assert alone.world.store.files(PART).compacted == (end, end)


def test_what_was_purged_before_the_own_end_harms_nobody() -> None:
    source = filled(Random(6))
    rewrite(source, 1, (12, 12))
    world = started(source, 30)
    receiver = Receiver(source, world)
    receiver.run()
    assert not receiver.failed and not receiver.damage
    assert world.held() == source.twin.held()


def test_a_gap_that_nothing_explains_is_refused() -> None:
    source = filled(Random(7))
    world = started(source, 10)
    receiver = Receiver(source, world)
    files = source.store.files(PART)
    receiver.fetch.begin([StreamExtent(PART, 0, files.next_index)], 0)
    wanted = receiver.wanted.pop()
    later = StreamsWanted(wanted.base_index, ((PART, 60, wanted.wants[0][2]),), wanted.bytes_max)
    receiver.answer(later)
    assert receiver.failed and not receiver.damage
