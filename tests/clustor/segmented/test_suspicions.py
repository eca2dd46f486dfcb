"""What a hostile reader suspected: each of these once held, or would have cost somebody data."""

from __future__ import annotations

import pytest

from clustor.log.errors import MissingFile
from clustor.log.steps import Delete, FileName, Truncate
from clustor.log.types import DekEpoch, Entry, LogIndex, Term
from clustor.segmented import (
    Automatic,
    Custom,
    FindingKind,
    FixedSet,
    Majority,
    PartitionReader,
    PolicyRegistry,
    QuorumPolicy,
    ReplicaId,
    SegmentedConfig,
    SegmentedMisuse,
    Threshold,
    TimestampMs,
    TopicPartitionId,
    recover_group,
)
from clustor.segmented.envelope import encode_envelope
from clustor.segmented.metadata import (
    BODY_BYTES_MAX,
    STORE_FILE,
    Definition,
    PartitionChange,
    SegmentMeta,
    batches_of,
    encode_batch,
    read_metadata,
)
from clustor.segmented.recovery import GroupRecovery, open_store
from clustor.segmented.runs import PARTS_DIRECTORY, RUN_BYTES_MAX, index_file
from clustor.segmented.types import PartitionLogIndex
from tests.clustor.segmented.harness import (
    ALONE,
    ME,
    SMALL,
    World,
    append,
    batch,
    check_after_crash,
    checkpoint,
    compact,
    cut_log,
    flush,
    keys_of,
    now,
    read_all,
    run,
    seal_log,
)
from tests.clustor.segmented.test_quorum import tracker as tracker_of

P = TopicPartitionId(0)
LONG = b"x" * 300


def recovered(world: World, config: SegmentedConfig = SMALL, committed: int = 0) -> GroupRecovery:
    found = recover_group(
        world.disk,
        world.keys,
        config,
        world.log,
        members=ALONE,
        registry=PolicyRegistry(),
        committed_index=LogIndex(committed or world.log.durable_index),
        now=0,
    )
    assert found is not None
    world.disk.execute(found.plan)
    return found


def test_files_of_a_larger_configuration_are_compacted_into_many_small_ones() -> None:
    world = World.new(partitions=1, config=SegmentedConfig())
    run(world, append(*(batch(0, b"k%d=" % nth + LONG) for nth in range(60))))
    run(world, checkpoint())
    world.keys.add_dek(DekEpoch(2), b"2" * 32)
    run(world, append(batch(0, b"last=1")))
    run(world, checkpoint())
    found = recovered(world)
    found.replay()
    world.group = found.group
    before = held_payloads(world)
    run(world, compact(0))
    assert len(world.disk.names(PARTS_DIRECTORY)) > 2 * 10
    assert held_payloads(world) == before


def held_payloads(world: World) -> list[bytes]:
    world.group.acknowledge_through(ME, world.log.durable_index)
    return [at.payload for at in read_all(world.disk, world.keys, world.group, 0)]


def test_a_store_whose_record_is_gone_is_refused_even_before_it_has_a_file() -> None:
    world = World.new(partitions=1)
    assert world.disk.names(PARTS_DIRECTORY) == []
    world.disk.execute((Delete(STORE_FILE),))
    with pytest.raises(MissingFile):
        open_store(world.disk, world.keys, SMALL)


def test_a_run_is_never_longer_than_a_reader_takes() -> None:
    SegmentedConfig(run_bytes=RUN_BYTES_MAX)
    with pytest.raises(SegmentedMisuse):
        SegmentedConfig(run_bytes=RUN_BYTES_MAX + 1)


def test_what_a_replica_said_of_single_entries_is_forgotten_when_it_leaves() -> None:
    """Back again it may have lost its disk, exactly as with what it said of the whole log."""
    tracker = tracker_of((P, Majority()))
    tracker.appended(1, [(0, 0, 1, 1, 0)], 1, 0)
    three = ReplicaId(3)
    tracker.acknowledge(three, P, PartitionLogIndex(0), PartitionLogIndex(0))
    tracker.set_members([ReplicaId(1), ReplicaId(2)])
    tracker.set_members([ReplicaId(1), ReplicaId(2), three])
    tracker.acknowledge_through(ReplicaId(1), 1)
    assert tracker.quorum_next(0) == 0, "one of three is no majority"
    tracker.acknowledge(three, P, PartitionLogIndex(0), PartitionLogIndex(0))
    assert tracker.quorum_next(0) == 1


def test_entries_that_replace_uncommitted_ones_in_a_log_behind_its_partitions() -> None:
    """Though a weak policy was content with what is void now."""
    tracker = tracker_of(members=ALONE)
    tracker.define(P, Threshold(1), 7, 7)
    tracker.start_behind(3)
    tracker.expect_again(9)
    tracker.appended(4, [(0, 5, 1, 1, 0)], 1, 0)
    tracker.acknowledge_through(ME, 4)
    assert tracker.min_required() is None
    tracker.cut(4)
    tracker.appended(4, [(0, 4, 1, 1, 0)], 1, 0)
    tracker.appended(5, [(0, 5, 2, 1, 0)], 1, 0)
    assert tracker.partition(0).next_index == 7


def test_what_was_not_replayed_yet_is_not_cut_away() -> None:
    world = World.new(partitions=2)
    for nth in range(8):
        run(world, append(batch(nth % 2, LONG * 3)))
    run(world, checkpoint())
    found = recovered(world)
    assert found.group.min_required_raft_index() == 1
    while found.replay(bytes_max=0):
        assert found.group.min_required_raft_index() <= found.group._tracker.last_index + 1
    found.group.acknowledge_through(ME, world.log.durable_index)
    assert found.group.min_required_raft_index() == world.log.durable_index + 1


def test_a_compaction_whose_key_was_zeroized_meanwhile_is_not_committed() -> None:
    world = World.new(partitions=1)
    run(world, append(*(batch(0, b"a=%d" % nth + LONG) for nth in range(8))))
    run(world, checkpoint())
    world.keys.add_dek(DekEpoch(2), b"2" * 32)
    job = world.group.start_compaction(P, keys_of, now=TimestampMs(0), tombstone_ms=0)
    assert job is not None
    for steps in job.plans(PartitionReader(world.disk, world.keys, SMALL)):
        world.disk.execute(steps)
    world.keys.add_dek(DekEpoch(3), b"3" * 32)
    assert 2 not in world.group.store.dek_epochs(), "so an operator may zeroize it"
    world.keys.zeroize_dek(DekEpoch(2))
    before = held_payloads(world)
    assert job.plan_commit() is None
    world.disk.execute(job.plan_abandon())
    assert held_payloads(world) == before


def test_the_index_of_a_file_that_is_written_on_is_done_without() -> None:
    """It was written when the file was closed, by a plan that power was lost behind."""
    world = World.new(partitions=1)
    run(world, append(batch(0, LONG)))
    run(world, checkpoint())
    last = world.group.store.files(0).segments[-1]
    name = index_file(0, last.file_seq)
    run(world, append(batch(0, LONG), batch(0, LONG)))
    run(world, flush())  # closes the file, and nothing commits that
    assert name.rpartition("/")[2] in world.disk.names(PARTS_DIRECTORY)
    found = recovered(world)
    assert name.rpartition("/")[2] not in world.disk.names(PARTS_DIRECTORY)
    assert (FindingKind.LEFTOVER_REMOVED, str(name)) in [
        (finding.kind, finding.detail) for finding in found.findings
    ]


def test_a_metadata_batch_is_never_longer_than_a_reader_takes() -> None:
    definition = Definition.of(Majority(), Automatic(), ME)
    many = tuple(SegmentMeta(2**40 + at, 2**40, 2**40, 2**40, 2**40, 9) for at in range(30_000))
    changes = [PartitionChange(at, 0, 0, 0, 0, many, (), definition) for at in range(60)]
    batches = list(batches_of(0, 1, 2, changes))
    assert max(map(len, batches)) < BODY_BYTES_MAX
    image = read_metadata(b"".join(batches))
    assert len(image.partitions) == 60 and not image.torn
    huge = [PartitionChange(1, 0, 0, 0, 0, many * 60)]
    with pytest.raises(SegmentedMisuse):
        encode_batch(0, 0, huge)


def test_a_follower_takes_batches_that_were_on_their_way_when_their_partition_was_removed() -> None:
    world = World.new(partitions=2)
    on_its_way = world.group.propose([batch(1, b"late"), batch(0, b"in time")])
    world.carry_out(world.group.plan_remove(TopicPartitionId(1)))
    entry = Entry(Term(1), LogIndex(1), on_its_way)
    world.group.appended([entry], 0)
    world.group.fsynced(ME, LogIndex(1))
    world.group.apply([entry])
    assert [at.payload for at in world.read(0)] == [b"in time"]
    assert world.group.min_required_raft_index() == 1
    world.carry_out(world.group.plan_checkpoint())
    assert world.group.min_required_raft_index() == 2


def test_a_start_stops_before_batches_whose_partition_is_not_defined_yet() -> None:
    """The log took them; the command that defines their partition was not applied before."""
    world = World.new(partitions=1)
    run(world, append(batch(0, b"a")))
    early = Entry(Term(1), LogIndex(2), encode_envelope([batch(7, b"early")], [0]))
    later = Entry(Term(1), LogIndex(3), encode_envelope([batch(0, b"b")], [1]))
    for entry in (early, later):
        planned = world.log.plan_append([entry])
        world.disk.execute(planned.steps)
        world.log.stored(planned.receipt)
    found = recovered(world)
    assert not found.replay()
    assert found.stopped_before == 2
    group = found.group
    assert group.applied_index == 1 and group.min_required_raft_index() <= 2
    defined = group.plan_define({TopicPartitionId(7): (Majority(), Automatic())})
    world.disk.execute(defined.steps)
    group.stored(defined.receipt)
    for entry in (early, later):
        group.appended([entry], 0)
        group.apply([entry])
    group.acknowledge_through(ME, world.log.durable_index)
    assert [at.payload for at in read_all(world.disk, world.keys, group, 7)] == [b"early"]
    assert [at.payload for at in read_all(world.disk, world.keys, group, 0)] == [b"a", b"b"]


def test_memory_of_a_removed_partition_is_given_back() -> None:
    world = World.new(partitions=2)
    run(world, append(batch(0, LONG), batch(1, b"1")))
    world.carry_out(world.group.plan_remove(P))
    assert world.group.store.tail_bytes == 1 + 24
    run(world, flush())
    assert world.group.store.tail_bytes == 0


def test_a_short_last_file_does_not_condemn_those_before_it() -> None:
    world = World.new(partitions=1)
    for nth in range(6):
        run(world, append(batch(0, bytes([nth]) * 300)))
        run(world, checkpoint())
    segments = world.group.store.files(0).segments
    assert len(segments) > 1
    name = FileName(f"{PARTS_DIRECTORY}/{0:016x}-{segments[-1].file_seq:016x}.seg")
    world.disk.execute((Truncate(name, 100),))
    found = recovered(world)
    assert found.damaged[P].first_index == segments[-1].first_index


def test_a_crash_leaves_the_log_where_a_partition_needs_it_even_in_the_middle_of_a_replay() -> None:
    world = World.new()
    for nth in range(6):
        run(world, append(batch(nth % 3, LONG * 4)))
        run(world, seal_log())
    run(world, checkpoint())
    found = recovered(world)
    found.replay(bytes_max=0)
    world.group = found.group
    run(world, cut_log())
    found.replay()
    found.group.acknowledge_through(ME, world.log.durable_index)
    check_after_crash(now(world))


def test_a_replica_that_does_not_lead_may_let_its_log_go() -> None:
    """It hears of no acknowledgements but its own; that Raft committed is enough for most."""
    policies: list[tuple[TopicPartitionId, QuorumPolicy]] = [
        (TopicPartitionId(0), Majority()),
        (TopicPartitionId(1), Threshold(2)),
        (TopicPartitionId(2), Threshold(3)),
        (TopicPartitionId(3), FixedSet(frozenset({ReplicaId(1)}))),
        (TopicPartitionId(4), Custom("both ends")),
    ]
    tracker = tracker_of(*policies)
    for index in (1, 2, 3):
        tracker.appended(index, [(at, index - 1, 1, 1, 0) for at in range(5)], 5, 0)
    for at in range(5):
        tracker.durable(TopicPartitionId(at), 3)
    tracker.committed(2)
    assert [tracker.quorum_next(at) for at in range(5)] == [2, 2, 0, 0, 0]
    assert tracker.min_required() == 1
    for stricter in (2, 3, 4):
        tracker.forget(TopicPartitionId(stricter))
    assert tracker.min_required() == 3
    tracker.committed(10)
    assert tracker.min_required() is None
    tracker.appended(4, [(0, 3, 1, 1, 0)], 1, 0)
    assert tracker.quorum_next(0) == 3, "what came behind our end was not ours"
    tracker.define(TopicPartitionId(9), Threshold(1), 0, 0)
    tracker.appended(5, [(9, 0, 1, 1, 0)], 1, 0)
    tracker.committed(5)
    tracker.cut(5)
    tracker.appended(5, [(9, 0, 1, 1, 0)], 1, 0)
    tracker.committed(4)
    assert tracker.quorum_next(9) == 0
