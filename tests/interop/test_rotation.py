"""Certificates of a running cluster are replaced under writes: nobody notices."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import typer
from cryptography import x509
from typer.testing import CliRunner

from clustor.runtime.development import node_directory
from clustor.runtime.keys.epochs_in_use import epochs_in_use
from clustor.runtime.kv.client import KvClient, KvUnavailable
from clustor.runtime.pki.certificate_files import load_certificate
from clustor.runtime.pki.identity import CERTIFICATE_FILE, NodeId, client_context, utc_now
from quantum.cli import audit, cert, keys
from quantum.edge.tls_development import ClientFiles, issue_client, pki_directory
from tests.interop.cluster_process import PATIENT, ClusterProcess
from tests.interop.stock_client import Opening, Refused, StockClient, Wish
from tests.interop.stock_paho import Paho

PEER_ROLE, MQTTS_ROLE = 0, 3
ESTABLISHED = "01"
NODES = (1, 2, 3)
RENEWED = ("for connections to come", "for clients to come")


def quantum(tree: typer.Typer, *arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(tree, [str(each) for each in arguments])
    return result.exit_code, result.output


def sockets_at(ports: set[int]) -> set[tuple[str, str]]:
    """Return both ends of every open connection to these ports, as the kernel lists them."""
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state = line.split()[:4]
        if state == ESTABLISHED and int(remote.rpartition(":")[2], 16) in ports:
            found.add((local, remote))
    return found


def shown_at(port: int, context: ssl.SSLContext) -> int:
    """Shake hands, and return the number of the certificate that was shown."""
    with (
        socket.create_connection(("127.0.0.1", port), 60) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secured,
    ):
        shown = secured.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number


async def write(client: KvClient, acknowledged: dict[bytes, bytes], stop: asyncio.Event) -> None:
    for number in itertools.count():
        if stop.is_set():
            return
        key = b"key-%d" % number
        with suppress(KvUnavailable):  # when its node is killed at the end, and not before
            await client.put(key, key)
            acknowledged[key] = key


async def more(acknowledged: dict[bytes, bytes], count: int) -> None:
    wanted = len(acknowledged) + count
    async with asyncio.timeout(180):
        while len(acknowledged) < wanted:
            await asyncio.sleep(0.01)


def said(cluster: ClusterProcess, line: str) -> list[int]:
    """Return how often each node said it."""
    return [
        (cluster.data / f"node-{node}.log").read_text(errors="replace").count(line)
        for node in NODES
    ]


async def until(condition: Callable[[], bool], what: str, cluster: ClusterProcess) -> None:
    await asyncio.to_thread(cluster.until, condition, what)


async def until_said(line: str, times: int, cluster: ClusterProcess) -> None:
    """Wait for every node: one that looks between two files says it twice."""
    await until(lambda: min(said(cluster, line)) >= times, line, cluster)


async def test_all_certificates_are_replaced_under_writes_and_no_connection_ends(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    with ClusterProcess(data, tenant_prgs=1, patience=PATIENT) as cluster:
        await until(lambda: cluster.leader() is not None, "a leader", cluster)
        mqtts = cluster.base_port + 10 + MQTTS_ROLE
        peers = {cluster.base_port + 10 * node + PEER_ROLE for node in NODES}
        await until(lambda: len(sockets_at(peers)) == 6, "all nodes are connected", cluster)
        identity = issue_client(data, "lamp", utc_now())
        stock = await _connected(mqtts, identity)
        await stock.subscribe(Wish("news", 1))
        clients = KvClient(cluster.admins(), timeout_seconds=180)
        acknowledged: dict[bytes, bytes] = {}
        stop = asyncio.Event()
        writing = asyncio.create_task(write(clients, acknowledged, stop))
        await more(acknowledged, 50)
        await until(lambda: len(sockets_at(peers | {mqtts})) == 7, "and nobody else is", cluster)
        before = sockets_at(peers | {mqtts})
        for turn in (1, 2):
            code, output = quantum(cert.app, "rotate", "--data", data, "--json")
            assert code == 0 and len(json.loads(output)["not_after"]) == 4, output
            for line in RENEWED:
                await until_said(line, turn, cluster)
            await more(acknowledged, 50)
        assert sockets_at(peers | {mqtts}) == before
        assert acknowledged.keys() == {b"key-%d" % number for number in range(len(acknowledged))}
        await stock.publish("news", b"still here", 1)
        assert [got.payload for got in await stock.take()] == [b"still here"]

        def renewed() -> bool:
            with suppress(OSError):  # a door that is busy is asked again
                return is_shown(data, cluster, mqtts, identity)
            return False

        await until(renewed, "every door shows its newest certificate", cluster)
        starts = await asyncio.to_thread(cluster.started, 2)
        cluster.kill(2)
        await until(lambda: cluster.starts[2] > starts, "it is started again", cluster)
        await until(lambda: cluster.caught_up(2), "it is believed, and caught up", cluster)
        stop.set()
        await writing
        records = await asyncio.gather(*map(clients.get, acknowledged))
        assert [record and record.value for record in records] == list(acknowledged)
        await stock.close()
        clients.close()
    for node in NODES:
        code, output = quantum(audit.app, "verify", node_directory(data, NodeId(node)), "--json")
        assert code == 0, output
        _, shown = quantum(
            audit.app, "show", node_directory(data, NodeId(node)), "--what", "CertificateRenewed"
        )
        assert len(shown.splitlines()) >= 2
    assert "CertificateRotated" in quantum(audit.app, "show", data)[1]


async def _connected(port: int, identity: ClientFiles) -> StockClient:
    async with asyncio.timeout(180):
        while True:
            with suppress(Refused, OSError):
                return await Paho().open(Opening("lamp", port, identity=identity))
            await asyncio.sleep(0.1)


async def _refused(opening: Opening, log: Path) -> None:
    """Come until the node says that it refuses a certificate that was revoked."""
    async with asyncio.timeout(180):
        while "was revoked" not in log.read_text():
            with suppress(Refused, OSError):
                await (await Paho().open(opening)).close()
            await asyncio.sleep(0.05)


def is_shown(data: Path, cluster: ClusterProcess, mqtts: int, identity: ClientFiles) -> bool:
    """Say whether each door shows the certificate that its file holds; it looks once a second."""
    shown, current = [], []
    for node in NODES:
        pki = node_directory(data, NodeId(node)) / "pki"
        other = node_directory(data, NodeId(node % 3 + 1)) / "pki"
        port = cluster.base_port + 10 * node + PEER_ROLE
        current.append(load_certificate(pki / CERTIFICATE_FILE).serial_number)
        shown.append(shown_at(port, client_context(other)))
    context = ssl.create_default_context(cafile=str(identity.authority))
    context.load_cert_chain(identity.certificate, identity.key)
    current.append(load_certificate(pki_directory(data) / "server.pem").serial_number)
    shown.append(shown_at(mqtts, context))
    return shown == current


async def test_a_revoked_client_is_refused_at_the_door_and_its_new_certificate_is_not(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    with ClusterProcess(data, nodes=1, tenant_prgs=1) as cluster:
        await until(lambda: cluster.leader() is not None, "a leader", cluster)
        mqtts = cluster.base_port + 10 + MQTTS_ROLE
        thief = issue_client(data, "lamp", utc_now(), out=tmp_path / "stolen")
        stock = await _connected(mqtts, thief)
        await stock.close()
        code, output = quantum(
            cert.app, "revoke", "lamp", "--data", data, "--file", thief.certificate
        )
        assert code == 0, output
        log = data / "node-1.log"
        await until(lambda: RENEWED[1] in log.read_text(), "the list is in force", cluster)
        # The line may be of an earlier look at these files: the refusal itself says that it is so.
        await _refused(Opening("lamp", mqtts, identity=thief), log)
        with pytest.raises((Refused, OSError, TimeoutError)):
            await Paho().open(Opening("lamp", mqtts, identity=thief))
        owner = issue_client(data, "lamp", utc_now())
        stock = await _connected(mqtts, owner)
        await stock.publish("hello", b"mine", 1)
        await stock.close()
    shown = quantum(audit.app, "show", data / "node-1", "--what", "ClientCertificateRevoked")[1]
    assert shown.count("its certificate was revoked") >= 1


async def test_a_new_data_key_under_writes_and_a_node_that_starts_again(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ClusterProcess(data, patience=PATIENT) as cluster:
        await until(lambda: cluster.leader() is not None, "a leader", cluster)
        client = KvClient(cluster.admins(), timeout_seconds=180)
        acknowledged: dict[bytes, bytes] = {}
        stop = asyncio.Event()
        writing = asyncio.create_task(write(client, acknowledged, stop))
        await more(acknowledged, 50)
        code, output = quantum(keys.app, "rotate", "--data", data, "--activate-after", 3)
        assert code == 0, output
        await until_said("KeyActivated: DEK epoch 2", 1, cluster)
        await more(acknowledged, 50)
        await until(lambda: all(map(_writes_with_two, _states(data))), "new segments", cluster)
        starts = await asyncio.to_thread(cluster.started, 3)
        cluster.kill(3)
        await until(lambda: cluster.starts[3] > starts, "it is started again", cluster)
        await until(lambda: cluster.caught_up(3), "it has both keys", cluster)
        stop.set()
        await writing
        records = await asyncio.gather(*map(client.get, acknowledged))
        assert [record and record.value for record in records] == list(acknowledged)
        client.close()
    listed = json.loads(quantum(keys.app, "list", "--data", data, "--json")[1])
    for rows in listed.values():
        deks = {row["epoch"]: row["state"] for row in rows if row["use"] == "DataEncryptionKey"}
        assert deks == {1: "DecryptOnly", 2: "Active"}


def _states(data: Path) -> list[Path]:
    return [node_directory(data, NodeId(node)) / "state" for node in NODES]


def _writes_with_two(state: Path) -> bool:
    return 2 in epochs_in_use(state)
