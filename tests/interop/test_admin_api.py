"""The admin API on real nodes: any node takes a call, the log decides it, TLS says who called."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from typer.testing import CliRunner

from clustor.runtime.admin.caller import Credentials
from clustor.runtime.audit.writer import AUDIT_DIRECTORY
from clustor.runtime.cluster_file import CLUSTER_FILE, encode_cluster_file
from clustor.runtime.control.records import operator_of
from clustor.runtime.development import node_directory, prepare_cluster
from clustor.runtime.kv.client import KvClient, KvUnavailable
from clustor.runtime.peers.transport import Address
from clustor.runtime.pki.certificate_files import load_certificate
from clustor.runtime.pki.identity import (
    AUTHORITY_FILE,
    PKI_DIRECTORY,
    NodeId,
    cluster_id,
    create_authority,
    issue_certificate,
    load_authority,
    utc_now,
)
from quantum.cli import audit, kv
from quantum.cli import cluster as cluster_cli
from quantum.cli.admin_api import AdminApi, Told
from quantum.cli.admin_client import AdminUnreachable, fetch_status
from tests.clustor.runtime.waiting import free_base_port
from tests.interop.cluster_process import PATIENT, ClusterProcess

DEADLINE_SECONDS = 180.0
ONE = NodeId(1)
CLUSTER = cluster_id("dev")


def served(api: AdminApi) -> bool:
    try:
        return api.ask("GET", "/v1/cluster/state").code == 200
    except AdminUnreachable:
        return False


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    data = tmp_path_factory.mktemp("admin") / "var"
    with ClusterProcess(data, patience=PATIENT) as found:
        for node in (1, 2, 3):
            found.until(lambda node=node: served(AdminApi(found.admin(node))), "the API")  # type: ignore[misc]
        yield found


def insist(api: AdminApi, method: str, path: str, body: object = None, key: str = "") -> Told:
    """Ask until it is decided: a key makes it the same call however often it is made.

    408: this process itself stood still between the head of its request and the body.
    """
    deadline = time.monotonic() + DEADLINE_SECONDS
    call = hashlib.blake2b(f"{method} {path} {body}".encode(), digest_size=8).hexdigest()
    headers = {} if method == "GET" else {"Idempotency-Key": key or call}
    while time.monotonic() < deadline:
        with suppress(AdminUnreachable):
            told = api.ask(method, path, body=body, headers=headers)
            if told.code not in (408, 429, 503, 504):
                return told
        time.sleep(0.05)
    raise AssertionError(f"never decided: {method} {path}")


def apis(cluster: ClusterProcess) -> list[AdminApi]:
    return [AdminApi(address) for address in cluster.admins()]


def test_any_node_takes_a_call_and_every_node_shows_it_at_once(cluster: ClusterProcess) -> None:
    for number, api in enumerate(apis(cluster), 1):
        body = {"tenant_id": f"t{number}", "sni": f"t{number}.example.com"}
        told = insist(api, "POST", "/v1/tenants", body)
        assert told.code == 200, told.body
        for other in apis(cluster):
            shown = insist(other, "GET", f"/v1/tenants/t{number}")
            assert (shown.code, shown.body["tenant"]["sni"]) == (200, body["sni"])
    states = [insist(api, "GET", "/v1/cluster/state").body for api in apis(cluster)]
    assert {state["access"]["identity"] for state in states} == {operator_of(CLUSTER).identity}
    assert all(state["access"]["development"] for state in states)

    def recorded() -> bool:
        """Who leads the control plane writes down what the files say, one call behind another."""
        found = [insist(api, "GET", "/v1/cluster/state").body["nodes"] for api in apis(cluster)]
        return [[node["node_id"] for node in nodes] for nodes in found] == [["1", "2", "3"]] * 3

    cluster.until(recorded, "all nodes are recorded, and every node says so")


def test_the_trail_of_calls_is_the_same_on_every_node(cluster: ClusterProcess) -> None:
    first = apis(cluster)[0]
    told = insist(first, "POST", "/v1/nodes/9/drain", {"draining": True})
    assert (told.code, told.body["error"]) == (404, "NotFound")
    trails: list[Any] = []

    def alike() -> bool:
        """The nodes themselves make calls, too, perhaps between two of ours."""
        trails.clear()
        for api in apis(cluster):
            page = insist(api, "GET", "/v1/audit?limit=50").body["items"]
            trails.append([(row["sequence"], row["kind"], row["outcome"]) for row in page])
        return bool(trails[0] == trails[1] == trails[2])

    cluster.until(alike, "the same trail everywhere")
    assert ("DrainNode", "NotFound") in {row[1:] for row in trails[0]}


def test_every_node_says_why_its_replica_does_not_lead(cluster: ClusterProcess) -> None:
    path = "/v1/groups/1/why/WhyNotLeader"

    def said() -> bool:
        """A node that has just started opens its groups one behind the other."""
        return [insist(api, "GET", path).code for api in apis(cluster)] == [200, 200, 200]

    cluster.until(said, "every node has the group")
    assert all(insist(api, "GET", path).body["answer"] for api in apis(cluster))

    def placed() -> bool:
        shown = insist(apis(cluster)[0], "GET", "/v1/groups/1").body
        assert shown["local"]["partition_id"] == "1"
        placement = shown["placement"]
        return placement is not None and placement["members"]["voters"] == ["1", "2", "3"]

    cluster.until(placed, "its placement is recorded")


def test_a_call_survives_the_leaders_death_and_is_carried_out_once(cluster: ClusterProcess) -> None:
    leaders: list[int] = []

    def led() -> bool:
        status = fetch_status(cluster.admin(1))
        leaders[:] = {status["control"]["group"]["leader_id"]} - {None}
        return bool(leaders)

    cluster.until(led, "the control plane has a leader")
    survivor = next(node for node in (1, 2, 3) if node != leaders[0])
    body = {"tenant_id": "late", "sni": "late.example.com"}
    key = "across-the-death"
    cluster.kill(leaders[0])
    told = insist(AdminApi(cluster.admin(survivor)), "POST", "/v1/tenants", body, key)
    assert told.code == 200, told.body
    cluster.until(lambda: served(AdminApi(cluster.admin(leaders[0]))), "the node is back")
    for each in apis(cluster):
        assert insist(each, "POST", "/v1/tenants", body, key).body == told.body


class TlsNode:
    """One node whose admin port asks for certificates."""

    def __init__(self, root: Path) -> None:
        self._root = root
        made = prepare_cluster(
            root, CLUSTER, nodes=1, base_port=free_base_port(1), groups=1, now=utc_now()
        )
        asks = msgspec.structs.replace(made, admin_tls=True)
        (root / CLUSTER_FILE).write_bytes(encode_cluster_file(asks))
        self.admin: Address = made.node(ONE).admin
        self.authority = root / PKI_DIRECTORY / AUTHORITY_FILE

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "quantum.admin.main", "--node", "1"]
        command += ["--cluster", str(self._root / CLUSTER_FILE)]
        command += ["--data", str(node_directory(self._root, ONE))]
        with (self._root / "node-1.log").open("ab") as output:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def issue(self, identity: str) -> Path:
        issued = issue_certificate(
            load_authority(self._root / PKI_DIRECTORY, CLUSTER),
            identity.rpartition("/")[2],
            [x509.UniformResourceIdentifier(identity)],
            [ExtendedKeyUsageOID.CLIENT_AUTH],
            now=utc_now(),
            lifetime=timedelta(hours=1),
        )
        file = self._root / f"{identity.rpartition('/')[2]}.pem"
        file.write_bytes(issued.certificate_pem + issued.key_pem)
        return file

    def api(self, certificate: Path | None) -> AdminApi:
        return AdminApi(self.admin, Credentials(certificate, None, self.authority))


def _listed(place: TlsNode) -> str:
    """Run `nodes list` as the operator, until the node has answered with what it wrote down."""
    command = [sys.executable, "-c", "from quantum.cli.admin import app; app()"]
    command += ["nodes", "list", "--json", "--admin", str(place.admin)]
    command += ["--cert", str(place._root / "operator.pem"), "--ca", str(place.authority)]
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        said = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
        if said.returncode == 0 and msgspec.json.decode(said.stdout)["items"]:
            return said.stdout
        assert time.monotonic() < deadline, said.stdout + said.stderr


def test_a_node_under_tls_knows_its_callers_by_their_certificates(tmp_path: Path) -> None:
    place = TlsNode(tmp_path / "var")
    operator = place.api(place.issue(operator_of(CLUSTER).identity))
    stranger, nobody = place.api(place.issue("spiffe://dev/stranger")), place.api(None)
    process = place.start()
    try:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not served(operator):
            assert process.poll() is None
            assert time.monotonic() < deadline, (tmp_path / "var" / "node-1.log").read_text()
            time.sleep(0.02)
        state = insist(operator, "GET", "/v1/cluster/state").body
        assert state["access"]["development"] is False
        assert insist(nobody, "GET", "/v1/nodes").code == 401
        assert insist(nobody, "GET", "/status").code == 401
        assert insist(stranger, "GET", "/v1/nodes").code == 403
        assert insist(stranger, "POST", "/reload", {}).code == 403
        assert insist(operator, "GET", "/status").code == 200
        refusals = insist(operator, "GET", "/v1/audit/refusals").body["items"]
        assert {row["error"] for row in refusals} == {"NoCertificate", "Unauthorized"}
        kept = node_directory(tmp_path / "var", ONE) / AUDIT_DIRECTORY
        listed = _listed(place)
        assert msgspec.json.decode(listed)["items"][0]["node_id"] == "1"
    finally:
        process.terminate()
        process.wait(DEADLINE_SECONDS)
    signed = b"".join(file.read_bytes() for file in kept.rglob("*") if file.is_file())
    assert b"AdminRequestRefused" in signed
    assert b"spiffe://dev/stranger" in signed


def run(tree: typer.Typer, *arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(tree, [str(each) for each in arguments])
    return result.exit_code, result.output


def expect(code: int, words: str, tree: typer.Typer, *arguments: object) -> None:
    """Run a command until it ends so: a node may not answer within the two seconds of a call."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        found, output = run(tree, *arguments)
        if found == code and words in output:
            return
        assert time.monotonic() < deadline, (found, output)


async def test_commands_and_streams_under_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = TlsNode(tmp_path / "var")
    pem = place.issue(operator_of(CLUSTER).identity)
    operator = place.api(pem)
    process = place.start()
    try:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not served(operator):
            assert process.poll() is None
            assert time.monotonic() < deadline, (tmp_path / "var" / "node-1.log").read_text()
            await asyncio.sleep(0.02)
        await asyncio.to_thread(_check_commands, place, pem, tmp_path, monkeypatch)
        await _check_stream(place, pem.rename(tmp_path / "first.pem"))
    finally:
        process.terminate()
        process.wait(DEADLINE_SECONDS)
    where = node_directory(tmp_path / "var", ONE)
    assert "REVOKED" in run(audit.app, "show", where, "--what", "AdminConnectionEnded")[1]


def _check_commands(
    place: TlsNode, pem: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_operator = ("--cert", pem, "--ca", place.authority)
    asks = ("status", "--admin", place.admin)
    wants = "wants TLS: give --cert and --ca"
    expect(9, wants, cluster_cli.app, *asks)
    expect(9, wants, kv.app, "get", "colour", "--cluster", place.admin, "--timeout", 2)
    stranger = create_authority(tmp_path / "elsewhere", CLUSTER, utc_now())
    assert stranger.certificate is not None
    elsewhere = tmp_path / "elsewhere" / AUTHORITY_FILE
    expect(9, "is not believed", cluster_cli.app, *asks, "--ca", elsewhere)
    missing = tmp_path / "missing.pem"
    expect(9, "cannot use these credentials", cluster_cli.app, *asks, "--ca", missing)
    expect(0, "", cluster_cli.app, *asks, *as_operator)
    spoken = ("colour", "--cluster", place.admin, *as_operator)
    expect(0, "", kv.app, "put", *spoken, "blue")
    expect(0, "blue\n", kv.app, "get", *spoken)
    monkeypatch.setenv("QUANTUM_CERT", str(pem))
    monkeypatch.setenv("QUANTUM_CA", str(place.authority))
    expect(0, "", cluster_cli.app, *asks)
    monkeypatch.delenv("QUANTUM_CERT")
    monkeypatch.delenv("QUANTUM_CA")
    monkeypatch.setenv("QUANTUM_DATA", str(place._root))
    expect(9, "the caller showed no certificate", cluster_cli.app, *asks)
    beside = place._root / PKI_DIRECTORY / "operator-ada.pem"
    beside.write_bytes(pem.read_bytes())
    expect(0, "", cluster_cli.app, *asks)
    beside.with_name("operator-bob.pem").write_bytes(pem.read_bytes())
    expect(9, "more than one certificate is there", cluster_cli.app, *asks)


async def _check_stream(place: TlsNode, pem: Path) -> None:
    """A stream of a certificate that the control plane revokes ends; others go on."""
    second = place.issue(operator_of(CLUSTER).identity)
    tls = Credentials(pem, None, place.authority).context()
    other = Credentials(second, None, place.authority).context()
    async with (
        KvClient([place.admin], tls=tls, timeout_seconds=180) as goes,
        KvClient([place.admin], tls=other, timeout_seconds=180) as stays,
    ):
        await goes.put(b"a", b"1")
        await stays.put(b"b", b"2")
        opened = stays.links_opened
        serial = f"{load_certificate(pem).serial_number:x}"
        body = {"expected_version": 0, "roots": [], "revoked": [serial]}
        told = await asyncio.to_thread(
            insist, place.api(second), "PUT", "/v1/certificates/cluster", body
        )
        assert told.code == 200, told.body
        deadline = time.monotonic() + DEADLINE_SECONDS
        while goes.is_connected:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        assert stays.is_connected
        await stays.put(b"b", b"3")
        assert stays.links_opened == opened
    async with KvClient([place.admin], tls=tls, timeout_seconds=4.0) as comes_again:
        with pytest.raises(KvUnavailable):
            await comes_again.put(b"a", b"4")
