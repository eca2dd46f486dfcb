"""The copy: folded from a replica, younger only by a confirmation, and kept on disk."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from clustor.control import ClockReading
from clustor.control.draft import scan_records
from clustor.kv import Key, KvLimits, KvMachine, StoreId
from clustor.log.types import PartitionId
from clustor.raft.control_plane import CacheState
from clustor.raft.profiles import ControlPlaneNumbers
from clustor.runtime.control.cache_file import COPY_FILE, NodeCopy

NUMBERS = ControlPlaneNumbers(cache_fresh_ms=1_000, cache_grace_ms=10_000)
STORE = StoreId(b"0123456789abcdef")


def at(ms: int) -> ClockReading:
    return ClockReading(ms, 1_700_000_000_000 + ms)


def store(writes: int, limits: KvLimits | None = None) -> KvMachine:
    made = KvMachine(STORE, limits)
    for number in range(writes):
        write(made, number)
    return made


def write(made: KvMachine, number: int) -> None:
    made.change({Key(b"node/%020d" % number): b"v"}, number)


def test_what_is_folded_makes_nothing_younger_until_it_is_confirmed(tmp_path: Path) -> None:
    copy = NodeCopy(tmp_path, NUMBERS, at(0))
    copy.fold(store(3), at(100))
    assert copy.cache.get(Key(b"node/%020d" % 2)) is not None
    assert copy.cache.age_ms(at(100)) is None
    copy.confirm(at(50), 3)
    assert copy.fold(store(3), at(120)).all
    assert copy.cache.age_ms(at(150)) == 100


def test_a_confirmation_waits_for_the_replica_that_is_behind(tmp_path: Path) -> None:
    copy = NodeCopy(tmp_path, NUMBERS, at(0))
    behind = store(3)
    copy.fold(behind, at(0))
    copy.confirm(at(10), 5)
    copy.fold(behind, at(20))
    assert copy.cache.age_ms(at(20)) is None
    write(behind, 3)
    copy.fold(behind, at(30))
    assert copy.cache.age_ms(at(30)) is None
    write(behind, 4)
    copy.fold(behind, at(40))
    assert copy.cache.age_ms(at(40)) == 30
    assert not copy.awaits_confirmation


def test_a_history_that_was_compacted_is_listed(tmp_path: Path) -> None:
    copy = NodeCopy(tmp_path, NUMBERS, at(0))
    replica = store(3, KvLimits(events_max=4))
    copy.fold(replica, at(0))
    for number in range(3, 40):
        write(replica, number)
    copy.confirm(at(10), 40)
    assert copy.fold(replica, at(20)).more
    assert copy.fold(replica, at(20)).all
    assert copy.cache.get(Key(b"node/%020d" % 20)) is not None
    assert copy.cache.age_ms(at(20)) == 10


def test_a_store_that_is_confirmed_and_behind_the_copy_is_listed_anew(tmp_path: Path) -> None:
    copy = NodeCopy(tmp_path, NUMBERS, at(0))
    copy.fold(store(9), at(0))
    restored = store(4)
    assert not copy.fold(restored, at(5)).more  # unconfirmed it is only a replica that is behind
    copy.confirm(at(10), 4)
    assert copy.fold(restored, at(20)).more
    copy.fold(restored, at(20))
    assert copy.cache.get(Key(b"node/%020d" % 7)) is None
    assert copy.cache.age_ms(at(20)) == 10


async def test_a_copy_outlives_the_process_and_is_as_old_as_the_clock_says(tmp_path: Path) -> None:
    copy = NodeCopy(tmp_path, NUMBERS, at(0))
    copy.confirm(at(10), 3)
    copy.fold(store(3), at(20))
    await copy.save()
    later = NodeCopy(
        tmp_path, NUMBERS, ClockReading(7, at(4_010).unix_ms)
    )  # another monotonic clock
    assert later.cache.age_ms(ClockReading(7, at(4_010).unix_ms)) == 4_000
    assert later.cache.state(ClockReading(7, at(4_010).unix_ms)) is CacheState.CACHED
    assert later.cache.cursor == copy.cache.cursor
    assert not later.fold(store(2), at(4_020)).more  # its replica reads its log again meanwhile
    assert later.cache.get(Key(b"node/%020d" % 2)) is not None


@pytest.mark.parametrize("seed", range(20))
async def test_a_damaged_copy_is_set_aside_and_never_believed(tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    copy = NodeCopy(tmp_path, NUMBERS, at(0))
    copy.confirm(at(10), 3)
    copy.fold(store(3), at(20))
    await copy.save()
    path = tmp_path / COPY_FILE
    damaged = bytearray(path.read_bytes())
    damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    path.write_bytes(damaged)
    later = NodeCopy(tmp_path, NUMBERS, at(30))
    assert later.cache.cursor is None
    assert later.cache.age_ms(at(30)) is None
    assert path.with_name(COPY_FILE + ".refused").read_bytes() == damaged
    later.fold(store(3), at(40))
    assert later.cache.get(Key(b"node/%020d" % 2)) is not None


def test_changes_name_the_partitions_that_they_concern(tmp_path: Path) -> None:
    copy = NodeCopy(tmp_path, NUMBERS, at(0))
    replica = store(1)
    copy.fold(replica, at(0))
    replica.change({Key(b"proof/%020d" % 7): b"{}", Key(b"tenant/a"): b"{}"}, 0)
    changes = copy.fold(replica, at(1))
    assert (changes.partitions, changes.all, changes.placed) == ({PartitionId(7)}, False, False)
    replica.change({Key(b"placement/%020d" % 8): b"{}"}, 0)
    changes = copy.fold(replica, at(1))
    assert (changes.partitions, changes.placed) == ({PartitionId(8)}, True)
    replica.change({Key(b"key/ControlPlaneProofKey/k"): b"{}"}, 0)
    assert copy.fold(replica, at(2)).all


@pytest.mark.parametrize("seed", range(30))
def test_the_copy_becomes_what_the_store_is_however_it_is_folded(tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    replica = KvMachine(STORE, KvLimits(events_max=rng.choice([3, 50])))
    copy = NodeCopy(tmp_path, NUMBERS, at(0))
    for step in range(60):
        key = Key(b"node/%020d" % rng.randrange(10))
        replica.change({key: None if rng.random() < 0.3 else b"%d" % step}, step)
        if rng.random() < 0.3:
            while copy.fold(replica, at(step)).more:
                pass
    while copy.fold(replica, at(60)).more:
        pass
    assert list(scan_records(copy.cache, b"")) == list(scan_records(replica, b""))


async def test_a_copy_that_cannot_be_kept_stops_nothing(tmp_path: Path) -> None:
    copy = NodeCopy(tmp_path / "gone", NUMBERS, at(0))  # a directory that is not there
    copy.fold(store(3), at(0))
    await copy.save()
    (tmp_path / "gone").mkdir()
    await copy.save()
    assert (tmp_path / "gone" / COPY_FILE).exists()
