"""Master policies (testing checklist 2): automatic hashing, fixed overrides, disabled mode."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from clustor.raft.types import ReplicaId
from clustor.streams import (
    Automatic,
    Disabled,
    FixedMaster,
    StreamPartitionId,
    choose_master,
)

members_sets = st.sets(st.integers(1, 2**64 - 1).map(ReplicaId), min_size=1, max_size=7)


def masters(members: set[ReplicaId], partitions: int = 300) -> list[ReplicaId | None]:
    return [choose_master(Automatic(), StreamPartitionId(at), members) for at in range(partitions)]


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
        assert choose_master(Automatic(), StreamPartitionId(partition), members) == winner


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
        partition = StreamPartitionId(5)
        assert choose_master(FixedMaster(ReplicaId(7)), partition, members) == 7
        assert choose_master(Disabled(), partition, members) is None
    assert choose_master(Automatic(), StreamPartitionId(5), []) is None
