"""Nodes bring their audit logs to an S3 endpoint, over kill -9, and one command proves it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import msgspec
import pytest
from typer.testing import CliRunner, Result

from clustor.runtime.audit_writer import AUDIT_DIRECTORY
from clustor.runtime.cluster_file import CLUSTER_FILE, encode_cluster_file
from clustor.runtime.development import node_directory, prepare_cluster
from clustor.runtime.disk import DirectoryStorage
from clustor.runtime.pki import NodeId, cluster_id, utc_now
from clustor.security import AuditReader, AuditTruncated, read_anchor
from quantum.archive import archived_lines, archived_logs, open_objects
from quantum.cli import audit
from quantum.cli.admin_client import fetch
from quantum.serving.broker_file import BROKER_FILE, ArchiveEntry, BrokerFile
from tests.interop.cluster_process import PATIENT, ClusterProcess
from tests.interop.test_telemetry import metrics
from tests.slipstream.servers import S3Server

NODES = (1, 2, 3)


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = S3Server()
    with urlopen(Request(f"{server.url}/archive", method="PUT")) as answer:
        assert answer.status == 200
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    yield "s3://archive/of/a/cluster"
    server.stop()


def describe(data: Path, archive: str, base_port: int) -> None:
    """Describe a cluster that has no partitions, and an archive for its audit logs."""
    now = utc_now()
    made = prepare_cluster(data, cluster_id("dev"), nodes=3, base_port=base_port, groups=1, now=now)
    patient = msgspec.structs.replace(made, patience=PATIENT)
    (data / CLUSTER_FILE).write_bytes(encode_cluster_file(patient))
    described = BrokerFile((), archive=ArchiveEntry(archive, flush_seconds=0.2))
    (data / BROKER_FILE).write_bytes(msgspec.json.encode(described))


def run(*arguments: object) -> Result:
    return CliRunner().invoke(audit.app, [str(each) for each in arguments])


def anchored(data: Path, node: int) -> int:
    """Return the newest signed and durable line of a node."""
    try:
        storage = DirectoryStorage(node_directory(data, NodeId(node)) / AUDIT_DIRECTORY)
    except FileNotFoundError:
        return 0
    try:
        return read_anchor(storage).sequence
    except AuditTruncated:
        return 0  # it is being made
    finally:
        storage.close()


def lines_of(data: Path, node: int) -> list[bytes]:
    storage = DirectoryStorage(node_directory(data, NodeId(node)) / AUDIT_DIRECTORY)
    try:
        return list(AuditReader(storage).lines())
    finally:
        storage.close()


def wait_for_export(cluster: ClusterProcess, above: dict[int, int]) -> dict[int, int]:
    """Return what each node has signed above a line, once it is in the archive."""
    wanted = dict.fromkeys(NODES, 0)

    def exported(node: int) -> bool:
        wanted[node] = wanted[node] or anchored(cluster.data, node)
        if wanted[node] <= above[node]:
            wanted[node] = 0
            return False
        code, page = fetch(cluster.admin(node), "/broker/archive")
        return code == 200 and bool(page["audit"]["exported_sequence"] >= wanted[node])

    cluster.until(lambda: all(map(exported, NODES)), "every log is in the archive")
    return wanted


def test_the_audit_log_of_a_killed_node_is_whole_in_s3_and_one_command_proves_it(
    tmp_path: Path, s3: str
) -> None:
    data = tmp_path / "var"
    cluster = ClusterProcess(data)
    describe(data, s3, cluster.base_port)
    with cluster:
        nothing = dict.fromkeys(NODES, 0)
        before = wait_for_export(cluster, nothing)
        cluster.kill(2)
        wanted = wait_for_export(cluster, nothing | {2: before[2]})
        assert metrics(cluster, 2)["quantum_audit_exported_sequence", ()] >= wanted[2]
        assert metrics(cluster, 2)["quantum_audit_export_failing", ()] == 0
    proven = run("verify", s3, "--keys", data, "--json")
    assert proven.exit_code == 0, proven.output
    found = {each["node"]: each for each in map(json.loads, proven.output.splitlines())}
    assert sorted(found) == list(NODES)
    objects = open_objects(s3)
    for log in archived_logs(objects):
        copied, written = list(archived_lines(objects, log)), lines_of(data, log.node)
        assert len(copied) >= wanted[log.node] and copied == written[: len(copied)], log
        lives = 2 if log.node == 2 else 1
        assert sum(b'"what":"NodeStarted"' in line for line in copied) == lives, log
    assert "NodeStarted" in run("show", s3).output
    keys = node_directory(data, NodeId(2)) / "keys" / "audit-keys.json"
    assert run("verify", s3, "--keys", keys).exit_code == 4, "node 2's key is not node 1's"
