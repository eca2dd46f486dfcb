"""Every job of the lake, and the data source, against a real Spark Connect server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clustor.security import ANCHOR_FILE, encode_anchor
from quantum.lake.package import build_package
from tests.clustor.security.audit_logs import KEY, small_log
from tests.interop.connect_server import ConnectServer
from tests.quantum.lake.jobs.test_audit import write, write_keys
from tests.quantum.lake.messages import fill

pytestmark = pytest.mark.timeout(1800)  # a minute on an idle machine, many on a crowded one
JOBS = ("ingest", "verify", "replay", "compact", "usage", "audit", "simulate", "report")


def audited_node(directory: Path) -> Path:
    lines, anchor = small_log(batches=5, tail=2)
    write(directory, lines)
    (directory / "security" / "audit" / ANCHOR_FILE).write_bytes(encode_anchor(anchor))
    write_keys(directory, KEY)
    return directory


def run(server: ConnectServer, mode: str, *places: Path) -> dict[str, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.interop.connect_jobs", mode, *map(str, places)],
        env=os.environ | {"SPARK_REMOTE": server.remote},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr + server.last_words()
    lines: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["job"]: line for line in lines}


def test_every_job_runs_on_spark_connect(tmp_path: Path) -> None:
    var, out = tmp_path / "var", tmp_path / "out"
    (tmp_path / "node").mkdir()
    written, node = fill(var), audited_node(tmp_path / "node")
    out.mkdir()
    with ConnectServer(tmp_path) as server:
        said = run(server, "jobs", var, out, node)
    assert {
        name: (said[name]["code"], said[name]["wrong"]) for name in JOBS if said[name]["code"]
    } == {}
    results = {name: json.loads(said[name]["said"][0]) for name in JOBS}
    assert results["ingest"]["rows"] == len(written)
    assert results["ingest"]["commits"] > 1
    assert results["verify"]["equal"] and results["verify"]["whole"]
    assert results["compact"]["files_after"] < results["compact"]["files_before"]
    assert (out / "report.html").read_text().count("<svg") == 2
    assert list((out / "state").rglob("*.parquet"))
    assert (said["batch"]["rows"], said["batch"]["where"]) == (len(written), len(written) // 2)


@pytest.mark.soak
def test_a_stream_runs_where_the_server_has_the_package(tmp_path: Path) -> None:
    """A query lives in a session of the server's own, without what this one was sent."""
    written = fill(tmp_path / "var")
    package = build_package(tmp_path / "quantum.zip")
    with ConnectServer(tmp_path, py_files=package) as server:
        said = run(server, "stream", tmp_path / "var", tmp_path)
    assert said["stream"]["rows"] == len(written)
