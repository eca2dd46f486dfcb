"""Truncation and recovery (testing checklist 3 and 4), and what damage does."""

from __future__ import annotations

import pytest

from clustor.log.errors import ChecksumMismatch, LogError, MissingFile
from clustor.log.recovery import recover
from clustor.log.steps import Delete, FileName, Truncate, Write
from clustor.log.types import Entry, EntryKind, LogIndex, LogState, Term
from clustor.segmented import (
    Automatic,
    Compaction,
    EntryOutOfOrder,
    FindingKind,
    FixedSet,
    GroupRecovery,
    HoldReason,
    Majority,
    MetadataBehindLog,
    PartitionLogIndex,
    PolicyRegistry,
    ReplicaId,
    RetentionPolicy,
    SegmentedMisuse,
    StoredBatch,
    Threshold,
    TimestampMs,
    TopicPartitionId,
    plan_repair,
    recover_group,
    verify_partition,
)
from clustor.segmented.metadata import METADATA_FILE, STORE_FILE
from clustor.segmented.runs import RUN_HEAD_BYTES, part_file
from clustor.sim.disk import SimDisk
from tests.clustor.log.harness import MODE
from tests.clustor.segmented.harness import (
    ALONE,
    ME,
    SMALL,
    SMALL_LOG,
    World,
    append,
    batch,
    check_after_crash,
    checkpoint,
    compact,
    cut_log,
    finish,
    flush,
    held,
    keys_of,
    now,
    read_all,
    read_back,
    rotate_key,
    run,
    seal_log,
    start,
)

P, Q = TopicPartitionId(0), TopicPartitionId(1)
LONG = b"x" * 300


def restart(world: World, committed: int | None = None) -> GroupRecovery:
    """Recover on a copy of the disk, committed as far as given; nothing is carried out yet."""
    disk = world.disk.copy()
    opened = recover(disk, world.keys, SMALL_LOG, MODE)
    assert opened is not None
    disk.execute(opened.plan)
    found = recover_group(
        disk,
        world.keys,
        SMALL,
        opened.log,
        members=ALONE,
        registry=PolicyRegistry(),
        committed_index=LogIndex(opened.log.durable_index if committed is None else committed),
        now=5,
    )
    assert found is not None
    return found


# Truncation


def test_the_log_is_cut_up_to_what_every_partition_has_and_never_past_it() -> None:
    world = World.new()
    for nth in range(6):
        run(world, append(batch(nth % 2, LONG * 4)))
        run(world, seal_log())
    assert world.group.min_required_raft_index() == 1
    run(world, checkpoint(1))  # partition 0 alone; 1 needs the log from entry 2 on
    assert world.group.min_required_raft_index() == 2
    run(world, cut_log())
    assert world.log.entries.base_index == 1
    run(world, append(batch(2, b"c")))
    run(world, checkpoint(1))
    assert world.group.min_required_raft_index() == 7
    run(world, checkpoint())
    assert world.group.min_required_raft_index() == 8
    run(world, cut_log())
    assert world.log.entries.base_index == 6, "whole segments of the log go"
    check_after_crash(now(world))


def test_a_partition_without_its_quorum_holds_the_log_though_its_file_is_durable() -> None:
    world = World.new(partitions=1)
    other = ReplicaId(2)
    strict = {Q: (FixedSet(frozenset({ME, other})), Automatic())}
    world.carry_out(world.group.plan_members((ME, other)))
    world.carry_out(world.group.plan_define(strict))
    entries = [
        Entry(Term(1), LogIndex(nth), world.group.propose([batch(at, b"x")]))
        for nth, at in ((1, 0),)
    ]
    world.group.appended(entries, 50)
    second = Entry(Term(1), LogIndex(2), world.group.propose([batch(1, b"y")]))
    world.group.appended([second], 60)
    world.group.fsynced(ME, LogIndex(2))
    world.group.acknowledge_through(other, LogIndex(1))
    world.group.apply([*entries, second])
    world.carry_out(world.group.plan_checkpoint())
    assert world.group.min_required_raft_index() == 2
    (hold,) = world.group.holds()
    assert (hold.partition, hold.raft_index, hold.since) == (Q, 2, 60)
    assert hold.reason is HoldReason.QUORUM and hold.held_bytes == len(second.payload)
    assert world.group.readable_next(Q) == 0, "what is not on its quorum is not read"
    assert world.read(1) == []
    policies = {Q: RetentionPolicy(age_ms=0, size_bytes=0)}
    assert world.group.plan_retention(policies, TimestampMs(10**6)) is None
    run(world, rotate_key())
    third = Entry(Term(1), LogIndex(3), world.group.propose([batch(1, b"z")]))
    world.group.appended([third], 60)
    world.group.apply([third])
    world.carry_out(world.group.plan_checkpoint())  # closes the first file

    def compaction() -> Compaction | None:
        later = TimestampMs(10**6)
        return world.group.start_compaction(Q, keys_of, now=later, tombstone_ms=0)

    assert compaction() is None
    world.group.acknowledge(other, Q, PartitionLogIndex(0), PartitionLogIndex(0))
    assert compaction() is not None
    assert world.group.min_required_raft_index() == 3
    assert [at.payload for at in world.read(1)] == [b"y"]


def test_the_snapshot_floor_bounds_truncation_too() -> None:
    """C5: this room's bound is one of several, and no licence."""
    world = World.new()
    run(world, append(batch(0, b"a")))
    run(world, checkpoint())
    assert world.group.truncation_floor(LogIndex(1)) == 1
    assert world.group.truncation_floor(LogIndex(99)) == 2


def test_the_watermark_vouched_for_on_disk_is_never_ahead_of_a_partition() -> None:
    world = World.new()
    for nth in range(3):
        run(world, append(batch(nth, b"x")))
    vouched = []
    for _ in range(3):
        run(world, checkpoint(1))
        vouched.append(restart(world).replay_from - 1)
    assert vouched == [1, 2, 3]


def test_segmented_durable_index_strictly_increases() -> None:
    world = World.new()
    run(world, append(batch(0, b"a")))
    assert world.group.segmented_durable_index == 1
    for index in (0, 1, 2):
        with pytest.raises(SegmentedMisuse):
            world.group.fsynced(ME, LogIndex(index))


def test_a_suffix_that_raft_truncates_is_tracked_no_more() -> None:
    world = World.new()
    run(world, append(batch(0, b"a")))
    void = Entry(Term(1), LogIndex(2), world.group.propose([batch(0, b"void")]))
    world.group.appended([void], 0)
    world.group.fsynced(ME, LogIndex(2))
    world.group.truncated(LogIndex(2))
    assert world.group.segmented_durable_index == 1
    run(world, append(batch(0, b"b")))
    assert [at.payload for at in world.read(0)] == [b"a", b"b"]
    with pytest.raises(SegmentedMisuse):
        world.group.truncated(LogIndex(2))


def test_only_what_was_appended_is_applied_and_other_entries_are_passed_over() -> None:
    world = World.new()
    noop = Entry(Term(1), LogIndex(1), b"SGE1", EntryKind.NO_OP)
    with pytest.raises(SegmentedMisuse):
        world.group.apply([noop])
    world.group.appended([noop, Entry(Term(1), LogIndex(2), b"another command")], 0)
    world.group.apply([noop])
    assert world.group.min_required_raft_index() == 1, "nothing is vouched for yet"
    world.carry_out(world.group.plan_checkpoint())
    assert world.group.min_required_raft_index() == 2


# Recovery


def test_a_partial_flush_rolls_back_to_the_lowest_safe_raft_index() -> None:
    world = World.new()
    run(world, append(batch(0, b"a1"), batch(1, b"b1"), batch(2, b"c1")))  # raft 1
    run(world, checkpoint())
    run(world, append(batch(0, b"a2")))  # raft 2
    run(world, append(batch(1, b"b2"), batch(2, b"c2")))  # raft 3
    run(world, checkpoint(1))  # partition 0 only
    run(world, append(batch(0, b"a3"), batch(1, b"b3")))  # raft 4
    run(world, flush())  # everything is in the files now, and only that of 0 is vouched for
    recovery = restart(world)
    assert recovery.replay_from == 3, "the lowest raft index that a partition still needs"
    rolled = [at for at in recovery.findings if at.kind is FindingKind.ROLLED_BACK]
    assert len(rolled) == 3, "every file was written behind its checkpoint"
    log, found = start(now(world))
    after = finish(now(world), log, found)
    assert found.reapplied == [3, 4]
    assert after.contents == world.contents


def test_c18_what_the_ledger_proves_is_applied_again_and_never_dropped() -> None:
    world = World.new()
    for nth in range(4):
        run(world, append(batch(0, bytes([nth])), batch(1, bytes([nth]))))
    disk = world.disk.crash(world.disk.everything_kept())
    after = check_after_crash(now(world).crashed(disk))
    assert [at.payload for at in after.read(0)] == [bytes([nth]) for nth in range(4)]
    assert after.log.last_index == 4
    assert after.group.min_required_raft_index() == 1


def test_recovery_twice_is_recovery_once() -> None:
    world = World.new()
    run(world, append(batch(0, b"a"), batch(1, b"b")))
    run(world, checkpoint(1))
    run(world, append(batch(0, b"c")))
    first = check_after_crash(now(world))
    second = check_after_crash(now(first))
    assert first.contents == second.contents == world.contents
    run(second, checkpoint())
    third = check_after_crash(now(second))
    assert third.contents == world.contents


def test_what_is_proven_and_not_known_to_be_committed_is_kept_and_waits() -> None:
    world = World.new()
    for nth in range(3):
        run(world, append(batch(0, bytes([nth]))))
    recovery = restart(world, committed=1)
    recovery.replay()
    group = recovery.group
    assert group.store.files(0).next_index == 1
    assert group.min_required_raft_index() == 1
    waiting = Entry(Term(1), LogIndex(4), group.propose([batch(0, b"next")]))
    group.appended([waiting], 0)  # indices go on behind what waits
    group.truncated(LogIndex(2))  # and a new leader may still say otherwise
    assert group.propose([batch(0, b"other")])[16:24] == (1).to_bytes(8, "little")


def test_a_long_log_is_replayed_in_pieces() -> None:
    world = World.new(partitions=1)
    for nth in range(20):
        run(world, append(batch(0, bytes([nth]) * 100)))
    log, recovery = start(now(world))
    world.disk.execute(recovery.plan)
    pieces = 1
    while recovery.replay(bytes_max=300):
        plan = recovery.group.plan_flush()
        world.disk.execute(plan.steps)
        recovery.group.stored(plan.receipt)
        assert recovery.group.store.tail_bytes == 0
        pieces += 1
    recovery.group.acknowledge_through(ME, log.durable_index)
    assert pieces > 5
    assert read_back(world.disk, world.keys, recovery.group) == world.contents


def test_the_readable_end_does_not_go_back_over_a_restart() -> None:
    world = World.new(partitions=0)
    world.carry_out(world.group.plan_define({P: (Threshold(1), Automatic())}))
    world.contents = {0: ()}
    run(world, append(batch(0, b"a")))
    run(world, append(batch(0, b"b")))
    run(world, checkpoint())
    recovery = restart(world)
    recovery.replay()
    assert recovery.group.readable_next(P) == 2, "no replica has spoken yet, the metadata has"


def test_a_log_that_was_cut_further_than_the_metadata_vouches_for_is_refused() -> None:
    world = World.new()
    for _ in range(3):
        run(world, append(batch(0, LONG * 4)))
        run(world, seal_log())
    run(world, checkpoint())
    old = world.disk.read(METADATA_FILE, 0, world.disk.size(METADATA_FILE))
    run(world, append(batch(1, LONG * 4)))
    run(world, seal_log())
    run(world, checkpoint())
    run(world, cut_log())
    assert world.log.entries.base_index == 4
    # The last batch is lost, and looks like a torn one: nothing must be taken for the truth.
    world.disk.run_step(Truncate(METADATA_FILE, len(old)))
    with pytest.raises(MetadataBehindLog) as refused:
        restart(world)
    assert refused.value.facts == {"log_base": 4, "durable_raft_index": 3}


def test_a_gap_between_a_partition_and_the_log_is_refused() -> None:
    world = World.new(partitions=1)
    run(world, append(batch(0, b"a")))
    envelope = world.group.propose([batch(0, b"b")])
    ahead = envelope[:16] + (5).to_bytes(8, "little") + envelope[24:]
    plan = world.log.plan_append([Entry(Term(1), LogIndex(2), ahead)])
    world.disk.execute(plan.steps)
    with pytest.raises(EntryOutOfOrder):
        restart(world).replay()


@pytest.mark.parametrize("file", [METADATA_FILE, STORE_FILE])
def test_a_store_without_its_record_or_its_metadata_is_refused(file: FileName) -> None:
    world = World.new()
    run(world, append(batch(0, b"a")))
    run(world, checkpoint())
    world.disk.run_step(Delete(file))
    with pytest.raises(MissingFile):
        restart(world)


@pytest.mark.parametrize("file", [METADATA_FILE, STORE_FILE])
def test_a_damaged_record_or_metadata_is_refused_wherever_it_is(file: FileName) -> None:
    world = World.new()
    for nth in range(3):
        run(world, append(batch(0, bytes([nth]))))
        run(world, checkpoint())
    size = world.disk.size(file)
    for offset in range(0, size, 3):
        disk = world.disk.copy()
        disk.flip_bit(file, offset, offset % 8)
        hurt = now(world).crashed(disk)
        try:
            log, recovery = start(hurt)
        except ChecksumMismatch:
            continue
        # Only the end of the metadata can be taken for torn: the log makes up for that.
        assert file == METADATA_FILE and recovery.findings
        assert finish(hurt, log, recovery).contents == world.contents


def test_a_partition_file_that_is_gone_or_short_hurts_only_its_partition() -> None:
    world = World.new()
    for at in range(3):
        run(world, append(batch(at, LONG), batch(at, LONG)))
    run(world, checkpoint())
    gone = part_file(0, world.group.store.files(0).segments[0].file_seq)
    short = part_file(1, world.group.store.files(1).segments[0].file_seq)
    world.disk.execute((Delete(gone), Truncate(short, 200)))
    recovery = restart(world)
    recovery.replay()
    states = {at: damage.state for at, damage in recovery.damaged.items()}
    assert states == {P: LogState.QUARANTINED, Q: LogState.NEEDS_REPAIR}
    recovery.group.acknowledge_through(ME, LogIndex(3))
    disk = world.disk.copy()
    disk.execute(recovery.plan)
    assert disk.size(short) == 200, "nothing was changed"
    assert len(held(_read(disk, world, recovery, 2))) == 2
    with pytest.raises(LogError):
        _read(disk, world, recovery, 1)


def _read(disk: SimDisk, world: World, recovery: GroupRecovery, at: int) -> list[StoredBatch]:
    return read_all(disk, world.keys, recovery.group, at)


# Damage


def damaged_world(*, cut: bool) -> World:
    """Two files of a partition; with `cut` the log no longer holds what is in the first."""
    world = World.new(partitions=2)
    for nth in range(3):
        run(world, append(batch(0, bytes([65 + nth]) * 150)))
        run(world, seal_log())
    run(world, checkpoint())
    if cut:
        run(world, cut_log())
    for nth in range(3):
        run(world, append(batch(0, bytes([97 + nth]) * 150), batch(1, b"neighbour")))
    run(world, checkpoint())
    assert len(world.group.store.files(0).segments) == 2
    return world


@pytest.mark.parametrize("nth_file", [0, 1])
def test_every_flipped_bit_of_a_partition_file_is_found_and_classified(nth_file: int) -> None:
    world = damaged_world(cut=False)
    segment = world.group.store.files(0).segments[nth_file]
    file = part_file(0, segment.file_seq)
    view = world.group.view(P)
    assert verify_partition(world.disk, world.keys, SMALL, view) is None
    seen = set()
    for offset in range(0, segment.size_bytes, 7):
        disk = world.disk.copy()
        disk.flip_bit(file, offset, offset % 8)
        damage = verify_partition(disk, world.keys, SMALL, view)
        assert damage is not None, offset
        assert segment.first_index <= damage.first_index < segment.next_index
        seen.add(damage.state)
    assert seen == {LogState.NEEDS_REPAIR, LogState.QUARANTINED}


@pytest.mark.parametrize("nth_file", [0, 1])
@pytest.mark.parametrize("spot", [0, 80, 72 + RUN_HEAD_BYTES + 30, 500])
@pytest.mark.parametrize("cut", [False, True])
def test_what_the_log_still_proves_is_put_back_into_a_damaged_partition(
    nth_file: int, spot: int, cut: bool
) -> None:
    world = damaged_world(cut=cut)
    segment = world.group.store.files(0).segments[nth_file]
    world.disk.flip_bit(part_file(0, segment.file_seq), min(spot, segment.size_bytes - 1), 2)
    damage = verify_partition(world.disk, world.keys, SMALL, world.group.view(P))
    assert damage is not None
    plan = plan_repair(world.disk, world.keys, SMALL, world.log, damage)
    if cut and nth_file == 0:
        assert plan is None, "the log does not reach back, so nothing is touched"
        return
    assert plan is not None
    lost_raft_index = damage.first_index + 1  # each entry holds one batch of this partition
    for disk in world.disk.crash_points(plan):  # nor does a crash in the middle matter
        moment = now(world).crashed(disk.crash(disk.everything_kept()))
        log, recovery = start(moment)
        recovery.replay()
        assert recovery.group.store.files(1).next_index == 3
        assert recovery.group.store.files(0).next_index == 6
        assert log.last_index == world.log.last_index
    assert restart(world).replay_from == lost_raft_index, "nothing more is vouched for"
    after = check_after_crash(now(world))
    assert verify_partition(world.disk, world.keys, SMALL, after.group.view(P)) is None
    run(after, checkpoint())
    check_after_crash(now(after))


def test_a_run_that_was_moved_within_or_between_files_does_not_pass() -> None:
    world = World.new(partitions=1)
    for _ in range(2):
        run(world, append(batch(0, b"same" * 20)))
        run(world, checkpoint())
    (segment,) = world.group.store.files(0).segments
    file = part_file(0, segment.file_seq)
    whole = world.disk.read(file, 0, segment.size_bytes)
    run_bytes = (len(whole) - 72) // 2
    swapped = whole[:72] + whole[72 + run_bytes :] + whole[72 : 72 + run_bytes]
    world.disk.run_step(Write(file, 0, swapped))
    damage = verify_partition(world.disk, world.keys, SMALL, world.group.view(P))
    assert damage is not None and damage.state is LogState.QUARANTINED


def test_compaction_and_a_restart_leave_policies_as_they_were() -> None:
    world = World.new(partitions=1)
    wanted = {TopicPartitionId(8): (Majority(), Automatic())}
    world.carry_out(world.group.plan_define(wanted))
    world.contents[8] = ()
    for nth in range(8):
        run(world, append(batch(0, b"k=" + bytes([65 + nth]) * 200)))
    run(world, checkpoint())
    run(world, compact(0))
    after = check_after_crash(now(world))
    assert after.group.store.files(8).definition == world.group.store.files(8).definition
    assert after.group.store.files(0).clean_next == world.group.store.files(0).clean_next > 0
