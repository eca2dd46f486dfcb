"""Nodes bring their audit logs to an S3 endpoint, over kill -9, and one command proves it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import msgspec
import pytest
from typer.testing import CliRunner, Result

from clustor.runtime.audit.writer import AUDIT_DIRECTORY
from clustor.runtime.cluster_file import CLUSTER_FILE, encode_cluster_file
from clustor.runtime.development import node_directory, prepare_cluster
from clustor.runtime.disk import DirectoryStorage
from clustor.runtime.pki.identity import NodeId, cluster_id, utc_now
from clustor.security import AuditReader
from quantum.archive import archived_lines, archived_logs, open_objects
from quantum.cli import audit
from quantum.tenants.broker_file import BROKER_FILE, ArchiveEntry, BrokerFile
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


def lines_of(data: Path, node: int) -> list[bytes]:
    storage = DirectoryStorage(node_directory(data, NodeId(node)) / AUDIT_DIRECTORY)
    try:
        return list(AuditReader(storage).lines())
    finally:
        storage.close()


def starts(lines: Iterable[bytes]) -> int:
    """Count in how many lives a node wrote these lines."""
    return sum(b'"what":"NodeStarted"' in line for line in lines)


def wait_for_export(cluster: ClusterProcess, s3: str, lives: dict[int, int]) -> None:
    """Return once the archive has a line of each life of each node."""
    objects = open_objects(s3)

    def exported() -> bool:
        logs = archived_logs(objects)
        return {log.node: starts(archived_lines(objects, log)) for log in logs} == lives

    cluster.until(exported, f"the archive has {lives}")


def wait_until_told(cluster: ClusterProcess) -> float:
    """Return how far node 2 says that it is, once it says so and that nothing is in its way."""
    found: list[float] = []

    def told() -> bool:
        shown = metrics(cluster, 2)
        found.append(float(shown.get(("quantum_audit_exported_sequence", ()), 0)))
        return found[-1] > 0 and shown.get(("quantum_audit_export_failing", ())) == 0

    cluster.until(told, "node 2 tells how far it is")
    return found[-1]


def test_the_audit_log_of_a_killed_node_is_whole_in_s3_and_one_command_proves_it(
    tmp_path: Path, s3: str
) -> None:
    data = tmp_path / "var"
    cluster = ClusterProcess(data)
    describe(data, s3, cluster.base_port)
    with cluster:
        lives = dict.fromkeys(NODES, 1)
        wait_for_export(cluster, s3, lives)
        cluster.kill(2)
        lives[2] += 1
        wait_for_export(cluster, s3, lives)
        exported = wait_until_told(cluster)
    proven = run("verify", s3, "--keys", data, "--json")
    assert proven.exit_code == 0, proven.output
    found = {each["node"]: each for each in map(json.loads, proven.output.splitlines())}
    assert sorted(found) == list(NODES)
    objects = open_objects(s3)
    for log in archived_logs(objects):
        copied, written = list(archived_lines(objects, log)), lines_of(data, log.node)
        assert copied == written[: len(copied)] and starts(copied) == lives[log.node], log
        assert log.node != 2 or len(copied) >= exported
    assert "NodeStarted" in run("show", s3).output
    keys = node_directory(data, NodeId(2)) / "keys" / "audit-keys.json"
    assert run("verify", s3, "--keys", keys).exit_code == 4, "node 2's key is not node 1's"
