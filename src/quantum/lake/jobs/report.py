"""`report`: one HTML page about a table, with its plots inside. Needs the package `matplotlib`."""

from __future__ import annotations

import html
from datetime import datetime, timedelta
from io import StringIO
from typing import TYPE_CHECKING, Any, Final

from quantum.lake.jobs.errors import PackageMissing
from quantum.lake.jobs.measuring import breach_rows, measure_topics, tenant_rows
from quantum.lake.jobs.progress import Progress, Step, silence
from quantum.lake.jobs.reading import table_state
from quantum.lake.jobs.usage import UsageLimits, usage
from quantum.lake.table import FileKind, TableState, TableStore

if TYPE_CHECKING:
    import pyarrow as pa
    from matplotlib.figure import Figure
    from pyspark.sql import SparkSession

JOB: Final = "report"
TOPICS_SHOWN: Final = 15
_MARGIN: Final = timedelta(minutes=5)
"""So that the first hour's mark is not cut in half."""
_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0 }
td, th { padding: .2rem .8rem; text-align: right }
td:first-child, th:first-child { text-align: left } tr:nth-child(even) { background: #f4f4f4 }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem } svg { max-width: 100% }
code { font-size: .85em; color: #555 }
"""


def report(
    spark: SparkSession | None,
    table: str | TableStore,
    *,
    version: int | None = None,
    limits: dict[str, UsageLimits] | None = None,
    loads: pa.Table | None = None,
    progress: Progress = silence,
) -> str:
    """Return the page; without a session it is counted here. Raises PackageMissing, NoTable.

    With `limits` it says which were exceeded; `loads` are those of a fleet (`loads_of`).
    """
    _, state = table_state(table, version)
    version = int(state.version)
    hours = [row for row in tenant_rows(spark, table, version=version) if row["hour"] is not None]
    progress(Step(JOB, f"{len(hours)} hours of tenants are counted", 1, 3))
    topics = _busiest(table, version) if spark is None else _topics(spark, table, version)
    progress(Step(JOB, f"the {len(topics)} busiest topics are found", 2, 3))
    dead = sum(file.rows for file in state.of_kind(FileKind.DEAD))
    sections = [
        _section("The table", _table(_facts(state, dead))),
        _section("Messages in each hour", _plot_hours(hours)),
        _section(f"The {len(topics)} busiest topics", _plot_topics(topics) + _table(topics)),
        _section("Partitions", _table(_partitions(state))),
    ]
    if limits:
        rows = breach_rows(spark, table, limits, version=version)
        sections.append(_section("Limits that were exceeded", _table(rows)))
    if loads is not None:
        title = f"A fleet of {loads.num_rows:,} partitions: sessions of each"
        sections.append(_section(title, _plot_loads(loads)))
    progress(Step(JOB, "the page is written", 3, 3))
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Quantum lake</title>"
        f"<style>{_STYLE}</style><h1>Quantum lake, version {version}</h1>"
        f"{''.join(sections)}</html>\n"
    )


def _topics(spark: SparkSession, table: str | TableStore, version: int) -> list[dict[str, Any]]:
    from pyspark.sql import functions as f

    rows = (
        usage(spark, table, version=version)
        .groupBy("tenant", "topic")
        .agg(
            f.sum("messages").alias("messages"),
            f.sum("bytes").alias("bytes"),
            f.max("publishers").alias("publishers"),
            f.max("payload_p99").alias("payload_p99"),
        )
        .orderBy(f.desc("messages"), "tenant", "topic")
        .limit(TOPICS_SHOWN)
        .collect()
    )
    return [row.asDict() for row in rows]


def _busiest(table: str | TableStore, version: int) -> list[dict[str, Any]]:
    """Find the same topics here."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in measure_topics(table, version=version):
        place = {"tenant": row["tenant"], "topic": row["topic"]}
        nothing = {"messages": 0, "bytes": 0, "publishers": 0, "payload_p99": 0}
        total = found.setdefault((row["tenant"], row["topic"]), place | nothing)
        for name in ("messages", "bytes"):
            total[name] += row[name]
        for name in ("publishers", "payload_p99"):
            total[name] = max(total[name], row[name])
    order = sorted(found.values(), key=lambda row: (-row["messages"], row["tenant"], row["topic"]))
    return order[:TOPICS_SHOWN]


def _facts(state: TableState, dead: int) -> list[dict[str, Any]]:
    files = state.of_kind(FileKind.ROWS)
    return [
        {
            "rows": sum(file.rows for file in files),
            "files": len(files),
            "bytes": sum(file.bytes for file in files),
            "partitions": len(state.ranges),
            "dead letters": dead,
        }
    ]


def _partitions(state: TableState) -> list[dict[str, Any]]:
    rows: dict[str, int] = {}
    for file in state.of_kind(FileKind.ROWS):
        rows[file.stream] = rows.get(file.stream, 0) + file.rows
    return [
        {
            "partition": stream,
            "from": each.first,
            "to": each.last,
            "rows": rows.get(stream, 0),
            "state digest": state.digests.get(stream, ""),
        }
        for stream, each in sorted(state.ranges.items())
    ]


def _section(title: str, body: str) -> str:
    return f"<h2>{html.escape(title)}</h2>{body}"


def _table(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "<p>None.</p>"
    head = "".join(f"<th>{html.escape(name)}</th>" for name in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in row.values()) + "</tr>"
        for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return html.escape(str(value))


def _plot_hours(hours: list[dict[str, Any]]) -> str:
    figure = _figure(3.2)
    axes = figure.subplots()
    for tenant in sorted({row["tenant"] for row in hours}):
        mine = [row for row in hours if row["tenant"] == tenant]
        times: Any = [row["hour"] for row in mine]
        axes.plot(times, [row["messages"] for row in mine], marker="o", label=tenant)
    if hours:
        axes.legend()
        span: Any = time_span([row["hour"] for row in hours])
        axes.set_xlim(*span)
    axes.set_ylabel("messages")
    axes.set_ylim(bottom=0)
    figure.autofmt_xdate()
    return _svg(figure)


def time_span(hours: list[datetime]) -> tuple[datetime, datetime]:
    """Say from when to when an axis goes: over the hours that are there, the last one whole.

    Left to itself the plot gives a single hour four years, in which nothing can be seen.
    """
    return min(hours) - _MARGIN, max(hours) + timedelta(hours=1)


def _plot_topics(topics: list[dict[str, Any]]) -> str:
    figure = _figure(0.6 + 0.3 * max(1, len(topics)))
    axes = figure.subplots()
    names = [f"{row['tenant']}: {row['topic']}" for row in reversed(topics)]
    axes.barh(names, [row["messages"] for row in reversed(topics)])
    axes.set_xlabel("messages")
    return _svg(figure)


def _plot_loads(loads: pa.Table) -> str:
    figure = _figure(3.2)
    axes = figure.subplots()
    for column, label in (("sessions", "before"), ("sessions_grown", "after growth")):
        values = [value for value in loads.column(column).to_pylist() if value]
        axes.hist(values, bins=40, histtype="step", label=label)
    axes.set_xlabel("sessions")
    axes.set_ylabel("partitions")
    axes.legend()
    return _svg(figure)


def _figure(height: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PackageMissing("reports need the package matplotlib") from error
    return Figure(figsize=(9, height), layout="constrained")


def _svg(figure: Figure) -> str:
    """Draw without a display, into the page; equal figures give equal text."""
    from matplotlib import rc_context

    text = StringIO()
    with rc_context({"svg.hashsalt": "quantum"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]
