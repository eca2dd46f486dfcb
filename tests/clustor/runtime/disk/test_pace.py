"""Plans that are run where they are submitted: when, and that nothing else is different then."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from clustor.log.steps import Create, FileName, Plan, Sync, Truncate, WriteFile
from clustor.log.types import IoWriterMode
from clustor.runtime.disk import (
    Disk,
    FileFenced,
    Partition,
    PlanAbandoned,
    PlanFailed,
    PlanToken,
    SyncFailed,
)
from clustor.runtime.disk.pace import BYTES_MAX, QUICK_NS_MAX, Pace, is_small
from tests.clustor.runtime.disk.harness import contents, opened, take, unwritten_pages
from tests.clustor.runtime.disk.test_faults import file_size_limit, replace_behind

WAL = FileName("wal")
LEDGER = FileName("ledger")
APPEND: Plan = (WriteFile(WAL, 0, b"w" * 100), Sync(WAL), WriteFile(LEDGER, 0, b"l"), Sync(LEDGER))


class QuickUnlessTold(Pace):
    """The pace of a disk that is quick whatever the machine's own disk takes just now."""

    def sample(self, durations_ns: Iterable[int]) -> None:
        """Take what a test says; what real syncs took is the machine's affair."""


def quick() -> Pace:
    pace = Pace()
    pace.sample([QUICK_NS_MAX // 10] * 100)
    return pace


@pytest.fixture(params=[IoWriterMode.FIXED_URING, IoWriterMode.BLOCKING], ids=lambda m: m.name)
def disk(request: pytest.FixtureRequest, root: Path) -> Iterator[Disk]:
    with opened(request.param) as found:
        pace = QuickUnlessTold()
        Pace.sample(pace, [QUICK_NS_MAX // 10] * 100)
        found._pace = pace  # type: ignore[attr-defined]
        yield found


@pytest.fixture
def partition(disk: Disk, root: Path) -> Partition:
    found = disk.open_partition(root)
    disk.execute(found, (Create(WAL), Create(LEDGER)))
    return found


def test_a_disk_must_show_that_it_is_quick() -> None:
    pace = Pace()
    assert not pace.is_quick
    pace.sample([QUICK_NS_MAX // 10] * 100)
    assert pace.is_quick


@pytest.mark.parametrize(
    ("slow_ns", "still_quick"),
    [([3 * QUICK_NS_MAX], True), ([30 * QUICK_NS_MAX], False), ([2 * QUICK_NS_MAX] * 50, False)],
    ids=["one hiccup", "one stall", "slow for long"],
)
def test_a_stall_or_slowness_ends_it_and_quick_syncs_begin_it_anew(
    slow_ns: list[int], *, still_quick: bool
) -> None:
    pace = quick()
    pace.sample(slow_ns)
    assert pace.is_quick is still_quick
    pace.sample([QUICK_NS_MAX // 10] * 100)
    assert pace.is_quick


@pytest.mark.parametrize(
    ("plan", "small"),
    [
        (APPEND, True),
        ((), True),
        ((WriteFile(WAL, 0, bytes(BYTES_MAX)), Sync(WAL)), True),
        ((WriteFile(WAL, 0, bytes(BYTES_MAX)), WriteFile(LEDGER, 0, b"x")), False),
        ((Create(WAL), *APPEND), False),
    ],
    ids=["append", "empty", "at the bound", "above it", "more than writing"],
)
def test_what_is_small(plan: Plan, *, small: bool) -> None:
    assert is_small(plan) is small


def test_a_small_plan_alone_is_over_and_durable_when_submit_returns(
    disk: Disk, partition: Partition, root: Path
) -> None:
    completion = disk.submit(partition, APPEND, PlanToken(3), alone=True)
    assert completion is not None
    assert (completion.partition, completion.token, completion.error) == (partition, 3, None)
    assert len(completion.sync_durations) == 2
    assert contents(root) == {"wal": b"w" * 100, "ledger": b"l"}
    assert unwritten_pages(root / "wal") == unwritten_pages(root / "ledger") == 0
    assert disk.completions() == []


def test_others_do_what_is_not_alone_or_comes_behind_it(
    disk: Disk, partition: Partition, root: Path
) -> None:
    quick = [disk.is_quick]
    assert disk.submit(partition, APPEND, PlanToken(1)) is None
    quick.append(disk.is_quick)  # something is under way
    assert disk.submit(partition, APPEND, PlanToken(2), alone=True) is None
    assert [each.token for each in take(disk, 2)] == [1, 2]
    quick.append(disk.is_quick)
    assert quick == [True, False, True]


def test_others_wait_for_a_slow_disk(disk: Disk, partition: Partition) -> None:
    Pace.sample(disk._pace, [1000 * QUICK_NS_MAX])  # type: ignore[attr-defined]
    assert disk.submit(partition, APPEND, PlanToken(1), alone=True) is None
    assert take(disk, 1)[0].error is None


def test_a_failure_is_told_once_and_fences_as_ever(disk: Disk, partition: Partition) -> None:
    replace_behind(partition, WAL, "/dev/null", dirty=True)
    failed = disk.submit(partition, APPEND, PlanToken(1), alone=True)
    assert failed is not None
    assert isinstance(failed.error, SyncFailed)
    refused = disk.submit(partition, APPEND, PlanToken(2), alone=True)
    assert refused is not None
    assert isinstance(refused.error, FileFenced)
    well = disk.submit(
        partition, (WriteFile(LEDGER, 0, b"x"), Sync(LEDGER)), PlanToken(3), alone=True
    )
    assert well is not None
    assert well.error is None
    disk.submit(partition, (WriteFile(LEDGER, 0, b"y"), Sync(LEDGER)), PlanToken(4))
    assert take(disk, 1)[0].error is None, "what the owner was told of does not count again"


def test_a_plan_behind_a_failure_that_nobody_was_told_of_is_not_run(
    disk: Disk, partition: Partition, root: Path
) -> None:
    disk.submit(partition, (WriteFile(FileName("missing"), 0, b"x"),), PlanToken(0))
    assert disk.submit(partition, APPEND, PlanToken(1), alone=True) is None
    failed, abandoned = take(disk, 2)
    assert isinstance(failed.error, PlanFailed)
    assert isinstance(abandoned.error, PlanAbandoned)
    assert contents(root) == {"wal": b"", "ledger": b""}


@pytest.mark.parametrize(
    "plan",
    [
        (WriteFile(WAL, 0, b"w" * 100), Sync(WAL)),
        (WriteFile(WAL, 0, b"w" * 100), Sync(WAL), WriteFile(WAL, 50, b"over"), Sync(WAL)),
        (WriteFile(WAL, 500, b""), Sync(WAL)),
        (WriteFile(WAL, 0, b"w" * 100), Truncate(WAL, 40), Sync(WAL)),
        (
            WriteFile(WAL, 9, b"w"),
            Sync(WAL),
            Truncate(WAL, 700),
            Sync(WAL),
            WriteFile(WAL, 2, b"w"),
        ),
    ],
    ids=["grown", "written over", "nothing, far out", "cut", "extended"],
)
def test_the_known_length_is_the_files_own(partition: Partition, root: Path, plan: Plan) -> None:
    for _ in range(2):
        partition.execute((*plan, Sync(WAL)))
        file = partition.file(WAL)
        assert not file.dirty
        assert file.length == (root / "wal").stat().st_size


def test_the_length_of_a_file_that_was_there_is_looked_up(disk: Disk, root: Path) -> None:
    (root / "wal").write_bytes(bytes(1000))
    partition = disk.open_partition(root)
    partition.execute((WriteFile(WAL, 0, b"w"), Sync(WAL)))
    assert partition.file(WAL).length == 1000


def test_a_refused_write_leaves_no_length_behind(partition: Partition) -> None:
    partition.execute((WriteFile(WAL, 0, b"w" * 100), Sync(WAL)))
    with file_size_limit(200), pytest.raises(PlanFailed):
        partition.execute((WriteFile(WAL, 1000, b"w"), Sync(WAL)))
    partition.execute((Sync(WAL),))
    assert partition.file(WAL).length == 100
