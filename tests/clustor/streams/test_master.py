"""Master policies (testing checklist 2): automatic hashing, fixed overrides, disabled mode."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from clustor.segmented import (
    Automatic,
    Disabled,
    Fixed,
    Majority,
    MasterPolicy,
    QuorumPolicy,
    ReplicaId,
    TopicPartitionId,
    choose_master,
)
from tests.clustor.segmented.harness import ALONE, World, check_after_crash, now

members_sets = st.sets(st.integers(1, 2**64 - 1).map(ReplicaId), min_size=1, max_size=7)


def masters(members: set[ReplicaId], partitions: int = 300) -> list[ReplicaId | None]:
    return [choose_master(Automatic(), TopicPartitionId(at), members) for at in range(partitions)]


def test_the_highest_draw_of_the_documented_bytes_wins() -> None:
    members = [ReplicaId(at) for at in (3, 1, 2)]
    for partition in range(50):
        draws = {
            replica: xxh3_64_intdigest(
                partition.to_bytes(8, "little") + replica.to_bytes(8, "little")
            )
            for replica in members
        }
        winner = max(draws, key=lambda replica: draws[replica])
        assert choose_master(Automatic(), TopicPartitionId(partition), members) == winner


@given(members_sets, st.integers(1, 2**64 - 1).map(ReplicaId))
def test_a_change_of_membership_moves_only_what_it_must(
    members: set[ReplicaId], joining: ReplicaId
) -> None:
    before, after = masters(members - {joining}), masters(members | {joining})
    for old, new in zip(before, after, strict=True):
        assert new in (old, joining)


def test_partitions_spread_over_the_members() -> None:
    chosen = masters({ReplicaId(at) for at in range(1, 6)}, partitions=5000)
    shares = sorted(chosen.count(ReplicaId(at)) for at in range(1, 6))
    assert shares[0] > 850 and shares[-1] < 1150


def test_a_fixed_master_stays_and_a_disabled_one_is_nobody() -> None:
    for members in ([], [ReplicaId(1)], [ReplicaId(7)]):
        partition = TopicPartitionId(5)
        assert choose_master(Fixed(ReplicaId(7)), partition, members) == 7
        assert choose_master(Disabled(), partition, members) is None
    assert choose_master(Automatic(), TopicPartitionId(5), []) is None


def test_masters_are_found_again_after_a_restart_and_follow_the_membership() -> None:
    world = World.new(partitions=0)
    policies: dict[int, MasterPolicy] = {
        0: Automatic(),
        1: Fixed(ReplicaId(7)),
        2: Disabled(),
        3: Automatic(),
    }
    wanted: dict[TopicPartitionId, tuple[QuorumPolicy, MasterPolicy]] = {
        TopicPartitionId(at): (Majority(), policy) for at, policy in policies.items()
    }
    world.carry_out(world.group.plan_define(wanted))
    world.contents = dict.fromkeys(policies, ())
    assert [world.group.master(at) for at in wanted] == [ALONE[0], 7, None, ALONE[0]]
    crowd = {ReplicaId(at) for at in range(20, 40)}
    world.carry_out(world.group.plan_members(crowd))
    moved = [world.group.master(at) for at in wanted]
    assert moved[0] in crowd and moved[3] in crowd and moved[1:3] == [7, None]
    assert world.group.plan_members(crowd) is None, "nothing moves twice"
    again = check_after_crash(now(world))
    assert [again.group.master(at) for at in wanted] == moved
