"""Who is believed no more on a real cluster: shown out wherever he is, refused when he returns."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from clustor.runtime.development import node_directory
from clustor.runtime.kv.client import KvClient
from clustor.runtime.pki.certificate_files import load_certificate
from clustor.runtime.pki.identity import CERTIFICATE_FILE, NodeId, utc_now
from quantum.cli import audit, cert
from quantum.edge.tls_development import ClientFiles, issue_client
from tests.interop.cluster_process import PATIENT, ClusterProcess
from tests.interop.stock_client import Opening, Refused, StockClient, Will, Wish
from tests.interop.stock_paho import Paho
from tests.interop.test_rotation import (
    MQTTS_ROLE,
    NODES,
    PEER_ROLE,
    more,
    quantum,
    said,
    sockets_at,
    until,
    until_said,
    write,
)

NOT_AUTHORIZED = 0x87
REFUSED_FOR = "ClientAuthorityGone"


def door(cluster: ClusterProcess, node: int) -> int:
    return cluster.base_port + 10 * node + MQTTS_ROLE


async def opened(
    cluster: ClusterProcess, node: int, identity: ClientFiles, name: str, version: int = 5
) -> StockClient:
    will = Will(f"wills/{name}", b"gone")
    opening = Opening(name, door(cluster, node), version, identity=identity, will=will)
    async with asyncio.timeout(180):
        while True:
            try:
                return await Paho().open(opening)
            except (Refused, OSError):
                await asyncio.sleep(0.1)


def verified(data: Path) -> None:
    for node in NODES:
        code, output = quantum(audit.app, "verify", node_directory(data, NodeId(node)), "--json")
        assert code == 0, output


async def test_a_revoked_client_is_shown_out_on_whatever_node_it_is(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ClusterProcess(data, tenant_prgs=1, patience=PATIENT) as cluster:
        await until(lambda: cluster.leader() is not None, "a leader", cluster)
        thief = issue_client(data, "lamp", utc_now(), out=tmp_path / "stolen")
        honest = issue_client(data, "honest", utc_now())
        watcher = await opened(cluster, 1, honest, "watcher")
        await watcher.subscribe(Wish("wills/#", 1))
        thieves = [await opened(cluster, node, thief, f"thief-{node}") for node in NODES]
        old = await opened(cluster, 2, thief, "thief-311", version=4)
        code, output = quantum(
            cert.app, "revoke", "lamp", "--data", data, "--file", thief.certificate
        )
        assert code == 0, output
        for stolen in (*thieves, old):
            await stolen.wait_ended()
        assert [stolen.end_reason for stolen in thieves] == [NOT_AUTHORIZED] * 3
        for node in NODES:
            with pytest.raises((Refused, OSError, TimeoutError)):
                await Paho().open(Opening("thief-1", door(cluster, node), identity=thief))
        await watcher.publish("wills/marker", b"marker", 1)
        assert await watcher.take_until(b"marker") == []  # none of their wills was said
        assert not watcher.ended.is_set()
        await watcher.close()
    for node in NODES:
        where = node_directory(data, NodeId(node))
        shown = quantum(audit.app, "show", where, "--what", "ClientCertificateRevoked")[1]
        assert shown.count("its certificate was revoked") >= 2, (node, shown)
    verified(data)


async def test_a_new_authority_takes_over_under_writes(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ClusterProcess(data, tenant_prgs=1, patience=PATIENT) as cluster:
        await until(lambda: cluster.leader() is not None, "a leader", cluster)
        peers = {cluster.base_port + 10 * node + PEER_ROLE for node in NODES}
        await until(lambda: len(sockets_at(peers)) == 6, "all nodes are connected", cluster)
        files = issue_client(data, "old", utc_now())
        await opened(cluster, 1, files, "old")
        client = KvClient(cluster.admins(), timeout_seconds=180)
        acknowledged: dict[bytes, bytes] = {}
        stop = asyncio.Event()
        writing = asyncio.create_task(write(client, acknowledged, stop))
        await more(acknowledged, 20)
        doors = {door(cluster, node) for node in NODES}
        await until(lambda: len(sockets_at(peers | doors)) == 7, "and nobody else is", cluster)
        before = sockets_at(peers | doors)
        for turn, step in enumerate(("begin", "switch"), 1):
            code, output = quantum(cert.app, "rollover", step, "--data", data)
            assert code == 0, output
            for line in ("for connections to come", "for clients to come"):
                await until_said(line, turn, cluster)
            await more(acknowledged, 20)
        assert sockets_at(peers | doors) == before  # nobody had to go
        fresh = issue_client(data, "new", utc_now())
        await opened(cluster, 2, fresh, "new")
        starts = await asyncio.to_thread(cluster.started, 3)
        cluster.kill(3)
        await until(lambda: cluster.starts[3] > starts, "it is started again", cluster)
        await until(lambda: cluster.caught_up(3), "both authorities are believed", cluster)
        # One at each door: the lines between nodes go too, and then who is relayed is let go
        # without a reason. Whoever came to the node that leads its session is given it.
        olds = [await opened(cluster, node, files, f"old {node}") for node in NODES]
        code, output = quantum(cert.app, "rollover", "finish", "--data", data)
        assert code == 1 and "old" in output
        code, output = quantum(cert.app, "rollover", "finish", "--data", data, "--force")
        assert code == 0, output
        for old in olds:
            await old.wait_ended()
        await until(lambda: len(sockets_at(peers) - before) == 6, "new lines for all", cluster)
        await more(acknowledged, 20)
        # Who is relayed over a line between nodes that had to end has to come again.
        new = await opened(cluster, 2, fresh, "new again")
        await new.subscribe(Wish("news", 1))
        await new.publish("news", b"still here", 1)
        assert [got.payload for got in await new.take()] == [b"still here"]
        stop.set()
        await writing
        records = await asyncio.gather(*map(client.get, acknowledged))
        assert [record and record.value for record in records] == list(acknowledged)
        client.close()
        await new.close()
        signer = {
            load_certificate(node_directory(data, NodeId(node)) / "pki" / CERTIFICATE_FILE).issuer
            for node in NODES
        }
        assert len(signer) == 1 and "authority 2" in str(signer.pop())
        assert said(cluster, "quarantine") == [0, 0, 0]
    shown = [
        quantum(audit.app, "show", node_directory(data, NodeId(node)), "--what", REFUSED_FOR)[1]
        for node in NODES
    ]
    assert any("trusted no more" in audit_of_node for audit_of_node in shown), shown
    verified(data)
