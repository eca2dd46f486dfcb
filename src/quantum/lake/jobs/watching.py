"""How far Spark is with a query, for jobs that are one question to it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from quantum.lake.jobs.progress import Progress, Step, silence

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_SECONDS: Final = 1.0


@contextmanager
def watching(spark: SparkSession, job: str, progress: Progress) -> Iterator[None]:
    """Tell of the tasks of the stages that run, whenever more of them are done."""
    if progress is silence:
        yield
        return
    if "connect" in type(spark).__module__:
        with _told_by_a_server(spark, job, progress):
            yield
        return
    ends = threading.Event()
    thread = threading.Thread(target=_look, args=(spark, job, progress, ends), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def _look(spark: SparkSession, job: str, progress: Progress, ends: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    told = (0, 0)
    while not ends.wait(_LOOK_SECONDS):
        stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
        pairs = [(each.numCompletedTasks, each.numTasks) for each in stages if each is not None]
        told = _tell(job, progress, pairs, told)


@contextmanager
def _told_by_a_server(spark: Any, job: str, progress: Progress) -> Iterator[None]:
    told = (0, 0)

    def handle(stages: Iterable[Any] | None = None, **_: object) -> None:
        nonlocal told
        pairs = [(each.num_completed_tasks, each.num_tasks) for each in stages or ()]
        told = _tell(job, progress, pairs, told)

    spark.registerProgressHandler(handle)
    try:
        yield
    finally:
        spark.removeProgressHandler(handle)


def _tell(
    job: str, progress: Progress, pairs: list[tuple[int, int]], told: tuple[int, int]
) -> tuple[int, int]:
    done, total = sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)
    if total and (done, total) != told:
        progress(Step(job, f"{done} of {total} of Spark's tasks are done", done, total))
    return done, total
