"""How the lake's jobs look from the command line: who runs them, what they say, how they end."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable

from quantum.cli.consoles import errors
from quantum.cli.exits import Exit, fail
from quantum.cli.lake_options import AgainOptions, LogOptions, RunOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from quantum.lake.archive import LogSource
    from quantum.lake.jobs import Step
    from quantum.lake.jobs.runner import Runner


@dataclass(frozen=True, slots=True)
class Job:
    """Who works, and who is told; `spark` is None where it is this process."""

    runner: Runner
    spark: SparkSession | None
    show: Callable[[Step], None]


@contextmanager
def job_of(
    name: str, options: RunOptions, size: Callable[[], int | None], *, is_told: bool = False
) -> Iterator[Job]:
    """Choose who does a job, and end it with a sentence; a Spark session is stopped at the end.

    `size` says how much there is to read, and raises what a job should not wait for Spark to
    learn. `is_told` lets the steps be lines where there is no terminal, without `--progress`.
    """
    from quantum.lake.jobs.choosing import INLINE, choose
    from quantum.lake.jobs.progress import silence
    from quantum.lake.jobs.runner import InlineRunner, SparkRunner
    from quantum.lake.session import REMOTE

    if not all(each.partition("=")[1] for each in options.conf or ()):
        fail("a setting of Spark is written KEY=VALUE", Exit.USAGE)
    with said_plainly():
        to_read = None if options.master == INLINE else size()
        chosen = choose(
            options.master, to_read, is_remote=REMOTE in os.environ, is_set=bool(options.conf)
        )
        if chosen.sentence:
            _tell(f"{name}: {chosen.sentence}")
        is_watched = options.progress or errors.is_terminal
        with progress_of(name, options, is_told=is_told) as show:
            watched = show if is_watched else silence
            if chosen.is_inline:
                yield Job(InlineRunner(name, watched), None, show)
                return
            with _spark_running(chosen.master, name, options.conf) as spark:
                yield Job(SparkRunner(spark, name, watched), spark, show)


@contextmanager
def _spark_running(master: str | None, job: str, conf: list[str] | None) -> Iterator[SparkSession]:
    from quantum.lake.session import spark_session

    settings = dict(each.partition("=")[::2] for each in conf or ())
    spark = spark_session(master, name=f"quantum lake {job}", config=settings)
    try:
        yield spark
    finally:
        spark.stop()


def checked_logs(logs: LogOptions, *, waits: bool) -> tuple[str | LogSource, LogSource | None]:
    """Return the logs for a job, and as they are now; wrong keys and absent brokers end it here.

    A job that `waits` opens its logs again and again by name, and a broker may come later.
    """
    from quantum.lake.errors import SourceUnreachable
    from quantum.lake.jobs.checking import check_logs

    where = logs.where()
    with said_plainly():
        try:
            source = check_logs(where, logs.keys, logs.broker)
        except SourceUnreachable as error:
            if not waits:
                raise
            _tell(f"quantum: waiting: {error}")
            return where, None
    return (where if waits else source), source


def size_of(source: LogSource | None, table: str | None = None) -> int | None:
    """Say how much of logs is to be read, behind what a table has; None while nobody answers."""
    from quantum.lake.jobs.choosing import log_bytes, offsets_of

    if source is None:
        return None
    return log_bytes(source, {} if table is None else offsets_of(table))


@contextmanager
def said_plainly() -> Iterator[None]:
    """Turn what a job raises into one sentence and an exit code."""
    from quantum.lake.errors import LakeError
    from quantum.lake.table import TableError

    try:
        yield
    except (LakeError, TableError) as error:
        fail(str(error), exit_of_lake(error))
    except OSError as error:
        fail(str(error), Exit.FAILED)


def exit_of_lake(error: Exception) -> Exit:
    """Choose the exit code of an error."""
    from quantum.lake import errors as lake
    from quantum.lake import table
    from quantum.lake.jobs.errors import StateTaken
    from quantum.lake.refusals import BadOption, EntryUnreadable, UnknownSchemaVersion

    by_kind: tuple[tuple[type[Exception], Exit], ...] = (
        (lake.BadAddress, Exit.USAGE),
        (BadOption, Exit.USAGE),
        (lake.LogGone, Exit.NOT_FOUND),
        (lake.DamagedBlock, Exit.QUARANTINED),
        (lake.WrongKey, Exit.WRONG_KEY),
        (lake.NotPermitted, Exit.WRONG_KEY),
        (lake.UnknownFormat, Exit.UNSUPPORTED),
        (UnknownSchemaVersion, Exit.UNSUPPORTED),
        (EntryUnreadable, Exit.UNSUPPORTED),
        (lake.SourceUnreachable, Exit.UNREACHABLE),
        (StateTaken, Exit.CONFLICT),
        (table.NoTable, Exit.NOT_FOUND),
        (table.TableDamaged, Exit.QUARANTINED),
        (table.RangeTaken, Exit.CONFLICT),
        (table.Contended, Exit.CONFLICT),
    )
    return next((code for kind, code in by_kind if isinstance(error, kind)), Exit.FAILED)


@contextmanager
def progress_of(
    job: str, options: RunOptions, *, is_told: bool = False
) -> Iterator[Callable[[Step], None]]:
    """Give what takes a job's steps, on standard error: a bar on a terminal, or lines if asked."""
    from quantum.lake.jobs.progress import silence

    if not errors.is_terminal:
        if not (options.progress or is_told):
            yield silence
        elif options.as_json:
            yield lambda step: _tell(json.dumps(_document(step)))
        else:
            yield lambda step: _tell(f"{job}: {step.sentence}")
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=errors, transient=True) as bar:
        task = bar.add_task(job, total=None)

        def show(step: Step) -> None:
            bar.update(
                task, description=f"{job}: {step.sentence}", completed=step.done, total=step.total
            )

        yield show


def _tell(line: str) -> None:
    errors.print(line, markup=False, highlight=False)


def _document(step: Step) -> dict[str, Any]:
    ends = {} if step.total is None else {"done": step.done, "total": step.total}
    return {"step": step.sentence, **ends, **step.figures}


@contextmanager
def until_told() -> Iterator[Callable[[], bool]]:
    """Give whether somebody asked the process to end; a batch on its way is finished first."""
    told: list[int] = []
    kept = {
        number: signal.signal(number, lambda number, _: told.append(number))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield lambda: bool(told)
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def repeat(work: Callable[[], None], again: AgainOptions) -> None:
    """Do it once, or again and again until told to stop; an absent source is looked for again."""
    from quantum.lake.errors import SourceUnreachable
    from quantum.lake.jobs.errors import SparkFailed

    every = again.every
    if again.once and every is not None:
        fail("either --once or --every", Exit.USAGE)
    if every is None:
        work()
        return
    with until_told() as told:
        while not told():
            try:
                work()
            except (SourceUnreachable, SparkFailed) as error:
                _tell(f"quantum: trying again: {error}")
            _pause(every, told)


def _pause(seconds: float, told: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while not told() and (left := deadline - time.monotonic()) > 0:
        time.sleep(min(0.2, left))


def say(document: dict[str, Any], as_json: bool, sentence: str) -> None:
    typer.echo(json.dumps(document) if as_json else sentence)


def show_rows(title: str, rows: list[dict[str, Any]], as_json: bool) -> None:
    """Print rows: JSON lines, or a table."""
    if as_json:
        for row in rows:
            typer.echo(json.dumps(row, default=str))
        return
    table = RichTable(title=title)
    for name in rows[0] if rows else ():
        table.add_column(
            name,
            justify="right" if isinstance(rows[0][name], int | float) else "left",
            overflow="fold",
        )
    for row in rows:
        table.add_row(
            *(
                f"{value:,}"
                if isinstance(value, int) and not isinstance(value, bool)
                else f"{value}"
                for value in row.values()
            )
        )
    Console().print(table)


def rounded(value: float) -> str:
    return (
        f"{value:,}"
        if isinstance(value, int)
        else f"{value:,.4g}"
        if value < 10
        else f"{value:,.0f}"
    )
