"""Who carries out the tasks of a job: this process, or the workers of a Spark session.

A task is small and can be done again: what it writes has a name of its own, and counts only if
its result gets into a commit. So a task that Spark repeats, or runs twice, does no harm.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pyarrow as pa

from quantum.lake.errors import LakeError
from quantum.lake.jobs.errors import SparkFailed
from quantum.lake.jobs.progress import Progress, Step, silence
from quantum.lake.jobs.watching import watching
from quantum.lake.table import TableError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

Task = TypeVar("Task")
Result = TypeVar("Result")


class Runner(Protocol):
    """Does tasks, in any order, perhaps at the same time, perhaps more than once."""

    def run(self, work: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        """Return the results in the order of the tasks, or raise the first error of one."""
        ...


class InlineRunner:
    """One task after the other, here; each is told."""

    def __init__(self, job: str = "", progress: Progress = silence) -> None:
        self._job = job
        self._progress = progress

    def run(self, work: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        results: list[Result] = []
        for task in tasks:
            results.append(work(task))
            done = len(results)
            sentence = f"{done} of {len(tasks)} tasks are done"
            self._progress(Step(self._job, sentence, done, len(tasks)))
        return results


class SparkRunner:
    """One Spark task for each, on classic sessions and on Spark Connect."""

    def __init__(self, spark: SparkSession, job: str = "", progress: Progress = silence) -> None:
        self.spark = spark
        self._job = job
        self._progress = progress

    def run(self, work: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        if not tasks:
            return []
        frame = self.spark.range(0, len(tasks), 1, len(tasks))
        with watching(self.spark, self._job, self._progress):
            done = self._collect(
                frame.mapInArrow(_worker(work, tasks), "task bigint, result binary")
            )
        outcomes = {row["task"]: pickle.loads(row["result"]) for row in done}  # noqa: S301  # ours
        results: list[Result] = []
        for number in range(len(tasks)):
            error, result = outcomes[number]
            if error is not None:
                raise error
            results.append(result)
        return results

    @staticmethod
    def _collect(frame: DataFrame) -> list[Row]:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        try:
            return frame.collect()
        except (PySparkException, Py4JError, ConnectionError) as error:
            raise SparkFailed("Spark gave a task up", cause=cause_of(str(error))) from error


def cause_of(text: str) -> str:
    """Find the line that says what happened: Spark puts its own words and numbers around it."""
    lines = [line.strip() for line in text.splitlines()]
    told = [line for line in lines if line and not line.startswith(("SQLSTATE", "at ", ")"))]
    return told[-1][:500] if told else ""


def runner_of(where: SparkSession | Runner | None) -> Runner:
    """Take a session, a runner, or nothing for this process."""
    if where is None:
        return InlineRunner()
    return where if hasattr(where, "run") else SparkRunner(where)


def _worker(
    work: Callable[[Task], Result], tasks: Sequence[Task]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def done(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                result = pickle.dumps(outcome(work, tasks[number]))
                yield pa.RecordBatch.from_pydict(
                    {"task": pa.array([number], pa.int64()), "result": pa.array([result])}
                )

    return done


def outcome(work: Callable[[Task], Any], task: Task) -> tuple[Exception | None, Any]:
    """Do a task. Errors that say what they mean travel to the driver as they are."""
    try:
        return None, work(task)
    except (LakeError, TableError) as error:
        return error, None
