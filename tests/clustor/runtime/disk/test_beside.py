"""Nothing that may wait for the filesystem's journal happens in the thread that owns the ring."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clustor.log.steps import (
    Create,
    DeleteFile,
    FileName,
    MakeDirectory,
    Plan,
    Rename,
    Sync,
    SyncDirectory,
    Truncate,
    WriteFile,
)
from clustor.log.types import IoWriterMode
from clustor.runtime.disk import PlanToken
from clustor.runtime.disk.errors import PlanFailed
from clustor.runtime.disk.uring import UringDisk

SLOW = ("close", "fsync", "fdatasync", "ftruncate", "mkdir", "rename", "unlink")


@pytest.fixture
def disk() -> Iterator[UringDisk]:
    try:
        made = UringDisk(IoWriterMode.FIXED_URING)
    except Exception as error:  # noqa: BLE001  # whatever keeps a ring from being made here
        pytest.skip(f"no ring here: {error}")
    yield made
    made.close()


def run(disk: UringDisk, root: Path, plan: Plan) -> None:
    partition = disk.open_partition(root)
    disk.submit(partition, plan, PlanToken(1))
    done: list[Any] = []
    while not done:
        assert select.select([disk.fileno()], [], [], 120)[0], "the plan is never over"
        done = disk.completions()
    assert done[0].error is None


def test_every_step_but_writes_and_syncs_of_the_ring_is_run_beside_its_owner(
    disk: UringDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = threading.get_ident()
    called: list[tuple[str, bool]] = []

    def watched(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run_and_note(*arguments: Any, **named: Any) -> Any:
            called.append((name, threading.get_ident() == here))
            return call(*arguments, **named)

        return run_and_note

    a, b = FileName("d/a"), FileName("d/b")
    plan: Plan = (
        MakeDirectory("d"),
        Create(a, 1 << 20),
        WriteFile(a, 0, b"x" * 4096),
        Sync(a),
        Truncate(a, 4096),
        Rename(a, b),
        SyncDirectory("d"),
        DeleteFile(b),
        SyncDirectory("d"),
    )
    for name in SLOW:
        monkeypatch.setattr(os, name, watched(name, getattr(os, name)))
    run(disk, tmp_path, plan)
    disk._closer.close()
    names = {name for name, _ in called}
    assert {"close", "fsync", "mkdir", "rename", "unlink", "ftruncate"} <= names
    in_the_loop = [name for name, is_here in called if is_here and name != "close"]
    assert not in_the_loop
    assert not (tmp_path / "d" / "b").exists()


def test_a_failed_step_is_told_with_its_place_and_stops_the_plan(
    disk: UringDisk, tmp_path: Path
) -> None:
    partition = disk.open_partition(tmp_path)
    a, missing = FileName("a"), FileName("missing")
    disk.submit(partition, (Create(a, 0), Rename(missing, a), DeleteFile(a)), PlanToken(1))
    done: list[Any] = []
    while not done:
        assert select.select([disk.fileno()], [], [], 120)[0]
        done = disk.completions()
    assert isinstance(done[0].error, PlanFailed)
    assert (tmp_path / "a").exists(), "what stands behind the failed step was not run"


def test_a_small_plan_waits_behind_what_a_thread_does_for_its_partition(
    disk: UringDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk whose thread is busy is not idle: nothing of that partition may overtake it."""
    partition = disk.open_partition(tmp_path)
    disk._pace.sample((1,) * 64)  # as quick as disks get
    was_quick = disk.is_quick
    may_go_on = threading.Event()
    sync = os.fsync

    def held(descriptor: int) -> None:
        assert may_go_on.wait(120)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", held)
    a = FileName("a")
    disk.submit(partition, (Create(a), SyncDirectory("")), PlanToken(1))
    assert (was_quick, disk.is_quick) == (True, False)
    small: Plan = (WriteFile(a, 0, b"x"), Sync(a))
    assert disk.submit(partition, small, PlanToken(2), alone=True) is None
    may_go_on.set()
    tokens: list[PlanToken] = []
    while len(tokens) < 2:
        assert select.select([disk.fileno()], [], [], 120)[0], "a plan is never over"
        tokens += [each.token for each in disk.completions()]
    assert tokens == [1, 2]
