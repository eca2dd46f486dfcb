"""Run every job once, in this process, wherever SPARK_REMOTE says; print what each said.

`python -m tests.interop.connect_jobs jobs VAR OUT NODE`: a stopped broker's directory, where to
write, and a node's directory. `… stream VAR OUT` reads the first as a stream.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

from typer.testing import CliRunner

from quantum.cli.lake import app
from quantum.lake.session import spark_session


def run_jobs(var: str, out: Path, node: str) -> None:
    table = str(out / "table")
    jobs: dict[str, list[str]] = {
        "ingest": ["--data", var, "--table", table, "--once", "--batch-bytes", "300", "--json"],
        "verify": ["--data", var, "--table", table, "--json"],
        "replay": ["--data", var, "--state", str(out / "state"), "--json"],
        "compact": ["--table", table, "--files-min", "2", "--json"],
        "usage": ["--table", table, "--json"],
        "audit": [node, "--who", "operator", "--json"],
        "simulate": ["--sessions", "20000", "--prgs", "8", "--grown-prgs", "9", "--json"],
        "report": ["--table", table, "--out", str(out / "report.html"), "--json"],
    }
    runner = CliRunner()
    for name, arguments in jobs.items():
        done = runner.invoke(app, [name, *arguments])
        say(
            name, code=done.exit_code, said=done.stdout.splitlines()[-1:], wrong=done.stderr[-2000:]
        )
    spark = spark_session()
    frame = spark.read.format("quantum").option("path", var).load()
    say("batch", rows=frame.count(), where=frame.where("prg = 1").count())
    spark.stop()


def run_stream(var: str, out: Path) -> None:
    spark = spark_session()
    query = (
        spark.readStream.format("quantum")
        .option("path", var)
        .load()
        .writeStream.format("parquet")
        .option("path", str(out / "stream"))
        .option("checkpointLocation", str(out / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(600)
    say("stream", rows=spark.read.parquet(str(out / "stream")).count())
    spark.stop()


def say(name: str, **facts: object) -> None:
    print(json.dumps({"job": name, **facts}), flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    mode, var, out, *node = sys.argv[1:]
    if mode == "jobs":
        run_jobs(var, Path(out), *node)
    else:
        run_stream(var, Path(out))
