"""A simulated disk and the real ones agree after the same plans, right or wrong.

They show the same bytes, and what the simulation calls durable is dirty on no real disk.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from clustor.log.steps import (
    Create,
    DeleteFile,
    FileName,
    MakeDirectory,
    Plan,
    Rename,
    Step,
    Sync,
    SyncDirectory,
    SyncFiles,
    Truncate,
    WriteFile,
)
from clustor.runtime.disk import Disk, Partition, PlanFailed, bulk
from clustor.sim.disk import SimDisk
from clustor.sim.disk.names import DIRECTORY
from tests.clustor.runtime.disk.harness import contents, run, unwritten_pages, visible

FILES = [FileName(name) for name in ("a", "b", "d/a", "d/e/f", "x/y")]
DIRECTORIES = ["", "d", "d/e", "a", "x"]


def drawn_step(rng: random.Random) -> Step:
    file = rng.choice(FILES)
    offset = rng.choice((0, 1, 511, 512, 4095, 4096, rng.randrange(20_000)))
    data = rng.randbytes(rng.choice((0, 1, 64, 512, 4096, rng.randrange(10_000))))
    kinds: list[Step] = [
        Create(file, rng.choice((0, 8192))),
        DeleteFile(file),
        Rename(file, rng.choice(FILES)),
        Truncate(file, offset),
        MakeDirectory(rng.choice(DIRECTORIES)),
        SyncDirectory(rng.choice(DIRECTORIES)),
        SyncFiles(tuple(rng.sample(FILES, rng.randrange(3)))),
    ]
    frequent: list[Step] = [WriteFile(file, offset, data), Sync(file)]
    return rng.choice(kinds + frequent * 4)


def drawn_plan(rng: random.Random) -> Plan:
    if rng.random() < 0.3:
        first, second = rng.choice(FILES), rng.choice(FILES)
        data = rng.randbytes(rng.randrange(5000))
        return (
            WriteFile(first, 0, data),
            Sync(first),
            WriteFile(second, 7, data[:64]),
            Sync(second),
        )
    return tuple(drawn_step(rng) for _ in range(rng.randrange(1, 8)))


def simulate(disk: SimDisk, plan: Plan) -> tuple[int, int] | None:
    """Run the plan; return the number and the errno of the step that failed."""
    for number, step in enumerate(plan):
        try:
            disk.run_step(step)
        except OSError as error:
            return number, error.errno or 0
    return None


def synced_files(disk: SimDisk) -> list[str]:
    """List the files whose bytes must all be durable by now."""
    entries = disk._names.visible.items()
    return [path for path, at in entries if at != DIRECTORY and disk._files[at].is_synced]


@pytest.mark.parametrize("whole", [False, True], ids=["file by file", "the whole filesystem"])
@pytest.mark.parametrize("seed", range(12))
def test_equal_plans_show_equal_contents(
    disk: Disk,
    partition: Partition,
    root: Path,
    seed: int,
    whole: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bulk, "WHOLE_FILES_MIN", 1 if whole else 1000)
    rng = random.Random(seed)
    simulated = SimDisk()
    for _ in range(60):
        plan = drawn_plan(rng)
        expected = simulate(simulated, plan)
        error = run(disk, partition, plan).error
        found = (error.step_number, error.errno) if isinstance(error, PlanFailed) else error
        assert found == expected, plan
        assert contents(root) == visible(simulated), plan
        for path in synced_files(simulated):
            assert unwritten_pages(root / path) == 0, (path, plan)
