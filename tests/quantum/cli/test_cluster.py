"""`quantum cluster` and `quantum kv`: one clear line and one exit code for each thing wrong."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clustor.runtime.data_directory import open_data_directory
from clustor.runtime.pki.identity import ClusterId, NodeId
from quantum.cli.cluster import app as cluster_app
from quantum.cli.exits import Exit
from quantum.cli.kv import app as kv_app
from tests.clustor.runtime.test_transport import free_address
from tests.interop.cluster_process import ClusterProcess

runner = CliRunner()


def one_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line]
    assert len(lines) == 1, text
    assert "Traceback" not in text
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    {
        "no nodes": (["up", "--data", "x", "--nodes", "0"], 2, "Invalid value"),
        "too many nodes": (["up", "--data", "x", "--nodes", "10"], 2, "Invalid value"),
        "no data": (["up"], 2, "Missing option"),
        "ports beyond the last": (["up", "--data", "x", "--base-port", "65535"], 2, "ports"),
        "an archive that is no URL": (
            ["up", "--data", "x", "--archive", "var/archive"],
            2,
            "not a URL",
        ),
        "an archive with a password": (
            ["up", "--data", "x", "--archive", "s3://me:secret@bucket"],
            2,
            "credentials do not belong into a URL",
        ),
        "an archive of nothing": (
            ["up", "--data", "x", "--archive", "file:///a", "--tenant-prgs", "0"],
            2,
            "nothing to archive",
        ),
        "a name that is none": (["up", "--data", "x", "--name", "A B"], Exit.CERTIFICATE, "name"),
        "status of nothing": (["status"], 2, "--admin or --data"),
        "status of a strange address": (["status", "--admin", "x"], 2, "not an address"),
        "members of nothing": (["members"], 2, "--admin or --data"),
        "a leader of nothing": (["transfer-leader", "--to", "1"], 2, "--admin or --data"),
        "a leader without a name": (["transfer-leader"], 2, "Missing option"),
        "a node more of no cluster": (["add-node", "--data", "x"], Exit.NOT_FOUND, "cannot read"),
        "a node less of no cluster": (
            ["remove-node", "1", "--data", "x"],
            Exit.NOT_FOUND,
            "cannot read",
        ),
        "a node without a number": (["remove-node", "--data", "x"], 2, "Missing argument"),
        "node zero": (["rejoin-node", "0", "--data", "x"], 2, "Invalid value"),
        "status of no cluster": (["status", "--data", "/nowhere"], Exit.NOT_FOUND, "cannot read"),
    }.values(),
)
def test_wrong_flags_of_cluster(
    arguments: list[str], code: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(cluster_app, arguments)
    assert result.exit_code == code, result.output
    assert says in result.output
    assert "Traceback" not in result.output
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    {
        "no cluster": (["get", "a"], 2, "Missing option"),
        "a strange address": (["get", "a", "--cluster", "nonsense"], 2, "not an address"),
        "a strange port": (["get", "a", "--cluster", "h:70000"], 2, "not an address"),
        "cas of nothing": (["cas", "a", "1", "--cluster", "h:1"], 2, "exactly one"),
        "cas of two things": (
            ["cas", "a", "1", "--expect", "0", "--expect-absent", "--cluster", "h:1"],
            2,
            "exactly one",
        ),
    }.values(),
)
def test_wrong_flags_of_kv(arguments: list[str], code: int, says: str) -> None:
    result = runner.invoke(kv_app, arguments)
    assert result.exit_code == code, result.output
    assert says in result.output
    assert "Traceback" not in result.output


def test_a_cluster_that_is_not_there_is_named() -> None:
    address = str(free_address())
    result = runner.invoke(kv_app, ["get", "a", "--cluster", address, "--timeout", "0.3"])
    assert result.exit_code == Exit.UNREACHABLE
    assert "no leader answered in time" in one_line(result.output)
    result = runner.invoke(cluster_app, ["status", "--admin", address])
    assert result.exit_code == Exit.UNREACHABLE
    assert "cannot reach" in one_line(result.output)


def ends_with(cluster: ClusterProcess, code: Exit, says: str) -> None:
    with cluster:
        assert cluster.wait() == code, cluster.lines
    assert says in cluster.lines[-1], cluster.lines
    assert not any("Traceback" in line for line in cluster.lines)


def prepared(data: Path) -> ClusterProcess:
    """Return a cluster that ran once, so that its directories are there."""
    with ClusterProcess(data, nodes=1) as cluster:
        cluster.wait_for_leader()
    return ClusterProcess(data, nodes=1)


def test_a_taken_port(tmp_path: Path) -> None:
    cluster = ClusterProcess(tmp_path / "c", nodes=1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", cluster.base_port + 10))
        taken.listen()
        ends_with(cluster, Exit.PORT_TAKEN, "cannot listen for peers")


def test_a_foreign_data_directory(tmp_path: Path) -> None:
    cluster = prepared(tmp_path / "c")
    node = tmp_path / "c" / "node-1"
    (node / "node.json").unlink()
    shutil.rmtree(node / "state")
    shutil.rmtree(node / "identity")
    open_data_directory(node, ClusterId("other"), NodeId(1)).close()
    ends_with(cluster, Exit.NOT_FOUND, "belongs to another node")


def test_a_wrong_certificate(tmp_path: Path) -> None:
    data = tmp_path / "c"
    with ClusterProcess(data, nodes=2) as cluster:
        cluster.wait_for_leader()
    shutil.rmtree(data / "node-1" / "pki")
    shutil.copytree(data / "node-2" / "pki", data / "node-1" / "pki")
    ends_with(ClusterProcess(data, nodes=2), Exit.CERTIFICATE, "another node's")


def test_a_wrong_key(tmp_path: Path) -> None:
    cluster = prepared(tmp_path / "c")
    (tmp_path / "c" / "node-1" / "keys" / "kek.key").write_text("00" * 32 + "\n")
    ends_with(cluster, Exit.WRONG_KEY, "key")


def test_a_disk_that_lost_its_data_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    cluster = prepared(tmp_path / "c")
    shutil.rmtree(tmp_path / "c" / "node-1" / "state")
    ends_with(cluster, Exit.REPLICA, "empty where data was")


def test_the_commands_against_a_real_cluster(tmp_path: Path) -> None:
    with ClusterProcess(tmp_path / "c", nodes=1) as cluster:
        cluster.wait_for_leader()
        at = ["--cluster", str(cluster.admin(1)), "--timeout", "60"]

        def kv(*arguments: str, code: int = 0) -> str:
            result = runner.invoke(kv_app, [*arguments, *at])
            assert result.exit_code == code, result.output
            return result.output.strip()

        assert kv("put", "a", "1") == "revision 1"
        assert json.loads(kv("put", "b", "2", "--json")) == {"revision": 2}
        assert kv("get", "a") == "1"
        assert json.loads(kv("get", "a", "--json"))["mod_revision"] == 1
        assert kv("range") == "a\t1\nb\t2"
        assert kv("cas", "a", "3", "--expect", "1") == "revision 3"
        assert "is at revision 3" in kv("cas", "a", "4", "--expect-revision", "1", code=13)
        assert kv("cas", "c", "5", "--expect-absent") == "revision 4"
        assert kv("delete", "c") == "deleted at revision 5"
        kv("delete", "c", code=Exit.NOT_FOUND)
        kv("get", "c", code=Exit.NOT_FOUND)
        kv("put", "", "x", code=Exit.FAILED)
        kv("get", "a", "--group", "7", code=Exit.FAILED)
        watched = runner.invoke(kv_app, ["watch", "--count", "2", *at[:2]])
        assert watched.output.splitlines() == ["1\tput\ta\t1", "2\tput\tb\t2"]
        status = runner.invoke(cluster_app, ["status", "--admin", str(cluster.admin(1)), "--json"])
        assert status.exit_code == 0
        (node,) = json.loads(status.output)["nodes"]
        assert node["groups"][0]["role"] == "Leader"
        shown = runner.invoke(cluster_app, ["status", "--data", str(tmp_path / "c")])
        assert shown.exit_code == 0
