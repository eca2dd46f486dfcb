"""Files are written anew with less in them: crashes leave the old or the new, never a mixture."""

from __future__ import annotations

from random import Random

import pytest

from clustor.log.steps import Plan
from clustor.sim.disk import SimDisk
from clustor.streams import StreamRemove, StreamTrim, open_store, take_view, verify_stream
from clustor.streams.metadata import CompactionMark, SegmentMeta
from clustor.streams.piece import BatchPiece
from clustor.streams.reader import StreamFileReader
from clustor.streams.rewriting import StreamRewrite, begin_rewrite
from clustor.streams.runs import ROW
from tests.clustor.streams.world import Held, World, held

PART = 7


def filled(rng: Random, batches: int = 60) -> World:
    world = World(reorder=True)
    world.define(PART)
    for number in range(batches):
        world.append(PART, b"%d." % number * rng.choice((1, 5, 20)), rng.randint(1, 3), number)
    world.carry_out(world.store.plan_checkpoint())
    return world


def begun(world: World) -> StreamRewrite:
    found = begin_rewrite(world.store, PART)
    assert found is not None
    world.disk.execute(found[0])
    return found[1]


def left(world: World, segment: SegmentMeta, keeps: int) -> BatchPiece:
    """Every so many-th batch of a file."""
    reader = StreamFileReader(world.disk, world.keys, world.config)
    piece = BatchPiece()
    for chunk in reader.segment_chunks(take_view(world.store, PART), segment):
        for batch in chunk.batches():
            if batch.first_index % keeps == 0:
                facts = (batch.first_index, batch.count, len(batch.payload), batch.timestamp)
                piece.add_row(ROW.pack(*facts), batch.payload)
    return piece


def written(world: World, rewriting: StreamRewrite, segment: SegmentMeta, keeps: int) -> Plan:
    piece = left(world, segment, keeps)
    return rewriting.write(piece) if piece else ()


def rewrite(world: World, keeps: int, mark: CompactionMark) -> None:
    rewriting = begun(world)
    for segment in rewriting.segments:
        world.disk.execute(written(world, rewriting, segment, keeps))
    plan = rewriting.finish(mark)
    assert plan is not None
    world.carry_out(plan)


def thinned(world: World, keeps: int, until: int) -> Held:
    batches = world.twin.batches[PART]
    start = world.twin.starts[PART]
    stays = [
        data
        for first, count, data in batches
        if first + count > start and (first >= until or first % keeps == 0)
    ]
    return {PART: (start, world.twin.next_of(PART), stays)}


@pytest.mark.parametrize("seed", range(8))
def test_power_fails_anywhere_in_a_rewrite(seed: int) -> None:
    rng = Random(seed)
    world = filled(rng)
    rewriting = begun(world)
    end = world.twin.next_of(PART)
    whole = world.twin.held()
    for number in range(10):  # goes on meanwhile, in a file of its own
        world.append(PART, b"later %d" % number)
    after = thinned(world, 3, end)
    for segment in rewriting.segments:
        steps = written(world, rewriting, segment, 3)
        for moment in world.disk.crash_points(steps):
            assert opened(world, moment.random_crash(rng))[1] == whole
    plan = rewriting.finish((end, 0))
    assert plan is not None
    seen = set()
    for moment in world.disk.crash_points(plan.steps):
        mark, found = opened(world, moment.random_crash(rng))
        assert found == (after if mark == (end, 0) else whole)
        seen.add(mark)
    assert seen == {(0, 0), (end, 0)}
    world.store.stored(plan.receipt)
    assert world.store.files(PART).compacted == (end, 0)
    assert world.held() == after
    assert verify_stream(world.disk, world.keys, world.config, take_view(world.store, PART)) is None


def opened(world: World, disk: SimDisk) -> tuple[CompactionMark, Held]:
    found = open_store(disk, world.keys, world.config)
    assert found is not None and not found.damaged, found
    disk.execute(found.plan)
    names = {name for name in disk.names("streams/parts") if name.endswith(".seg")}
    files = found.store.files(PART)
    assert len(names) == len(files.segments), "nothing is left over, nothing is gone"
    return files.compacted, held(disk, world.keys, found.store)


def test_every_index_is_found_from_gaps_too() -> None:
    world = filled(Random(1))
    rewrite(world, 4, (world.twin.next_of(PART), 0))
    kept = [first for first, _, _ in world.twin.batches[PART] if first % 4 == 0]
    reader = StreamFileReader(world.disk, world.keys, world.config)
    for index in range(world.twin.next_of(PART)):
        chunks = reader.read(take_view(world.store, PART, index, 1), index, 1)
        wanted = next((at for at in kept if at + 3 > index and at_end(world, at) > index), None)
        assert (chunks[0].first_index if chunks else None) == wanted


def at_end(world: World, first: int) -> int:
    return next(at + count for at, count, _ in world.twin.batches[PART] if at == first)


def test_a_file_that_is_kept_is_not_written_again() -> None:
    world = filled(Random(2))
    rewriting = begun(world)
    before = rewriting.segments
    for nth, segment in enumerate(before):
        steps = rewriting.keep(segment) if nth % 2 else written(world, rewriting, segment, 2)
        world.disk.execute(steps)
    plan = rewriting.finish((9, 9))
    assert plan is not None
    world.carry_out(plan)
    now = world.store.files(PART).segments
    assert [at for at in now if at in before] == list(before[1::2])
    firsts = [at.first_index for at in now]
    assert firsts == sorted(firsts)


def test_a_trim_and_a_removal_meanwhile_are_respected() -> None:
    world = filled(Random(3))
    rewriting = begun(world)
    for segment in rewriting.segments:
        world.disk.execute(written(world, rewriting, segment, 1))
    start = world.twin.next_of(PART) // 2
    world.take(StreamTrim(PART, start))
    world.carry_out(world.store.plan_checkpoint())
    plan = rewriting.finish((5, 0))
    assert plan is not None
    world.carry_out(plan)
    assert world.held() == world.twin.held()

    again = begun(world)
    world.disk.execute(written(world, again, again.segments[0], 1))
    world.take(StreamRemove(PART))
    assert again.finish((6, 0)) is None
    world.disk.execute(again.abandon())
    world.carry_out(world.store.plan_checkpoint())
    assert not [name for name in world.disk.names("streams/parts") if name.endswith(".seg")]


def test_the_mark_is_in_the_metadata_and_survives_its_rewrite() -> None:
    world = filled(Random(4))
    rewrite(world, 2, (30, 12))
    for number in range(40):
        world.append(PART, b"%d" % number)
        world.carry_out(world.store.plan_checkpoint())
    assert opened(world, world.disk.copy())[0] == (30, 12)
