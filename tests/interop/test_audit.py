"""A call to a real control plane, refused ones too, stands in the audit log of every node."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from clustor.runtime.development import node_directory
from clustor.runtime.pki.identity import NodeId
from quantum.cli import audit
from tests.interop.cluster_process import PATIENT, ClusterProcess
from tests.interop.control_process import insist
from tests.interop.test_control_plane import tenant

NODES = (1, 2, 3)


def told(data: Path, node: int, what: str) -> dict[str, str]:
    """Return the outcomes of a kind of call, by request id."""
    directory = node_directory(data, NodeId(node))
    shown = CliRunner().invoke(audit.app, ["show", str(directory), "--what", what, "--json"])
    lines = [json.loads(line) for line in shown.output.splitlines() if line.startswith("{")]
    return {line["trace_id"]: line["outcome"] for line in lines}


def test_every_node_tells_of_a_call_and_of_a_refused_one(tmp_path: Path) -> None:
    data = tmp_path / "cluster"
    with ClusterProcess(data, patience=PATIENT) as cluster:
        insist(cluster, tenant(1), "r-1")
        insist(cluster, tenant(1), "r-2")  # it is there already
        expected = {"r-1": "Done", "r-2": "AlreadyExists"}
        cluster.until(
            lambda: all(told(data, node, "CreateTenant") == expected for node in NODES),
            "every node has written it down",
        )
        starts = cluster.started(2)
        cluster.kill(2)
        cluster.until(lambda: cluster.starts[2] > starts, "it is started again")
        insist(cluster, tenant(3), "r-3")
        expected["r-3"] = "Done"
        cluster.until(
            lambda: all(told(data, node, "CreateTenant") == expected for node in NODES),
            "it goes on where it ended",
        )
    for node in NODES:
        directory = node_directory(data, NodeId(node))
        result = CliRunner().invoke(audit.app, ["verify", str(directory), "--require-signed"])
        assert result.exit_code == 0, result.output
        shown = CliRunner().invoke(audit.app, ["show", str(directory), "--what", "CreateTenant"])
        assert len(shown.output.splitlines()) == 3  # each once, over the restart too
        assert not told(data, node, "ControlTrailBroken")
