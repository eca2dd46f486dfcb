"""A job that was cut short goes on, and nobody's file is believed but our own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from quantum.lake.jobs import Fleet, InlineRunner, ResumingRunner, resuming, simulate, verify
from quantum.lake.jobs import ingest as ingest_job
from quantum.lake.jobs.errors import BadResume
from tests.quantum.lake.jobs.test_commands import write_story


class Dying:
    """Does tasks here, so many of them."""

    def __init__(self, tasks: int | None = None) -> None:
        self.left = tasks
        self.done = 0

    def run(self, work: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
        if self.left is not None and self.done + len(tasks) > self.left:
            raise RuntimeError("power cut")
        self.done += len(tasks)
        return InlineRunner().run(work, tasks)


def double(offset: int, number: int) -> int:
    return 2 * number + offset


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    path = tmp_path / "done"
    work = partial(double, 1)
    first = Dying()
    assert ResumingRunner(first, path).run(work, [1, 2]) == [3, 5]
    again = Dying()
    assert ResumingRunner(again, path).run(work, [2, 3, 1]) == [5, 7, 3]
    assert (first.done, again.done) == (2, 1)
    other = Dying()
    assert ResumingRunner(other, path).run(partial(double, 2), [1, 2]) == [4, 6]
    assert other.done == 2, "another argument is another task"


def test_an_end_that_was_cut_off_is_done_again(tmp_path: Path) -> None:
    path = tmp_path / "done"
    work = partial(double, 1)
    ResumingRunner(InlineRunner(), path).run(work, [1, 2, 3])
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        if length < 22:  # not even its first line
            continue
        runner = Dying()
        assert ResumingRunner(runner, path).run(work, [1, 2, 3]) == [3, 5, 7]
        assert 0 < runner.done <= 3
        assert ResumingRunner(Dying(0), path).run(work, [1, 2, 3]) == [3, 5, 7]


def test_a_file_that_others_may_have_written_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "done"
    path.write_bytes(b"something else")
    with pytest.raises(BadResume, match="no file of finished tasks"):
        ResumingRunner(InlineRunner(), path)
    path.unlink()
    ResumingRunner(InlineRunner(), path).run(partial(double, 1), [1])
    path.chmod(0o666)
    with pytest.raises(BadResume, match="others"):
        ResumingRunner(InlineRunner(), path)


def test_what_was_judged_is_what_is_read_whatever_has_its_name_now(tmp_path: Path) -> None:
    path, planted = tmp_path / "done", tmp_path / "planted"
    ResumingRunner(InlineRunner(), path).run(partial(double, 1), [1])
    ResumingRunner(InlineRunner(), planted).run(partial(double, 1), [2])
    for link in (path.symlink_to, path.hardlink_to):
        path.unlink()
        link(planted)
        with pytest.raises(BadResume):
            ResumingRunner(InlineRunner(), path)
    path.unlink()
    with resuming(Dying(), path) as runner:
        runner.run(partial(double, 1), [1])
        path.unlink()
        path.write_bytes(b"another's")
        assert runner.run(partial(double, 1), [1, 2]) == [3, 5]
    assert path.read_bytes() == b"another's"


def test_the_file_goes_when_the_job_is_done(tmp_path: Path) -> None:
    path = tmp_path / "done"
    with resuming(Dying(), path) as runner:
        runner.run(partial(double, 1), [1])
        assert path.exists()
    assert not path.exists()
    ResumingRunner(Dying(), path).run(partial(double, 1), [1])
    with pytest.raises(RuntimeError), resuming(Dying(0), path) as runner:
        runner.run(partial(double, 1), [2])
    assert path.exists()
    with resuming(Dying(1), path) as runner:
        assert runner.run(partial(double, 1), [1, 2]) == [3, 5]
    assert not path.exists()


def test_a_comparison_that_died_goes_on_in_another_process(tmp_path: Path) -> None:
    """Sources and stores are opened anew: what names a task are words, not addresses."""
    var, table, path = write_story(tmp_path / "var"), str(tmp_path / "table"), tmp_path / "done"
    ingest_job(str(var), table)
    first = Dying()
    root = verify(str(var), table, spark=ResumingRunner(first, path)).root
    again = Dying(0)
    assert verify(str(var), table, spark=ResumingRunner(again, path)).root == root
    assert (first.done, again.done) == (2, 0)


def test_a_fleet_that_was_cut_short_has_the_same_figures(tmp_path: Path) -> None:
    fleet = Fleet(sessions=2_000, prgs=7, grown_prgs=8, nodes=3)
    whole = simulate(fleet, chunk_keys=100)
    with pytest.raises(RuntimeError), resuming(Dying(16), tmp_path / "done") as runner:
        simulate(fleet, spark=runner, chunk_keys=100)
    rest = Dying(4)
    with resuming(rest, tmp_path / "done") as runner:
        assert simulate(fleet, spark=runner, chunk_keys=100) == whole
    assert rest.done == 4
